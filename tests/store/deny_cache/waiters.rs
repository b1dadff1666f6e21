//! Callers that wait for permits, and give up before there are any.

use crate::scene::*;

const HOUR: Duration = Duration::from_secs(3600);
const TIMEOUT: Duration = Duration::from_millis(100);

/// A limiter whose only permit is taken.
async fn spent(store: &RedisStore, way: Way) -> RateLimiter {
    let limiter = way.limiter(limited(store, Limit::per_hour(1)).await);
    limiter.try_acquire().await.unwrap().assert_allowed();
    limiter
}

fn store(server: &RedisServer, clock: &ManualClock) -> RedisStore {
    let store = patient(server.url()).client_clock(clock.clone());
    store.deny_cache(Duration::from_secs(60)).build().unwrap()
}

/// Until somebody waits for permits.
async fn waited_for(clock: &ManualClock) {
    let began = Instant::now();
    while clock.sleepers() == 0 {
        assert!(began.elapsed() < Duration::from_secs(20), "it waits");
        tokio::task::yield_now().await;
    }
}

/// As a loop that was ported from Java, where the call sleeps.
#[tokio::test]
async fn a_loop_around_a_hopeless_wait_asks_redis_once() {
    let server = RedisServer::start();
    let store = store(&server, &ManualClock::new());
    for way in Way::ALL {
        let limiter = spent(&store, way).await;
        let first = limiter.try_acquire_for(1, TIMEOUT).await.unwrap();
        first.assert_refused();
        assert_eq!(first.source(), Source::Store);
        let before = server.scripts_called();
        for _ in 0..1000 {
            let refused = limiter.try_acquire_for(1, TIMEOUT).await.unwrap();
            refused.assert_refused();
            assert_eq!(refused.source(), Source::Cache);
        }
        // Nor does one that does not wait.
        let refused = limiter.try_acquire().await.unwrap();
        refused.assert_refused();
        assert_eq!(refused.source(), Source::Cache);
        assert_eq!(server.scripts_called(), before, "{way:?}");
    }
}

#[tokio::test]
async fn one_that_waits_long_enough_stands_in_line() {
    let clock = ManualClock::new();
    let store = store(RedisServer::shared(), &clock);
    let limiter = spent(&store, Way::Log).await;
    limiter.try_acquire().await.unwrap().assert_refused();
    let waiter = limiter.clone();
    let waits = tokio::spawn(async move { waiter.try_acquire_for(1, HOUR).await });
    waited_for(&clock).await;
    assert_eq!(limiter.release(1).await.unwrap(), 1);
    let decision = waits.await.unwrap().unwrap();
    decision.assert_allowed();
    // And then no earlier refusal is repeated.
    let refused = limiter.try_acquire_for(1, TIMEOUT).await.unwrap();
    refused.assert_refused();
    assert_eq!(refused.source(), Source::Store);
}

/// A settlement that charges more leaves less room: the waiter's turn is later than it was told.
#[tokio::test]
async fn an_extra_charge_has_waiters_asked_for_again() {
    let (server, clock) = (RedisServer::start(), ManualClock::new());
    let store = store(&server, &clock);
    let limiter = limited(&store, Limit::per_hour(2)).await;
    let Decision::Allow(grant) = limiter.try_acquire().await.unwrap() else {
        panic!("it is free");
    };
    limiter.try_acquire().await.unwrap().assert_allowed();
    clock.advance(Duration::from_secs(60));
    let waiter = limiter.clone();
    let waits = tokio::spawn(async move { waiter.acquire().await });
    waited_for(&clock).await;
    let before = server.scripts_called();
    limiter.settle(&grant.receipts()[0], 2);
    store.close().await;
    // That of the settlement, and the waiter's.
    let began = Instant::now();
    while server.scripts_called() < before + 2 {
        assert!(began.elapsed() < Duration::from_secs(20), "it asks again");
        tokio::task::yield_now().await;
    }
    // No clock was moved: nothing else wakes it.
    assert!(!waits.is_finished());
    waits.abort();
}

/// The wait of one behind another counts that one, which may leave.
#[tokio::test]
async fn a_wait_behind_others_is_kept_for_no_caller() {
    let clock = ManualClock::new();
    let store = store(RedisServer::shared(), &clock);
    let limiter = limited(&store, Limit::per_hour(2)).await;
    limiter.try_acquire_many(2).await.unwrap().assert_allowed();
    let ahead = limiter.clone();
    let ahead = tokio::spawn(async move { ahead.acquire_many(2).await });
    waited_for(&clock).await;
    // Two hours behind the other, and one without it.
    let longest = HOUR + HOUR / 2;
    let refused = limiter.try_acquire_for(1, longest).await.unwrap();
    assert_eq!(wait(&refused), Some(2 * HOUR));
    ahead.abort();
    assert!(ahead.await.unwrap_err().is_cancelled());
    let refused = limiter.try_acquire_for(1, TIMEOUT).await.unwrap();
    assert_eq!(refused.source(), Source::Store);
    assert_eq!(wait(&refused), Some(HOUR));
}

fn wait(decision: &Decision) -> Option<Duration> {
    match decision {
        Decision::Deny(refusal) => refusal.retry_after(),
        Decision::Allow(_) => None,
    }
}
