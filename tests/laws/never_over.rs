//! L1: in every window of one interval, wherever it begins, at most the rate in force is granted.

use crate::scene::*;
use http::Request as HttpRequest;
use proptest::prelude::*;

use super::{
    world::Grant, world::Request, world::World, world::check, world::check_in_redis, world::limit,
    world::traffic, world::wait_of,
};

/// The most permits granted in a window of `interval` ms that ends with one of these grants.
///
/// The fullest windows end with a grant, as they begin with one.
pub(crate) fn fullest(grants: &[Grant], interval: u64) -> u64 {
    let up_to = |last: usize| {
        let end = grants[last].at;
        (grants[..=last].iter())
            .filter(|grant| grant.at + interval > end)
            .map(|grant| u64::from(grant.permits))
            .sum()
    };
    (0..grants.len()).map(up_to).max().unwrap_or(0)
}

fn input() -> impl Strategy<Value = (Limit, Vec<Request>)> {
    limit().prop_flat_map(|limit| (Just(limit), traffic(limit, 60)))
}

fn law<S: Store>(world: &World<S>, (limit, traffic): (Limit, Vec<Request>)) {
    world.run(async {
        let limiter = world.limiter(limit).await;
        let grants = world.send(&limiter, &traffic).await;
        let interval = u64::try_from(limit.interval().as_millis()).unwrap();
        assert!(fullest(&grants, interval) <= limit.permits(), "{grants:?}");
        // And not under without need: the first request finds all there is.
        let first = &traffic[0];
        let granted = (grants.first()).is_some_and(|grant| grant.permits == first.permits);
        if u64::from(first.permits) <= limit.permits() {
            assert!(granted, "{first:?}");
        }
    });
}

#[test]
fn in_memory() {
    let world = World::memory();
    check(400, &input(), |input| law(&world, input));
}

#[test]
fn in_redis() {
    check_in_redis(150, &input(), law);
}

/// The rate may change once, at this request; the interval stays.
type Changed = (Limit, u64, usize, Vec<Request>);

fn changed() -> impl Strategy<Value = Changed> {
    (limit(), 1u64..12, 0usize..40)
        .prop_flat_map(|(limit, rate, at)| (Just(limit), Just(rate), Just(at), traffic(limit, 60)))
}

fn law_of_changed_limits<S: Store>(world: &World<S>, (limit, rate, at, traffic): Changed) {
    let rule = Rule::new(
        &unique("rule"),
        limit_by(|parts| *parts.extensions.get().expect("a limit")),
        FromExtension::by(|_: &Limit| String::from("somebody")),
    )
    .cost_by(|parts| *parts.extensions.get().expect("a cost"));
    let layer = RateLimitLayer::new(&world.store, rule);
    let inner = service_fn(async |_: HttpRequest<String>| {
        Ok::<_, Infallible>(Response::new(String::new()))
    });
    let service = layer.layer(inner);

    let interval = u64::try_from(limit.interval().as_millis()).unwrap();
    let after = Limit::new(rate, Duration::from_millis(interval));
    world.run(async {
        let mut grants = Vec::new();
        for (number, sent) in traffic.iter().enumerate() {
            let in_force = if number < at { limit } else { after };
            world.advance(sent.pause);
            let mut request = HttpRequest::new(String::new());
            request.extensions_mut().insert(in_force);
            request.extensions_mut().insert(sent.permits);
            let answer = service.clone().oneshot(request).await.unwrap();
            if wait_of(answer.extensions().get::<Decision>().unwrap()).is_ok() {
                grants.push(Grant {
                    at: world.now(),
                    permits: sent.permits,
                });
                // The window that ends here, under the rate in force here.
                let end = grants.len() - 1;
                let window: u64 = (grants.iter())
                    .filter(|grant| grant.at + interval > grants[end].at)
                    .map(|grant| u64::from(grant.permits))
                    .sum();
                assert!(
                    window <= in_force.permits(),
                    "{window} of {in_force:?}: {grants:?}"
                );
            }
        }
    });
}

#[test]
fn in_memory_with_a_changed_rate() {
    let world = World::memory();
    check(400, &changed(), |input| {
        law_of_changed_limits(&world, input);
    });
}

#[test]
fn in_redis_with_a_changed_rate() {
    check_in_redis(150, &changed(), law_of_changed_limits);
}

#[test]
fn a_full_window_is_measured_as_full() {
    let grants = [(0, 3), (400, 2), (999, 1), (1000, 3)].map(|(at, permits)| Grant { at, permits });
    assert_eq!(fullest(&grants, 1000), 6);
    assert_eq!(fullest(&grants, 1001), 9);
    assert_eq!(fullest(&grants, 1), 3);
}
