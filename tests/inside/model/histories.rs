//! Random histories: grants, refusals, resends, give-backs, changed limits, lost keys, drift, other writers.

use proptest::{prelude::*, sample::Index};

use super::{
    members::Generation,
    pair::{Clock, How, Lone, Pair, START, Sent},
};
use crate::limit::{Limit, LimitSource, RateType};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Acquire {
        permits: u32,
        whose: Whose,
    },
    /// Also of an acquire that was refused, or lost by now
    Resend {
        which: Index,
        whose: Whose,
    },
    /// Several callers at once, some of whom wait in line; the last, if it does not, may be scored ahead
    Run {
        callers: [(u32, bool); 4],
        lead: i64,
        whose: Whose,
    },
    Advance(i64),
    SetRate {
        choice: Choice,
        keep: bool,
        existing: bool,
    },
    Release(u32),
    GiveBack(Index),
    GiveBackUnsent,
    /// At what was used, and once more if the reply was lost
    Settle {
        which: Index,
        keep: u32,
        whose: Whose,
    },
    Available,
    TrySetRate(Choice),
    Repair,
    Lose(Key),
    /// As `release` or an operator leaves it
    Drift(i64),
    /// A grant of another writer, who also counts it (or does not: drift)
    Plant {
        generation: Generation,
        age: i64,
        permits: u32,
        counted: bool,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Whose {
    source: Source,
    rewrite: bool,
    pub(crate) exact: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    Code(Choice),
    /// Per client where the limit is overall, and the other way round
    CodeOfOtherType(Choice),
    Store,
    StoreOrInit(Choice),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    rate: u64,
    interval: u64,
    vanishing: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Key {
    Limit,
    Value,
    Log,
}

/// Times around which something happens with the intervals below.
const MOVES: [i64; 16] = [
    0, 1, 1, 3, 7, 50, 99, 100, 101, 900, 999, 1000, 1001, 3000, -1, -40,
];

pub(crate) fn moves() -> impl Strategy<Value = i64> {
    proptest::sample::select(&MOVES[..])
}

pub(crate) fn step() -> impl Strategy<Value = Step> {
    let lost = prop_oneof![Just(Key::Limit), Just(Key::Value), Just(Key::Log)];
    let generation = prop_oneof![
        Just(Generation::Bytes8),
        Just(Generation::Bytes13),
        Just(Generation::Bytes20),
        Just(Generation::Bytes21),
    ];
    prop_oneof![
        12 => (permits(), whose()).prop_map(|(permits, whose)| Step::Acquire { permits, whose }),
        3 => (any::<Index>(), whose()).prop_map(|(which, whose)| Step::Resend { which, whose }),
        4 => (proptest::array::uniform4((permits(), any::<bool>())), lead(), whose())
            .prop_map(|(callers, lead, whose)| Step::Run { callers, lead, whose }),
        1 => (choice(), any::<bool>(), any::<bool>())
            .prop_map(|(choice, keep, existing)| Step::SetRate { choice, keep, existing }),
        2 => (1u32..9).prop_map(Step::Release),
        8 => moves().prop_map(Step::Advance),
        3 => any::<Index>().prop_map(Step::GiveBack),
        1 => Just(Step::GiveBackUnsent),
        4 => (any::<Index>(), kept(), whose())
            .prop_map(|(which, keep, whose)| Step::Settle { which, keep, whose }),
        2 => Just(Step::Available),
        1 => choice().prop_map(Step::TrySetRate),
        2 => Just(Step::Repair),
        2 => lost.prop_map(Step::Lose),
        1 => (-12i64..15).prop_map(Step::Drift),
        2 => (generation, -1500i64..4000, 0u32..4, any::<bool>()).prop_map(
            |(generation, age, permits, counted)| Step::Plant { generation, age, permits, counted }
        ),
    ]
}

pub(crate) fn permits() -> impl Strategy<Value = u32> {
    prop_oneof![8 => Just(1), 12 => 1u32..4, 4 => 1u32..12, 1 => Just(u32::MAX)]
}

/// More than a tenth of any interval below, too.
fn lead() -> impl Strategy<Value = i64> {
    prop_oneof![2 => Just(0), 4 => 1i64..120, 1 => Just(4000)]
}

/// Fewer permits than were taken, or more: also than the rate.
fn kept() -> impl Strategy<Value = u32> {
    prop_oneof![12 => 0u32..6, 4 => 0u32..30, 1 => Just(u32::MAX)]
}

pub(crate) fn whose() -> impl Strategy<Value = Whose> {
    let source = prop_oneof![
        8 => choice().prop_map(Source::Code),
        1 => choice().prop_map(Source::CodeOfOtherType),
        4 => Just(Source::Store),
        3 => choice().prop_map(Source::StoreOrInit),
    ];
    (source, proptest::bool::weighted(0.7), any::<bool>()).prop_map(|(source, rewrite, exact)| {
        Whose {
            source,
            rewrite,
            exact,
        }
    })
}

fn choice() -> impl Strategy<Value = Choice> {
    let rate = prop_oneof![6 => Just(5u64), 1 => Just(1), 1 => Just(3), 1 => Just(10)];
    let interval = prop_oneof![8 => Just(1000u64), 1 => Just(100), 1 => Just(3000)];
    (rate, interval, any::<bool>()).prop_map(|(rate, interval, vanishing)| Choice {
        rate,
        interval,
        vanishing,
    })
}

impl Choice {
    fn limit(self, pair: &Pair) -> Limit {
        let limit = pair.limit(self.rate, self.interval);
        if self.vanishing {
            limit.for_request_key()
        } else {
            limit
        }
    }
}

impl Whose {
    /// The stored limit, as it is.
    pub(crate) const STORED: Self = Self {
        source: Source::Store,
        rewrite: false,
        exact: false,
    };

    pub(crate) fn how(self, pair: &Pair) -> How {
        let limit = match self.source {
            Source::Code(choice) => LimitSource::Code(choice.limit(pair)),
            // Where nothing is stored, it would make the limiter one of the other type.
            Source::CodeOfOtherType(_) if pair.model.limit.is_none() => LimitSource::Store,
            Source::CodeOfOtherType(choice) => LimitSource::Code(other_type(pair, choice)),
            Source::Store => LimitSource::Store,
            Source::StoreOrInit(choice) => LimitSource::StoreOrInit(choice.limit(pair)),
        };
        How {
            limit,
            rewrite: self.rewrite,
            exact: self.exact,
        }
    }
}

fn other_type(pair: &Pair, choice: Choice) -> Limit {
    let limit = Limit::new(
        choice.rate,
        std::time::Duration::from_millis(choice.interval),
    );
    match choice.limit(pair).rate_type() {
        RateType::Overall => limit.per_client(),
        RateType::PerClient => limit,
    }
}

pub(crate) fn take(pair: &mut Pair, step: Step) {
    match step {
        Step::Acquire { permits, whose } => {
            let how = whose.how(pair);
            let _ = pair.acquire(permits, how);
        }
        Step::Resend { which, whose } if !pair.sent.is_empty() => {
            let how = whose.how(pair);
            let sent = *which.get(&pair.sent);
            // What is scored ahead is never asked for alone.
            let _ = if sent.lead > 0 {
                pair.send_run(&[(sent, false)], how).map(drop)
            } else {
                pair.send(sent, how).map(drop)
            };
        }
        Step::Run {
            callers,
            lead,
            whose,
        } => {
            let how = whose.how(pair);
            let mut run = callers.map(|(permits, waits)| {
                let sent = Sent {
                    id: pair.new_id(),
                    permits,
                    lead: 0,
                };
                (sent, waits)
            });
            if let Some((last, false)) = run.last_mut() {
                last.lead = lead;
            }
            pair.sent.extend(run.iter().map(|(sent, _)| *sent));
            let _ = pair.send_run(&run, how);
        }
        Step::SetRate {
            choice,
            keep,
            existing,
        } => {
            let limit = choice.limit(pair);
            pair.set_rate(limit, keep, existing);
        }
        Step::Release(permits) => pair.release(permits),
        Step::Advance(by) => pair.advance(by),
        Step::GiveBack(which) if !pair.sent.is_empty() => {
            let sent = *which.get(&pair.sent);
            pair.give_back(sent);
            assert!(!pair.give_back(sent), "given back twice");
        }
        Step::Settle { which, keep, whose } if !pair.sent.is_empty() => {
            let limit = whose.how(pair).limit;
            let sent = *which.get(&pair.sent);
            if pair.settle(sent, keep, limit).is_ok() {
                assert_eq!(pair.settle(sent, keep, limit), Ok(0), "settled twice");
            }
        }
        Step::Resend { .. } | Step::GiveBack(_) | Step::Settle { .. } => {}
        Step::GiveBackUnsent => {
            let sent = Sent {
                id: pair.new_id(),
                permits: 2,
                lead: 0,
            };
            assert!(!pair.give_back(sent));
        }
        Step::Available => {
            let _ = pair.available();
        }
        Step::TrySetRate(choice) => {
            let limit = choice.limit(pair);
            pair.try_set_rate(limit);
        }
        Step::Repair => {
            if pair.repair().is_ok() {
                assert_eq!(pair.repair(), Ok(0), "repaired twice");
            }
        }
        Step::Lose(Key::Limit) => pair.lose_limit(),
        Step::Lose(Key::Value) => pair.lose_value(),
        Step::Lose(Key::Log) => pair.lose_log(),
        Step::Drift(value) => pair.set_value(value),
        Step::Plant {
            generation,
            age,
            permits,
            counted,
        } => {
            let score = pair.now() - age;
            pair.plant(generation, score, permits);
            if let (true, Some(value)) = (counted, pair.model.value) {
                pair.set_value(value - i64::from(permits));
            }
        }
    }
}

fn live(rate_type: RateType, clock: Clock, lone: Lone, steps: Vec<Step>) {
    let mut pair = Pair::new(rate_type, clock).through(lone);
    for step in steps {
        take(&mut pair, step);
    }
}

pub(crate) fn config() -> ProptestConfig {
    ProptestConfig {
        // PROPTEST_CASES asks for more.
        cases: ProptestConfig::default().cases.max(400),
        // A sequence that failed becomes a test of its own in `edges.rs`.
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

pub(crate) fn rate_type() -> impl Strategy<Value = RateType> {
    prop_oneof![4 => Just(RateType::Overall), 1 => Just(RateType::PerClient)]
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_history_by_the_callers_clock(
        rate_type in rate_type(),
        steps in proptest::collection::vec(step(), 1..40),
    ) {
        live(rate_type, Clock::Given(START), Lone::Own, steps);
    }

    #[test]
    fn a_history_by_the_servers_clock(
        rate_type in rate_type(),
        steps in proptest::collection::vec(step(), 1..40),
    ) {
        live(rate_type, Clock::Server, Lone::Own, steps.clone());
        live(rate_type, Clock::Server, Lone::Run, steps);
    }
}
