//! The memory that a limiter takes in Redis. Sizes, and no times.

use super::*;

/// Bytes of the limiter's keys.
fn memory(limiter: &RateLimiter) -> u64 {
    let name = limiter.name();
    let keys = [
        name.to_owned(),
        format!("{{{name}}}:value"),
        format!("{{{name}}}:permits"),
    ];
    let bytes = keys.map(|key| {
        let said = RedisServer::shared().cli(&["MEMORY", "USAGE", &key, "SAMPLES", "0"]);
        said.parse::<u64>().expect("a size")
    });
    bytes.iter().sum()
}

/// A hundred thousand permits in use are what a thousand entries hold, and no more than that ever.
#[tokio::test]
async fn a_large_limit_takes_the_memory_of_its_slots() {
    let (store, clock) = by_a_clock();
    // Never exhausted, so that no call must remove expired entries.
    let limit = Limit::per_minute(10_000_000);
    let slotted = slotted(&store, limit, 1000).await;
    let mut most = 0;
    for step in 0..2500 {
        clock.advance(millis(60));
        take(&slotted, 60).await;
        take(&slotted, 40).await;
        if step % 100 == 99 {
            most = most.max(memory(&slotted));
        }
    }
    assert_eq!(free(&slotted).await, 10_000_000 - 100_000);
    most = most.max(memory(&slotted));
    println!("{most} bytes for 100000 permits in use, 1000 slots");
    assert!(most <= 150_000, "{most}");

    // For comparison: an entry for each of a thousand grants is as much.
    let plain = limited(&store, limit).await;
    for _ in 0..1000 {
        take(&plain, 1).await;
    }
    let each = memory(&plain);
    println!("{each} bytes for 1000 grants without slots");
    // How much that is, is the server's affair.
    assert!(most <= 2 * each, "{most} and {each}");
}
