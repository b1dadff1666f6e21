//! Random histories of a store with its refusals kept, beside a store in memory that has none.

use crate::scene::*;
use std::{cell::Cell, cell::RefCell, collections::BTreeMap};

use tokio::runtime::Runtime;
use tower_ratelimit::LimitState;

const CAP: Duration = secs(1);

/// A step: by this process, or by another one if `other` is set. `a` and `both` choose the
/// limiters.
#[derive(Clone, Debug)]
enum Step {
    Pause(u64),
    Ask {
        a: bool,
        both: bool,
        permits: u32,
        times: u8,
    },
    Take {
        a: bool,
        permits: u32,
    },
    GiveBack {
        which: usize,
        keep: u32,
        other: bool,
    },
    Release {
        a: bool,
        permits: u32,
        other: bool,
    },
    Change {
        a: bool,
        limit: Limit,
        how: How,
        other: bool,
    },
}

#[derive(Clone, Copy, Debug)]
enum How {
    Set,
    Update,
    Reset,
}

fn limit() -> impl Strategy<Value = Limit> {
    let interval = prop_oneof![Just(200u64), Just(1000), Just(3000), Just(20_000)];
    (1u64..6, interval).prop_map(|(rate, ms)| Limit::new(rate, millis(ms)))
}

fn step(others: bool) -> impl Strategy<Value = Step> {
    let other = || {
        if others {
            any::<bool>().boxed()
        } else {
            Just(false).boxed()
        }
    };
    let pause = prop_oneof![0u64..30, 0u64..700, 900u64..1100];
    let how = prop_oneof![Just(How::Set), Just(How::Update), Just(How::Reset)];
    let a = any::<bool>;
    prop_oneof![
        6 => pause.prop_map(Step::Pause),
        12 => (a(), a(), 1u32..7, 1u8..4)
            .prop_map(|(a, both, permits, times)| Step::Ask { a, both, permits, times }),
        if others { 2 } else { 0 } => (a(), 1u32..4)
            .prop_map(|(a, permits)| Step::Take { a, permits }),
        3 => (0usize..8, 0u32..9, other())
            .prop_map(|(which, keep, other)| Step::GiveBack { which, keep, other }),
        1 => (a(), 1u32..5, other())
            .prop_map(|(a, permits, other)| Step::Release { a, permits, other }),
        1 => (a(), limit(), how, other())
            .prop_map(|(a, limit, how, other)| Step::Change { a, limit, how, other }),
    ]
}

type Input = (Limit, Limit, Vec<Step>);

fn input(others: bool) -> impl Strategy<Value = Input> {
    (
        limit(),
        limit(),
        proptest::collection::vec(step(others), 1..60),
    )
}

/// One limiter, as each of those who know it has it.
struct Everywhere {
    ours: RateLimiter,
    others: RateLimiter,
    model: RateLimiter,
}

impl Everywhere {
    /// The limiter as this process has it, or another one.
    fn by(&self, other: bool) -> &RateLimiter {
        if other { &self.others } else { &self.ours }
    }
}

struct World {
    runtime: Runtime,
    clock: ManualClock,
    ours: RedisStore,
    other: RedisStore,
    model: MemoryStore,
    /// The number of cached refusals, and of those that Redis would have granted.
    again: Cell<u64>,
    late: Cell<u64>,
}

impl World {
    fn new() -> Self {
        let clock = ManualClock::new();
        let store = || {
            let store = patient(RedisServer::shared().url()).deny_cache(CAP);
            store.client_clock(clock.clone()).build().unwrap()
        };
        Self {
            runtime: runtime(),
            ours: store(),
            other: store(),
            model: MemoryStore::new().clock(clock.clone()),
            clock,
            again: Cell::new(0),
            late: Cell::new(0),
        }
    }

    async fn limiter(&self, limit: Limit) -> Everywhere {
        let name = unique("l4");
        let limiter = Everywhere {
            ours: RateLimiter::new(&self.ours, &name).unwrap(),
            others: RateLimiter::new(&self.other, &name).unwrap(),
            model: RateLimiter::new(&self.model, &name).unwrap(),
        };
        assert!(limiter.ours.try_set_rate(limit).await.unwrap());
        assert!(limiter.model.try_set_rate(limit).await.unwrap());
        limiter
    }

