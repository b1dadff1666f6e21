//! `RateLimiter` without HTTP: every verb, and waiting in the queue, on both stores.

use kit::scene::*;

on_both_by_a_clock!(
    another_type_starts_with_all_permits,
    waiters_are_served_in_order,
    a_waiter_that_leaves_wakes_the_next,
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

/// One that asks for much is not overtaken by those behind it.
async fn waiters_are_served_in_order(store: impl Store, clock: ManualClock) {
    let limiter = limited(&store, Limit::per_second(3)).await;
    take(&limiter, 3).await;
    let served = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for (place, permits) in [1, 3, 1, 1, 2, 1].into_iter().enumerate() {
        let (limiter, served) = (limiter.clone(), Arc::clone(&served));
        tasks.push(tokio::spawn(async move {
            limiter.acquire_many(permits).await.unwrap();
            assert_eq!(served.fetch_add(1, Ordering::SeqCst), place);
        }));
        tokio::task::yield_now().await;
    }
    let all = || served.load(Ordering::SeqCst) == 6;
    let mut steps = 0;
    while !all() {
        steps += 1;
        assert!(steps < 1000, "{} are served", served.load(Ordering::SeqCst));
        // A call that was under way may serve the last of them; then none sleeps any more.
        until("one sleeps", async || all() || clock.sleepers() > 0).await;
        clock.advance(Duration::from_millis(100));
        settle().await;
    }
    for task in tasks {
        task.await.unwrap();
    }
}

/// The clock stands still, so the next one is not woken by its timer.
async fn a_waiter_that_leaves_wakes_the_next(store: impl Store, clock: ManualClock) {
    let limiter = limited(&store, Limit::per_hour(2)).await;
    take(&limiter, 1).await;
    let mut first = Box::pin(limiter.acquire_many(2));
    pending(&mut first, &clock).await;
    // There is a permit for it, and a waiter before it.
    let next = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire().await }
    });
    until("the next one sleeps", async || clock.sleepers() > 1).await;
    drop(first);
    until("the next one is served", async || next.is_finished()).await;
    next.await.unwrap().unwrap();
    assert_eq!(free(&limiter).await, 0);
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

#[tokio::test]
async fn closing_twice_waits_twice() {
    let mut server = RedisServer::start();
    let store = patient(server.url()).build().unwrap();
    let limiter = limited(&store, Limit::per_hour(9)).await;
    let grant = take(&limiter, 3).await;
    server.stop_process();
    limiter.give_back(&grant);
    let closing = tokio::time::timeout(Duration::from_millis(50), store.close());
    assert!(closing.await.is_err(), "nothing was sent yet");
    server.resume();
    store.close().await;
    assert_eq!(free(&limiter).await, 9);
}

/// An expired limiter makes room.
#[tokio::test]
async fn a_vanished_limiter_makes_room() {
    let (store, clock) = MemoryStore::builder().max_limiters(2).build_manual();
    let limit = Limit::per_second(1).keep_alive(secs(60)).unwrap();
    for _ in 0..2 {
        assert!(limiter(&store).try_set_rate(limit).await.unwrap());
    }
    fails(limiter(&store).try_set_rate(limit).await, ErrorKind::Full);
    clock.advance(Duration::from_secs(60));
    for _ in 0..2 {
        assert!(limiter(&store).try_set_rate(limit).await.unwrap());
    }
}

fn limiter(store: &impl Store) -> RateLimiter {
    RateLimiter::new(store, &unique("limiter")).unwrap()
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
