//! GCRA in Redis and as a [`Limiter`], by a clock that is moved.
//!
//! That clock tells milliseconds. By the server's, which tells microseconds, each step is held
//! against what it says of itself: see the end.

use super::*;
use crate::{
    algorithm::gcra::{Gcra, Pace, State},
    charge::Tat,
    store::redis::wire::gcra::{self, Lone, SCRIPTS},
};

type Limiter = LimiterState<Gcra>;

/// Both that a limiter's keys hold: a rule goes by the value's own limit, and looks at no hash.
#[derive(Clone, Debug)]
struct Model {
    hash: Option<StoredLimit>,
    state: Option<State>,
    rate_type: RateType,
}

impl Model {
    /// The limiter as who goes by the value's own limit sees it: a rule, or a verb where there is
    /// no hash.
    fn of_value(&self, keep_alive: u64) -> Limiter {
        let limit = self.state.map(|state| StoredLimit {
            rate: state.rate,
            interval: state.interval,
            rate_type: self.rate_type,
            keep_alive,
        });
        Limiter {
            limit,
            ..self.of_hash()
        }
    }

    fn of_hash(&self) -> Limiter {
        Limiter {
            limit: self.hash,
            state: Gcra {
                stored: self.state,
                ..Gcra::default()
            },
        }
    }

    fn of_verb(&self) -> Limiter {
        match self.hash {
            Some(_) => self.of_hash(),
            None => self.of_value(0),
        }
    }

    fn adopt(&mut self, limiter: &Limiter, source: LimitSource) {
        self.state = limiter.state.stored;
        if !of_code(source) {
            self.hash = limiter.limit;
        }
    }
}

fn of_code(source: LimitSource) -> bool {
    matches!(source, LimitSource::Code(_))
}

impl Kind for Model {
    const ALGORITHM: Algorithm = Algorithm::Gcra;
    const RATES: &'static [u64] = &[5, 5, 5, 5, 5, 5, 1, 3, 3, 7000];
    const INTERVALS: &'static [u64] = &[1000, 1000, 1000, 1000, 1000, 1000, 7, 60_000];
    const MANY: u32 = 6000;

    fn moves() -> BoxedStrategy<i64> {
        prop_oneof![
            4 => 0i64..700,
            1 => Just(1000),
            1 => Just(200),
            1 => Just(70_000),
            // A clock that is set back
            1 => Just(-150),
        ]
        .boxed()
    }

    fn new(rate_type: RateType) -> Self {
        Self {
            hash: None,
            state: None,
            rate_type,
        }
    }

    fn limit(&self) -> Option<StoredLimit> {
        self.hash
    }

    fn in_force(&self) -> Option<StoredLimit> {
        self.of_verb().limit
    }

    fn verb<T>(&mut self, verb: impl FnOnce(&mut LimiterState) -> T) -> T {
        let mut limiter = self.of_verb();
        let done = verb(&mut limiter);
        self.state = limiter.state.stored;
        done
    }

    fn set<T>(&mut self, verb: impl FnOnce(&mut LimiterState) -> T) -> T {
        let mut limiter = self.of_hash();
        let done = verb(&mut limiter);
        self.adopt(&limiter, LimitSource::Store);
        done
    }

    fn lose(&mut self, key: Key) {
        match key {
            Key::Limit => self.hash = None,
            Key::Value => self.state = None,
            Key::Log => {}
        }
    }

    fn compare(pair: &mut Pair<Self>) {
        assert_eq!(pair.stored_limit(), pair.model.hash);
        let state = pair.stored_state();
        assert_eq!(state, pair.model.state);
        let Some(state) = state else {
            return;
        };
        // It lives for as long as it counts, and then expires.
        let [_, life, _] = pair.ttls();
        assert!(life > 0, "{life}");
        assert!(state.tat.at - pair.now() * 1000 <= life * 1000, "{life}");
    }

    /// Here the clock is given, and moved.
    fn set_back(_pair: &mut Pair<Self>, _by: i64) {}

    fn acquire(pair: &mut Pair<Self>, run: &[(Sent, bool)], how: How) {
        let answers = match (run, how.limit) {
            ([(sent, false)], LimitSource::Code(limit)) if how.rewrite => pair.lone(*sent, limit),
            _ => None,
        };
        let answers = answers.unwrap_or_else(|| {
            let command = pair.run_command(run, how);
            let reply = pair.call(&gcra::ACQUIRE_RUN, &command).unwrap();
            replied(&SCRIPTS, &reply, 1, run.len())
        });
        let (now, demands) = (pair.now(), pair.acquires(run, pair.of_model(how)));
        let mut limiter = match how.limit {
            LimitSource::Code(limit) => pair.model.of_value(limit.stored().keep_alive),
            LimitSource::Store | LimitSource::StoreOrInit(_) => pair.model.of_hash(),
        };
        let expected = decide(&mut limiter, &demands, pair.instant(now));
        let shown = |answer: &Answer| Answer {
            // A rule's limit is kept nowhere until something is taken.
            changed: match answer.changed {
                Changed::Created if of_code(how.limit) => Changed::Nothing,
                changed => changed,
            },
            taken: answer.taken.filter(|_| answer.verdict == Verdict::Granted),
            ..*answer
        };
        let all = |answers: &Vec<Answer>| answers.iter().map(shown).collect::<Vec<_>>();
        assert_eq!(answers.as_ref().map(all), expected.as_ref().map(all));
        pair.model.adopt(&limiter, how.limit);
        for (answer, (sent, _)) in answers.iter().flatten().zip(run) {
            if answer.verdict == Verdict::Granted {
                pair.granted.push((*sent, answer.taken.unwrap()));
            }
        }
        pair.compare();
    }

