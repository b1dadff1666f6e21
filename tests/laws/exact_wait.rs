//! L2: refused at every instant before the announced wait, granted at it, if no other caller takes.

use crate::scene::*;

use super::world::{
    Probed, World, check, check_in_redis, interval_of, probed, refused_until, take,
};

fn law<S: Store>(world: &World<S>, (limit, traffic, permits, probes): Probed) {
    world.run(async {
        let limiter = world.limiter(limit).await;
        world.send(&limiter, &traffic).await;
        let refused = refused_until(world, &limiter, limit.permits(), permits, &probes);
        if let Some((wait, _)) = refused.await {
            assert!(wait <= interval_of(limit));
            assert_eq!(take(&limiter, permits).await, Ok(()), "after {wait} ms");
        }
    });
}

#[test]
fn in_memory() {
    let world = World::memory();
    check(600, &probed(), |input| law(&world, input));
}

#[test]
fn in_redis() {
    check_in_redis(480, &probed(), law);
}