    fn law(&self, (first, second, steps): &Input) {
        self.runtime.block_on(async {
            let a = self.limiter(*first).await;
            let b = self.limiter(*second).await;
            let both = RateLimiter::all([&a.ours, &b.ours]).unwrap();
            let model_both = RateLimiter::all([&a.model, &b.model]).unwrap();
            let one = |is_a: bool| if is_a { &a } else { &b };
            // Of Redis and of the model.
            let taken: RefCell<Vec<(Receipt, Receipt, bool)>> = RefCell::default();
            // When another process last did something that this one has not asked about.
            let mut others_did: Option<Duration> = None;
            for step in steps {
                match step.clone() {
                    Step::Pause(time) => self.clock.advance(millis(time)),
                    Step::Ask {
                        a: is_a,
                        both: is_both,
                        permits,
                        times,
                    } => {
                        for _ in 0..times {
                            let (answer, true_one) = if is_both {
                                (
                                    both.try_acquire_many(permits).await.unwrap(),
                                    model_both.try_acquire_many(permits).await.unwrap(),
                                )
                            } else {
                                (
                                    one(is_a).ours.try_acquire_many(permits).await.unwrap(),
                                    one(is_a).model.try_acquire_many(permits).await.unwrap(),
                                )
                            };
                            let lags = others_did.is_some_and(|then| self.clock.now() - then < CAP);
                            self.compare(&answer, &true_one, lags, step);
                            match (&answer, &true_one) {
                                (Decision::Allow(grant), Decision::Allow(model)) => {
                                    let pairs = grant.receipts().iter().zip(model.receipts());
                                    for (place, (ours, model)) in pairs.enumerate() {
                                        let is_a = if is_both { place == 0 } else { is_a };
                                        let taken = &mut *taken.borrow_mut();
                                        taken.push((ours.clone(), model.clone(), is_a));
                                    }
                                }
                                // The model did not take it.
                                (Decision::Deny(_), Decision::Allow(model)) => {
                                    for receipt in model.receipts() {
                                        a.model.give_back(receipt);
                                        b.model.give_back(receipt);
                                    }
                                }
                                _ => {}
                            }
                        }
                    }
                    Step::Take { a: is_a, permits } => {
                        let limiter = one(is_a);
                        // Not from the other process's memory.
                        let others = limiter.others.try_acquire_many(permits).await.unwrap();
                        if let Decision::Allow(_) = &others {
                            let model = limiter.model.try_acquire_many(permits).await.unwrap();
                            model.assert_allowed();
                        }
                        others_did = Some(self.clock.now());
                    }
                    Step::GiveBack { which, keep, other } => {
                        let found = {
                            let mut taken = taken.borrow_mut();
                            let at = which % taken.len().max(1);
                            (at < taken.len()).then(|| taken.remove(at))
                        };
                        let Some((receipt, model, is_a)) = found else {
                            continue;
                        };
                        let limiter = one(is_a);
                        let by = limiter.by(other);
                        by.settle(&receipt, keep);
                        limiter.model.settle(&model, keep);
                        if other {
                            self.other.close().await;
                            others_did = Some(self.clock.now());
                        } else {
                            self.ours.close().await;
                        }
                    }
                    Step::Release {
                        a: is_a,
                        permits,
                        other,
                    } => {
                        let limiter = one(is_a);
                        let by = limiter.by(other);
                        let given = by.release(permits).await.unwrap();
                        assert_eq!(given, limiter.model.release(permits).await.unwrap());
                        // Of grants of one millisecond either may be the oldest, and its receipt
                        // void.
                        taken.borrow_mut().retain(|(.., of_a)| *of_a != is_a);
                        if other {
                            others_did = Some(self.clock.now());
                        }
                    }
                    Step::Change {
                        a: is_a,
                        limit,
                        how,
                        other,
                    } => {
                        let limiter = one(is_a);
                        // What one side alone was asked about, it alone has cleared of what
                        // expired. What is left of that counts again for a longer interval.
                        for limiter in [&limiter.others, &limiter.model] {
                            free(limiter).await;
                        }
                        let by = limiter.by(other);
                        for limiter in [by, &limiter.model] {
                            match how {
                                How::Set => limiter.set_rate(limit).await.unwrap(),
                                How::Update => assert!(limiter.update_rate(limit).await.unwrap()),
                                How::Reset => assert!(limiter.reset_rate(limit).await.unwrap()),
                            }
                        }
                        if other {
                            others_did = Some(self.clock.now());
                        }
                    }
                }
            }
        });
    }

    /// `lags`: another process has done something within the cap.
    fn compare(&self, answer: &Decision, model: &Decision, lags: bool, step: &Step) {
        let again = answer.source() == Source::Cache;
        self.again.set(self.again.get() + u64::from(again));
        if again && lags {
            // What it did is seen later.
            assert!(!answer.is_allowed());
            self.late
                .set(self.late.get() + u64::from(model.is_allowed()));
            return;
        }
        let what = format!("{step:?}: {answer:?}, but {model:?}");
        assert_eq!(answer.is_allowed(), model.is_allowed(), "{what}");
        if let (Decision::Deny(answer), Decision::Deny(model)) = (answer, model) {
            assert_eq!(answer.kind(), model.kind(), "{what}");
            assert_eq!(answer.retry_after(), model.retry_after(), "{what}");
        }
        let (answer, model) = (by_name(answer.limits()), by_name(model.limits()));
        assert_eq!(answer.len(), model.len(), "{what}");
        for (name, answer) in answer {
            let model = &model[&name];
            assert_eq!(answer.permits(), model.permits(), "{what}");
            assert_eq!(answer.interval(), model.interval(), "{what}");
            assert_eq!(answer.is_refused(), model.is_refused(), "{what}");
            assert_eq!(answer.retry_after(), model.retry_after(), "{what}");
            assert_eq!(answer.remaining().is_some(), model.remaining().is_some());
            if again {
                // Some may have become free since, but not what is asked for.
                assert!(answer.remaining() <= model.remaining(), "{what}");
            } else {
                assert_eq!(answer.remaining(), model.remaining(), "{what}");
                assert_eq!(answer.reset_after(), model.reset_after(), "{what}");
            }
        }
    }
}

fn by_name(limits: impl Iterator<Item = LimitState>) -> BTreeMap<String, LimitState> {
    limits
        .map(|limit| (limit.name().to_owned(), limit))
        .collect()
}

fn histories(world: &World, cases: u32, others: bool) {
    check(cases, &input(others), |input| world.law(&input));
    println!("cached: {}, late: {}", world.again.get(), world.late.get());
}

#[test]
fn alone_a_process_never_notices() {
    let world = World::new();
    histories(&world, 150, false);
    assert!(world.again.get() > 300, "{}", world.again.get());
    assert_eq!(world.late.get(), 0);
}

#[test]
fn what_other_processes_do_is_noticed_within_the_cap() {
    let world = World::new();
    // Some histories in a hundred have another process act on a limiter whose refusal is cached.
    // Without one there would be nothing to see here.
    for _ in 0..20 {
        histories(&world, 200, true);
        if world.late.get() > 0 {
            return;
        }
    }
    panic!("no history in 4,000 has a refusal that is cached too long");
}
