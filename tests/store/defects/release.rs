//! Permits given back without a receipt, and values above the rate.

use super::world::{Answer, World, books};

// Section 8.2a and 4.5: Redisson's release credits permits and leaves them in the log, which credits them again when they
// expire: 20 admitted in a window of 10.
#[tokio::test]
async fn what_is_released_is_not_admitted_twice() {
    let world = World::limited(10, 10_000).await;
    assert_eq!(world.take(10).await, Answer::Granted);
    assert_eq!(world.books(), books(0, &[(0, 10)]));
    assert_eq!(world.limiter.release(10).await.unwrap(), 10);
    assert_eq!(world.books(), books(10, &[]));
    world.at(9000);
    assert_eq!(world.take(10).await, Answer::Granted);
    world.at(10_100);
    assert_eq!(world.take(1).await, Answer::Wait(8900));
    assert_eq!(world.books(), books(0, &[(9000, 10)]));
}

// Section 8.2a: of a partly released entry Redisson keeps the whole.
#[tokio::test]
async fn what_is_partly_released_is_partly_logged() {
    let world = World::limited(10, 10_000).await;
    assert_eq!(world.take(4).await, Answer::Granted);
    world.at(5000);
    assert_eq!(world.take(6).await, Answer::Granted);
    assert_eq!(world.books(), books(0, &[(0, 4), (5000, 6)]));
    assert_eq!(world.limiter.release(5).await.unwrap(), 5);
    // The oldest first: what stays expires later, and never sooner than it was taken.
    assert_eq!(world.books(), books(5, &[(5000, 5)]));
    world.at(14_999);
    assert_eq!(world.take(6).await, Answer::Wait(1));
    world.at(15_000);
    assert_eq!(world.take(10).await, Answer::Granted);
}

// Section 8.2b, #7342: when the log seems to hold more than the rate Redisson counts it anew, released permits included:
// 2 left of 10, with nothing in use.
#[tokio::test]
async fn what_is_released_is_not_lost_by_a_recount() {
    let world = World::limited(10, 10_000).await;
    assert_eq!(world.take(8).await, Answer::Granted);
    assert_eq!(world.limiter.release(8).await.unwrap(), 8);
    world.at(1000);
    assert_eq!(world.take(8).await, Answer::Granted);
    assert_eq!(world.books(), books(2, &[(1000, 8)]));
    assert_eq!(world.limiter.release(8).await.unwrap(), 8);
    assert_eq!(world.books(), books(10, &[]));
    world.at(10_000);
    assert_eq!(world.available().await, 10);
    assert_eq!(world.take(10).await, Answer::Granted);
}

// Section 8.2c and 4.5, #7329: acquire 5, release 5, expiry: Redisson counts 10 at a rate of 5, and admits them.
#[tokio::test]
async fn nothing_is_counted_above_the_rate() {
    let world = World::limited(5, 1000).await;
    assert_eq!(world.take(5).await, Answer::Granted);
    assert_eq!(world.limiter.release(5).await.unwrap(), 5);
    world.at(1000);
    assert_eq!(world.available().await, 5);
    assert_eq!(world.take(5).await, Answer::Granted);
    assert_eq!(world.take(1).await, Answer::Wait(1000));
    assert_eq!(world.books(), books(0, &[(1000, 5)]));
}

// Section 8.2c, #7329: the same state left by Redisson, which has credited permits that are still logged.
#[tokio::test]
async fn what_java_released_is_not_counted_above_the_rate() {
    let world = World::written_by_java("5", 1000);
    world.keys.plant_value("5");
    world.keys.plant(0, 5);
    assert_eq!(world.books(), books(5, &[(0, 5)]));
    world.at(1000);
    assert_eq!(world.available().await, 5);
    assert_eq!(world.books(), books(5, &[]));
    assert_eq!(world.take(5).await, Answer::Granted);
    assert_eq!(world.take(1).await, Answer::Wait(1000));

    // With an entry that is still in use beside the expired: 3 + 2 + 3 would be 8 of 5.
    let world = World::written_by_java("5", 1000);
    world.keys.plant_value("5");
    world.keys.plant(0, 3);
    world.keys.plant(500, 2);
    world.at(1000);
    assert_eq!(world.available().await, 3);
    assert_eq!(world.books(), books(3, &[(500, 2)]));
}

// Section 8.2b: more than is in use cannot be released; Redisson caps the value and forgets the log.
#[tokio::test]
async fn more_than_is_in_use_is_not_released() {
    let world = World::limited(5, 1000).await;
    assert_eq!(world.take(2).await, Answer::Granted);
    assert_eq!(world.limiter.release(4).await.unwrap(), 2);
    assert_eq!(world.books(), books(5, &[]));
    assert_eq!(world.limiter.release(4).await.unwrap(), 0);
    assert_eq!(world.take(5).await, Answer::Granted);
    assert_eq!(world.take(1).await, Answer::Wait(1000));
}

// Section 4.6: a value forced to 100 at a rate of 5 lets Redisson admit 100 at once.
#[tokio::test]
async fn a_value_above_the_rate_admits_no_more_than_the_rate() {
    let world = World::written_by_java("5", 1000);
    world.keys.plant_value("100");
    assert_eq!(world.take(5).await, Answer::Granted);
    assert_eq!(world.books(), books(0, &[(0, 5)]));
    assert_eq!(world.take(1).await, Answer::Wait(1000));
    assert_eq!(world.books(), books(0, &[(0, 5)]));

    // With permits in use it is counted from the log.
    world.keys.plant_value("100");
    assert_eq!(world.take(1).await, Answer::Wait(1000));
    assert_eq!(world.books(), books(0, &[(0, 5)]));
    world.keys.plant_value("100");
    assert_eq!(world.available().await, 0);
    assert_eq!(world.books(), books(0, &[(0, 5)]));
}
