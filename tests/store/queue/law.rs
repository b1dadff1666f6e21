//! L1 and L5 where callers go together: of several processes, of single limits and of lists.

use super::*;
use crate::support::windows;

/// Requests that come at one time.
#[derive(Clone, Debug)]
struct Burst {
    pause: u64,
    callers: Vec<Asks>,
}

#[derive(Clone, Copy, Debug)]
struct Asks {
    process: usize,
    /// The first limiter, the second, or both together.
    which: usize,
    permits: u32,
}

fn bursts() -> impl Strategy<Value = Vec<Burst>> {
    let asks = (
        0usize..2,
        0usize..3,
        prop_oneof![4 => 1u32..3, 1 => 1u32..9],
    )
        .prop_map(|(process, which, permits)| Asks {
            process,
            which,
            permits,
        });
    let callers = proptest::collection::vec(asks, 1..40);
    let pause = prop_oneof![1 => Just(0u64), 3 => 0u64..400, 1 => Just(1000), 1 => Just(1100)];
    let burst = (pause, callers).prop_map(|(pause, callers)| Burst { pause, callers });
    proptest::collection::vec(burst, 1..12)
}

async fn live(server: &RedisServer, rates: [u64; 2], bursts: Vec<Burst>) {
    let clock = ManualClock::new();
    let names = [unique("law"), unique("law")];
    let processes = [(); 2].map(|()| {
        let store = patient(server).client_clock(clock.clone()).build().unwrap();
        let limiters = names
            .clone()
            .map(|name| RateLimiter::new(&store, &name).unwrap());
        let both = RateLimiter::all(&limiters).unwrap();
        (limiters, both)
    });
    let [(limiters, _), _] = &processes;
    for (limiter, rate) in limiters.iter().zip(rates) {
        limiter.set_rate(Limit::per_second(rate)).await.unwrap();
    }
    let mut grants: [Vec<(u128, i64)>; 2] = Default::default();
    for burst in bursts {
        clock.advance(Duration::from_millis(burst.pause));
        let now = clock.now().as_millis();
        let mut asking = JoinSet::new();
        for asks in burst.callers {
            let (limiters, both) = processes[asks.process].clone();
            asking.spawn(async move {
                let decision = match limiters.get(asks.which) {
                    Some(limiter) => limiter.try_acquire_many(asks.permits).await,
                    None => both.try_acquire_many(asks.permits).await,
                };
                (asks, decision.unwrap())
            });
        }
        for (asks, decision) in asking.join_all().await {
            match decision {
                Decision::Allow(_) => {
                    for (at, grants) in grants.iter_mut().enumerate() {
                        if asks.which == at || asks.which == 2 {
                            grants.push((now, i64::from(asks.permits)));
                        }
                    }
                }
                Decision::Deny(refusal) => {
                    let mut limits = refusal.limits();
                    assert!(limits.any(|limit| limit.is_refused()), "{refusal:?}");
                }
            }
        }
    }
    for (grants, rate) in grants.iter().zip(&rates) {
        for granted in windows(grants.iter().copied(), 1000) {
            assert!(granted <= *rate as i64, "{granted} of {rate}: {grants:?}");
        }
    }
    clock.advance(Duration::from_millis(1100));
    for (limiter, rate) in limiters.iter().zip(rates) {
        assert_eq!(limiter.available_permits().await.unwrap(), rate);
    }
}

#[test]
fn no_run_lets_pass_more_than_the_limit() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let rate = || prop_oneof![1u64..12, 20u64..60];
    let inputs = ([rate(), rate()], bursts());
    check(48, &inputs, |(rates, bursts)| {
        runtime.block_on(live(RedisServer::shared(), rates, bursts));
    });
}
