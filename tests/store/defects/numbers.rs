//! Zero, negative and huge numbers.

use super::{
    monitor::Monitor,
    world::{Specimen, books},
};
use kit::scene::*;

// Section 8.5 and 8.6: Redisson sends any number: 0 leaves a member that stays, a negative one adds
// permits. Here negative numbers cannot be written, and zero is never sent.
#[tokio::test]
async fn zero_permits_are_refused_without_a_call() {
    let world = Specimen::limited(5, 1000).await;
    let mut monitor = Monitor::start();
    for error in [
        world.limiter.try_acquire_many(0).await.unwrap_err(),
        world.limiter.acquire_many(0).await.unwrap_err(),
        world.limiter.release(0).await.unwrap_err(),
        world.limiter.try_acquire_for(0, secs(1)).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Permits);
    }
    let seen = monitor.seen(world.limiter.name());
    assert!(seen.is_empty(), "{seen:?}");
}

// Section 8.5: such members alone make an unbounded log in Redisson.
#[tokio::test]
async fn members_without_permits_expire_alone() {
    let world = Specimen::written_by_java("2", 1000);
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
