//! Limiters with slots: their entries in Redis, receipts and queues.

use super::*;

/// A store on Redis, and its clock, which begins where a slot does.
fn by_a_clock() -> (RedisStore, ManualClock) {
    let clock = ManualClock::new();
    let store = shared_redis().client_clock(clock.clone()).build();
    (store.unwrap(), clock)
}

/// The entries of its log in Redis.
fn entries(limiter: &RateLimiter) -> String {
    let log = format!("{{{}}}:permits", limiter.name());
    RedisServer::shared().cli(&["ZCARD", &log])
}

/// A waiter next to them with other slots is in another queue, and has a receipt of its own kind.
#[tokio::test]
async fn a_waiter_with_other_slots_has_its_own_queue() {
    let (store, clock) = by_a_clock();
    let plain = limited(&store, Limit::per_second(4)).await;
    let slotted = plain.clone().slots(10).unwrap();
    clock.advance(millis(1));
    take(&plain, 4).await;
    let waiting = [&plain, &slotted, &plain, &slotted].map(|limiter| {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.try_acquire_for(1, 5 * SECOND).await })
    });
    // Both of each queue: a call on its way when the clock moves would announce a second more.
    until("they wait", async || clock.sleepers() >= 4).await;
    clock.advance(SECOND);
    let mut grants = Vec::new();
    for waiter in waiting {
        grants.push(granted(waiter.await.unwrap().unwrap()));
    }
    // Two of their own, and one of a slot.
    assert_eq!(entries(&plain), "3");
    assert_eq!(wait(&plain, 4).await, Some(millis(1099)));
    grants.iter().for_each(|grant| slotted.give_back(grant));
    store.close().await;
    assert_eq!(free(&plain).await, 4);
}

#[tokio::test]
async fn a_limiter_that_is_renamed_keeps_its_slots() {
    let (store, clock) = by_a_clock();
    let slotted = limited(&store, Limit::per_second(4)).await;
    let slotted = slotted.slots(10).unwrap();
    clock.advance(millis(1));
    take(&slotted, 1).await;
    let renamed = slotted.rename(&unique("slots")).await.unwrap();
    take(&renamed, 2).await;
    assert_eq!(entries(&renamed), "1");
    assert_eq!(wait(&renamed, 4).await, Some(millis(1099)));
    // Another way to count has none.
    let windowed = renamed.algorithm(Algorithm::FixedWindow);
    windowed.set_rate(Limit::per_second(4)).await.unwrap();
    take(&windowed, 1).await;
    assert_eq!(entries(&windowed), "0");
}

/// By the server's clock, too: the slot is the one that the script noted it in.
#[tokio::test]
async fn a_receipt_knows_its_slot_by_the_servers_clock() {
    let store = shared_redis().build().unwrap();
    let slotted = limited(&store, Limit::new(50, HOUR / 10)).await;
    let slotted = slotted.slots(10_000).unwrap();
    let slot = || RedisServer::shared().micros() / 36_000;
    let mut grants = Vec::new();
    for _ in 0..10 {
        let in_slots = slot();
        grants.push(take(&slotted, 5).await);
        until("the slot is over", async || slot() > in_slots).await;
    }
    assert_eq!(free(&slotted).await, 0);
    for grant in grants {
        slotted.give_back(&grant);
    }
    store.close().await;
    assert_eq!(free(&slotted).await, 50);
}
