//! Random histories of fixed windows: the scripts against the pure functions of
//! `algorithm/fixed_window.rs`.
//!
//! Keys vanish by the server's clock, which cannot be moved: so what a window has left is, and windows are so long that a
//! busy machine does not end one. The model reads the keys before each step; times may differ by what passes meanwhile.

use proptest::{prelude::*, sample::Index};
use redis::{Connection, Value};

use super::support::{RedisServer, unique};
use crate::store::redis::wire::{
    self,
    arguments::{Arguments, Word},
    script::{Script, TRY_SET_RATE, Verbs, fixed_window, is_unknown_script},
};
use crate::{
    algorithm::{
        answer::Answer,
        call::{self, Counts, Terms},
        fixed_window::{Limiter, Window},
    },
    clock::Now,
    demand::{Acquire, Charge, Labels},
    error::ErrorKind,
    limit::{Algorithm, Limit, LimitSource, RateType, StoredLimit},
    name::Name,
    receipt::PermitId,
};

const CLIENT: &str = "7d9";
const ASK: wire::Ask<'_> = wire::Ask {
    client_id: CLIENT,
    now: None,
    exact: false,
};
/// What a busy machine may lose between two commands, in ms.
const TOLERANCE: i64 = 2_000;
/// Windows that have no more left than this count as over, so that none ends by itself.
const OVER: i64 = 5_000;

#[derive(Clone, Debug)]
enum Step {
    Acquire {
        callers: Vec<(u32, bool)>,
        source: Source,
        rewrite: bool,
    },
    Advance(i64),
    SetRate {
        choice: Choice,
        keep: bool,
        existing: bool,
    },
    TrySetRate(Choice),
    Release(u32),
    GiveBack(Index),
    ChargeMore(u32, Option<Choice>),
    Available,
    Repair,
    LoseLimit,
    LoseValue,
    /// As a sliding log leaves it, with a log or without
    LoseEnd {
        log: bool,
    },
    SetValue(i64),
}

#[derive(Clone, Copy, Debug)]
enum Source {
    Code(Choice),
    CodeOfOtherType(Choice),
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
    let rate = prop_oneof![6 => Just(5u64), 1 => Just(1), 1 => Just(3), 1 => Just(10)];
    let interval = prop_oneof![6 => Just(100_000u64), 1 => Just(20_000), 1 => Just(600_000)];
    (rate, interval, any::<bool>()).prop_map(|(rate, interval, vanishing)| Choice {
        rate,
        interval,
        vanishing,
    })
}

fn step() -> impl Strategy<Value = Step> {
    let source = prop_oneof![
        6 => choice().prop_map(Source::Code),
        1 => choice().prop_map(Source::CodeOfOtherType),
        4 => Just(Source::Store),
        3 => choice().prop_map(Source::StoreOrInit),
    ];
    let permits = prop_oneof![12 => 1u32..4, 3 => 1u32..12, 1 => Just(u32::MAX)];
    let callers = proptest::collection::vec((permits, any::<bool>()), 1..5);
    let moves = prop_oneof![
        Just(100_000),
        Just(40_000),
        Just(7_000),
        Just(700_000),
        Just(15_000)
    ];
    prop_oneof![
        14 => (callers, source, proptest::bool::weighted(0.7)).prop_map(
            |(callers, source, rewrite)| Step::Acquire { callers, source, rewrite }
        ),
        5 => moves.prop_map(Step::Advance),
        2 => (choice(), any::<bool>(), any::<bool>())
            .prop_map(|(choice, keep, existing)| Step::SetRate { choice, keep, existing }),
        1 => choice().prop_map(Step::TrySetRate),
        2 => (1u32..9).prop_map(Step::Release),
        4 => any::<Index>().prop_map(Step::GiveBack),
        2 => (1u32..9, proptest::option::of(choice()))
            .prop_map(|(permits, choice)| Step::ChargeMore(permits, choice)),
        2 => Just(Step::Available),
        1 => Just(Step::Repair),
        1 => Just(Step::LoseLimit),
        1 => Just(Step::LoseValue),
        1 => any::<bool>().prop_map(|log| Step::LoseEnd { log }),
        1 => (-3i64..15).prop_map(Step::SetValue),
    ]
}

struct Pair {
    connection: Connection,
    name: Name,
    keys: [String; 5],
    rate_type: RateType,
    model: Limiter,
    /// Permits and the window's end, as receipts know them
    granted: Vec<(u32, i64)>,
}

