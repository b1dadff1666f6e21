//! Random histories of GCRA limiters: the scripts against the pure functions of
//! `algorithm/gcra.rs`, by a clock that is moved.
//!
//! That clock tells milliseconds. By the server's, which tells microseconds, each step is held against what it says of
//! itself: see the end.

use proptest::{prelude::*, sample::Index};
use redis::{Connection, Value};

use super::{
    pair::{CLIENT, START},
    support::{RedisServer, unique},
};
use crate::store::redis::wire::{
    self,
    arguments::{Arguments, Word},
    gcra as format,
    gcra::Lone,
    script::{Script, Verbs, gcra, is_unknown_script},
};
use crate::{
    algorithm::{
        answer::{Answer, Changed, Verdict},
        call::{self, Counts, Terms},
        gcra::{Limiter, Pace, State},
    },
    clock::{Millis, Now},
    demand::{Acquire, Charge, Labels},
    error::ErrorKind,
    limit::{Algorithm, Limit, LimitSource, RateType, StoredLimit},
    name::Name,
    receipt::{PermitId, Taken, Tat},
};

#[derive(Clone, Debug)]
enum Step {
    Acquire {
        callers: Vec<(u32, bool)>,
        source: Source,
        rewrite: bool,
    },
    /// By the script that looks at no limit
    Lone(u32, Choice),
    Advance(i64),
    SetRate {
        choice: Choice,
        keep: bool,
        existing: bool,
    },
    TrySetRate(Choice),
    Release(u32),
    Settle {
        which: Index,
        keep: u32,
        source: Source,
    },
    Available,
    Repair,
    LoseLimit,
    LoseValue,
    /// What another algorithm leaves there
    SetValue(i64),
}

#[derive(Clone, Copy, Debug)]
enum Source {
    Code(Choice),
    Store,
    StoreOrInit(Choice),
}

#[derive(Clone, Copy, Debug)]
struct Choice {
    rate: u64,
    interval: u64,
    vanishing: bool,
}

fn choice() -> impl Strategy<Value = Choice> {
    let rate = prop_oneof![6 => Just(5u64), 1 => Just(1), 2 => Just(3), 1 => Just(7000)];
    let interval = prop_oneof![6 => Just(1000u64), 1 => Just(7), 1 => Just(60_000)];
    (rate, interval, any::<bool>()).prop_map(|(rate, interval, vanishing)| Choice {
        rate,
        interval,
        vanishing,
    })
}

