//! The laws of fixed windows: in memory by a clock that is moved, in Redis in real time.

use crate::scene::*;

use super::{
    guards::Guards,
    never_over::fullest,
    world::{
        Grant, World, abandon_and_give_back, check, granted_in, histories, in_all_at_once,
        interval_of, probed, redis_store, refused_until, take, waits_are_long_enough,
    },
};

async fn windowed(world: &World<MemoryStore>, limit: Limit) -> RateLimiter {
    world.limiter(limit).await.algorithm(Algorithm::FixedWindow)
}

/// Returns the permits granted in each window. A window begins with its first grant and lasts
/// through the millisecond of its end.
fn windows(grants: &[Grant], interval: u64) -> Vec<u64> {
    let mut windows: Vec<(u64, u64)> = Vec::new();
    for grant in grants {
        let permits = u64::from(grant.permits);
        match windows.last_mut() {
            Some((began, sum)) if grant.at <= *began + interval => *sum += permits,
            _ => windows.push((grant.at, permits)),
        }
    }
    windows.into_iter().map(|(_, sum)| sum).collect()
}

// L1, and no refusal without need: a refused request does not fit into the window.
#[test]
fn no_window_has_more_than_the_rate() {
    let world = World::memory();
    check(400, &histories(), |(limit, traffic)| {
        world.run(async {
            let limiter = windowed(&world, limit).await;
            let interval = interval_of(limit);
            let mut grants: Vec<Grant> = Vec::new();
            for request in traffic {
                world.advance(request.pause);
                let grant = Grant {
                    at: world.now(),
                    permits: request.permits,
                };
                let mut with = grants.clone();
                with.push(grant);
                let fits = windows(&with, interval).last() <= Some(&limit.permits());
                let granted = take(&limiter, request.permits).await.is_ok();
                assert_eq!(granted, fits, "{grant:?} after {grants:?}");
                if granted {
                    grants = with;
                }
            }
            assert!(fullest(&grants, interval) <= 2 * limit.permits());
        });
    });
}

// L2 and L3: refused until the announced instant, granted at it, and no refusal takes anything or
// moves the window.
#[test]
fn a_wait_is_exact_and_refusals_are_free() {
    let world = World::memory();
    check(400, &probed(), |(limit, traffic, permits, probes)| {
        world.run(async {
            let limiter = windowed(&world, limit).await;
            world.send(&limiter, &traffic).await;
            let left = free(&limiter).await;
            let refused = refused_until(&world, &limiter, limit.permits(), permits, &probes);
            let Some((wait, seen)) = refused.await else {
                return;
            };
            assert!(wait <= interval_of(limit) + 1, "{wait}");
            assert!(
                seen.iter().all(|free| *free == left),
                "{left}, then {seen:?}"
            );
            assert_eq!(limiter.available_permits().await.unwrap(), limit.permits());
            assert_eq!(take(&limiter, permits).await, Ok(()));
        });
    });
}

// L5: whatever was taken, abandoned or given back, a window later all permits are free.
#[test]
fn nothing_is_lost() {
    let world = World::memory();
    check(400, &histories(), |(limit, traffic)| {
        world.run(async {
            let limiter = windowed(&world, limit).await;
            abandon_and_give_back(&world, &limiter, &traffic).await;
            assert!(limiter.available_permits().await.unwrap() <= limit.permits());
            world.advance(interval_of(limit) + 1);
            assert_eq!(limiter.available_permits().await.unwrap(), limit.permits());
        });
    });
}

const INTERVAL: Duration = Duration::from_millis(100);
const RATE: u64 = 5;

async fn in_redis(guards: Guards) -> RateLimiter {
    let limiter = RateLimiter::new(&redis_store(guards), &unique("window")).unwrap();
    let limiter = limiter.algorithm(Algorithm::FixedWindow);
    let limit = Limit::new(RATE, INTERVAL);
    limiter.try_set_rate(limit).await.unwrap();
    limiter
}

/// By the server's clock, in ms.
fn server_time() -> u64 {
    RedisServer::shared().micros().cast_unsigned() / 1000
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_window_in_redis_has_more_than_the_rate() {
    in_all_at_once(has_no_window_with_more).await;
}

async fn has_no_window_with_more(guards: Guards) {
    let limiter = in_redis(guards).await;
    let begun = server_time();
    let sum = granted_in(&limiter, 12 * INTERVAL).await;
    // The windows that can begin in this time, each at least a millisecond after the last one's
    // end.
    let most = (server_time() - begun) / 101 + 1;
    assert!(sum > 2 * RATE, "no window has turned");
    assert!(sum <= most * RATE, "{sum} in {most} windows");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_in_redis_is_long_enough() {
    in_all_at_once(async |guards| {
        let limiter = in_redis(guards).await;
        waits_are_long_enough(&limiter, std::iter::repeat(4), 101, 10).await;
    })
    .await;
}

/// The reason why a wait is a millisecond longer than PTTL: a key exists through the millisecond of
/// its end.
#[test]
fn redis_keeps_a_key_through_the_millisecond_of_its_end() {
    let server = RedisServer::shared();
    // In one script, as Valkey keeps no key whose end has come when it is written.
    let make = "local t = redis.call('TIME') \
                local at = t[1] * 1000 + math.floor(t[2] / 1000) + 5 \
                redis.call('SET', KEYS[1], '1', 'PXAT', string.format('%d', at)) \
                return at";
    let look = "local t = redis.call('TIME') \
                return { t[1] * 1000 + math.floor(t[2] / 1000), redis.call('EXISTS', KEYS[1]) }";
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut seen_at_its_end = false;
    while !seen_at_its_end {
        assert!(Instant::now() < deadline, "never looked at the right time");
        let key = unique("end");
        let Reply::Int(end) = server.command(&["EVAL", make, "1", &key]) else {
            panic!("no end");
        };
        loop {
            let Reply::Array(seen) = server.command(&["EVAL", look, "1", &key]) else {
                panic!("no reply");
            };
            let (Reply::Int(now), Reply::Int(exists)) = (&seen[0], &seen[1]) else {
                panic!("{seen:?}");
            };
            if *exists == 0 {
                assert!(*now > end, "{now}, {end}");
                break;
            }
            seen_at_its_end |= *now == end;
        }
    }
}
