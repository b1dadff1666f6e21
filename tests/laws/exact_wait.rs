//! L2 and L3: refused at every instant before the announced wait, granted at it, if no other caller
//! takes; and no refusal takes anything, or moves a window.

use std::collections::VecDeque;

use kit::{guards::Guards, scene::*};

use super::{
    kinds::{Lawful, WAYS},
    world::{MILLISECOND, NANOSECOND, Probed, World, law, probed, refused_until, take},
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

law! {
    probed(MILLISECOND), |world, kind, input| law(world, kind, input);
    in_memory: 400 by WAYS,
    in_a_store_of_ones_own: 200 by WAYS,
    in_redis: 240 by [Way::Log, Way::Log, Way::OwnLog, Way::Gcra],
}

law! {
    probed(NANOSECOND), |world, kind, input| law(world, kind, input);
    in_memory_by_nanoseconds: 600 by WAYS,
}

/// A log with many more grants than entries merges them, what was merged before included: a permit
/// is late by a thousandth of the interval at most, and never early.
fn law_of_many<S: Store>(world: &World<S>) {
    const GRANTS: usize = 20_000;
    let limit = Limit::new(GRANTS as u64, secs(100));
    // A store in memory rounds up to a microsecond.
    let most = limit.interval() / 1000 + Duration::from_micros(2);
    world.run(async {
        let limiter = world.limiter_of(Way::OwnLog, limit).await;
        let (mut in_use, mut refused) = (VecDeque::new(), 0);
        for number in 0..GRANTS + 2000 {
            // Then faster than they return.
            world.advance(millis(if number < GRANTS { 3 } else { 1 }));
            if let Err(wait) = take(&limiter, 1).await {
                let (now, wait) = (world.now(), wait.expect("one permit"));
                let due: Duration = in_use[0] + limit.interval();
                let is_right = due <= now + wait && now + wait <= due + most;
                assert!(is_right, "{wait:?} at {now:?}, and one is due at {due:?}");
                world.advance(wait);
                assert_eq!(take(&limiter, 1).await, Ok(()), "after {wait:?}");
                refused += 1;
            }
            in_use.push_back(world.now());
            if in_use.len() > GRANTS {
                let oldest = in_use.pop_front().expect("a grant");
                assert!(oldest + limit.interval() <= world.now(), "early");
            }
        }
        assert!(refused > 20, "{refused} refusals");
    });
}

#[test]
fn many_grants_return_late_by_a_thousandth_and_never_early() {
    law_of_many(&World::memory(MILLISECOND));
    law_of_many(&World::redis(Guards::all()[0]));
}
