//! Random histories of several store handles on one limiter, with and without leases, against the
//! laws.

use crate::scene::*;
use std::{cell::Cell, collections::HashSet, future::poll_fn};

/// The last of them leases nothing.
const PROCESSES: usize = 3;

#[derive(Clone, Debug)]
enum Step {
    Pause(u64),
    Take {
        process: usize,
        permits: u32,
        times: u8,
    },
    /// Left alone after so many looks
    Abandon {
        process: usize,
        permits: u32,
        polls: usize,
    },
    Settle {
        which: usize,
        keep: u32,
    },
    Close(usize),
    /// Others take nothing meanwhile
    Wait {
        process: usize,
        permits: u32,
    },
}

type Input = (Limit, Vec<Step>);

fn input() -> impl Strategy<Value = Input> {
    let process = || 0..PROCESSES;
    let step = prop_oneof![
        6 => prop_oneof![Just(0u64), 1u64..20, 80u64..120, 900u64..1200].prop_map(Step::Pause),
        16 => (process(), prop_oneof![4 => Just(1u32), 1 => 2u32..6], 1u8..12)
            .prop_map(|(process, permits, times)| Step::Take { process, permits, times }),
        2 => (process(), 1u32..4, 0usize..12)
            .prop_map(|(process, permits, polls)| Step::Abandon { process, permits, polls }),
        4 => (0usize..200, 0u32..8).prop_map(|(which, keep)| Step::Settle { which, keep }),
        1 => process().prop_map(Step::Close),
        1 => (process(), 1u32..4).prop_map(|(process, permits)| Step::Wait { process, permits }),
    ];
    let rate = prop_oneof![5u64..30, 100u64..400];
    let interval = prop_oneof![Just(500u64), Just(1000), Just(10_000)];
    let limit = (rate, interval).prop_map(|(rate, interval)| Limit::new(rate, millis(interval)));
    (limit, proptest::collection::vec(step, 1..50))
}

struct Held {
    at: u64,
    permits: u32,
    receipt: Receipt,
    process: usize,
    settled: bool,
}

struct World {
    clock: ManualClock,
    stores: Vec<RedisStore>,
    out_of_lease: Cell<u64>,
    /// The number of calls that had to wait.
    waited: Cell<u64>,
}

impl World {
    fn new() -> Self {
        let clock = ManualClock::new();
        let store = || shared_by_clock(&clock).build().unwrap();
        Self {
            stores: std::iter::repeat_with(store).take(PROCESSES).collect(),
            clock,
            out_of_lease: Cell::new(0),
            waited: Cell::new(0),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.clock.now().as_millis()).unwrap()
    }

    async fn limiters(&self, limit: Limit) -> Vec<RateLimiter> {
        let name = unique("lease");
        let mut limiters = Vec::new();
        for (process, store) in self.stores.iter().enumerate() {
            let limiter = RateLimiter::new(store, &name).unwrap();
            limiter.try_set_rate(limit).await.unwrap();
            let lease = if process + 1 < PROCESSES {
                limit.interval() / 10
            } else {
                Duration::ZERO
            };
            limiters.push(limiter.lease(lease).unwrap());
        }
        limiters
    }

    /// Waits for at most a millisecond. The clock is moved by that once the call is seen to wait,
    /// and only here.
    async fn wait(&self, limiter: &RateLimiter, permits: u32) -> Decision {
        let max_wait = Duration::from_millis(1);
        let mut waits = pin!(limiter.try_acquire_for(permits, max_wait));
        let decision = poll_fn(|cx| {
            let asleep = self.clock.sleepers();
            let polled = waits.as_mut().poll(cx);
            // No other call was polled meanwhile that could have begun to sleep.
            if polled.is_pending() && self.clock.sleepers() > asleep {
                self.waited.set(self.waited.get() + 1);
                self.clock.advance(max_wait);
            }
            polled
        });
        decision.await.unwrap()
    }

