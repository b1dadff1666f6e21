//! Floods of new keys: bounded here, bounded in Redis, and no burden to callers of another limit.

use super::{keys, patient, request};
use crate::scene::*;

fn by_id(limit: Limit) -> Rule {
    limit.by(FromHeader::new("x-id")).named("flooded")
}

#[tokio::test]
async fn a_memory_store_holds_no_more_than_it_may() {
    const MOST: usize = 500;
    let clock = ManualClock::new();
    let store = MemoryStore::new().max_limiters(MOST).clock(clock.clone());
    let layer = RateLimitLayer::new(&store, by_id(Limit::per_minute(1)));
    let mut granted = 0;
    for number in 0..20 * MOST {
        let id = format!("id-{number}");
        let answer = send(&layer, request("192.0.2.1", "x-id", id.as_bytes())).await;
        // Who has no place is counted by an estimate, at worst as others are.
        assert_ne!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
        granted += usize::from(answer.status() == StatusCode::OK);
        assert!(store.len() <= MOST, "{}", store.len());
        // Somebody whose limit is in use does not regain it because others come.
        let first = send(&layer, request("192.0.2.1", "x-id", b"id-0")).await;
        assert_eq!(first.status(), StatusCode::TOO_MANY_REQUESTS);
    }
    // Newcomers are not locked out until there are several for each place.
    assert!(granted >= 3 * MOST, "{granted} of {}", 20 * MOST);
    // It is over when the limits are idle, and an eighth of the interval later for newcomers.
    clock.advance(secs(68));
    let answer = send(&layer, request("192.0.2.1", "x-id", b"late")).await;
    assert_eq!(answer.status(), StatusCode::OK);
    assert!(store.len() <= MOST, "{}", store.len());
}

/// Each new key creates at most three in Redis, for a time that the rule's interval bounds; then
/// nothing is left.
#[tokio::test]
async fn in_redis_all_of_it_vanishes() {
    const FLOOD: usize = 400;
    for (algorithm, each) in [
        (Algorithm::SlidingLog, 3),
        (Algorithm::FixedWindow, 2),
        (Algorithm::Gcra, 1),
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
        assert_eq!(stored.len(), each * FLOOD, "{algorithm:?}");
        let longest = stored.iter().map(|(_, ttl)| *ttl).max().unwrap();
        let lasting = stored.iter().filter(|(_, ttl)| *ttl <= 0).count();
        println!(
            "{algorithm:?}: {} keys, the longest for {longest} ms",
            stored.len()
        );
        assert_eq!(lasting, 0, "{algorithm:?}");
        assert!(longest <= 180_000, "{algorithm:?}: {longest}");

        let brief = Limit::new(1, millis(50));
        let brief = brief.keep_alive(millis(200)).unwrap();
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

/// The middle of so many decisions of one limit.
async fn middle(layer: &RateLimitLayer) -> Duration {
    let mut times = Vec::new();
    for _ in 0..1000 {
        let begun = Instant::now();
        let answer = send(layer, request("192.0.2.9", "x-id", b"other")).await;
        times.push(begun.elapsed());
        assert_eq!(answer.status(), StatusCode::OK);
    }
    times.sort();
    times[times.len() / 2]
}

/// Printed and not asserted, because it depends on the machine too. That the store makes each
/// decision is asserted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_on_one_limit_leaves_another_its_decisions() {
    let server = RedisServer::start();
    let redis = patient(&server);
    let memory = MemoryStore::new().max_limiters(1000);
    let plenty = || {
        Limit::per_hour(1_000_000)
            .by(Constant("all"))
            .named("other")
    };
    let flooded = || by_id(Limit::per_hour(1));
    let layers = [
        (
            "Redis",
            RateLimitLayer::new(&redis, plenty()),
            RateLimitLayer::new(&redis, flooded()),
        ),
        (
            "memory",
            RateLimitLayer::new(&memory, plenty()),
            RateLimitLayer::new(&memory, flooded()),
        ),
    ];
    for (which, other, flooded) in layers {
        let quiet = middle(&other).await;
        let over = Arc::new(AtomicBool::new(false));
        let sent = Arc::new(AtomicU64::new(0));
        let flood: Vec<_> = (0..8)
            .map(|_| {
                let (flooded, over, sent) = (flooded.clone(), Arc::clone(&over), Arc::clone(&sent));
                tokio::spawn(async move {
                    while !over.load(Ordering::Relaxed) {
                        let id = format!("id-{}", sent.fetch_add(1, Ordering::Relaxed));
                        send(&flooded, request("192.0.2.1", "x-id", id.as_bytes())).await;
                        // As a server would, between two requests.
                        tokio::task::yield_now().await;
                    }
                })
            })
            .collect();
        let flooded = middle(&other).await;
        over.store(true, Ordering::Relaxed);
        for task in flood {
            task.await.unwrap();
        }
        let sent = sent.load(Ordering::Relaxed);
        let ratio = flooded.as_secs_f64() / quiet.as_secs_f64();
        println!(
            "{which}: {quiet:?} alone, {flooded:?} beside a flood of {sent} new keys: {ratio:.1} times"
        );
        assert!(sent > 0);
    }
    assert!(memory.len() <= 1000);
}
