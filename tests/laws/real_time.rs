//! L1 and L2 by the server's own clock, in real time, of every kind.

use crate::scene::*;
use std::collections::BTreeMap;

use super::{
    guards::Guards,
    kinds::{Kind, emission, fullest},
    world::{Grant, granted_in, in_all_at_once, nanos, redis_store, take, waits_are_long_enough},
};

const INTERVAL: Duration = millis(100);
const RATE: u64 = 5;

/// Of GCRA one whose permits are no whole number of microseconds apart.
const fn limit_of(kind: Kind) -> Limit {
    match kind {
        Kind::Gcra => Limit::new(7, INTERVAL),
        _ => Limit::new(RATE, INTERVAL),
    }
}

async fn limiter(guards: Guards, kind: Kind) -> RateLimiter {
    let limiter = RateLimiter::new(&redis_store(guards), &unique("real")).unwrap();
    let limiter = kind.of(limiter, limit_of(kind));
    limiter.try_set_rate(limit_of(kind)).await.unwrap();
    limiter
}

/// Returns the grants in the log with their times, by member.
fn entries(name: &str) -> Vec<(Vec<u8>, Grant)> {
    let log = format!("{{{name}}}:permits");
    let entries = RedisServer::shared().entries(&log).into_iter();
    let entry = |(at, member): (i64, Vec<u8>)| {
        let permits = u32::from_le_bytes(*member.last_chunk().expect("packed permits"));
        let at = millis(at.cast_unsigned());
        (member, Grant { at, permits })
    };
    entries.map(entry).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_over_with_many_callers() {
    in_all_at_once(is_never_over).await;
}

async fn is_never_over(guards: Guards) {
    let limiter = limiter(guards, Kind::Log).await;
    let end = Instant::now() + 12 * INTERVAL;
    let mut granted = BTreeMap::new();
    while Instant::now() < end {
        let callers: Vec<_> = [1, 2, 1, 3]
            .into_iter()
            .map(|permits| {
                let limiter = limiter.clone();
                tokio::spawn(async move { take(&limiter, permits).await })
            })
            .collect();
        for caller in callers {
            let _ = caller.await.unwrap();
        }
        // An entry stays for an interval at least, so that none is missed between two looks.
        granted.extend(entries(limiter.name()));
    }
    let mut grants: Vec<_> = granted.into_values().collect();
    grants.sort_by_key(|grant| grant.at);
    let sum: u64 = grants.iter().map(|grant| u64::from(grant.permits)).sum();
    // More than two windows' worth, so that windows slid.
    assert!(sum > 2 * RATE, "{grants:?}");
    assert!(fullest(&grants, INTERVAL) <= RATE, "{grants:?}");
}

/// By the server's clock.
fn server_time() -> Duration {
    Duration::from_micros(RedisServer::shared().micros().cast_unsigned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_window_and_no_pace_has_more_than_the_rate() {
    in_all_at_once(async |guards| {
        for kind in [Kind::Window, Kind::Gcra] {
            let limiter = limiter(guards, kind).await;
            let begun = server_time();
            let sum = granted_in(&limiter, 12 * INTERVAL).await;
            let limit = limit_of(kind);
            let time = (server_time() - begun).as_nanos() as u64;
            let most = match kind {
                // The windows that can begin in this time, each at least a millisecond after the
                // last one's end.
                Kind::Window => (time / nanos(kind.whole(limit)) + 1) * limit.permits(),
                _ => time / nanos(emission(limit)) + limit.permits(),
            };
            assert!(sum > 2 * limit.permits(), "nothing came free");
            assert!(sum <= most, "{kind:?}: {sum} of {most}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_is_long_enough() {
    in_all_at_once(async |guards| {
        for kind in [Kind::Log, Kind::Window, Kind::Gcra] {
            let limiter = limiter(guards, kind).await;
            let requests = [4, 1, 5, 2, 3].into_iter().cycle();
            // Of the others in whole milliseconds.
            let longest = match kind {
                Kind::Log => INTERVAL,
                _ => INTERVAL + millis(1),
            };
            waits_are_long_enough(&limiter, requests, longest, 20).await;
        }
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
