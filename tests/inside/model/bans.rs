//! Random histories of limiters that ban their callers, asked alone and together.

use proptest::array::uniform2;

use super::*;
use crate::{
    algorithm::ban::{self, Record},
    limit::Ban,
    list::List,
    store::{
        Op,
        guard::deny_cache::bans::{Carried, Found},
        redis::wire::{
            ban::{VERBS, keys, read, verb},
            sliding_log::BANNING,
        },
    },
};

const LIMITERS: usize = 2;
/// More than any limit.
const TOO_MUCH: u32 = u32::MAX;

#[derive(Clone, Debug)]
enum Step {
    Demand {
        which: [bool; LIMITERS],
        shadow: [bool; LIMITERS],
        callers: Vec<(bool, [u32; LIMITERS])>,
        carried: [(u32, u64); LIMITERS],
    },
    /// A list that was sent before, with other callers in between or not.
    Resend(Index, bool),
    Advance(i64),
    GiveBack(usize, Index),
    Verb(usize, Option<u64>),
}

/// A list as it was sent.
#[derive(Clone, Debug)]
struct SentList {
    which: Vec<usize>,
    shadow: [bool; LIMITERS],
    callers: Vec<(bool, Vec<Sent>)>,
}

struct Stage {
    pairs: [Pair; LIMITERS],
    bans: [Option<Ban>; LIMITERS],
    records: [Record; LIMITERS],
    sent: Vec<SentList>,
}

fn step() -> impl Strategy<Value = Step> {
    let caller = (proptest::bool::weighted(0.2), uniform2(1_u32..5));
    let demand = (
        uniform2(proptest::bool::weighted(0.7)),
        uniform2(proptest::bool::weighted(0.2)),
        proptest::collection::vec(caller, 1..4),
        uniform2((prop_oneof![3 => Just(0), 1 => 1_u32..4], 0_u64..6000)),
    );
    prop_oneof![
        12 => demand.prop_map(|(which, shadow, callers, carried)| Step::Demand {
            which,
            shadow,
            callers,
            carried,
        }),
        4 => (any::<Index>(), any::<bool>()).prop_map(|(which, more)| Step::Resend(which, more)),
        5 => (0_i64..1500).prop_map(Step::Advance),
        2 => (0..LIMITERS, any::<Index>()).prop_map(|(limiter, which)| {
            Step::GiveBack(limiter, which)
        }),
        1 => (0..LIMITERS, prop::option::of(1_u64..3000)).prop_map(|(limiter, millis)| {
            Step::Verb(limiter, millis)
        }),
    ]
}

/// Terms of a ban, or none. All their times are so many of this unit, in ms.
pub(super) fn terms(unit: u64) -> impl Strategy<Value = Option<Ban>> {
    let millis = move |choices: &'static [u64]| {
        proptest::sample::select(choices).prop_map(move |choice| choice * unit)
    };
    let longest = prop::option::of(Just(4000 * unit));
    let terms = (
        1_u32..5,
        millis(&[700, 5000]),
        millis(&[400, 1500]),
        longest,
    );
    let terms = terms.prop_map(|(after, within, lasting, longest)| {
        let ban = Ban::after(after)
            .within(Duration::from_millis(within))
            .lasting(Duration::from_millis(lasting));
        longest.map_or(ban, |longest| {
            ban.doubling_to(Duration::from_millis(longest))
        })
    });
    prop::option::weighted(0.8, terms)
}

impl Stage {
    fn new(terms: [Option<Ban>; LIMITERS]) -> Self {
        Self {
            pairs: [3, 4].map(Pair::with_rate),
            bans: terms,
            records: Default::default(),
            sent: Vec::new(),
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Demand {
                which,
                shadow,
                callers,
                carried,
            } => {
                let which: Vec<_> = (0..LIMITERS).filter(|limiter| which[*limiter]).collect();
                if which.is_empty() {
                    return;
                }
                let callers: Vec<_> = callers
                    .iter()
                    .map(|(waits, permits)| (*waits, self.unsent(&which, permits)))
                    .collect();
                let list = SentList {
                    which,
                    shadow,
                    callers,
                };
                self.sent.push(list.clone());
                self.send(&list, carried);
            }
            Step::Resend(which, more) if !self.sent.is_empty() => {
                let mut list = which.get(&self.sent).clone();
                if more {
                    let new = self.unsent(&list.which, &[1; LIMITERS]);
                    list.callers.push((false, new));
                }
                self.send(&list, [(0, 0); LIMITERS]);
            }
            Step::Advance(by) => self.pairs.iter_mut().for_each(|pair| pair.advance(by)),
            Step::GiveBack(limiter, which) => {
                let pair = &mut self.pairs[limiter];
                if !pair.sent.is_empty() {
                    let sent = *which.get(&pair.sent);
                    let _ = pair.settle(sent, 0, LimitSource::Store);
                }
            }
            Step::Verb(limiter, millis) => self.manage(limiter, millis),
            Step::Resend(..) => {}
        }
    }

