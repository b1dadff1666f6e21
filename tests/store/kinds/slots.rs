//! Limiters with slots: their entries in Redis, receipts, lists and queues.

use super::*;
use crate::scene::on_both_by_a_clock;

on_both_by_a_clock!(a_list_is_taken_whole);

/// Returns one that counts in slots.
async fn slotted(store: &impl Store, limit: Limit, slots: u32) -> RateLimiter {
    limited(store, limit).await.slots(slots).unwrap()
}

/// A store on Redis, and its clock, which begins where a slot does.
fn by_a_clock() -> (RedisStore, ManualClock) {
    let clock = ManualClock::new();
    let store = redis_store().client_clock(clock.clone()).build();
    (store.unwrap(), clock)
}

/// The entries of its log in Redis.
fn entries(limiter: &RateLimiter) -> String {
    let log = format!("{{{}}}:permits", limiter.name());
    RedisServer::shared().cli(&["ZCARD", &log])
}

/// A list with some limiters in slots is taken whole or not at all, in one call.
async fn a_list_is_taken_whole(store: impl Settles, clock: ManualClock) {
    let (a, b, c) = (
        limited(&store, Limit::per_second(10)).await,
        slotted(&store, Limit::per_second(5), 10).await,
        slotted(&store, Limit::per_second(20), 100).await,
    );
    clock.advance(millis(1));
    let all = RateLimiter::all([&a, &b, &c]).unwrap();
    assert!(all.try_acquire_many(4).await.unwrap().is_allowed());
    let refusal = refused(all.try_acquire_many(2).await.unwrap());
    assert_eq!(refusal.retry_after(), Some(millis(1099)));
    for (limiter, left) in [(&a, 6), (&b, 1), (&c, 16)] {
        assert_eq!(free(limiter).await, left);
    }
    assert!(all.try_acquire().await.unwrap().is_allowed());
    clock.advance(millis(1099));
    for (limiter, left) in [(&a, 10), (&b, 5), (&c, 20)] {
        assert_eq!(free(limiter).await, left);
    }
}

/// A waiter beside them with other slots is in another queue, and has a receipt of its own kind.
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
    let mut receipts = Vec::new();
    for waiter in waiting {
        receipts.extend(granted(waiter.await.unwrap().unwrap()).receipts().to_vec());
    }
    // Two of their own, and one of a slot.
    assert_eq!(entries(&plain), "3");
    assert_eq!(wait(&plain, 4).await, Some(millis(1099)));
    receipts
        .iter()
        .for_each(|receipt| slotted.give_back(receipt));
    store.close().await;
    assert_eq!(free(&plain).await, 4);
}

#[tokio::test]
async fn a_limiter_that_is_renamed_keeps_its_slots() {
    let (store, clock) = by_a_clock();
    let slotted = slotted(&store, Limit::per_second(4), 10).await;
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
    let store = redis_store().build().unwrap();
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
        slotted.give_back(&grant.receipts()[0]);
    }
    store.close().await;
    assert_eq!(free(&slotted).await, 50);
}
