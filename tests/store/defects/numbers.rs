//! Zero, negative and huge numbers.

use super::{
    monitor::Monitor,
    world::{Answer, World, books, redis, unused},
};
use crate::scene::*;

// Section 8.5 and 8.6: Redisson sends any number: 0 leaves a member that stays, a negative one adds
// permits. Here negative numbers cannot be written, and zero is never sent.
#[tokio::test]
async fn zero_permits_are_refused_without_a_call() {
    let world = World::limited(5, 1000).await;
    let mut monitor = Monitor::start();
    for error in [
        world.limiter.try_acquire_many(0).await.unwrap_err(),
        world.limiter.acquire_many(0).await.unwrap_err(),
        world.limiter.release(0).await.unwrap_err(),
        world
            .limiter
            .try_acquire_for(0, Duration::from_secs(1))
            .await
            .unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Permits);
    }
    let seen = monitor.seen(world.limiter.name());
    assert!(seen.is_empty(), "{seen:?}");
}

// Section 8.5: such members alone make an unbounded log in Redisson.
#[tokio::test]
async fn members_without_permits_expire_alone() {
    let world = World::written_by_java("2", 1000);
    world.keys.plant_value("2");
    for time in 0..300 {
        world.keys.plant(time, 0);
    }
    world.at(1200);
    assert_eq!(world.available().await, 2);
    assert_eq!(world.keys.logged(), 99, "those after 200 ms are live");
    world.at(1299);
    assert_eq!(world.available().await, 2);
    assert_eq!(world.books(), books(2, &[]));
}

// Section 4.9: 2^53 + 1 loses one permit when something expires. Here a rate is below 2^53, and
// exact to the last permit.
#[tokio::test]
async fn the_largest_rate_is_exact() {
    let largest = (1 << 53) - 1;
    for rate in [largest + 1, largest + 2, u64::MAX, 0] {
        let refused = Limit::try_new(rate, Duration::from_secs(1));
        let said = format!("a limit takes 1 to 2^53 - 1 permits, not {rate}");
        assert_eq!(refused.unwrap_err().to_string(), said);
    }
    let world = World::limited(largest, 1000).await;
    assert_eq!(
        redis(&["HGET", &world.keys.hash, "rate"]),
        "9007199254740991"
    );
    assert_eq!(world.take(1).await, Answer::Granted);
    assert_eq!(world.books().value.as_deref(), Some("9007199254740990"));
    world.at(500);
    assert_eq!(world.take(2).await, Answer::Granted);
    assert_eq!(world.books().value.as_deref(), Some("9007199254740988"));
    world.at(1000);
    assert_eq!(world.available().await, largest - 2);
    world.at(1500);
    assert_eq!(world.available().await, largest);
}

// Section 4.9: Java accepts any rate. Beyond 2^53 the numbers of a script are not exact, and from
// about 10^17 on it writes `4.6116860184273879e+18`, which DECRBY refuses for ever. Here it is a
// typed error, and nothing is written.
#[tokio::test]
async fn a_stored_rate_that_cannot_be_counted_is_an_error_that_changes_nothing() {
    for rate in ["9007199254740993", "4611686018427387904"] {
        let world = World::written_by_java(rate, 1000);
        let fields = world.keys.fields();
        let foreign = ErrorKind::ForeignState;
        assert_eq!(world.limiter.limit().await.unwrap_err().kind(), foreign);
        let taken = world.limiter.try_acquire().await;
        let books = world.books();
        assert_eq!(
            taken.map_err(|error| error.kind()).map(drop),
            Err(foreign),
            "rate {rate}: {books:?}"
        );
        assert_eq!(world.books(), unused());
        assert_eq!(world.keys.fields(), fields);
    }
}

// Section 1: Redisson stores rates of zero and below and intervals of zero, which never limit.
#[tokio::test]
async fn a_stored_limit_that_is_none_is_named() {
    for (rate, interval) in [("0", 1000), ("-1", 1000), ("5", 0)] {
        let world = World::written_by_java(rate, interval);
        let error = world.limiter.limit().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ForeignState, "{rate} {interval}");
        if rate != "5" {
            assert_eq!(world.take(1).await, Answer::AboveRate);
            assert_eq!(world.books(), unused());
        }
    }
}
