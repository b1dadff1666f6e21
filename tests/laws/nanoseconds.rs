//! The laws in memory where the clock moves by nanoseconds: they hold at any interval that a limit
//! takes, also at one that is no longer than what a coarser clock would round by.

use crate::scene::*;
use proptest::prelude::*;

use super::{never_over::fullest, world::Grant, world::Request, world::check};

const MS: u64 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Counted {
    Log,
    Slots(u32),
    Window,
    Gcra,
}

/// A limit, how it is counted, and traffic with pauses in nanoseconds.
type History = (Limit, Counted, Vec<Request>);

fn histories() -> impl Strategy<Value = History> {
    let interval = prop::sample::select(&[1u64, 2, 3, 7, 10, 15, 101, 1000][..]);
    let counted = prop_oneof![
        3 => Just(Counted::Log),
        2 => Just(Counted::Slots(10)),
        1 => Just(Counted::Slots(100)),
        2 => Just(Counted::Window),
        3 => Just(Counted::Gcra),
    ];
    (prop_oneof![1u64..12, Just(100)], interval, counted).prop_flat_map(
        |(rate, millis, counted)| {
            let limit = Limit::new(rate, Duration::from_millis(millis));
            let counted = match counted {
                Counted::Slots(slots) if millis < slots.into() => Counted::Log,
                counted => counted,
            };
            (Just(limit), Just(counted), traffic(millis * MS, rate))
        },
    )
}

fn traffic(interval: u64, rate: u64) -> impl Strategy<Value = Vec<Request>> {
    let pause = prop_oneof![
        3 => Just(0),
        3 => 1u64..3000,
        6 => 0..interval / 4,
        1 => 0..interval,
        1 => interval - 2000..interval + 2000,
        1 => Just(interval - 1),
        1 => Just(interval),
        1 => Just(interval + MS - 1),
    ];
    let permits = prop_oneof![4 => 1u32..4, 1 => 1..=u32::try_from(rate).unwrap()];
    let request = (pause, permits).prop_map(|(pause, permits)| Request { pause, permits });
    // The first pause decides where between two microseconds it begins.
    let first = (0u64..2000, 1u32..4).prop_map(|(pause, permits)| Request { pause, permits });
    (first, proptest::collection::vec(request, 1..60)).prop_map(|(first, mut rest)| {
        rest.insert(0, first);
        rest
    })
}

struct Subject {
    clock: ManualClock,
    limiter: RateLimiter,
}

impl Subject {
    async fn new(limit: Limit, counted: Counted) -> Self {
        let clock = ManualClock::new();
        let store = MemoryStore::new().clock(clock.clone());
        let limiter = RateLimiter::new(&store, &unique("nanoseconds")).unwrap();
        assert!(limiter.try_set_rate(limit).await.unwrap());
        let limiter = match counted {
            Counted::Log => limiter,
            Counted::Slots(slots) => limiter.slots(slots).unwrap(),
            Counted::Window => limiter.algorithm(Algorithm::FixedWindow),
            Counted::Gcra => limiter.algorithm(Algorithm::Gcra),
        };
        Self { clock, limiter }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.clock.now().as_nanos()).unwrap()
    }

    /// The wait of who is refused; `None` where no wait is long enough.
    async fn take(&self, permits: u32) -> Result<(), Option<Duration>> {
        match self.limiter.try_acquire_many(permits).await.unwrap() {
            Decision::Allow(_) => Ok(()),
            Decision::Deny(refusal) => Err(refusal.retry_after()),
        }
    }

    async fn send(&self, traffic: &[Request]) -> Vec<Grant> {
        let mut grants = Vec::new();
        for Request { pause, permits } in traffic.iter().copied() {
            self.clock.advance(Duration::from_nanos(pause));
            if self.take(permits).await.is_ok() {
                grants.push(Grant {
                    at: self.now(),
                    permits,
                });
            }
        }
        grants
    }
}

fn run<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.build().unwrap();
    runtime.block_on(future)
}

fn interval_of(limit: Limit) -> u64 {
    u64::try_from(limit.interval().as_nanos()).unwrap()
}

/// GCRA: no more in any time than come free in it, and the burst.
fn is_paced(grants: &[Grant], limit: Limit) -> bool {
    let (rate, interval) = (u128::from(limit.permits()), u128::from(interval_of(limit)));
    (0..grants.len()).all(|first| {
        let mut sum = 0;
        grants[first..].iter().all(|last| {
            sum += u128::from(last.permits);
            let time = u128::from(last.at - grants[first].at);
            sum.saturating_sub(rate) * interval <= rate * time
        })
    })
}

/// The most permits of one window: it begins with a grant, and lasts for the interval and a
/// millisecond from the microsecond that this is rounded up to.
fn fullest_window(grants: &[Grant], limit: Limit) -> u64 {
    let lasts = (interval_of(limit) + MS) / 1000;
    let mut windows: Vec<(u64, u64)> = Vec::new();
    for grant in grants {
        match windows.last_mut() {
            Some((end, sum)) if grant.at / 1000 < *end => *sum += u64::from(grant.permits),
            _ => windows.push((grant.at.div_ceil(1000) + lasts, grant.permits.into())),
        }
    }
    windows.into_iter().map(|(_, sum)| sum).max().unwrap_or(0)
}

