//! The laws of GCRA: by a clock that is moved, in memory and in Redis, and in Redis by its own
//! clock.

use crate::scene::*;
use proptest::{prelude::*, sample::Index};

use super::{
    guards::Guards,
    world::{
        Grant, Probed, Request, World, abandon_and_give_back, check, check_in_redis, granted_in,
        histories, in_all_at_once, interval_of, probed, redis_store, refused_until, take,
        waits_are_long_enough,
    },
};

/// Returns the time of all permits in us: a whole number of them for each.
fn whole(limit: Limit) -> u64 {
    limit.permits() * (interval_of(limit) * 1000).div_ceil(limit.permits())
}

async fn arriving<S: Store>(world: &World<S>, limit: Limit) -> RateLimiter {
    world.limiter(limit).await.algorithm(Algorithm::Gcra)
}

/// L1: in any time no more than rate x time / interval, and the burst. `unit` times of `grants` are
/// a millisecond.
fn holds(grants: &[Grant], limit: Limit, unit: u64) -> bool {
    let rate = u128::from(limit.permits());
    let interval = u128::from(interval_of(limit) * unit);
    (0..grants.len()).all(|first| {
        let mut sum = 0;
        grants[first..].iter().all(|last| {
            sum += u128::from(last.permits);
            let time = u128::from(last.at - grants[first].at);
            sum.saturating_sub(rate) * interval <= rate * time
        })
    })
}

// L1, and no refusal without need: a refused request comes before its time, by the original
// definition of GCRA.
fn never_over<S: Store>(world: &World<S>, (limit, traffic): (Limit, Vec<Request>)) {
    world.run(async {
        let limiter = arriving(world, limit).await;
        let emission = whole(limit) / limit.permits();
        let mut arrival = 0;
        let mut grants: Vec<Grant> = Vec::new();
        for request in traffic {
            world.advance(request.pause);
            let now = world.now() * 1000;
            let next = now.max(arrival) + u64::from(request.permits) * emission;
            let fits = next <= now + whole(limit);
            let granted = take(&limiter, request.permits).await.is_ok();
            assert_eq!(granted, fits, "{request:?} after {grants:?}");
            if granted {
                arrival = next;
                grants.push(Grant {
                    at: world.now(),
                    permits: request.permits,
                });
            }
        }
        assert!(holds(&grants, limit, 1), "{grants:?}");
    });
}

#[test]
fn never_over_in_memory() {
    let world = World::memory();
    check(400, &histories(), |input| never_over(&world, input));
}

#[test]
fn never_over_in_redis() {
    check_in_redis(100, &histories(), never_over);
}

/// Requests, and after each of them an unsettled grant to settle, with its number of permits.
type Settled = (Limit, Vec<(Request, Option<(Index, u32)>)>);

fn settled() -> impl Strategy<Value = Settled> {
    histories().prop_flat_map(|(limit, traffic)| {
        let keep = prop_oneof![4 => Just(0u32), 1 => 0u32..5];
        let settle = proptest::option::weighted(0.7, (any::<Index>(), keep));
        let settles = proptest::collection::vec(settle, traffic.len());
        let both = settles.prop_map(move |settles| traffic.iter().copied().zip(settles).collect());
        (Just(limit), both)
    })
}

// L1: released permits do not count. They leave room, and no more than if they had never been
// taken.
async fn given_back<S: Store>(
    world: &World<S>,
    (limit, traffic): Settled,
    store: Option<&RedisStore>,
) {
    let limiter = arriving(world, limit).await;
    let mut kept: Vec<Grant> = Vec::new();
    let mut open = Vec::new();
    for (request, settle) in traffic {
        world.advance(request.pause);
        if let Decision::Allow(grant) = limiter.try_acquire_many(request.permits).await.unwrap() {
            open.push((kept.len(), grant));
            kept.push(Grant {
                at: world.now(),
                permits: request.permits,
            });
        }
        if let (Some((which, keep)), false) = (settle, open.is_empty()) {
            let (place, grant) = open.swap_remove(which.index(open.len()));
            let keep = keep.min(kept[place].permits);
            kept[place].permits = keep;
            limiter.settle(&grant.receipts()[0], keep);
            if let Some(store) = store {
                store.close().await;
            }
        }
    }
    kept.retain(|grant| grant.permits > 0);
    assert!(holds(&kept, limit, 1), "{kept:?}");
}

