//! The next permit that a grant announces: it is free then, and not before, if no other caller
//! takes.

use crate::scene::*;
use proptest::prelude::*;

use super::world::{Request, World, check, check_in_redis, limit, traffic};

/// The algorithm of a limiter.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Log,
    Slots,
    Gcra,
    /// By the server's clock in Redis, which cannot be moved: in memory alone
    Window,
}

type Input = (Limit, Vec<Request>);

fn input() -> impl Strategy<Value = Input> {
    limit().prop_flat_map(|limit| (Just(limit), traffic(limit, 30)))
}

/// `tick` is the unit that the store counts in.
fn law<S: Store>(world: &World<S>, tick: Duration, kind: Kind, (limit, traffic): Input) {
    world.run(async {
        let limiter = world.limiter(limit).await;
        let limiter = match kind {
            Kind::Log => limiter,
            Kind::Slots => limiter.slots(10).unwrap(),
            Kind::Gcra => limiter.algorithm(Algorithm::Gcra),
            Kind::Window => limiter.algorithm(Algorithm::FixedWindow),
        };
        let mut last = None;
        for request in traffic {
            world.advance(request.pause);
            let decision = limiter.try_acquire_many(request.permits).await.unwrap();
            let state = decision.limits().next().unwrap();
            match &decision {
                Decision::Deny(_) => assert_eq!(state.next_after(), None, "the wait says it"),
                Decision::Allow(_) => {
                    let next = state.next_after().expect("a permit is in use");
                    assert!(next <= state.reset_after(), "{next:?} {state:?}");
                    last = Some((world.clock.now(), state.remaining().unwrap(), next));
                }
            }
            if !decision.is_allowed() {
                continue;
            }
            // What is asked for now and then, so that traffic goes on between.
            if request.pause % 3 == 0 {
                check_next(world, tick, &limiter, last.take().unwrap()).await;
            }
        }
        if let Some(announced) = last.filter(|(at, ..)| *at == world.clock.now()) {
            check_next(world, tick, &limiter, announced).await;
        }
    });
}

/// Waits until the announced instant, and counts right before it and at it.
async fn check_next<S: Store>(
    world: &World<S>,
    tick: Duration,
    limiter: &RateLimiter,
    (at, remaining, next): (Duration, u64, Duration),
) {
    assert!(next >= tick, "one more would be free by now");
    let free = async || limiter.available_permits().await.unwrap();
    world.clock.advance(at + next - tick - world.clock.now());
    assert_eq!(free().await, remaining, "{tick:?} before {next:?} are over");
    world.clock.advance(tick);
    assert!(free().await > remaining, "after {next:?}");
}

#[test]
fn in_memory() {
    let world = World::memory();
    for kind in [Kind::Log, Kind::Slots, Kind::Gcra, Kind::Window] {
        check(300, &input(), |input| {
            law(&world, Duration::from_micros(1), kind, input);
        });
    }
}

#[test]
fn in_redis() {
    for kind in [Kind::Log, Kind::Slots, Kind::Gcra] {
        check_in_redis(100, &input(), |world, input| {
            law(world, Duration::from_millis(1), kind, input);
        });
    }
}
