//! L2 and L3: refused at every instant before the announced wait, granted at it, if no other caller
//! takes; and no refusal takes anything, or moves a window.

use crate::scene::*;

use super::{
    kinds::WAYS,
    world::{MILLISECOND, NANOSECOND, Probed, World, check_in_redis, probed, refused_until, take},
};

fn law<S: Store>(world: &World<S>, kind: Way, (limit, traffic, permits, probes): Probed) {
    world.run(async {
        let limiter = world.limiter_of(kind, limit).await;
        world.send(&limiter, &traffic).await;
        let left = free(&limiter).await;
        let refused = refused_until(world, &limiter, limit.permits(), permits, &probes);
        let Some((wait, seen)) = refused.await else {
            return;
        };
        // A store in memory rounds the time of a grant up to a microsecond; by whole milliseconds a
        // log has nothing to round.
        let rounded = Duration::from_nanos(match kind {
            Way::Log if world.unit == MILLISECOND => 1,
            _ => world.unit.max(1000),
        });
        assert!(wait < kind.whole(limit) + rounded, "{kind:?}: {wait:?}");
        if kind == Way::Window {
            assert!(seen.iter().all(|free| *free == left), "{left}: {seen:?}");
            assert_eq!(free(&limiter).await, limit.permits());
        }
        assert_eq!(take(&limiter, permits).await, Ok(()), "after {wait:?}");
    });
}

#[test]
fn in_memory() {
    for (unit, cases) in [(MILLISECOND, 400), (NANOSECOND, 600)] {
        let world = World::memory(unit);
        for kind in WAYS {
            check(cases, &probed(unit), |input| law(&world, kind, input));
        }
    }
}

#[test]
fn in_redis() {
    for (kind, cases) in [(Way::Log, 480), (Way::Gcra, 120)] {
        let input = probed(MILLISECOND);
        check_in_redis(cases, &input, |world, input| law(world, kind, input));
    }
}