fn source() -> impl Strategy<Value = Source> {
    prop_oneof![
        6 => choice().prop_map(Source::Code),
        4 => Just(Source::Store),
        3 => choice().prop_map(Source::StoreOrInit),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let permits = prop_oneof![12 => 1u32..4, 3 => 1u32..12, 1 => Just(6000), 1 => Just(u32::MAX)];
    let callers = proptest::collection::vec((permits.clone(), any::<bool>()), 1..5);
    let moves = prop_oneof![
        4 => 0i64..700,
        1 => Just(1000),
        1 => Just(200),
        1 => Just(70_000),
        // A clock that is set back
        1 => Just(-150),
    ];
    prop_oneof![
        10 => (callers, source(), proptest::bool::weighted(0.7)).prop_map(
            |(callers, source, rewrite)| Step::Acquire { callers, source, rewrite }
        ),
        10 => (permits, choice()).prop_map(|(permits, choice)| Step::Lone(permits, choice)),
        8 => moves.prop_map(Step::Advance),
        2 => (choice(), any::<bool>(), any::<bool>())
            .prop_map(|(choice, keep, existing)| Step::SetRate { choice, keep, existing }),
        1 => choice().prop_map(Step::TrySetRate),
        2 => (1u32..9).prop_map(Step::Release),
        6 => (any::<Index>(), prop_oneof![3 => Just(0u32), 1 => 0u32..9], source())
            .prop_map(|(which, keep, source)| Step::Settle { which, keep, source }),
        2 => Just(Step::Available),
        1 => Just(Step::Repair),
        1 => Just(Step::LoseLimit),
        1 => Just(Step::LoseValue),
        1 => (-3i64..15).prop_map(Step::SetValue),
    ]
}

struct Pair {
    connection: Connection,
    name: Name,
    keys: [String; 5],
    rate_type: RateType,
    now: i64,
    hash: Option<StoredLimit>,
    state: Option<State>,
    /// What receipts know
    granted: Vec<(u32, Tat)>,
}

impl Pair {
    fn new(rate_type: RateType) -> Self {
        let client = redis::Client::open(RedisServer::shared().url()).unwrap();
        let name = Name::exact(&unique("gcra")).unwrap();
        Self {
            connection: client.get_connection().unwrap(),
            keys: wire::keys(&name, CLIENT),
            name: name.counted_by(Algorithm::Gcra),
            rate_type,
            now: START,
            hash: None,
            state: None,
            granted: Vec::new(),
        }
    }

    fn limit(&self, choice: Choice) -> Limit {
        let interval = std::time::Duration::from_millis(choice.interval);
        let limit = Limit::new(choice.rate, interval);
        let limit = match self.rate_type {
            RateType::Overall => limit,
            RateType::PerClient => limit.per_client(),
        };
        if choice.vanishing {
            limit.for_request_key()
        } else {
            limit
        }
    }

    fn source(&self, source: Source) -> LimitSource {
        match source {
            Source::Code(choice) => LimitSource::Code(self.limit(choice)),
            Source::Store => LimitSource::Store,
            Source::StoreOrInit(choice) => LimitSource::StoreOrInit(self.limit(choice)),
        }
    }

    fn value(&self) -> String {
        self.keys[1 + usize::from(self.rate_type == RateType::PerClient)].clone()
    }

    fn ask<T: redis::FromRedisValue>(&mut self, command: &[&str]) -> T {
        let mut built = redis::cmd(command[0]);
        built.arg(&command[1..]);
        built.query(&mut self.connection).unwrap()
    }

    fn call(&mut self, script: &Script, argv: impl IntoIterator<Item = Word>) -> Value {
        let arguments = Arguments::new(&self.keys, argv);
        self.send(script, &arguments)
    }

    fn send(&mut self, script: &Script, arguments: &Arguments) -> Value {
        match script.command(arguments, false).query(&mut self.connection) {
            Err(error) if is_unknown_script(&error) => script
                .command(arguments, true)
                .query(&mut self.connection)
                .unwrap(),
            reply => reply.unwrap(),
        }
    }

    fn time(&self) -> Option<Millis> {
        Some(self.now.unsigned_abs())
    }

    fn instant(&self) -> Now {
        Now::millis(self.now).given()
    }

    fn stored_state(&mut self) -> Option<State> {
        let value = self.value();
        format::state(&self.ask::<Option<Vec<u8>>>(&["GET", &value])?)
    }

    fn compare(&mut self) {
        let hash = self.keys[0].clone();
        let reply: Value = self.ask(&["HMGET", &hash, "rate", "interval", "type", "keepAliveTime"]);
        assert_eq!(wire::stored_limit(&reply).unwrap(), self.hash);
        assert_eq!(self.stored_state(), self.state);
        let Some(state) = self.state else {
            return;
        };
        // It lives for as long as it counts, and not for ever.
        let value = self.value();
        let life: i64 = self.ask(&["PTTL", &value]);
        assert!(life > 0, "{life}");
        assert!(state.tat.at - self.now * 1000 <= life * 1000, "{life}");
    }

    /// The limiter as who goes by the value's own limit sees it: a rule, or a verb where there is no hash.
    fn of_value(&self, keep_alive: u64) -> Limiter {
        Limiter {
            limit: self.state.map(|state| StoredLimit {
                rate: state.rate,
                interval: state.interval,
                rate_type: self.rate_type,
                keep_alive,
            }),
            state: self.state,
            ..Limiter::default()
        }
    }

    fn of_hash(&self) -> Limiter {
        Limiter {
            limit: self.hash,
            state: self.state,
            ..Limiter::default()
        }
    }

    fn of_verb(&self) -> Limiter {
        match self.hash {
            Some(_) => self.of_hash(),
            None => self.of_value(0),
        }
    }

    fn charge(&self, permits: u32, limit: LimitSource) -> Charge {
        Charge {
            id: PermitId([0; 16]),
            ..Charge::named(
                self.name.clone(),
                limit,
                Labels::new("model", false, None),
                permits,
            )
        }
    }

    /// What the pure functions answer, and the limiter that they leave.
    fn expect(
        &self,
        callers: &[(u32, bool)],
        limit: LimitSource,
        rewrite: bool,
    ) -> (Result<Vec<Answer>, ErrorKind>, Limiter) {
        let mut limiter = match limit {
            LimitSource::Code(limit) => self.of_value(limit.stored().keep_alive),
            LimitSource::Store | LimitSource::StoreOrInit(_) => self.of_hash(),
        };
        let terms = Terms {
            rewrite,
            resendable: false,
        };
        let run: Vec<_> = callers
            .iter()
            .map(|(permits, waits)| Acquire::of([self.charge(*permits, limit)], *waits))
            .collect();
        let limiters = std::iter::once((&mut limiter as &mut dyn Counts, terms));
        let mut answers = call::acquire(limiters, &run, self.instant());
        for answer in answers.iter_mut().flat_map(|answers| answers.iter_mut()) {
            answer.now = Now::millis(self.now);
        }
        (answers.map(|answers| answers.to_vec()), limiter)
    }

    fn acquire(&mut self, callers: &[(u32, bool)], limit: LimitSource, rewrite: bool) {
        let charges: Vec<_> = callers
            .iter()
            .map(|(permits, waits)| (self.charge(*permits, limit), *waits))
            .collect();
        let limiters = charges[..1].iter().map(|(charge, _)| (charge, rewrite));
        let run = charges.iter();
        let run = run.map(|(charge, waits)| (std::iter::once(charge), *waits));
        let ask = wire::Ask {
            client_id: CLIENT,
            now: self.time(),
            exact: false,
        };
        let arguments = wire::acquire(limiters, run, ask);
        let reply = self.send(&gcra::ACQUIRE_RUN, &arguments);
        let replied = format::answers(&reply, callers.len())
            .map(|answers| answers.to_vec())
            .map_err(|error| error.kind());
        let (expected, limiter) = self.expect(callers, limit, rewrite);
        self.adopt(callers, limit, &replied, &expected, &limiter);
    }

    fn lone(&mut self, permits: u32, limit: Limit) {
        let source = LimitSource::Code(limit);
        let callers = [(permits, false)];
        let Some(lone) = Lone::new(&self.charge(permits, source), &limit.stored()) else {
            assert!(u64::from(permits) > limit.permits());
            return;
        };
        let arguments = lone.arguments(&self.name, CLIENT, self.time());
        let reply = self.send(&gcra::ACQUIRE, &arguments);
        let Some(replied) = lone.answer(&reply).unwrap() else {
            // By another limit, which is for the other script to change, or no value of this algorithm.
            let stored = self.stored_state();
            let of_it = |state: State| (state.rate, state.interval);
            let limit = limit.stored();
            assert_ne!(stored.map(of_it), Some((limit.rate, limit.interval)));
            return self.acquire(&callers, source, true);
        };
        let (expected, limiter) = self.expect(&callers, source, true);
        let replied = Answer {
            // Not told to who is refused.
            now: Now::millis(self.now),
            ..replied
        };
        self.adopt(&callers, source, &Ok(vec![replied]), &expected, &limiter);
    }

    fn adopt(
        &mut self,
        callers: &[(u32, bool)],
        limit: LimitSource,
        replied: &Result<Vec<Answer>, ErrorKind>,
        expected: &Result<Vec<Answer>, ErrorKind>,
        limiter: &Limiter,
    ) {
        let of_code = matches!(limit, LimitSource::Code(_));
        let told = |answer: &Answer| Answer {
            // A rule's limit is kept nowhere until something is taken.
            changed: match answer.changed {
                Changed::Created if of_code => Changed::Nothing,
                changed => changed,
            },
            tat: answer.tat.filter(|_| answer.verdict == Verdict::Granted),
            ..*answer
        };
        let all = |answers: &Vec<Answer>| answers.iter().map(told).collect::<Vec<_>>();
        assert_eq!(replied.as_ref().map(all), expected.as_ref().map(all));
        self.state = limiter.state;
        if !of_code {
            self.hash = limiter.limit;
        }
        for (answer, (permits, _)) in replied.iter().flatten().zip(callers) {
            if answer.verdict == Verdict::Granted {
                self.granted.push((*permits, answer.tat.unwrap()));
            }
        }
        self.compare();
    }

    fn settle(&mut self, (permits, tat): (u32, Tat), keep: u32, source: LimitSource) {
        let receipt = self.charge(permits, source).receipt();
        let receipt = receipt.taken(Taken::Tat(tat));
        let arguments = format::settle(&receipt, keep, tat, CLIENT, self.time());
        let reply = self.send(&gcra::SETTLE, &arguments);
        let replied = wire::second(&reply).map_err(|error| error.kind());
        let of_code = matches!(source, LimitSource::Code(_));
        let mut limiter = match (source, self.state) {
            (LimitSource::Code(_), Some(_)) => self.of_value(0),
            // There is nothing to give back to.
            (LimitSource::Code(_), None) if keep <= permits => {
                assert_eq!(replied, Ok(0));
                return;
            }
            (LimitSource::Code(_), None) => Limiter::default(),
            _ => self.of_hash(),
        };
        let credited = i64::from(permits) - i64::from(keep);
        let given = source.given().map(Limit::stored);
        let expected = limiter.settle(credited, tat, given, self.instant());
        assert_eq!(replied, expected);
        if expected.is_ok() {
            self.state = limiter.state;
            if !of_code {
                self.hash = limiter.limit;
            }
        }
        self.compare();
    }

    fn carry_out(&mut self, step: &Step) {
        let verbs = Verbs::of(Algorithm::Gcra);
        let now = self.instant();
        match *step {
            Step::Acquire {
                ref callers,
                source,
                rewrite,
            } => self.acquire(callers, self.source(source), rewrite),
            Step::Lone(permits, choice) => self.lone(permits, self.limit(choice)),
            Step::Advance(by) => self.now += by,
            Step::SetRate {
                choice,
                keep,
                existing,
            } => {
                let limit = self.limit(choice).stored();
                let mut argv: Vec<_> = wire::limit_fields(&limit).into();
                argv.push(wire::time(self.time()));
                argv.extend([wire::flag_byte(keep), wire::flag_byte(existing)]);
                let reply = self.call(verbs.set_rate, argv);
                let expected = !existing || self.hash.is_some();
                assert_eq!(wire::flag(&reply).unwrap(), expected);
                if expected {
                    let mut limiter = self.of_hash();
                    limiter.set_rate(limit, keep, now);
                    (self.hash, self.state) = (limiter.limit, limiter.state);
                }
                self.compare();
            }
            Step::TrySetRate(choice) => {
                let limit = self.limit(choice).stored();
                let reply = self.call(verbs.try_set_rate, wire::limit_fields(&limit));
                let mut limiter = self.of_hash();
                assert_eq!(wire::flag(&reply).unwrap(), limiter.try_set_rate(limit));
                self.hash = limiter.limit;
                self.compare();
            }
            Step::Release(permits) => {
                let argv = [
                    Word::number(permits),
                    wire::time(self.time()),
                    Word::default(),
                ];
                let reply = self.call(verbs.release, argv);
                let mut limiter = self.of_verb();
                let replied = wire::second(&reply).map_err(|error| error.kind());
                assert_eq!(replied, limiter.release(permits.into(), now));
                self.state = limiter.state;
                self.compare();
            }
            Step::Settle {
                which,
                keep,
                source,
            } => {
                if self.granted.is_empty() {
                    return;
                }
                let at = which.index(self.granted.len());
                let grant = self.granted.swap_remove(at);
                if keep != grant.0 {
                    self.settle(grant, keep, self.source(source));
                }
            }
            Step::Available => {
                let argv = [wire::time(self.time()), Word::default()];
                let reply = self.call(verbs.available, argv);
                let replied = wire::second(&reply).map_err(|error| error.kind());
                assert_eq!(replied, self.of_verb().available(now));
                self.compare();
            }
            Step::Repair => {
                let reply = self.call(verbs.repair, [wire::time(self.time())]);
                let mut limiter = self.of_verb();
                let replied = wire::second(&reply).map_err(|error| error.kind());
                assert_eq!(replied, limiter.repair(now));
                self.state = limiter.state;
                self.compare();
            }
            Step::LoseLimit => {
                let hash = self.keys[0].clone();
                let _: i64 = self.ask(&["DEL", &hash]);
                self.hash = None;
            }
            Step::LoseValue => {
                let value = self.value();
                let _: i64 = self.ask(&["DEL", &value]);
                self.state = None;
            }
            Step::SetValue(number) => {
                let value = self.value();
                let _: Value = self.ask(&["SET", &value, &number.to_string()]);
                self.state = None;
            }
        }
    }
}

fn run(rate_type: RateType, steps: &[Step]) {
    let mut pair = Pair::new(rate_type);
    for step in steps {
        pair.carry_out(step);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arrivals_of_all(steps in proptest::collection::vec(step(), 1..60)) {
        run(RateType::Overall, &steps);
    }

    #[test]
    fn arrivals_of_each_client(steps in proptest::collection::vec(step(), 1..60)) {
        run(RateType::PerClient, &steps);
    }
}

/// By the server's clock a grant says when it was, and a refusal by how much it came too early: both must lie between two
/// looks at that clock, and what is stored must be what follows from them.
#[test]
fn by_the_servers_clock_it_counts_in_microseconds() {
    let mut pair = Pair::new(RateType::Overall);
    let limit = Limit::new(40, std::time::Duration::from_millis(8)).stored();
    let pace = Pace::of(limit.rate, limit.interval).unwrap();
    let source = LimitSource::Code(limit.limit().unwrap());
    let (mut granted, mut refused, mut within_ms) = (0, 0, false);
    let time = |pair: &mut Pair| -> i64 {
        let (seconds, micros): (i64, i64) = pair.ask(&["TIME"]);
        seconds * 1_000_000 + micros
    };
    while granted < 200 || refused < 200 {
        let permits = 1 + u32::try_from((granted + refused) % 9).unwrap();
        let lone = Lone::new(&pair.charge(permits, source), &limit).unwrap();
        let arguments = lone.arguments(&pair.name, CLIENT, None);
        let stored = pair.stored_state();
        let before = time(&mut pair);
        let reply = pair.send(&gcra::ACQUIRE, &arguments);
        let after = time(&mut pair);
        let answer = lone.answer(&reply).unwrap().unwrap();
        let cost = pace.cost(permits.into());
        let now = match (&reply, stored) {
            (Value::Int(backlog), Some(stored)) => {
                refused += 1;
                assert!(backlog + cost > pace.whole());
                let due = backlog + cost - pace.whole();
                assert!((due..due + 1000).contains(&(answer.wait * 1000)));
                stored.tat.at - backlog
            }
            (Value::BulkString(text), _) => {
                granted += 1;
                let at = answer.tat.unwrap().at;
                let left = pair.stored_state();
                assert!(left.is_none_or(|left| left.tat.at == at));
                let now = f64::from_le_bytes(text[..8].try_into().unwrap()) as i64;
                let begun = stored.map_or(now, |stored| stored.tat.at.max(now));
                // Of a key that vanished meanwhile, and whose time was over then, nothing was left.
                assert_eq!(at, begun + cost);
                assert!(at - now <= pace.whole());
                now
            }
            (reply, stored) => panic!("{reply:?} {stored:?}"),
        };
        assert!((before..=after).contains(&now), "{before} {now} {after}");
        within_ms |= now % 1000 != 0;
    }
    assert!(within_ms);
}
