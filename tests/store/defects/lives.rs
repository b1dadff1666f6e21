//! The times to live of a limiter's keys.

use super::world::{Answer, World, books, redis};
use crate::scene::*;

const HOUR: i64 = 3_600_000;

fn within_the_hour(lives: [i64; 3]) {
    let fresh = HOUR - 60_000..=HOUR;
    assert!(lives.iter().all(|left| fresh.contains(left)), "{lives:?}");
}

async fn kept_alive() -> World {
    let world = World::empty();
    let limit = Limit::per_second(5).keep_alive(Duration::from_secs(3600));
    let set = world.limiter.try_set_rate(limit.unwrap()).await;
    assert!(set.unwrap());
    world
}

// Section 8.3 and 4.3: availablePermits writes the value with a plain SET and so drops its TTL; it
// outlives the others.
#[tokio::test]
async fn counting_keeps_the_ttl_of_the_value() {
    let world = kept_alive().await;
    assert_eq!(world.take(2).await, Answer::Granted);
    world.at(500);
    assert_eq!(world.take(1).await, Answer::Granted);
    within_the_hour(world.keys.lives());
    // Something has expired, and the value is written: that is when Redisson loses the TTL.
    world.at(1000);
    assert_eq!(world.available().await, 4);
    assert_eq!(world.books(), books(4, &[(500, 1)]));
    within_the_hour(world.keys.lives());
}

// Section 8.3: the same where the TTL was set by expire and not by a keep-alive time.
#[tokio::test]
async fn counting_keeps_the_ttl_that_expire_set() {
    let world = World::limited(5, 1000).await;
    assert_eq!(world.take(2).await, Answer::Granted);
    world.at(500);
    assert_eq!(world.take(1).await, Answer::Granted);
    assert_eq!(world.keys.lives(), [-1; 3]);
    let hour = Duration::from_secs(3600);
    assert!(world.limiter.expire(hour).await.unwrap());
    within_the_hour(world.keys.lives());
    world.at(1000);
    assert_eq!(world.available().await, 4);
    assert_eq!(world.books(), books(4, &[(500, 1)]));
    within_the_hour(world.keys.lives());
    // A write of release, too.
    assert_eq!(world.limiter.release(1).await.unwrap(), 1);
    let [hash, value, log] = world.keys.lives();
    assert_eq!(log, -2, "nothing is in use");
    within_the_hour([hash, value, value]);
}

// Section 8.7 and 4: setRate without a keep-alive time after one with it writes 0 and leaves the
// old TTL in place: later the limiter expires and every call throws.
#[tokio::test]
async fn a_limit_set_without_keep_alive_stays() {
    let world = kept_alive().await;
    assert_eq!(world.take(2).await, Answer::Granted);
    within_the_hour(world.keys.lives());
    world.limiter.set_rate(Limit::per_second(5)).await.unwrap();
    assert_eq!(
        world.keys.fields(),
        "rate\n5\ninterval\n1000\nkeepAliveTime\n0\ntype\n0"
    );
    assert_eq!(world.keys.lives(), [-1, -2, -2]);
    assert_eq!(world.take(2).await, Answer::Granted);
    assert_eq!(world.keys.lives(), [-1, -1, -1]);
}

// Section 8.7: the same with updateRate, which keeps what is in use.
#[tokio::test]
async fn a_limit_changed_without_keep_alive_stays() {
    let world = kept_alive().await;
    assert_eq!(world.take(2).await, Answer::Granted);
    within_the_hour(world.keys.lives());
    let changed = world.limiter.update_rate(Limit::per_second(5)).await;
    assert!(changed.unwrap());
    assert_eq!(world.keys.lives(), [-1, -1, -1]);
    assert_eq!(world.books(), books(3, &[(0, 2)]));
}

// Section 8.7: the state that Redisson leaves: keepAliveTime 0, and a TTL that still runs. Setting
// the limit ends it.
#[tokio::test]
async fn setting_a_limit_ends_a_ttl_that_java_left() {
    let world = World::written_by_java("5", 1000);
    redis(&["PEXPIRE", &world.keys.hash, "3600000"]);
    world.limiter.set_rate(Limit::per_second(5)).await.unwrap();
    let left = world.limiter.time_to_live().await;
    assert_eq!(left.unwrap(), TimeToLive::Lasting);
    assert_eq!(world.keys.lives(), [-1, -2, -2]);
}

// Section 8.7 and 3: on a hash of 3.37 or older trySetRate adds keepAliveTime and returns false: a
// "no" that switches expiry on.
#[tokio::test]
async fn a_limit_of_an_older_redisson_is_left_as_it_is() {
    let world = World::empty();
    let hash = &world.keys.hash;
    redis(&["HSET", hash, "rate", "5", "interval", "1000", "type", "0"]);
    let before = world.keys.fields();
    let limit = Limit::per_second(9).keep_alive(Duration::from_secs(3600));
    let set = world.limiter.try_set_rate(limit.unwrap()).await;
    assert!(!set.unwrap());
    assert_eq!(world.keys.fields(), before);
    // Use does not add it either, nor a TTL.
    assert_eq!(world.take(5).await, Answer::Granted);
    assert_eq!(world.take(1).await, Answer::Wait(1000));
    assert_eq!(world.available().await, 0);
    assert_eq!(world.keys.fields(), before);
    assert_eq!(world.keys.lives(), [-1; 3]);
}

// Section 8.7 and 4.9: Redisson's getConfig cannot read a hash without `type`; trySetRate repairs
// it and returns true.
#[tokio::test]
async fn half_a_limit_is_completed() {
    let world = World::empty();
    redis(&["HSET", &world.keys.hash, "rate", "5", "interval", "1000"]);
    assert_eq!(world.limiter.limit().await.unwrap(), None);
    let set = world.limiter.try_set_rate(Limit::per_minute(9)).await;
    assert!(set.unwrap());
    assert_eq!(
        world.keys.fields(),
        "rate\n5\ninterval\n1000\nkeepAliveTime\n0\ntype\n0"
    );
    let limit = world.limiter.limit().await.unwrap();
    assert_eq!(limit, Some(Limit::per_second(5)));
}
