//! Limiters that count by fixed windows: what stands in Redis, receipts, the line, HTTP, and names that move.

#![cfg(all(feature = "redis", feature = "test-util"))]
#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers fail the test by panicking; clippy.toml reaches `#[test]` functions only"
)]

#[path = "fixed_window/receipts.rs"]
mod receipts;
#[path = "fixed_window/state.rs"]
mod state;
mod support;

use std::{
    convert::Infallible,
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use http::{Request, Response, header};
use support::{RedisServer, unique};
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::{
    Algorithm, ConfigErrorKind, Decision, Grant, Limit, ManualClock, MemoryStore, RateLimitLayer,
    RateLimiter, RedisStore, RedisStoreBuilder, Rule, Store, key::Constant,
};

/// So long that no window ends on its own while a test runs.
const HOUR: Duration = Duration::from_secs(3600);

fn redis_store() -> RedisStoreBuilder {
    store_on(RedisServer::shared())
}

/// A store whose decisions a busy machine does not turn into answers by policy.
fn store_on(server: &RedisServer) -> RedisStoreBuilder {
    RedisStore::builder(server.url())
        .prefix(&unique("window"))
        .client_id("7d9")
        .response_timeout(Duration::from_secs(5))
        .deadline(Duration::from_secs(5))
        // Every refusal is to be the script's.
        .deny_cache(Duration::ZERO)
}

fn named(store: &impl Store, name: &str) -> RateLimiter {
    let limiter = RateLimiter::new(store, name).unwrap();
    limiter.algorithm(Algorithm::FixedWindow)
}

/// A limiter of `permits` an hour that nobody else has.
async fn hourly(store: &impl Store, permits: u64) -> RateLimiter {
    let limiter = named(store, &unique("window"));
    let limit = Limit::new(permits, HOUR);
    assert!(limiter.try_set_rate(limit).await.unwrap());
    limiter
}

async fn take(limiter: &RateLimiter, permits: u32) -> Grant {
    match limiter.try_acquire_many(permits).await.unwrap() {
        Decision::Allow(grant) => grant,
        Decision::Deny(refusal) => panic!("{refusal:?}"),
    }
}

async fn free(limiter: &RateLimiter) -> u64 {
    limiter.available_permits().await.unwrap()
}

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    std::pin::Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

async fn until(mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition().await {
        assert!(Instant::now() < deadline, "it takes too long");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn a_layer_counts_by_windows(store: impl Store) {
    let rule = Rule::new(&unique("rule"), Limit::new(2, HOUR), Constant("all"))
        .algorithm(Algorithm::FixedWindow);
    let inner = service_fn(async |_: Request<String>| {
        Ok::<_, Infallible>(Response::new(String::from("served")))
    });
    let service = RateLimitLayer::new(&store, rule).layer(inner);
    for left in [Some(1), Some(0), None] {
        let request = Request::new(String::new());
        let answer = service.clone().oneshot(request).await.unwrap();
        let decision = answer.extensions().get::<Decision>().unwrap();
        assert_eq!(decision.is_allowed(), left.is_some(), "{decision:?}");
        let remaining = decision.limits()[0].remaining();
        assert_eq!(remaining, Some(left.unwrap_or(0)));
        let retry_after = answer.headers().get(header::RETRY_AFTER);
        match left {
            Some(_) => assert_eq!((answer.status().as_u16(), retry_after), (200, None)),
            None => {
                assert_eq!(answer.status(), 429);
                let seconds: u64 = retry_after.unwrap().to_str().unwrap().parse().unwrap();
                assert!((3500..=3601).contains(&seconds), "{seconds}");
            }
        }
    }
}

#[tokio::test]
async fn a_layer_counts_by_windows_in_memory() {
    a_layer_counts_by_windows(MemoryStore::new()).await;
}

#[tokio::test]
async fn a_layer_counts_by_windows_in_redis() {
    a_layer_counts_by_windows(redis_store().build().unwrap()).await;
}

#[test]
fn rules_of_one_name_count_in_one_way() {
    let store = MemoryStore::new();
    let rule = || Limit::per_second(1).by(Constant("all")).named("one");
    let layer = |rule: Rule| RateLimitLayer::builder(&store).otherwise(rule).build();
    let first = layer(rule()).unwrap();
    let second = layer(rule().algorithm(Algorithm::FixedWindow));
    let error = second.unwrap_err();
    assert_eq!(error.kind(), ConfigErrorKind::Duplicate);
    assert!(error.to_string().contains("named \"one\""), "{error}");
    drop(first);
    assert!(layer(rule().algorithm(Algorithm::FixedWindow)).is_ok());
}

/// Both ways, on one limiter that is in use all the time.
async fn a_name_moves(store: impl Store) {
    let windowed = hourly(&store, 5).await;
    let logged = RateLimiter::new(&store, windowed.name()).unwrap();

    take(&logged, 2).await;
    assert_eq!(free(&windowed).await, 3);
    take(&windowed, 2).await;
    assert!(!windowed.try_acquire_many(2).await.unwrap().is_allowed());

    assert_eq!(free(&logged).await, 1);
    take(&logged, 1).await;
    assert!(!logged.try_acquire().await.unwrap().is_allowed());
    assert!(!windowed.try_acquire().await.unwrap().is_allowed());

    // A limit that is changed by one is changed for the other.
    assert!(windowed.update_rate(Limit::new(6, HOUR)).await.unwrap());
    assert_eq!(logged.limit().await.unwrap(), Some(Limit::new(6, HOUR)));
    take(&logged, 1).await;
    assert_eq!(free(&windowed).await, 0);
}

#[tokio::test]
async fn a_name_moves_in_memory() {
    a_name_moves(MemoryStore::new()).await;
}

#[tokio::test]
async fn a_name_moves_in_redis() {
    a_name_moves(redis_store().build().unwrap()).await;
}

/// However often a name moves, it heals: an interval and its tenth later all permits are free.
#[tokio::test]
async fn a_name_that_moved_heals() {
    let clock = ManualClock::new();
    let store = MemoryStore::new().clock(clock.clone());
    let windowed = hourly(&store, 5).await;
    let logged = RateLimiter::new(&store, windowed.name()).unwrap();
    take(&logged, 5).await;
    clock.advance(HOUR / 2);
    assert_eq!(free(&windowed).await, 0);
    clock.advance(HOUR);
    assert_eq!(free(&windowed).await, 0);
    clock.advance(Duration::from_millis(1));
    assert_eq!(free(&windowed).await, 5);

    take(&windowed, 3).await;
    clock.advance(HOUR / 2);
    assert_eq!(free(&logged).await, 2);
    clock.advance(HOUR);
    assert_eq!(free(&logged).await, 5);
}

/// The line waits for the window's end, and is served in order.
async fn waiters_are_served_in_the_next_window(store: impl Store) {
    let limiter = named(&store, &unique("line"));
    let limit = Limit::new(2, Duration::from_millis(200));
    limiter.try_set_rate(limit).await.unwrap();
    take(&limiter, 2).await;
    let begun = Instant::now();
    let hopeless = limiter.try_acquire_for(1, Duration::from_millis(5)).await;
    let Decision::Deny(refusal) = hopeless.unwrap() else {
        panic!("there was room");
    };
    assert!(refusal.retry_after() > Some(Duration::from_millis(5)));
    let mut waiters = Vec::new();
    for _ in 0..5 {
        let limiter = limiter.clone();
        waiters.push(tokio::spawn(async move { limiter.acquire().await }));
    }
    for waiter in waiters {
        waiter.await.unwrap().unwrap();
    }
    // In two windows there is room for four of them.
    assert!(begun.elapsed() > Duration::from_millis(400));
}

#[tokio::test]
async fn waiters_are_served_in_the_next_window_in_memory() {
    waiters_are_served_in_the_next_window(MemoryStore::new()).await;
}

#[tokio::test]
async fn waiters_are_served_in_the_next_window_in_redis() {
    waiters_are_served_in_the_next_window(redis_store().build().unwrap()).await;
}

/// A waiter that is served and dropped before it hears of it has taken nothing.
#[tokio::test]
async fn a_waiter_that_leaves_unheard_gives_back() {
    let clock = ManualClock::new();
    let store = MemoryStore::new().clock(clock.clone());
    let limiter = hourly(&store, 2).await;
    take(&limiter, 2).await;
    let mut first = Box::pin(limiter.acquire());
    let mut second = Box::pin(limiter.acquire());
    assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
    clock.advance(HOUR + Duration::from_millis(1));
    // The first drives the line for both.
    assert!(poll(&mut first).is_ready());
    assert_eq!(free(&limiter).await, 0);
    drop(second);
    assert_eq!(free(&limiter).await, 1);
}

/// Nor has one that leaves while it is asked for, where another hears the answer for it.
#[tokio::test]
async fn a_waiter_that_leaves_while_asked_for_gives_back() {
    let store = redis_store().build().unwrap();
    let limiter = hourly(&store, 10).await;
    let [mut first, mut second, mut third] =
        [1, 1, 4].map(|permits| Box::pin(limiter.acquire_many(permits)));
    // The first call is for the first alone, as the others come later; the second is for both of them.
    for waiter in [&mut first, &mut second, &mut third] {
        assert!(poll(waiter).is_pending());
    }
    first.await.unwrap();
    drop(third);
    second.await.unwrap();
    store.close().await;
    assert_eq!(free(&limiter).await, 8);
}

#[tokio::test]
async fn a_dropped_call_costs_no_more_than_its_window() {
    let store = redis_store().build().unwrap();
    let limiter = hourly(&store, 10).await;
    take(&limiter, 3).await;
    {
        let mut call = pin!(limiter.try_acquire_many(2));
        let _ = poll(&mut call);
    }
    store.close().await;
    // Nobody heard its answer, so nothing is given back: what another took must not be.
    let left = free(&limiter).await;
    assert!(left == 5 || left == 7, "{left}");
}
