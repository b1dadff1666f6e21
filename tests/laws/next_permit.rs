//! The next permit that a grant announces: it is free then, and not before, if no other caller
//! takes.

use kit::scene::*;

use super::{
    kinds::WAYS,
    world::{MILLISECOND, Request, World, histories, law},
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

const MICROSECOND: Duration = Duration::from_micros(1);

law! {
    histories(MILLISECOND), |world, (tick, kind), input| law(world, tick, kind, input);
    in_memory: 300 by WAYS.map(|kind| (MICROSECOND, kind)),
    in_a_store_of_ones_own: 100 by WAYS.map(|kind| (MICROSECOND, kind)),
    in_redis: 100 by [Way::Log, Way::Slots(10), Way::Gcra].map(|kind| (millis(1), kind)),
}