#[test]
fn what_is_given_back_in_memory_makes_room_for_no_more() {
    let world = World::memory();
    check(3000, &settled(), |input| {
        world.run(given_back(&world, input, None));
    });
}

#[test]
fn what_is_given_back_in_redis_makes_room_for_no_more() {
    check_in_redis(60, &settled(), |world, input| {
        world.run(given_back(world, input, Some(&world.store)));
    });
}

// What is given back at once is as if it had never been taken, whatever lies ahead.
#[test]
fn what_is_given_back_at_once_is_all_there_again() {
    let world = World::memory();
    check(400, &histories(), |(limit, traffic)| {
        world.run(async {
            let limiter = arriving(&world, limit).await;
            world.send(&limiter, &traffic).await;
            let free = limiter.available_permits().await.unwrap();
            for permits in 1..=u32::try_from(free).unwrap() {
                let Decision::Allow(grant) = limiter.try_acquire_many(permits).await.unwrap()
                else {
                    panic!("as many are free");
                };
                assert_eq!(
                    limiter.available_permits().await.unwrap(),
                    free - u64::from(permits)
                );
                limiter.give_back(&grant.receipts()[0]);
                assert_eq!(limiter.available_permits().await.unwrap(), free);
            }
        });
    });
}

// L2 and L3: refused in every millisecond until the announced one, granted in it, and no refusal
// takes anything.
fn exact_wait<S: Store>(world: &World<S>, (limit, traffic, permits, probes): Probed) {
    world.run(async {
        let limiter = arriving(world, limit).await;
        world.send(&limiter, &traffic).await;
        let refused = refused_until(world, &limiter, limit.permits(), permits, &probes);
        if let Some((wait, _)) = refused.await {
            assert!(wait <= whole(limit).div_ceil(1000), "{wait}");
            assert_eq!(take(&limiter, permits).await, Ok(()));
        }
    });
}

#[test]
fn a_wait_in_memory_is_exact_and_refusals_are_free() {
    let world = World::memory();
    check(400, &probed(), |input| exact_wait(&world, input));
}

#[test]
fn a_wait_in_redis_is_exact_and_refusals_are_free() {
    check_in_redis(120, &probed(), exact_wait);
}

// L5: whatever was taken, abandoned or given back, an interval later all permits are free.
#[test]
fn nothing_is_lost() {
    let world = World::memory();
    check(400, &histories(), |(limit, traffic)| {
        world.run(async {
            let limiter = arriving(&world, limit).await;
            abandon_and_give_back(&world, &limiter, &traffic).await;
            assert!(limiter.available_permits().await.unwrap() <= limit.permits());
            world.advance(whole(limit).div_ceil(1000));
            assert_eq!(limiter.available_permits().await.unwrap(), limit.permits());
        });
    });
}

const INTERVAL: Duration = Duration::from_millis(100);
const RATE: u64 = 7;

async fn in_redis(guards: Guards) -> RateLimiter {
    let limiter = RateLimiter::new(&redis_store(guards), &unique("gcra")).unwrap();
    let limiter = limiter.algorithm(Algorithm::Gcra);
    limiter
        .try_set_rate(Limit::new(RATE, INTERVAL))
        .await
        .unwrap();
    limiter
}

/// By the server's clock, in us.
fn server_time() -> u64 {
    RedisServer::shared().micros().cast_unsigned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_over_by_the_servers_clock() {
    in_all_at_once(is_never_over).await;
}

async fn is_never_over(guards: Guards) {
    let limiter = in_redis(guards).await;
    let begun = server_time();
    let sum = granted_in(&limiter, 12 * INTERVAL).await;
    let emission = whole(Limit::new(RATE, INTERVAL)) / RATE;
    let most = (server_time() - begun) / emission + RATE;
    assert!(sum > 2 * RATE, "nothing came free");
    assert!(sum <= most, "{sum} of {most}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_by_the_servers_clock_is_long_enough() {
    in_all_at_once(async |guards| {
        let limiter = in_redis(guards).await;
        waits_are_long_enough(&limiter, std::iter::repeat(4), 101, 20).await;
    })
    .await;
}