// L1
#[test]
fn no_interval_has_more_than_the_limit() {
    check(3000, &histories(), |(limit, counted, traffic)| {
        run(async {
            let subject = Subject::new(limit, counted).await;
            let grants = subject.send(&traffic).await;
            let full = fullest(&grants, interval_of(limit));
            match counted {
                Counted::Log | Counted::Slots(_) => {
                    assert!(full <= limit.permits(), "{full}: {grants:?}");
                }
                Counted::Window => {
                    assert!(
                        fullest_window(&grants, limit) <= limit.permits(),
                        "{grants:?}"
                    );
                    assert!(full <= 2 * limit.permits(), "{full}: {grants:?}");
                }
                Counted::Gcra => assert!(is_paced(&grants, limit), "{grants:?}"),
            }
        });
    });
}

/// Rounding to milliseconds would admit these permits twice.
#[test]
fn a_burst_before_the_turn_of_a_millisecond_counts_for_the_whole_interval() {
    run(async {
        let limit = Limit::new(10, Duration::from_millis(2));
        let subject = Subject::new(limit, Counted::Log).await;
        subject.clock.advance(Duration::from_nanos(MS - 1));
        assert_eq!(subject.take(10).await, Ok(()));
        subject.clock.advance(Duration::from_nanos(MS + 1));
        // Until the microsecond in which it was is over, too.
        let left = Duration::from_nanos(MS);
        assert_eq!(subject.take(10).await, Err(Some(left)));
        subject.clock.advance(left);
        assert_eq!(subject.take(10).await, Ok(()));
    });
}

// And not under without need: who is refused by a log would have made it more than the limit within
// an interval and the two microseconds by which it rounds.
#[test]
fn a_refused_request_does_not_fit() {
    check(1500, &histories(), |(limit, counted, traffic)| {
        if counted != Counted::Log {
            return;
        }
        run(async {
            let subject = Subject::new(limit, counted).await;
            let mut grants: Vec<Grant> = Vec::new();
            for request in traffic {
                subject.clock.advance(Duration::from_nanos(request.pause));
                let grant = Grant {
                    at: subject.now(),
                    permits: request.permits,
                };
                grants.push(grant);
                if subject.take(request.permits).await.is_err() {
                    let full = fullest(&grants, interval_of(limit) + 2000);
                    assert!(full > limit.permits(), "{grants:?}");
                    grants.pop();
                }
            }
        });
    });
}

/// A burst of the whole limit passes at any instant, however many of its calls fall into one
/// microsecond.
#[test]
fn an_idle_limiter_has_all_its_permits_within_a_microsecond() {
    check(
        1000,
        &(histories(), 0u64..2000),
        |((limit, counted, _), begun)| {
            run(async {
                let subject = Subject::new(limit, counted).await;
                subject.clock.advance(Duration::from_nanos(begun));
                for left in (0..limit.permits()).rev() {
                    assert_eq!(subject.take(1).await, Ok(()), "{left}");
                    let available = subject.limiter.available_permits().await.unwrap();
                    assert_eq!(available, left);
                }
                assert!(subject.take(1).await.is_err());
            });
        },
    );
}

/// A history, a request after it, and where before its wait to probe (in thousandths).
type Probed = (History, u32, Vec<u64>);

fn probed() -> impl Strategy<Value = Probed> {
    histories().prop_flat_map(|history| {
        let permits = 1..=u32::try_from(history.0.permits()).unwrap();
        (
            Just(history),
            permits,
            proptest::collection::vec(0u64..1000, 3),
        )
    })
}

// L2: refused at every nanosecond before the announced wait is over, granted at it.
#[test]
fn a_wait_is_exact() {
    check(
        3000,
        &probed(),
        |((limit, counted, traffic), permits, probes)| {
            run(async {
                let subject = Subject::new(limit, counted).await;
                subject.send(&traffic).await;
                let Err(wait) = subject.take(permits).await else {
                    return;
                };
                let wait = u64::try_from(wait.unwrap().as_nanos()).unwrap();
                let due = subject.now() + wait;
                let mut instants: Vec<_> = probes.iter().map(|part| wait * part / 1000).collect();
                instants.push(wait - 1);
                instants.sort_unstable();
                for instant in instants {
                    subject
                        .clock
                        .set(Duration::from_nanos(due - wait + instant));
                    let left = Duration::from_nanos(wait - instant);
                    assert_eq!(subject.take(permits).await, Err(Some(left)), "{counted:?}");
                }
                subject.clock.set(Duration::from_nanos(due));
                assert_eq!(subject.take(permits).await, Ok(()), "{counted:?}");
            });
        },
    );
}
