//! Limits that are changed while they are in use.

use super::world::{Answer, World, books, redis};
use crate::scene::*;

fn limit(rate: u64) -> Limit {
    Limit::new(rate, Duration::from_secs(10))
}

/// One permit a second from the start, ten in all.
async fn ten_in_use() -> World {
    let world = World::limited(10, 10_000).await;
    for second in 0..10 {
        world.at(1000 * second);
        assert_eq!(world.take(1).await, Answer::Granted);
    }
    let log: Vec<_> = (0..10).map(|second| (1000 * second, 1)).collect();
    assert_eq!(world.books(), books(0, &log));
    world
}

/// Grants of callers that come every 100 ms, in ms.
async fn under_load(world: &World, from: u64, to: u64) -> Vec<u64> {
    let mut granted = Vec::new();
    for now in (from..to).step_by(100) {
        world.at(now);
        if world.take(1).await == Answer::Granted {
            granted.push(now);
        }
    }
    granted
}

// Section 4.4: updateRate(keepState) from 10 to 4 with 10 in use: Redisson forgets the excess, every permit that expires is
// given out again, and under steady load 10 are admitted in every window for as long as it lasts.
#[tokio::test]
async fn a_lowered_rate_holds_under_steady_load() {
    let world = ten_in_use().await;
    world.at(9500);
    assert!(world.limiter.update_rate(limit(4)).await.unwrap());
    let log: Vec<_> = (0..10).map(|second| (1000 * second, 1)).collect();
    assert_eq!(world.books(), books(-6, &log));
    // Six have to expire before the first of the four, the rest follow as theirs do.
    let granted = under_load(&world, 9500, 60_000).await;
    assert_eq!(granted[..4], [16_000, 17_000, 18_000, 19_000]);
    for from in (9500..50_000).step_by(100) {
        let window = from..from + 10_000;
        let count = granted.iter().filter(|at| window.contains(*at)).count();
        assert!(count <= 4, "{count} from {from}");
    }
    assert!(granted.len() >= 16, "{granted:?}");
}

// Section 4.4: the wait after a lowered rate: Redisson looks at the oldest entry only, whose permit nobody may have.
#[tokio::test]
async fn the_wait_after_a_lowered_rate_is_exact() {
    let world = ten_in_use().await;
    world.at(9500);
    assert!(world.limiter.update_rate(limit(4)).await.unwrap());
    assert_eq!(world.take(1).await, Answer::Wait(6500));
    assert_eq!(world.take(4).await, Answer::Wait(9500));
    assert_eq!(world.available().await, 0);
    world.at(15_999);
    assert_eq!(world.take(1).await, Answer::Wait(1));
    world.at(16_000);
    assert_eq!(world.take(1).await, Answer::Granted);
}

// Section 4.4: a rate lowered by hand, or by a Java peer, which writes no deficit: Redisson never gets there under load.
// Here, too, nobody says how much is in use too much; when the log has expired whole the books are right again.
#[tokio::test]
async fn a_rate_lowered_by_hand_holds_after_an_idle_interval() {
    let world = ten_in_use().await;
    redis(&["HSET", &world.keys.hash, "rate", "4"]);
    world.at(19_000);
    assert_eq!(world.available().await, 4);
    assert_eq!(world.take(4).await, Answer::Granted);
    assert_eq!(world.take(1).await, Answer::Wait(10_000));
    assert_eq!(world.books(), books(0, &[(19_000, 4)]));
}

// Section 4.4: with an availablePermits between, even a bulk expiry gives 10 at a rate of 3.
#[tokio::test]
async fn a_bulk_expiry_after_a_lowered_rate_gives_no_more_than_it() {
    for count_between in [false, true] {
        let world = World::limited(10, 10_000).await;
        assert_eq!(world.take(10).await, Answer::Granted);
        redis(&["HSET", &world.keys.hash, "rate", "3"]);
        world.at(10_000);
        if count_between {
            assert_eq!(world.available().await, 3);
            assert_eq!(world.books(), books(3, &[]));
        }
        assert_eq!(world.take(3).await, Answer::Granted);
        assert_eq!(world.take(1).await, Answer::Wait(10_000));
        assert_eq!(world.books(), books(0, &[(10_000, 3)]));
    }
}

// Section 4.4 and 8.4: a raised rate leaves Redisson with too small a value, and with an empty log that is the nil error.
#[tokio::test]
async fn a_raised_rate_holds_at_once() {
    let world = World::limited(4, 10_000).await;
    assert_eq!(world.take(4).await, Answer::Granted);
    assert!(world.limiter.update_rate(limit(10)).await.unwrap());
    assert_eq!(world.books(), books(6, &[(0, 4)]));
    assert_eq!(world.take(6).await, Answer::Granted);
    assert_eq!(world.take(1).await, Answer::Wait(10_000));

    // By hand, as a Java peer's setRate is to other clients: an interval later at the latest, and never an error.
    redis(&["HSET", &world.keys.hash, "rate", "12"]);
    world.at(9999);
    assert_eq!(world.take(12).await, Answer::Wait(1));
    world.at(10_000);
    assert_eq!(world.take(12).await, Answer::Granted);
    assert_eq!(world.books(), books(0, &[(10_000, 12)]));
}

// Section 4, #5487: setRate with every request admits everything. It begins anew here, too, as it says; what is meant for
// every start, or every request, gives nothing out.
#[tokio::test]
async fn the_same_limit_set_again_gives_no_new_permits() {
    let world = World::limited(5, 10_000).await;
    assert_eq!(world.take(5).await, Answer::Granted);
    for _ in 0..3 {
        assert!(!world.limiter.try_set_rate(limit(5)).await.unwrap());
        assert!(world.limiter.update_rate(limit(5)).await.unwrap());
        assert_eq!(world.take(1).await, Answer::Wait(10_000));
        assert_eq!(world.books(), books(0, &[(0, 5)]));
    }
    world.limiter.set_rate(limit(5)).await.unwrap();
    assert_eq!(world.available().await, 5);
}