impl Pair {
    fn new(rate_type: RateType) -> Self {
        let client = redis::Client::open(RedisServer::shared().url()).unwrap();
        let name = Name::exact(&unique("fixed")).unwrap();
        Self {
            connection: client.get_connection().unwrap(),
            keys: wire::keys(&name, CLIENT),
            name: name.counted_by(Algorithm::FixedWindow),
            rate_type,
            model: Limiter::default(),
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

    fn other(&self, choice: Choice) -> Limit {
        let limit = self.limit(choice);
        match self.rate_type {
            RateType::Overall => limit.per_client(),
            RateType::PerClient => Limit::new(
                choice.rate,
                std::time::Duration::from_millis(choice.interval),
            ),
        }
    }

    fn key(&self, place: usize) -> &str {
        &self.keys[place + usize::from(self.rate_type == RateType::PerClient)]
    }

    fn ask<T: redis::FromRedisValue>(&mut self, command: &[&str]) -> T {
        let mut built = redis::cmd(command[0]);
        built.arg(&command[1..]);
        built.query(&mut self.connection).unwrap()
    }

    fn on_value<T: redis::FromRedisValue>(&mut self, verb: &str, arguments: &[&str]) -> T {
        let key = self.key(1).to_owned();
        self.ask(&[&[verb, &key], arguments].concat())
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

    fn now(&mut self) -> i64 {
        let (seconds, micros): (i64, i64) = self.ask(&["TIME"]);
        seconds * 1000 + micros / 1000
    }

    fn stored_limit(&mut self) -> Option<StoredLimit> {
        let hash = self.keys[0].clone();
        let reply: Value = self.ask(&["HMGET", &hash, "rate", "interval", "type", "keepAliveTime"]);
        wire::stored_limit(&reply).unwrap()
    }

    fn stored_window(&mut self) -> Option<Window> {
        let value = self.on_value::<Option<i64>>("GET", &[])?;
        let left: i64 = self.on_value("PTTL", &[]);
        let now = self.now();
        Some(Window {
            value,
            end: (left >= 0).then_some(now + left),
        })
    }

    fn read(&mut self) {
        self.model.limit = self.stored_limit();
        self.model.window = self.stored_window();
    }

    /// Holds the keys against the model; `ended` where the step decides how long the window lasts.
    fn compare(&mut self, ended: bool) {
        assert_eq!(self.stored_limit(), self.model.limit);
        let (stored, now) = (self.stored_window(), self.now());
        let modelled = self
            .model
            .window
            .filter(|window| window.end.is_none_or(|end| end >= now));
        assert_eq!(
            stored.map(|window| window.value),
            modelled.map(|window| window.value)
        );
        if let (Some(stored), Some(modelled), true) = (stored, modelled, ended) {
            match (stored.end, modelled.end) {
                (Some(stored), Some(modelled)) => {
                    assert!(
                        (stored - modelled).abs() <= TOLERANCE,
                        "{stored} {modelled}"
                    );
                }
                (stored, modelled) => assert_eq!(stored, modelled),
            }
        }
    }

    /// Of a call that counts: the window ends within an interval, and has no log; the limit outlives it.
    fn check_lives(&mut self) {
        let limit = self.model.limit.unwrap();
        let [hash, value, log] = [self.keys[0].clone(), self.key(1).into(), self.key(3).into()];
        let [hash, value, log] = [hash, value, log].map(|key| self.ask::<i64>(&["PTTL", &key]));
        assert!(
            value == -2 || (0..=limit.interval).contains(&value),
            "{value}"
        );
        if value != -2 {
            assert_eq!(log, -2);
        }
        if limit.keep_alive == 0 {
            assert_eq!(hash, -1);
        } else {
            let keep_alive = limit.keep_alive.cast_signed();
            let enough = limit.interval.max(keep_alive / 2);
            assert!(hash >= enough - TOLERANCE, "{hash} {limit:?}");
        }
    }

    fn acquire(&mut self, callers: &[(u32, bool)], limit: LimitSource, rewrite: bool) {
        let charges: Vec<_> = callers
            .iter()
            .map(|(permits, waits)| {
                let charge = Charge {
                    id: PermitId([0; 16]),
                    ..Charge::named(
                        self.name.clone(),
                        limit,
                        Labels::new("model", false, None),
                        *permits,
                    )
                };
                (charge, *waits)
            })
            .collect();
        let limiters = charges[..1].iter().map(|(charge, _)| (charge, rewrite));
        let run = charges.iter();
        let run = run.map(|(charge, waits)| (std::iter::once(charge), *waits));
        let arguments = wire::acquire(limiters, run, ASK);
        let reply = self.send(&fixed_window::ACQUIRE, &arguments);
        let replied = wire::answers(&reply, 1, callers.len())
            .map(|answers| answers.to_vec())
            .map_err(|error| error.kind());
        let unknown = Now::millis(0);
        let now = replied.as_ref().map_or(unknown, |answers| answers[0].now);
        let terms = Terms {
            rewrite,
            resendable: false,
        };
        let modelled = charges.into_iter();
        let modelled: Vec<_> = modelled
            .map(|(charge, waits)| Acquire::of([charge], waits))
            .collect();
        let limiters = std::iter::once((&mut self.model as &mut dyn Counts, terms));
        let expected = call::acquire(limiters, &modelled, now);
        let answers = match (replied, expected) {
            (Ok(replied), Ok(expected)) => {
                for (replied, expected) in replied.iter().zip(expected.iter()) {
                    assert_near(replied, expected);
                }
                replied
            }
            (replied, expected) => {
                assert_eq!(replied, expected.map(|answers| answers.to_vec()));
                return self.compare(true);
            }
        };
        for (answer, (permits, _)) in answers.iter().zip(callers) {
            if answer.verdict == crate::algorithm::answer::Verdict::Granted {
                self.granted
                    .push((*permits, answer.now.tick + answer.reset - 1));
            }
        }
        self.compare(true);
        if answers
            .iter()
            .any(|answer| answer.remaining > 0 || answer.wait > 0)
        {
            self.check_lives();
        }
    }

    fn number(
        &mut self,
        script: &Script,
        argv: impl IntoIterator<Item = Word>,
    ) -> Result<i64, ErrorKind> {
        let reply = self.call(script, argv);
        wire::second(&reply).map_err(|error| error.kind())
    }

    fn carry_out(&mut self, step: &Step) {
        self.read();
        let verbs = Verbs::of(Algorithm::FixedWindow);
        let now = Now::millis(self.now());
        match *step {
            Step::Acquire {
                ref callers,
                source,
                rewrite,
            } => {
                let limit = match source {
                    Source::Code(choice) => LimitSource::Code(self.limit(choice)),
                    Source::CodeOfOtherType(choice) => {
                        // A new limit of that type would have other keys.
                        if self.model.limit.is_none() {
                            return;
                        }
                        LimitSource::Code(self.other(choice))
                    }
                    Source::Store => LimitSource::Store,
                    Source::StoreOrInit(choice) => LimitSource::StoreOrInit(self.limit(choice)),
                };
                self.acquire(callers, limit, rewrite);
            }
            Step::Advance(by) => {
                let left: i64 = self.on_value("PTTL", &[]);
                if left < 0 {
                    return;
                }
                let by = if left - by < OVER { left } else { by };
                self.granted.iter_mut().for_each(|(_, end)| *end -= by);
                if left == by {
                    let _: i64 = self.on_value("DEL", &[]);
                } else {
                    let _: i64 = self.on_value("PEXPIRE", &[&(left - by).to_string()]);
                }
            }
            Step::SetRate {
                choice,
                keep,
                existing,
            } => {
                let limit = self.limit(choice).stored();
                let mut argv: Vec<Word> = wire::limit_fields(&limit).into();
                argv.extend([
                    Word::default(),
                    wire::flag_byte(keep),
                    wire::flag_byte(existing),
                ]);
                let reply = self.call(verbs.set_rate, argv);
                let expected = !existing || self.model.limit.is_some();
                assert_eq!(wire::flag(&reply).unwrap(), expected);
                if expected {
                    self.model.set_rate(limit, keep, now);
                }
                self.compare(true);
            }
            Step::TrySetRate(choice) => {
                let limit = self.limit(choice).stored();
                let reply = self.call(&TRY_SET_RATE, wire::limit_fields(&limit));
                assert_eq!(wire::flag(&reply).unwrap(), self.model.try_set_rate(limit));
                self.compare(false);
            }
            Step::Release(permits) => {
                let argv = [Word::number(permits), Word::default(), Word::default()];
                let replied = self.number(verbs.release, argv);
                assert_eq!(replied, self.model.release(permits.into(), now));
                self.compare(true);
            }
            Step::GiveBack(which) => {
                if self.granted.is_empty() {
                    return;
                }
                let at = which.index(self.granted.len());
                let (permits, end) = self.granted.swap_remove(at);
                let mut argv = Vec::from([i64::from(permits), end].map(Word::number));
                argv.extend(<[Word; 4]>::default());
                let replied = self.number(&fixed_window::SETTLE, argv);
                let live = self.model.window.and_then(|window| window.end);
                let apart = live.map_or(i64::MAX, |live| (live - end).abs());
                if (4..100).contains(&apart) {
                    // A window that was ended by hand, and another soon after: these two cannot be told apart here.
                    return;
                }
                let unset = self.model.limit.is_none();
                let expected = match self.model.window {
                    Some(_) if apart < 4 || unset => {
                        let end = live.unwrap_or(end);
                        self.model.settle(permits.into(), end, None, now)
                    }
                    _ if unset => Err(ErrorKind::NotInitialized),
                    _ => Ok(0),
                };
                assert_eq!(replied, expected, "{permits} {end} {:?}", self.model);
                self.compare(true);
            }
            Step::ChargeMore(permits, choice) => {
                // A limiter that has vanished comes back with its debt.
                let given = choice.map(|choice| self.limit(choice).stored());
                let mut argv = Vec::from([-i64::from(permits), 0].map(Word::number));
                argv.extend(
                    given.map_or_else(<[Word; 4]>::default, |limit| wire::limit_fields(&limit)),
                );
                let replied = self.number(&fixed_window::SETTLE, argv);
                assert_eq!(
                    replied,
                    self.model.settle(-i64::from(permits), 0, given, now)
                );
                self.compare(true);
            }
            Step::Available => {
                let replied = self.number(verbs.available, [Word::default(); 2]);
                let before = self.model.window;
                assert_eq!(replied, self.model.available(now));
                // Only an acquire writes what is left.
                self.model.window = before.map(|window| Window {
                    end: self.model.window.and_then(|mended| mended.end),
                    ..window
                });
                self.compare(replied.is_ok());
            }
            Step::Repair => {
                let replied = self.number(verbs.repair, [Word::default()]);
                assert_eq!(replied, self.model.repair(now));
                self.compare(true);
            }
            Step::LoseLimit => {
                let hash = self.keys[0].clone();
                let _: i64 = self.ask(&["DEL", &hash]);
            }
            Step::LoseValue => {
                let _: i64 = self.on_value("DEL", &[]);
            }
            Step::LoseEnd { log } => {
                let _: i64 = self.on_value("PERSIST", &[]);
                if log && self.model.window.is_some() {
                    let log = self.key(3).to_owned();
                    let _: i64 = self.ask(&["ZADD", &log, "1", "an entry"]);
                }
            }
            Step::SetValue(value) => {
                let _: Value = self.on_value("SET", &[&value.to_string(), "XX", "KEEPTTL"]);
            }
        }
    }
}

/// The same answer, but for the time that passed.
fn assert_near(replied: &Answer, expected: &Answer) {
    let timeless = |answer: &Answer| Answer {
        wait: 0,
        next: 0,
        reset: 0,
        ..*answer
    };
    assert_eq!(timeless(replied), timeless(expected));
    for (replied, expected) in [
        (replied.wait, expected.wait),
        (replied.next, expected.next),
        (replied.reset, expected.reset),
    ] {
        assert_eq!(replied == 0, expected == 0);
        assert!(
            (replied - expected).abs() <= TOLERANCE,
            "{replied} {expected}"
        );
    }
}

fn run(rate_type: RateType, steps: &[Step]) {
    let mut pair = Pair::new(rate_type);
    for step in steps {
        pair.carry_out(step);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn windows_of_all(steps in proptest::collection::vec(step(), 1..60)) {
        run(RateType::Overall, &steps);
    }

    #[test]
    fn windows_of_each_client(steps in proptest::collection::vec(step(), 1..60)) {
        run(RateType::PerClient, &steps);
    }
}

/// Not by the model, whose times may differ: Redis keeps a key through the millisecond of its end, so the wait is one more
/// than it has left.
#[test]
fn a_wait_ends_with_the_millisecond_after_the_window() {
    let mut pair = Pair::new(RateType::Overall);
    let limit = Choice {
        rate: 5,
        interval: 100_000,
        vanishing: false,
    };
    let limit = pair.limit(limit).stored();
    pair.call(&TRY_SET_RATE, wire::limit_fields(&limit));
    let end = pair.now() + 50_000;
    let _: Value = pair.on_value("SET", &["1", "PXAT", &end.to_string()]);
    let charge = Charge {
        id: PermitId([0; 16]),
        ..Charge::named(
            pair.name.clone(),
            LimitSource::Store,
            Labels::new("model", false, None),
            2,
        )
    };
    let mut exact = 0;
    for _ in 0..100 {
        let run = std::iter::once((std::iter::once(&charge), false));
        let arguments = wire::acquire(std::iter::once((&charge, false)), run, ASK);
        let reply = pair.send(&fixed_window::ACQUIRE, &arguments);
        let answer = wire::answers(&reply, 1, 1).unwrap()[0];
        assert_eq!(answer.wait, answer.reset);
        exact += u32::from(answer.now.tick + answer.wait == end + 1);
    }
    // Before Redis 7.2 time may move on between TIME and PTTL.
    assert!(exact > 50, "{exact}");
}