    fn unsent(&mut self, which: &[usize], permits: &[u32; LIMITERS]) -> Vec<Sent> {
        // One id for all, as callers have.
        let id = self.pairs[0].new_id();
        let sent = which.iter().map(|limiter| {
            let sent = Sent {
                id,
                permits: permits[*limiter],
                lead: 0,
            };
            self.pairs[*limiter].sent.push(sent);
            sent
        });
        sent.collect()
    }

    fn now(&mut self) -> Now {
        let now = self.pairs[0].now();
        self.pairs[0].instant(now)
    }

    fn manage(&mut self, limiter: usize, millis: Option<u64>) {
        let now = self.now();
        let pair = &mut self.pairs[limiter];
        let ask = pair.asks(false);
        let banned = pair.limiter(LimitSource::Store);
        let mut send = |op| {
            let call = verb(&banned, &op, ask).unwrap();
            pair.call(&VERBS, &call.command).unwrap()
        };
        let record = &mut self.records[limiter];
        match millis {
            Some(millis) => {
                assert_eq!(send(Op::Ban(millis)), Value::Int(1));
                record.ban_for(millis.cast_signed(), now);
            }
            None => {
                let left = record.in_force(now).map_or(0, |[left, _]| now.tick + left);
                let until = Value::Array(vec![Value::Int(1), Value::Int(left)]);
                assert_eq!(send(Op::BannedUntil), until);
                let was_banned = i64::from(record.in_force(now).is_some());
                assert_eq!(send(Op::Unban), Value::Int(was_banned));
                *record = Record::default();
            }
        }
        self.compare(now);
    }

    fn charges(&self, list: &SentList, takes: &[Sent]) -> Vec<Charge> {
        let each = list.which.iter().zip(takes);
        let charge = |(limiter, sent): (&usize, &Sent)| {
            let charge = Charge {
                shadow: list.shadow[*limiter],
                ..self.pairs[*limiter].charge(*sent, LimitSource::Store)
            };
            charge.counted(|of| of.ban = self.bans[*limiter])
        };
        each.map(charge).collect()
    }

    /// Has the script and the pure functions decide, and compares all of it.
    fn send(&mut self, list: &SentList, carried: [(u32, u64); LIMITERS]) {
        let run: Vec<_> = list
            .callers
            .iter()
            .map(|(waits, takes)| Demand::of(self.charges(list, takes), *waits))
            .collect();
        let carried: Vec<_> = list
            .which
            .iter()
            .map(|limiter| carried[*limiter])
            .map(|(number, age)| Carried { number, age })
            .collect();
        let now = self.now();
        let limiters: Vec<_> = run[0].charges().map(|charge| (charge, true)).collect();
        let ask = wire::CallSettings {
            client_id: CLIENT,
            ..self.pairs[0].asks(false)
        };
        let command = wire::ban::acquire_command(&BANNING, &limiters, &carried, &run, ask);
        let reply = self.pairs[0].call(&BANNING, &command).unwrap();
        let (answers, found) = read(&reply, &run).unwrap();
        let expected = self.decide(list, &run, &carried, now);
        let of_now = |answers: List<Answer>| -> Vec<_> {
            let each = answers.into_iter();
            each.map(|answer| (answer.verdict, answer.banned, answer.wait, answer.remaining))
                .collect()
        };
        assert_eq!(
            of_now(answers),
            of_now(expected),
            "{list:?}, as replied and as expected"
        );
        let known = list.which.iter().map(|limiter| {
            let record = &self.records[*limiter];
            match self.bans[*limiter] {
                None => Found {
                    left: 0,
                    back: 0,
                    strikes: 0,
                },
                Some(ban) => {
                    let [left, back] = record.in_force(now).unwrap_or_default();
                    let strikes = record.strikes(&ban, now);
                    Found {
                        left,
                        back,
                        strikes,
                    }
                }
            }
        });
        assert_eq!(found[..], known.collect::<Vec<_>>()[..]);
        self.compare(now);
    }