    fn settle(pair: &mut Pair<Self>, which: Index, keep: u32, source: LimitSource) {
        let (sent, taken) = pair.grant(which, Taken::Tat(Tat { at: 0, given: 0 }));
        if keep == sent.permits {
            return;
        }
        let receipt = pair.receipt(sent, source).marked(taken);
        let call = (SCRIPTS.settle)(&receipt, keep, pair.asks(true)).unwrap();
        let (_, replied) = pair.number(call.script, &call.command);
        let mut limiter = match (source, pair.model.state) {
            (LimitSource::Code(_), Some(_)) => pair.model.of_value(0),
            // There is nothing to give back to.
            (LimitSource::Code(_), None) if keep <= sent.permits => {
                assert_eq!(replied, Ok(0));
                return;
            }
            (LimitSource::Code(_), None) => Limiter::default(),
            _ => pair.model.of_hash(),
        };
        let now = pair.now();
        let expected = limiter.settle(&receipt, Some(taken), keep, pair.instant(now));
        assert_eq!(replied, expected);
        if expected.is_ok() {
            pair.model.adopt(&limiter, source);
        }
        pair.compare();
    }

    /// As another algorithm leaves it.
    fn drift(pair: &mut Pair<Self>, value: i64) {
        let key = pair.value_key();
        pair.command(&["SET", &key, &value.to_string()]);
        pair.model.state = None;
    }
}

impl Pair<Model> {
    fn stored_state(&mut self) -> Option<State> {
        let value = self.value_key();
        gcra::state(&self.ask::<Option<Vec<u8>>>(&["GET", &value])?)
    }

    /// Asks by the script that looks at no limit; `None` where that leaves it to the other one.
    fn lone(&mut self, sent: Sent, limit: Limit) -> Option<Result<Vec<Answer>, ErrorKind>> {
        let charge = self.charge(sent, LimitSource::Code(limit));
        let stored = limit.stored();
        let Some(lone) = Lone::new(&charge) else {
            assert!(u64::from(sent.permits) > limit.permits());
            return None;
        };
        let command = lone.command(&self.name, CLIENT, self.asks(true).now);
        let reply = self.call(&gcra::ACQUIRE, &command).unwrap();
        let Some(answer) = lone.answer(&reply).unwrap() else {
            // By another limit, which is for the other script to change, or no value of this
            // algorithm.
            let limit = self
                .stored_state()
                .map(|state| (state.rate, state.interval));
            assert_ne!(limit, Some((stored.rate, stored.interval)));
            return None;
        };
        // The time is not in the reply to a refusal.
        let now = Now::millis(self.now());
        Some(Ok(vec![Answer { now, ..answer }]))
    }
}

proptest! {
    #![proptest_config(config(800))]

    #[test]
    fn a_history(rate_type in rate_type(1), steps in steps::<Model>(60)) {
        live(Pair::<Model>::of_kind(rate_type, Clock::Given(START)), steps);
    }
}

/// By the server's clock a grant says when it was, and a refusal by how much it came too early:
/// both must lie between two looks at that clock, and what is stored must be what follows from
/// them.
#[test]
fn by_the_servers_clock_it_counts_in_microseconds() {
    let mut pair = Pair::<Model>::of_kind(RateType::Overall, Clock::Server);
    let limit = pair.limit(40, 8);
    let (source, limit) = (LimitSource::Code(limit), limit.stored());
    let pace = Pace::of(limit.rate, limit.interval).unwrap();
    let (mut granted, mut refused, mut within_ms) = (0, 0, false);
    while granted < 200 || refused < 200 {
        let permits = 1 + u32::try_from((granted + refused) % 9).unwrap();
        let sent = pair.unsent(permits);
        let lone = Lone::new(&pair.charge(sent, source)).unwrap();
        let command = lone.command(&pair.name, CLIENT, None);
        let stored = pair.stored_state();
        let before = pair.micros();
        let reply = pair.call(&gcra::ACQUIRE, &command).unwrap();
        let after = pair.micros();
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
                let Some(Taken::Tat(Tat { at, .. })) = answer.taken else {
                    panic!("{answer:?}");
                };
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
