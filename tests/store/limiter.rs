//! `RateLimiter` without HTTP: a change of the type, and what wakes those who wait, on both stores.
//! In what order they are served, and that one who leaves wakes the next, is in unit tests of
//! `outbox::tests::waiting`.

use kit::scene::*;

on_both_by_a_clock!(
    another_type_starts_with_all_permits,
    whatever_makes_room_wakes_waiters,
);

async fn another_type_starts_with_all_permits(store: impl Store, _: ManualClock) {
    let limiter = limited(&store, Limit::per_minute(5)).await;
    take(&limiter, 5).await;
    let limit = Limit::per_minute(5).per_client();
    assert!(limiter.update_rate(limit).await.unwrap());
    assert_eq!(limiter.limit().await.unwrap(), Some(limit));
    assert_eq!(free(&limiter).await, 5);
}

async fn whatever_makes_room_wakes_waiters(store: impl Store, clock: ManualClock) {
    for how in ["settled", "given back", "released", "raised"] {
        let limiter = limited(&store, Limit::per_hour(4)).await;
        let grant = take(&limiter, 3).await;
        take(&limiter, 1).await;
        let mut waiting = pin!(limiter.acquire_many(2));
        pending(&mut waiting, &clock).await;
        match how {
            "settled" => limiter.settle(&grant, 1),
            "given back" => limiter.give_back(&grant),
            "released" => assert_eq!(limiter.release(2).await.unwrap(), 2),
            _ => assert!(limiter.update_rate(Limit::per_hour(6)).await.unwrap()),
        }
        waiting.await.unwrap();
    }
}

/// Polls a waiter until its queue sleeps.
pub(crate) async fn pending<F: Future + Unpin>(future: &mut F, clock: &ManualClock) {
    // Moving the clock by nothing forgets those who slept before.
    clock.advance(Duration::ZERO);
    until("it is so", async || {
        assert!(poll(future).is_pending(), "it should wait");
        clock.sleepers() > 0
    })
    .await;
}
