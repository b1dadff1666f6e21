//! `RateLimiter` without HTTP: every verb, and waiting in the queue, on both stores.

use crate::scene::*;
use tower_ratelimit::Error;

on_both_by_a_clock!(
    another_type_starts_with_all_permits,
    a_wait_as_long_as_the_timeout_is_waited_for,
    those_ahead_count,
    waiters_are_served_in_order,
    a_dropped_waiter_gives_up_its_place,
    a_waiter_that_leaves_wakes_the_next,
    a_waiter_that_leaves_before_it_takes_over_stops_no_other,
    room_just_made_is_found_by_a_newcomer,
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

async fn a_wait_as_long_as_the_timeout_is_waited_for(store: impl Store, clock: ManualClock) {
    let limiter = limited(&store, Limit::per_second(1)).await;
    take(&limiter, 1).await;
    // Exactly as long as it takes is long enough.
    let mut waiting = pin!(limiter.try_acquire_for(1, SECOND));
    pending(&mut waiting, &clock).await;
    clock.advance(millis(999));
    pending(&mut waiting, &clock).await;
    clock.advance(millis(1));
    assert!(waiting.await.unwrap().is_allowed());
}

async fn those_ahead_count(store: impl Store, clock: ManualClock) {
    let limiter = limited(&store, Limit::new(2, secs(10))).await;
    take(&limiter, 2).await;
    let mut first = pin!(limiter.acquire_many(2));
    pending(&mut first, &clock).await;
    // Its turn comes after those of the first have expired.
    let decision = limiter.try_acquire_for(1, secs(15)).await.unwrap();
    assert_eq!(refused(decision).retry_after(), Some(secs(20)));
    clock.advance(Duration::from_secs(10));
    first.await.unwrap();
}

async fn waiters_are_served_in_order(store: impl Store, clock: ManualClock) {
    let limiter = limited(&store, Limit::per_second(3)).await;
    take(&limiter, 3).await;
    are_served_in_order(&clock, |permits| {
        let limiter = limiter.clone();
        async move { limiter.acquire_many(permits).await }
    })
    .await;
}

/// Waiters for some of three permits a second are served as they came: one that asks for much is
/// not overtaken by those behind it.
pub(crate) async fn are_served_in_order<F>(clock: &ManualClock, acquire: impl Fn(u32) -> F)
where
    F: Future<Output = Result<Grant, Error>> + Send + 'static,
{
    let served = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for (place, permits) in [1, 3, 1, 1, 2, 1].into_iter().enumerate() {
        let (acquired, served) = (acquire(permits), Arc::clone(&served));
        tasks.push(tokio::spawn(async move {
            acquired.await.unwrap();
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
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
}

async fn a_dropped_waiter_gives_up_its_place(store: impl Store, clock: ManualClock) {
    let limiter = limited(&store, Limit::per_second(2)).await;
    take(&limiter, 2).await;
    let mut first = Box::pin(limiter.acquire_many(2));
    pending(&mut first, &clock).await;
    let mut second = pin!(limiter.acquire());
    assert!(poll(&mut second).is_pending());
    drop(first);
    pending(&mut second, &clock).await;
    clock.advance(Duration::from_secs(1));
    second.await.unwrap();
    until("it is so", async || free(&limiter).await == 1).await;
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

async fn a_waiter_that_leaves_before_it_takes_over_stops_no_other(
    store: impl Store,
    clock: ManualClock,
) {
    let limiter = limited(&store, Limit::per_second(1)).await;
    take(&limiter, 1).await;
    let mut waiting = Vec::new();
    for _ in 0..3 {
        let limiter = limiter.clone();
        waiting.push(tokio::spawn(async move { limiter.acquire().await }));
        asleep(&clock).await;
    }
    let last = waiting.pop().unwrap();
    clock.advance(Duration::ZERO);
    // The first wakes the second, which is gone before it runs.
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    // The wait from a call that is under way while the clock moves is as much too late: then it
    // sleeps once more.
    until("it is so", async || {
        if clock.sleepers() > 0 {
            clock.advance(Duration::from_secs(1));
        }
        last.is_finished()
    })
    .await;
    last.await.unwrap().unwrap();
}

async fn room_just_made_is_found_by_a_newcomer(store: impl Store, clock: ManualClock) {
    let limiter = limited(&store, Limit::per_hour(1)).await;
    take(&limiter, 1).await;
    let mut waiting = pin!(limiter.acquire());
    pending(&mut waiting, &clock).await;
    limiter.set_rate(Limit::per_second(100)).await.unwrap();
    // Before the waiter has been polled again.
    let mut newcomer = pin!(limiter.try_acquire_for(1, Duration::from_secs(1)));
    let early = poll(&mut newcomer);
    if let Poll::Ready(decision) = early {
        assert!(decision.unwrap().is_allowed());
    }
    waiting.await.unwrap();
}

async fn whatever_makes_room_wakes_waiters(store: impl Store, clock: ManualClock) {
    for how in ["settled", "given back", "released", "raised"] {
        let limiter = limited(&store, Limit::per_hour(4)).await;
        let grant = take(&limiter, 3).await;
        take(&limiter, 1).await;
        let mut waiting = pin!(limiter.acquire_many(2));
        pending(&mut waiting, &clock).await;
        match how {
            "settled" => limiter.settle(&grant.receipts()[0], 1),
            "given back" => limiter.give_back(&grant.receipts()[0]),
            "released" => assert_eq!(limiter.release(2).await.unwrap(), 2),
            _ => assert!(limiter.update_rate(Limit::per_hour(6)).await.unwrap()),
        }
        waiting.await.unwrap();
    }
}

#[tokio::test]
async fn closing_twice_waits_twice() {
    let mut server = RedisServer::start();
    let store = RedisStore::builder(server.url()).deadline(secs(5));
    let store = store.build().unwrap();
    let limiter = limited(&store, Limit::per_hour(9)).await;
    let grant = take(&limiter, 3).await;
    server.stop_process();
    limiter.give_back(&grant.receipts()[0]);
    let closing = tokio::time::timeout(Duration::from_millis(50), store.close());
    assert!(closing.await.is_err(), "nothing was sent yet");
    server.resume();
    store.close().await;
    assert_eq!(free(&limiter).await, 9);
}

/// An expired limiter makes room.
#[tokio::test]
async fn a_vanished_limiter_makes_room() {
    let clock = ManualClock::new();
    let store = MemoryStore::new().clock(clock.clone()).max_limiters(2);
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

/// The timer is tokio's: without it no waiter could be woken, and tokio would panic.
#[test]
fn waiting_without_a_runtime_is_an_error() {
    let limiter = limiter(&MemoryStore::new());
    let set = poll(&mut Box::pin(limiter.try_set_rate(Limit::per_hour(1))));
    assert!(matches!(set, Poll::Ready(Ok(true))));
    assert!(matches!(
        poll(&mut Box::pin(limiter.acquire())),
        Poll::Ready(Ok(_))
    ));
    let mut waiting = Box::pin(limiter.acquire());
    match poll(&mut waiting) {
        Poll::Ready(Err(error)) => assert_eq!(error.kind(), ErrorKind::Unavailable),
        other => panic!("{other:?}"),
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

/// Waits until a waiter sleeps by the clock.
async fn asleep(clock: &ManualClock) {
    until("it is so", async || clock.sleepers() > 0).await;
}
