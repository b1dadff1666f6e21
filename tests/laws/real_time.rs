//! L1 and L2 by the server's own clock, in real time, of every kind.

use kit::{guards::Guards, scene::*};
use std::collections::BTreeMap;

use super::{
    kinds::{Lawful, emission, fullest},
    world::{Grant, in_all_at_once, nanos, redis_store, take},
};

const INTERVAL: Duration = millis(100);
const RATE: u64 = 5;

/// Of GCRA one whose permits are no whole number of microseconds apart.
const fn limit_of(kind: Way) -> Limit {
    match kind {
        Way::Gcra => Limit::new(7, INTERVAL),
        _ => Limit::new(RATE, INTERVAL),
    }
}

async fn limiter(guards: Guards, kind: Way) -> RateLimiter {
    kind.limited(&redis_store(guards), limit_of(kind)).await
}

/// Returns the grants in the log with their times, by member.
fn entries(name: &str) -> Vec<(Vec<u8>, Grant)> {
    let log = format!("{{{name}}}:permits");
    let entries = RedisServer::shared().entries(&log).into_iter();
    let entry = |(at, member): (i64, Vec<u8>)| {
        let permits = kit::permits_of(&member);
        let at = millis(at.cast_unsigned());
        (member, Grant { at, permits })
    };
    entries.map(entry).collect()
}

/// Asks without a pause for twelve intervals, and until more than two windows' worth is granted, so
/// that windows slide: four at a time, with a look in between. Returns how many permits were
/// granted.
async fn granted(limiter: &RateLimiter, limit: Limit, mut look: impl FnMut()) -> u64 {
    let begun = Instant::now();
    let mut sum = 0;
    while begun.elapsed() < 12 * INTERVAL || sum <= 2 * limit.permits() {
        assert!(begun.elapsed() < LONG, "nothing comes free: {sum}");
        let callers = [1, 2, 1, 3].map(|permits| {
            let limiter = limiter.clone();
            tokio::spawn(async move { (permits, take(&limiter, permits).await.is_ok()) })
        });
        for caller in callers {
            let (permits, granted) = caller.await.expect("an answer");
            sum += u64::from(permits) * u64::from(granted);
        }
        look();
    }
    sum
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_over_with_many_callers() {
    in_all_at_once(is_never_over).await;
}

async fn is_never_over(guards: Guards) {
    let limiter = limiter(guards, Way::Log).await;
    let mut seen = BTreeMap::new();
    // An entry stays for an interval at least, so that hardly one is missed between two looks.
    let look = || seen.extend(entries(limiter.name()));
    granted(&limiter, limit_of(Way::Log), look).await;
    let mut grants: Vec<_> = seen.into_values().collect();
    grants.sort_by_key(|grant| grant.at);
    assert!(fullest(&grants, INTERVAL) <= RATE, "{grants:?}");
}

/// By the server's clock.
fn server_time() -> Duration {
    Duration::from_micros(RedisServer::shared().micros().cast_unsigned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_window_and_no_pace_has_more_than_the_rate() {
    in_all_at_once(async |guards| {
        for kind in [Way::Window, Way::Gcra] {
            let limiter = limiter(guards, kind).await;
            let begun = server_time();
            let limit = limit_of(kind);
            let sum = granted(&limiter, limit, || {}).await;
            let time = (server_time() - begun).as_nanos() as u64;
            let most = match kind {
                // The windows that can begin in this time, each at least a millisecond after the
                // last one's end.
                Way::Window => (time / nanos(kind.whole(limit)) + 1) * limit.permits(),
                _ => time / nanos(emission(limit)) + limit.permits(),
            };
            assert!(sum <= most, "{kind:?}: {sum} of {most}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_is_long_enough() {
    in_all_at_once(async |guards| {
        for kind in [Way::Log, Way::Window, Way::Gcra] {
            let limiter = limiter(guards, kind).await;
            // Of the others in whole milliseconds.
            let longest = match kind {
                Way::Log => INTERVAL,
                _ => INTERVAL + millis(1),
            };
            let (mut waited, deadline) = (0, Instant::now() + LONG);
            for permits in [4, 1, 5, 2, 3].into_iter().cycle() {
                assert!(Instant::now() < deadline, "waits that do not end");
                if let Err(wait) = take(&limiter, permits).await {
                    let wait = wait.expect("no more than the rate is asked for");
                    assert!(!wait.is_zero() && wait <= longest, "{wait:?}");
                    // By another clock than the server's, which rounds down to a millisecond this
                    // clock has not reached.
                    tokio::time::sleep(wait).await;
                    assert_eq!(take(&limiter, permits).await, Ok(()), "after {wait:?}");
                    waited += 1;
                }
                if waited == 20 {
                    break;
                }
            }
        }
    })
    .await;
}