    /// What the script does, by the pure functions.
    fn decide(
        &mut self,
        list: &SentList,
        run: &[Demand],
        carried: &[Carried],
        now: Now,
    ) -> List<Answer> {
        let terms: List<_> = run[0].charges().map(|charge| charge.of().ban).collect();
        let mut records: List<_> = list
            .which
            .iter()
            .map(|limiter| self.records[*limiter].clone())
            .collect();
        let id = run[0].first().id.for_strikes();
        for ((record, ban), carried) in records.iter_mut().zip(&terms).zip(carried) {
            let age = carried.age.cast_signed();
            if let Some(ban) = ban
                && record.in_force(now).is_none()
                && carried.number > 0
                && age < ban.millis()[0]
            {
                record.strike(ban, (id, carried.number, now.tick - age), 0, now);
            }
        }
        let is_banned = ban::is_banned(&run[0], &terms, &records, now);
        let holds = |caller: &Demand| {
            let mut each = list.which.iter().zip(caller.charges());
            each.any(|(limiter, charge)| {
                let model: &LimiterState<SlidingLog> = &self.pairs[*limiter].model;
                crate::algorithm::limiter::Counter::holds(&model.state, charge)
            })
        };
        let held: Vec<_> = run
            .iter()
            .map(|caller| is_banned && holds(caller))
            .collect();
        let limits: Vec<_> = list
            .which
            .iter()
            .map(|limiter| self.pairs[*limiter].model.limit)
            .collect();
        let answers = if is_banned && !held.contains(&true) {
            ban::refuse(run, &terms, &records, &limits, now)
        } else {
            let asked = run.iter().zip(&held).map(|(caller, held)| {
                let mut caller = caller.clone();
                if is_banned && !held {
                    let charges = caller.charges.iter_mut();
                    charges.for_each(|charge| charge.permits = TOO_MUCH);
                }
                caller
            });
            let asked: Vec<_> = asked.collect();
            let which = |limiter: &usize| list.which.contains(limiter);
            let limiters = self.pairs.iter_mut().enumerate();
            let limiters = limiters
                .filter(|(limiter, _)| which(limiter))
                .map(|(_, pair)| &mut pair.model as &mut LimiterState);
            let mut answers = List::from(decide_all(limiters, &asked, now).unwrap());
            // While a ban refuses the list, no refusal counts: the bans in force alone are seen.
            let in_force = |(ban, record): (&Option<Ban>, &Record)| {
                ban.filter(|_| !is_banned || record.in_force(now).is_some())
            };
            let terms: List<_> = terms.iter().zip(&records).map(in_force).collect();
            ban::judge(&asked, &terms, &mut records, &mut answers, now);
            answers
        };
        for (limiter, record) in list.which.iter().zip(records) {
            self.records[*limiter] = record;
        }
        answers
    }

    /// Holds the keys against the records and the limiters.
    fn compare(&mut self, now: Now) {
        for limiter in 0..LIMITERS {
            let within = self.bans[limiter].map_or(i64::MAX / 4, |ban| ban.millis()[0]);
            let expected = self.records[limiter].keys(within, now);
            let pair = &mut self.pairs[limiter];
            let [strikes, banned] = keys(&pair.name);
            let from = format!("({}", now.tick - within);
            let members = pair.ask(&["ZRANGEBYSCORE", &strikes, &from, "+inf", "WITHSCORES"]);
            let ban = pair.ask(&["GET", &banned]);
            assert_eq!((members, ban), expected, "keys, then model");
            for key in [strikes, banned] {
                // -2 is a key that is not there.
                let life: i64 = pair.ask(&["PTTL", &key]);
                assert_ne!(life, -1, "{key} never expires");
            }
            pair.compare();
        }
    }
}

proptest! {
    #![proptest_config(config(600))]

    #[test]
    fn a_history_of_bans(
        terms in uniform2(terms(1)),
        steps in proptest::collection::vec(step(), 1..40),
    ) {
        let mut stage = Stage::new(terms);
        for step in steps {
            stage.take(step);
        }
    }
}

/// Its call comes again when it counts no more, and is granted: another refusal still counts.
#[test]
fn a_refusal_that_is_too_old_is_forgiven_for_nothing() {
    let ban = Ban::after(4).within(Duration::from_millis(700));
    let mut stage = Stage::new([None, Some(ban)]);
    let take = |permits: u32| Step::Demand {
        which: [false, true],
        shadow: [false; 2],
        callers: vec![(false, [1, permits])],
        carried: [(0, 0); 2],
    };
    stage.take(take(3));
    stage.take(take(1));
    stage.take(Step::Advance(50));
    stage.take(take(1));
    stage.take(Step::Advance(695));
    stage.take(take(1));
    stage.take(Step::Advance(255));
    let list = stage.sent[2].clone();
    stage.send(&list, [(0, 0); LIMITERS]);
}