    async fn law(&self, (limit, steps): &Input) {
        let limiters = self.limiters(*limit).await;
        let interval = u64::try_from(limit.interval().as_millis()).unwrap();
        let ahead = interval / 10;
        let mut held: Vec<Held> = Vec::new();
        let mut debt: Vec<(u64, u32)> = Vec::new();
        for step in steps {
            let mut grants = Vec::new();
            match *step {
                Step::Pause(millis) => {
                    self.clock.advance(Duration::from_millis(millis));
                    // A caller that was woken by that goes first.
                    tokio::task::yield_now().await;
                }
                Step::Take {
                    process,
                    permits,
                    times,
                } => {
                    for _ in 0..times {
                        let decision = limiters[process].try_acquire_many(permits).await.unwrap();
                        let leased = decision.source() == Source::Lease;
                        self.out_of_lease
                            .set(self.out_of_lease.get() + u64::from(leased));
                        if let Decision::Allow(grant) = decision {
                            grants.push((process, grant));
                        }
                    }
                }
                Step::Abandon {
                    process,
                    permits,
                    polls,
                } => {
                    let call = limiters[process].try_acquire_many(permits);
                    let decision = looked_at(call, polls).await;
                    if let Some(Decision::Allow(grant)) = decision.map(Result::unwrap) {
                        grants.push((process, grant));
                    }
                }
                Step::Settle { which, keep } if !held.is_empty() => {
                    let at = which % held.len();
                    let grant = &mut held[at];
                    if !std::mem::replace(&mut grant.settled, true) {
                        limiters[grant.process].settle(&grant.receipt, keep);
                        if keep > grant.permits {
                            debt.push((self.now(), keep - grant.permits));
                        }
                        grant.permits = grant.permits.min(keep);
                    }
                    // The store gets the time of now.
                    self.stores[grant.process].close().await;
                }
                Step::Settle { .. } => {}
                Step::Close(process) => self.stores[process].close().await,
                Step::Wait { process, permits } => {
                    if let Decision::Allow(grant) = self.wait(&limiters[process], permits).await {
                        grants.push((process, grant));
                    }
                }
            }
            for (process, grant) in grants {
                let receipt = grant.receipts()[0].clone();
                held.push(Held {
                    at: self.now(),
                    permits: receipt.permits(),
                    receipt,
                    process,
                    settled: false,
                });
            }
            // L1: the window that ends here.
            let window = held.iter().filter(|grant| grant.at + interval > self.now());
            let window: u64 = window.map(|grant| u64::from(grant.permits)).sum();
            assert!(
                window <= limit.permits(),
                "{window} of {limit:?} at {step:?}"
            );
        }
        for store in &self.stores {
            store.close().await;
        }
        // The permits in use are exactly those that callers hold: an entry lives as long as its
        // grant and a lease.
        let last = &limiters[PROCESSES - 1];
        let held = held.iter().map(|grant| (grant.at, grant.permits));
        let held: Vec<_> = held.chain(debt.iter().copied()).collect();
        let used = |lives: u64| {
            let live = held.iter().filter(|(at, _)| at + lives > self.now());
            live.map(|(_, permits)| u64::from(*permits)).sum::<u64>()
        };
        let available = last.available_permits().await.unwrap();
        // The reported number is zero in debt.
        let most_free = limit.permits().saturating_sub(used(interval));
        let least_free = limit.permits().saturating_sub(used(interval + ahead));
        assert!(
            (least_free..=most_free).contains(&available),
            "{least_free} <= {available} <= {most_free}"
        );
        // L5.
        self.clock.advance(Duration::from_millis(interval + ahead));
        assert_eq!(last.available_permits().await.unwrap(), limit.permits());
    }
}

/// Returns the output of a future that is dropped after this many polls, a while apart.
async fn looked_at<F: Future>(future: F, looks: usize) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    for _ in 0..looks {
        let polled = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
        if let Poll::Ready(output) = polled {
            return Some(output);
        }
        tokio::task::yield_now().await;
    }
    None
}

#[test]
fn histories_of_several_stores_are_lawful() {
    let runtime = runtime();
    let world = runtime.block_on(async { World::new() });
    check(120, &input(), |input| runtime.block_on(world.law(&input)));
    println!("{} grants out of leases", world.out_of_lease.get());
    // Without these there would be nothing to see.
    assert!(world.out_of_lease.get() > 1_000);
}

#[tokio::test]
async fn a_caller_waits_for_room_that_comes_at_the_end_of_its_max_wait() {
    let world = World::new();
    let process = PROCESSES - 1;
    let take = |permits| Step::Take {
        process,
        permits,
        times: 1,
    };
    for (pause, waited) in [(498, 0), (499, 1), (500, 0)] {
        world.waited.set(0);
        let limit = Limit::new(5, Duration::from_millis(500));
        let wait = Step::Wait {
            process,
            permits: 5,
        };
        let input = (limit, vec![take(5), Step::Pause(pause), wait, take(1)]);
        let law = tokio::time::timeout(Duration::from_secs(20), world.law(&input));
        law.await.expect("it ends");
        assert_eq!(world.waited.get(), waited);
    }
}

/// Several tasks of one process, each dropped at some point of its call.
#[test]
fn calls_that_are_dropped_anywhere_leave_nothing_behind() {
    let runtime = runtime();
    runtime.block_on(async {
        let world = World::new();
        let limit = Limit::per_second(4000);
        let limiters = world.limiters(limit).await;
        let mut kept = 0;
        let mut points = HashSet::new();
        for looks in (0..40).cycle().take(400) {
            // Now and then a lease ends, so that some of these calls take the next one ahead.
            if looks % 7 == 0 {
                world.stores[0].close().await;
            }
            let answer = looked_at(limiters[0].try_acquire(), looks).await;
            points.insert((looks, answer.is_some()));
            kept += u64::from(answer.is_some_and(|decision| decision.unwrap().is_allowed()));
        }
        world.stores[0].close().await;
        let free = limiters[0].available_permits().await.unwrap();
        assert_eq!(free, limit.permits() - kept);
        let dropped = points.iter().filter(|(_, answered)| !answered).count();
        println!("dropped after {dropped} numbers of looks, {kept} kept");
        assert!(dropped > 1 && kept > 0);
    });
}
