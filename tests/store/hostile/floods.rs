//! Floods of new keys in Redis. `tests/pure/memory/untracked.rs` has those of a store in memory,
//! and `tests/faults/burst.rs` says what they cost others.

use super::{keys, patient, request};
use kit::scene::*;

fn by_id(limit: Limit) -> Rule {
    limit.by(FromHeader::new("x-id")).named("flooded")
}

/// Each new key creates one in Redis, for a time that the rule's interval bounds; then nothing is
/// left.
#[tokio::test]
async fn in_redis_all_of_it_vanishes() {
    const FLOOD: usize = 400;
    for algorithm in [
        Algorithm::SlidingLog,
        Algorithm::FixedWindow,
        Algorithm::Gcra,
    ] {
        let server = RedisServer::start();
        let store = patient(&server);
        let lasting = Limit::per_minute(1);
        let layer = RateLimitLayer::new(&store, by_id(lasting).algorithm(algorithm));
        for number in 0..FLOOD {
            let id = format!("id-{number}");
            for _ in 0..2 {
                send(&layer, request("192.0.2.1", "x-id", id.as_bytes())).await;
            }
        }
        let stored = keys(&server);
        assert_eq!(stored.len(), FLOOD, "{algorithm:?}");
        let longest = stored.iter().map(|(_, ttl)| *ttl).max().unwrap();
        let lasting = stored.iter().filter(|(_, ttl)| *ttl <= 0).count();
        println!(
            "{algorithm:?}: {} keys, the longest for {longest} ms",
            stored.len()
        );
        assert_eq!(lasting, 0, "{algorithm:?}");
        assert!(longest <= 180_000, "{algorithm:?}: {longest}");

        let brief = Limit::new(1, millis(50));
        let layer = RateLimitLayer::new(&store, by_id(brief).named("brief").algorithm(algorithm));
        for number in 0..FLOOD {
            let id = format!("id-{number}");
            send(&layer, request("192.0.2.1", "x-id", id.as_bytes())).await;
        }
        until(&format!("{algorithm:?}: all of it is gone"), async || {
            let of_brief = |(name, _): &(String, i64)| name.contains("}:brief");
            !keys(&server).iter().any(of_brief)
        })
        .await;
    }
}
