//! L1 and L2 by the server's own clock, in real time.

use crate::scene::*;
use std::collections::BTreeMap;

use super::{
    guards::Guards,
    never_over::fullest,
    world::{Grant, in_all_at_once, redis_store, take, waits_are_long_enough},
};

const INTERVAL: Duration = Duration::from_millis(200);
const RATE: u64 = 5;

async fn limiter(guards: Guards) -> RateLimiter {
    let limiter = RateLimiter::new(&redis_store(guards), &unique("real")).unwrap();
    limiter
        .try_set_rate(Limit::new(RATE, INTERVAL))
        .await
        .unwrap();
    limiter
}

/// Returns the grants in the log with their times, by member.
fn entries(name: &str) -> Vec<(Vec<u8>, Grant)> {
    let log = format!("{{{name}}}:permits");
    let entries = RedisServer::shared().entries(&log).into_iter();
    let entry = |(at, member): (i64, Vec<u8>)| {
        let permits = u32::from_le_bytes(*member.last_chunk().expect("packed permits"));
        let at = at.cast_unsigned();
        (member, Grant { at, permits })
    };
    entries.map(entry).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_over_with_many_callers() {
    in_all_at_once(is_never_over).await;
}

async fn is_never_over(guards: Guards) {
    let limiter = limiter(guards).await;
    let end = Instant::now() + 8 * INTERVAL;
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
    assert!(fullest(&grants, 200) <= RATE, "{grants:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_is_long_enough() {
    in_all_at_once(async |guards| {
        let limiter = limiter(guards).await;
        let requests = [1, 2, 1, 3, 5, 1, 4, 2, 5, 5, 2, 2, 1];
        assert!(waits_are_long_enough(&limiter, requests, 200, 13).await > 0);
    })
    .await;
}
