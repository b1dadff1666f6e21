//! Random histories of every kind: grants, refusals, resends, give-backs, changed limits, lost
//! keys, drift, other writers.

use super::*;

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Demand {
        permits: u32,
        whose: Whose,
    },
    /// Also of an acquire that was refused, or lost by now
    Resend {
        which: Index,
        whose: Whose,
    },
    /// Several callers at once; some wait. The last, if it does not, may be scored ahead
    Run {
        callers: [(u32, bool); 4],
        lead: i64,
        whose: Whose,
    },
    /// Callers at once with equal demands: new ones, and some that were sent before
    Equal {
        callers: usize,
        permits: u32,
        again: Vec<Index>,
        /// Whether the same call comes a second time
        twice: bool,
        whose: Whose,
    },
    Advance(i64),
    SetRate {
        choice: Choice,
        keep: bool,
        existing: bool,
    },
    Release(u32),
    /// At what was used
    Settle {
        which: Index,
        keep: u32,
        whose: Whose,
    },
    GiveBackUnsent,
    Available,
    TrySetRate(Choice),
    Repair,
    Lose(Key),
    /// As `release` or an operator leaves it
    Drift(i64),
    Plant(Plant),
    /// From now on grants are noted in so many slots, or one by one
    NoteIn(Option<u32>),
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

pub(crate) fn steps<K: Kind>(most: usize) -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec(step::<K>(), 1..most)
}

pub(crate) fn step<K: Kind>() -> impl Strategy<Value = Step> {
    let lost = prop_oneof![Just(Key::Limit), Just(Key::Value), Just(Key::Log)];
    let settle = (any::<Index>(), kept(), whose::<K>());
    let back = (any::<Index>(), Just(0), Just(Whose::STORED));
    prop_oneof![
        12 => (permits::<K>(), whose::<K>())
            .prop_map(|(permits, whose)| Step::Demand { permits, whose }),
        3 => (any::<Index>(), whose::<K>()).prop_map(|(which, whose)| Step::Resend { which, whose }),
        4 => (proptest::array::uniform4((permits::<K>(), any::<bool>())), lead(), whose::<K>())
            .prop_map(|(callers, lead, whose)| Step::Run { callers, lead, whose }),
        8 => equal::<K>(),
        1 => (choice::<K>(), any::<bool>(), any::<bool>())
            .prop_map(|(choice, keep, existing)| Step::SetRate { choice, keep, existing }),
        2 => (1u32..9).prop_map(Step::Release),
        8 => K::moves().prop_map(Step::Advance),
        1 => Just(Step::GiveBackUnsent),
        7 => prop_oneof![3 => back.boxed(), 4 => settle.boxed()]
            .prop_map(|(which, keep, whose)| Step::Settle { which, keep, whose }),
        2 => Just(Step::Available),
        1 => choice::<K>().prop_map(Step::TrySetRate),
        2 => Just(Step::Repair),
        2 => lost.prop_map(Step::Lose),
        2 => (-12i64..15).prop_map(Step::Drift),
        2 => plant().prop_map(Step::Plant),
    ]
}

pub(crate) fn permits<K: Kind>() -> impl Strategy<Value = u32> {
    prop_oneof![8 => Just(1), 12 => 1u32..4, 4 => 1u32..12, 1 => Just(K::MANY), 1 => Just(u32::MAX)]
}

fn equal<K: Kind>() -> impl Strategy<Value = Step> {
    let permits = prop_oneof![6 => Just(1), 2 => Just(2), 1 => permits::<K>()];
    let again = proptest::collection::vec(any::<Index>(), 0..3);
    let again = prop_oneof![2 => Just(Vec::new()), 1 => again];
    let run = (
        1_usize..6,
        permits,
        again,
        proptest::bool::weighted(0.3),
        whose::<K>(),
    );
    run.prop_map(|(callers, permits, again, twice, whose)| Step::Equal {
        callers,
        permits,
        again,
        twice,
        whose,
    })
}

/// More than a tenth of any interval of a log, too.
fn lead() -> impl Strategy<Value = i64> {
    prop_oneof![2 => Just(0), 4 => 1i64..120, 1 => Just(4000)]
}

/// Fewer permits than were taken, or more: also than the rate.
fn kept() -> impl Strategy<Value = u32> {
    prop_oneof![12 => 0u32..6, 4 => 0u32..30, 1 => Just(u32::MAX)]
}

fn plant() -> impl Strategy<Value = Plant> {
    let generation = prop_oneof![
        Just(Generation::Bytes8),
        Just(Generation::Bytes13),
        Just(Generation::Bytes20),
        Just(Generation::Bytes21),
    ];
    // Or more than a page of those that hold no permits.
    let held = prop_oneof![3 => (Just(1), 0u32..4), 1 => (Just(120), Just(0))];
    let plant = (generation, -1500i64..4000, held, any::<bool>());
    plant.prop_map(|(generation, age, (number, permits), counted)| Plant {
        number,
        generation,
        age,
        permits,
        counted,
    })
}

pub(crate) fn whose<K: Kind>() -> impl Strategy<Value = Whose> {
    let source = prop_oneof![
        8 => choice::<K>().prop_map(Source::Code),
        1 => choice::<K>().prop_map(Source::CodeOfOtherType),
        4 => Just(Source::Store),
        3 => choice::<K>().prop_map(Source::StoreOrInit),
    ];
    (source, proptest::bool::weighted(0.7), any::<bool>()).prop_map(|(source, rewrite, exact)| {
        Whose {
            source,
            rewrite,
            exact,
        }
    })
}

