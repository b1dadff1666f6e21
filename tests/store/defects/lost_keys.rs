//! Keys that were evicted, deleted or outlived by others.

use super::world::{Answer, World, books, redis};
use crate::scene::*;

// Section 8.4 and 4.1, #2987, #4680: if the log is lost and too little is left, Redisson throws
// "attempt to perform arithmetic on a nil value", with every call until the limiter is deleted.
#[tokio::test]
async fn a_lost_log_is_an_interval_without_permits() {
    let world = World::limited(5, 1000).await;
    assert_eq!(world.take(5).await, Answer::Granted);
    redis(&["DEL", &world.keys.log]);
    assert_eq!(world.books(), books(0, &[]));
    world.at(400);
    assert_eq!(world.take(1).await, Answer::Wait(1000));
    // It is unknown when they were taken; no later than now.
    assert_eq!(world.books(), books(0, &[(400, 5)]));
    world.at(1399);
    assert_eq!(world.take(1).await, Answer::Wait(1));
    world.at(1400);
    assert_eq!(world.take(5).await, Answer::Granted);
    assert_eq!(world.books(), books(0, &[(1400, 5)]));
}

// Section 8.4 and 4.6: if the value is lost, Redisson grants a whole fresh quota beside the one in
// use.
#[tokio::test]
async fn a_lost_value_is_counted_from_the_log() {
    let world = World::limited(10, 5000).await;
    assert_eq!(world.take(7).await, Answer::Granted);
    redis(&["DEL", &world.keys.value]);
    world.at(100);
    assert_eq!(world.take(4).await, Answer::Wait(4900));
    assert_eq!(world.books(), books(3, &[(0, 7)]));
    redis(&["DEL", &world.keys.value]);
    assert_eq!(world.take(3).await, Answer::Granted);
    assert_eq!(world.take(1).await, Answer::Wait(4900));
    assert_eq!(world.books(), books(0, &[(0, 7), (100, 3)]));
}

// Section 8.4 and 4.3: if the hash is lost, Redisson throws "RateLimiter is not initialized", an
// error without a type.
#[tokio::test]
async fn a_lost_limit_is_an_error_of_its_own_and_changes_nothing() {
    let world = World::limited(5, 1000).await;
    assert_eq!(world.take(2).await, Answer::Granted);
    redis(&["DEL", &world.keys.hash]);
    let before = world.books();
    assert_eq!(before, books(3, &[(0, 2)]));
    let missing = ErrorKind::NotInitialized;
    let limiter = &world.limiter;
    assert_eq!(limiter.try_acquire().await.unwrap_err().kind(), missing);
    assert_eq!(limiter.acquire().await.unwrap_err().kind(), missing);
    let counted = limiter.available_permits().await;
    assert_eq!(counted.unwrap_err().kind(), missing);
    assert_eq!(limiter.release(1).await.unwrap_err().kind(), missing);
    assert!(!limiter.update_rate(Limit::per_second(9)).await.unwrap());
    assert_eq!(world.books(), before);
    assert_eq!(world.keys.lives(), [-2, -1, -1]);

    // Set again, it goes on with what is in use.
    assert!(limiter.try_set_rate(Limit::per_second(5)).await.unwrap());
    assert_eq!(world.take(4).await, Answer::Wait(1000));
    assert_eq!(world.take(3).await, Answer::Granted);
}
