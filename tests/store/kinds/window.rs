//! Fixed-window limiters: the state in Redis, receipts, the queue, HTTP, and renamed limiters.

mod receipts;
mod state;

use super::*;
use crate::scene::on_both_stores;

on_both_stores!(a_name_moves);

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
    let windowed = Window::hourly(&store, 5).await;
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

/// However often a name moves, it heals: an interval and its tenth later all permits are free.
#[tokio::test]
async fn a_name_that_moved_heals() {
    let clock = ManualClock::new();
    let store = MemoryStore::new().clock(clock.clone());
    let windowed = Window::hourly(&store, 5).await;
    let logged = RateLimiter::new(&store, windowed.name()).unwrap();
    take(&logged, 5).await;
    clock.advance(HOUR / 2);
    assert_eq!(free(&windowed).await, 0);
    clock.advance(HOUR);
    assert_eq!(free(&windowed).await, 0);
    clock.advance(millis(1));
    assert_eq!(free(&windowed).await, 5);

    take(&windowed, 3).await;
    clock.advance(HOUR / 2);
    assert_eq!(free(&logged).await, 2);
    clock.advance(HOUR);
    assert_eq!(free(&logged).await, 5);
}
