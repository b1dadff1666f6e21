//! The next permit that a grant announces: it is free then, and not before, if no other caller
//! takes.

use kit::scene::*;

use super::{
    kinds::WAYS,
    world::{MILLISECOND, Request, World, check_in_redis, histories},
};

type Input = (Limit, Vec<Request>);

/// `tick` is the unit that the store counts in.
fn law<S: Store>(world: &World<S>, tick: Duration, kind: Way, (limit, traffic): Input) {
    world.run(async {
        let limiter = match kind {
            // Also slots of less than a millisecond.
            Way::Slots(slots) => world.limiter(limit).await.slots(slots).unwrap(),
            kind => world.limiter_of(kind, limit).await,
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
            if request.pause.as_millis() % 3 == 0 {
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
    world.clock.advance(at + next - tick - world.clock.now());
    assert_eq!(
        free(limiter).await,
        remaining,
        "{tick:?} before {next:?} are over"
    );
    world.clock.advance(tick);
    assert!(free(limiter).await > remaining, "after {next:?}");
}

#[test]
fn in_memory() {
    let world = World::memory(MILLISECOND);
    for kind in WAYS {
        check(300, &histories(MILLISECOND), |input| {
            law(&world, Duration::from_micros(1), kind, input);
        });
    }
}

#[test]
fn in_a_store_of_ones_own() {
    let world = World::backend(MILLISECOND);
    for kind in WAYS {
        check(100, &histories(MILLISECOND), |input| {
            law(&world, Duration::from_micros(1), kind, input);
        });
    }
}

#[test]
fn in_redis() {
    for kind in [Way::Log, Way::Slots(10), Way::Gcra] {
        check_in_redis(100, &histories(MILLISECOND), |world, input| {
            law(world, millis(1), kind, input);
        });
    }
}
