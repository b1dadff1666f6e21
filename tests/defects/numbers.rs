//! Zero, negative and huge numbers.

use std::time::Duration;

use tower_ratelimit::{ErrorKind, Limit};

use super::{
    monitor::Monitor,
    world::{Answer, World, books, redis, unused},
};

const U32: i64 = u32::MAX as i64;

// Section 8.5 and 8.6: Redisson sends any number: 0 leaves a member that stays, a negative one adds permits. Here there is
// no negative number to say, and zero never leaves the process.
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

// Section 8.5: tryAcquire(0) leaves a member of no permits that is never swept alone, and the wait, counted from the
// oldest entry, goes negative: acquire() spins.
#[tokio::test]
async fn members_without_permits_do_not_turn_the_wait_negative() {
    let world = World::written_by_java("2", 1000);
    world.keys.plant_value("0");
    world.keys.plant(-10_000, 0);
    world.keys.plant(100, 0);
    world.keys.plant(200, 2);
    world.at(600);
    assert_eq!(world.take(1).await, Answer::Wait(600));
    // What has expired is gone, without permits or not.
    assert_eq!(world.books(), books(0, &[(100, 0), (200, 2)]));
    world.at(1200);
    assert_eq!(world.take(2).await, Answer::Granted);
    assert_eq!(world.books(), books(0, &[(1200, 2)]));
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

// Section 8.6 and 4.6: tryAcquire(-5) at a rate of 2 leaves value 7 and a member of 4294967291: six grants in a window, and
// when it expires 4294967293 more.
#[tokio::test]
async fn a_negative_number_of_permits_does_not_switch_the_limit_off() {
    let world = World::written_by_java("2", 1000);
    let negative = u32::MAX - 4;
    world.keys.plant_value("7");
    world.keys.plant(0, negative);
    assert_eq!(world.books(), books(7, &[(0, negative)]));
    // The member reads as permits in use: nobody is admitted until it has expired.
    world.at(300);
    assert_eq!(world.take(1).await, Answer::Wait(700));
    assert_eq!(
        world.books(),
        books(2 - i64::from(negative), &[(0, negative)])
    );
    assert_eq!(world.available().await, 0);
    world.at(1000);
    assert_eq!(world.available().await, 2);
    assert_eq!(world.take(2).await, Answer::Granted);
    assert_eq!(world.take(1).await, Answer::Wait(1000));
    assert_eq!(world.books(), books(0, &[(1000, 2)]));
}

// Section 8.6: the same with others' grants around it, which live on.
#[tokio::test]
async fn a_negative_number_of_permits_is_forgotten_when_it_expires() {
    let world = World::written_by_java("5", 1000);
    world.keys.plant_value("3");
    world.keys.plant(0, 2);
    world.keys.plant(100, u32::MAX);
    world.keys.plant(200, 1);
    world.at(1100);
    // 3 and what expires would be far above the rate: counted from what is live.
    assert_eq!(world.take(5).await, Answer::Wait(100));
    assert_eq!(world.books(), books(4, &[(200, 1)]));
    assert_eq!(world.take(4).await, Answer::Granted);
}

// Section 1 and 4.9: permits are packed modulo 2^32, and those above never come back: 1095216660480 of a rate of 2^40 were
// left for ever. Here more cannot be said, and what can is exact.
#[tokio::test]
async fn the_largest_request_comes_back_whole() {
    let rate = 1 << 40;
    let world = World::limited(rate, 1000).await;
    let rate = rate.cast_signed();
    assert_eq!(world.take(u32::MAX).await, Answer::Granted);
    assert_eq!(world.books(), books(rate - U32, &[(0, u32::MAX)]));
    world.at(500);
    assert_eq!(world.take(u32::MAX).await, Answer::Granted);
    assert_eq!(world.books().value, books(rate - 2 * U32, &[]).value);
    world.at(1000);
    assert_eq!(world.available().await, (rate - U32).cast_unsigned());
    world.at(1500);
    assert_eq!(world.available().await, rate.cast_unsigned());
}

// Section 4.9: 2^53 + 1 loses one permit when something expires. Here a rate is below 2^53, and exact to the last permit.
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

// Section 4.9: Java takes any rate. Beyond 2^53 the numbers of a script are no longer exact, and from about 10^17 on it
// writes `4.6116860184273879e+18`, which DECRBY refuses for ever. A typed error here, and nothing is written.
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

// Section 4.9: a value that Redisson wrote as a float makes DECRBY fail for ever, also after the rate was set right.
#[tokio::test]
async fn a_value_written_as_a_float_is_counted_anew() {
    let world = World::written_by_java("5", 1000);
    world.keys.plant_value("4.6116860184273879e+18");
    world.keys.plant(0, 2);
    assert_eq!(world.take(4).await, Answer::Wait(1000));
    assert_eq!(world.books(), books(3, &[(0, 2)]));
    assert_eq!(world.take(3).await, Answer::Granted);
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

// Section 2, #2072: before 3.10.7 more than the rate was waited for without end, and after it is an exception.
#[tokio::test]
async fn more_than_the_rate_is_a_refusal_that_takes_nothing() {
    let world = World::limited(5, 1000).await;
    assert_eq!(world.take(6).await, Answer::AboveRate);
    assert_eq!(world.books(), unused());
    assert_eq!(world.take(u32::MAX).await, Answer::AboveRate);
    assert_eq!(world.take(5).await, Answer::Granted);
}