fn choice<K: Kind>() -> impl Strategy<Value = Choice> {
    let rate = proptest::sample::select(K::RATES);
    let interval = proptest::sample::select(K::INTERVALS);
    (rate, interval, any::<bool>()).prop_map(|(rate, interval, vanishing)| Choice {
        rate,
        interval,
        vanishing,
    })
}

impl Choice {
    fn limit<K: Kind>(self, pair: &Pair<K>) -> Limit {
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

    pub(crate) fn how<K: Kind>(self, pair: &Pair<K>) -> How {
        let limit = match self.source {
            Source::Code(choice) => LimitSource::Code(choice.limit(pair)),
            // Where nothing is stored, or no hash is looked at, it would make the limiter one of
            // the other type.
            Source::CodeOfOtherType(_)
                if pair.model.limit().is_none() || K::ALGORITHM == Algorithm::Gcra =>
            {
                LimitSource::Store
            }
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

fn other_type<K: Kind>(pair: &Pair<K>, choice: Choice) -> Limit {
    let limit = Limit::new(choice.rate, Duration::from_millis(choice.interval));
    match pair.rate_type {
        RateType::Overall => limit.per_client(),
        RateType::PerClient => limit,
    }
}

pub(crate) fn take<K: Kind>(pair: &mut Pair<K>, step: Step) {
    K::read(pair);
    match step {
        Step::Demand { permits, whose } => {
            let sent = pair.unsent(permits);
            pair.sent.push(sent);
            K::acquire(pair, &[(sent, false)], whose.how(pair));
        }
        Step::Resend { which, whose } if !pair.sent.is_empty() => {
            let sent = *which.get(&pair.sent);
            K::acquire(pair, &[(sent, false)], whose.how(pair));
        }
        Step::Run {
            callers,
            lead,
            whose,
        } => {
            let mut run = callers.map(|(permits, waits)| (pair.unsent(permits), waits));
            if let Some((last, false)) = run.last_mut() {
                last.lead = lead;
            }
            pair.sent.extend(run.iter().map(|(sent, _)| *sent));
            K::acquire(pair, &run, whose.how(pair));
        }
        Step::Equal {
            callers,
            permits,
            again,
            twice,
            whose,
        } => {
            let as_many = |sent: &&Sent| sent.permits == permits && sent.lead == 0;
            let before: Vec<_> = pair.sent.iter().filter(as_many).copied().collect();
            let mut run: Vec<_> = (0..callers)
                .map(|_| (pair.unsent(permits), false))
                .collect();
            pair.sent.extend(run.iter().map(|(sent, _)| *sent));
            for which in again.iter().filter(|_| !before.is_empty()) {
                run.insert(which.index(run.len() + 1), (*which.get(&before), false));
            }
            let how = whose.how(pair);
            for _ in 0..1 + usize::from(twice) {
                K::acquire(pair, &run, how);
            }
        }
        Step::SetRate {
            choice,
            keep,
            existing,
        } => pair.set_rate(choice.limit(pair), keep, existing),
        Step::Release(permits) => pair.release(permits),
        Step::Advance(by) => pair.advance(by),
        Step::Settle { which, keep, whose } if !pair.sent.is_empty() => {
            let limit = whose.how(pair).limit;
            K::settle(pair, which, keep, limit);
        }
        Step::Resend { .. } | Step::Settle { .. } => {}
        Step::GiveBackUnsent => K::give_back_unsent(pair),
        Step::Available => drop(pair.available()),
        Step::TrySetRate(choice) => drop(pair.try_set_rate(choice.limit(pair))),
        Step::Repair => {
            if pair.repair().is_ok() {
                assert_eq!(pair.repair(), Ok(0), "repaired twice");
            }
        }
        Step::Lose(key) => pair.lose(key),
        Step::Drift(value) => K::drift(pair, value),
        Step::Plant(plant) => K::plant(pair, plant),
        Step::NoteIn(slots) => K::note_in(pair, slots),
    }
}

pub(crate) fn live<K: Kind>(mut pair: Pair<K>, steps: Vec<Step>) {
    for step in steps {
        take(&mut pair, step);
    }
}

/// So many cases, or as many as PROPTEST_CASES asks for.
pub(crate) fn config(cases: u32) -> ProptestConfig {
    let asked = std::env::var_os("PROPTEST_CASES").is_some();
    ProptestConfig {
        cases: if asked {
            ProptestConfig::default().cases
        } else {
            cases
        },
        // A sequence that failed becomes a row in `rows.rs`, or a test in `edges.rs`.
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// So many overall for each per client.
pub(crate) fn rate_type(overall: u32) -> impl Strategy<Value = RateType> {
    prop_oneof![overall => Just(RateType::Overall), 1 => Just(RateType::PerClient)]
}

pub(crate) fn clock() -> impl Strategy<Value = Clock> {
    proptest::sample::select(&[Clock::Given(START), Clock::Server][..])
}

proptest! {
    #![proptest_config(config(800))]

    #[test]
    fn a_history(rate_type in rate_type(4), clock in clock(), steps in steps::<LimiterState<SlidingLog>>(40)) {
        live(Pair::new(rate_type, clock), steps);
    }

    #[test]
    fn a_history_of_runs_of_one(rate_type in rate_type(4), steps in steps::<LimiterState<SlidingLog>>(40)) {
        live(Pair::new(rate_type, Clock::Server).through(Lone::Run), steps);
    }
}
