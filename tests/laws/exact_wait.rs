//! L2: refused at every instant before the announced wait, granted at it, if nobody else takes.

use crate::scene::*;
use proptest::prelude::*;

use super::world::{Request, World, check, check_in_redis, limit, take, traffic};

/// A limit, the traffic before, a request, and where before its wait to probe (in thousandths).
type Input = (Limit, Vec<Request>, u32, Vec<u64>);

fn input() -> impl Strategy<Value = Input> {
    limit().prop_flat_map(|limit| {
        let request = 1..=u32::try_from(limit.permits()).unwrap();
        let probes = proptest::collection::vec(0u64..1000, 3);
        (Just(limit), traffic(limit, 30), request, probes)
    })
}

fn law<S: Store>(world: &World<S>, (limit, traffic, permits, probes): Input) {
    world.run(async {
        let limiter = world.limiter(limit).await;
        world.send(&limiter, &traffic).await;
        let begun = world.now();
        let Err(wait) = take(&limiter, permits).await else {
            return;
        };
        let wait = wait.expect("no more than the rate is asked for");
        assert!((1..=u64::try_from(limit.interval().as_millis()).unwrap()).contains(&wait));

        let mut instants: Vec<_> = probes.iter().map(|part| wait * part / 1000).collect();
        instants.push(wait - 1);
        instants.sort_unstable();
        for instant in instants {
            world.advance(begun + instant - world.now());
            let refused = take(&limiter, permits).await;
            assert_eq!(
                refused,
                Err(Some(wait - instant)),
                "{instant} of {wait} ms later"
            );
        }
        world.advance(begun + wait - world.now());
        assert_eq!(
            take(&limiter, permits).await,
            Ok(()),
            "after the wait of {wait} ms"
        );
    });
}

#[test]
fn in_memory() {
    let world = World::memory();
    check(600, &input(), |input| law(&world, input));
}

#[test]
fn in_redis() {
    check_in_redis(480, &input(), law);
}
