//! L1: in every window of one interval, wherever it begins, at most the rate in force is granted.
//! `kinds.rs` has what holds of fixed windows and of GCRA instead.

use http::Request as HttpRequest;
use kit::scene::*;

use super::{
    kinds::{BY_A_CLOCK, Lawful, WAYS, fullest},
    world::{MILLISECOND, NANOSECOND, Request, World, histories, law, limit, take, wait_of},
};

type Input = (Limit, Vec<Request>);

/// And not under without need: where pauses are whole milliseconds, what is refused does not fit.
fn law<S: Store>(world: &World<S>, kind: Way, (limit, traffic): Input) {
    let is_exact = world.unit == MILLISECOND;
    world.run(async {
        let limiter = world.limiter_of(kind, limit).await;
        let mut grants = Vec::new();
        for request in traffic {
            world.advance(request.pause);
            grants.push(world.grant(request.permits));
            let granted = take(&limiter, request.permits).await.is_ok();
            match kind {
                Way::Slots(_) => {}
                // Within an interval and the two microseconds by which it rounds.
                Way::Log if !is_exact && !granted => {
                    let full = fullest(&grants, limit.interval() + Duration::from_micros(2));
                    assert!(full > limit.permits(), "{grants:?}");
                }
                _ if !is_exact => {}
                _ => assert_eq!(granted, kind.fits(&grants, limit), "{kind:?}: {grants:?}"),
            }
            if !granted {
                grants.pop();
            }
        }
        assert!(kind.holds(&grants, limit), "{kind:?}: {grants:?}");
    });
}

law! {
    histories(MILLISECOND), |world, kind, input| law(world, kind, input);
    in_memory: 400 by WAYS,
    in_a_store_of_ones_own: 300 by WAYS,
    in_redis: 150 by BY_A_CLOCK,
}

law! {
    histories(NANOSECOND), |world, kind, input| law(world, kind, input);
    in_memory_by_nanoseconds: 1000 by WAYS,
}

/// A burst of the whole limit passes at any instant, however many of its calls fall into one
/// microsecond.
#[test]
fn an_idle_limiter_has_all_its_permits_within_a_microsecond() {
    let world = World::memory(NANOSECOND);
    for kind in WAYS {
        check(300, &(limit(), 0u64..2000), |(limit, begun)| {
            world.run(async {
                let limiter = world.limiter_of(kind, limit).await;
                world.advance(Duration::from_nanos(begun));
                for left in (0..limit.permits()).rev() {
                    assert_eq!(take(&limiter, 1).await, Ok(()), "{left}");
                    assert_eq!(free(&limiter).await, left);
                }
                assert!(take(&limiter, 1).await.is_err());
            });
        });
    }
}

/// The rate may change once, at this request; the interval stays.
type Changed = (Limit, u64, usize, Vec<Request>);

fn changed() -> impl Strategy<Value = Changed> {
    (histories(MILLISECOND), 1u64..12, 0usize..40)
        .prop_map(|((limit, traffic), rate, at)| (limit, rate, at, traffic))
}

fn law_of_changed_limits<S: Store>(world: &World<S>, (limit, rate, at, traffic): Changed) {
    let rule = Rule::new(
        &unique("rule"),
        limit_by(|parts| *parts.extensions.get().expect("a limit")),
        FromExtension::by(|_: &Limit| String::from("a user")),
    )
    .cost_by(|parts| *parts.extensions.get().expect("a cost"));
    let layer = RateLimitLayer::new(&world.store, rule);
    let after = Limit::new(rate, limit.interval());
    world.run(async {
        let mut grants = Vec::new();
        for (number, sent) in traffic.iter().enumerate() {
            let in_force = if number < at { limit } else { after };
            world.advance(sent.pause);
            let mut request = HttpRequest::new(String::new());
            request.extensions_mut().insert(in_force);
            request.extensions_mut().insert(sent.permits);
            if wait_of(&decide(&layer, request).await).is_ok() {
                let now = world.now();
                // The window that ends here, under the rate in force here.
                grants.retain(|grant: &super::world::Grant| grant.at + limit.interval() > now);
                grants.push(world.grant(sent.permits));
                let window = fullest(&grants, limit.interval());
                assert!(
                    window <= in_force.permits(),
                    "{window} of {in_force:?}: {grants:?}"
                );
            }
        }
    });
}

mod of_changed_limits {
    use super::*;

    law! {
        changed(), |world, _, input| law_of_changed_limits(world, input);
        in_memory: 400 by [()],
        in_redis: 150 by [()],
    }
}
