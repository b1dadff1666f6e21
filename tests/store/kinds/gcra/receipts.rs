//! Receipts: they give back what still lies ahead, once.

use super::*;

/// With ten an hour, one permit is free every six minutes.
#[tokio::test]
async fn a_receipt_gives_back_what_lies_ahead() {
    let clock = ManualClock::new();
    let store = MemoryStore::new().clock(clock.clone());
    for (after, back) in [(0, 4), (6, 3), (7, 3), (23, 1), (24, 0), (30, 0)] {
        let limiter = Way::Gcra.hourly(&store, 10).await;
        let grant = take(&limiter, 4).await;
        clock.advance(secs(60 * after));
        let before = free(&limiter).await;
        limiter.give_back(&grant.receipts()[0]);
        assert_eq!(free(&limiter).await - before, back, "after {after} minutes");
    }
}

/// With five an hour, one permit is free every twelve minutes. Permits released before those of a
/// receipt have brought them forward: without that record, a release would free those of others in
/// their place.
#[tokio::test]
async fn memory_does_not_forget_what_a_receipt_must_know() {
    let clock = ManualClock::new();
    let store = MemoryStore::new().clock(clock.clone()).max_limiters(1);
    let layer = Way::Gcra.layer(&store, Limit::new(5, HOUR));
    let minutes = |minutes: u64| clock.advance(secs(60 * minutes));
    let limiter = Way::Gcra.named(&store, "memory:{a}:five");
    let answers = [send(&layer, "a").await, send(&layer, "a").await];
    let grants = answers.each_ref().map(grant_of);
    limiter.give_back(&grants[0].receipts()[0]);
    minutes(12);
    assert_eq!(free(&limiter).await, 5);
    // A newcomer would take its place, and leave it again.
    let newcomer = send(&layer, "b").await;
    if newcomer.status().is_success() {
        Way::Gcra
            .named(&store, "memory:{b}:five")
            .give_back(&grant_of(&newcomer).receipts()[0]);
    }
    assert!(send(&layer, "a").await.status().is_success());
    limiter.give_back(&grants[1].receipts()[0]);
    assert_eq!(free(&limiter).await, 4);
    // No receipt matters any more, and nothing is in use.
    minutes(12);
    assert!(send(&layer, "b").await.status().is_success());
}

fn grant_of<B>(answer: &Response<B>) -> Grant {
    granted(decision_of(answer).clone())
}
