//! A reserve for a class, as `docs/recipes.md` has it: all requests share one limit, and background
//! requests meet a smaller one as well. Exact: a request passes if and only if each of its limits
//! has room, and the wait is the first instant at which that is so.

use http::request::Parts;
use kit::scene::*;
use proptest::prelude::*;
use tower_ratelimit::Rules;

use super::{
    settled::Books,
    world::{MILLISECOND, World, check_in_redis, wait_of},
};

/// The permits of both limits, an interval in ms, and requests: the pause before, and whether it is
/// of the background.
type Input = (u64, u64, u64, Vec<(u64, bool)>);

fn input() -> impl Strategy<Value = Input> {
    (2..12u64, prop_oneof![Just(100u64), Just(1000)]).prop_flat_map(|(all, interval)| {
        let pause = prop_oneof![6 => Just(0), 3 => 0..=interval / 4, 1 => Just(interval)];
        let requests = proptest::collection::vec((pause, prop::bool::weighted(0.6)), 1..60);
        (Just(all), 1..all, Just(interval), requests)
    })
}

fn is_background(parts: &Parts) -> bool {
    parts.headers.contains_key("x-background")
}

fn law<S: Store>(world: &World<S>, (all, background, interval, requests): Input) {
    let limits = [all, background].map(|permits| Limit::new(permits, millis(interval)));
    let name = unique("reserve");
    let rule = |place: usize| {
        let rule = limits[place].by(Constant("backend"));
        rule.named(&format!("{name}-{place}"))
    };
    let rules = Rules::new().on_request(is_background, [rule(0), rule(1)]);
    let layer = RateLimitLayer::builder(&world.store).rules(rules.otherwise(rule(0)));
    let layer = layer.build().unwrap();
    let mut books = limits.map(Books::of);
    world.run(async {
        for (pause, of_background) in requests {
            world.advance(millis(pause));
            let mut request = Request::new(String::new());
            if of_background {
                request.headers_mut().insert("x-background", 1.into());
            }
            let decision = decide(&layer, request).await;
            let now = world.now();
            let met = &mut books[..=usize::from(of_background)];
            let wait = met.iter().filter_map(|books| books.wait(now, 1)).max();
            let expected = match wait {
                Some(Duration::ZERO) => Ok(()),
                wait => Err(wait),
            };
            assert_eq!(wait_of(&decision), expected, "{of_background}");
            if expected.is_ok() {
                met.iter_mut()
                    .for_each(|books| books.charges.push((now, 1)));
            }
        }
    });
}

#[test]
fn in_memory() {
    let world = World::memory(MILLISECOND);
    check(400, &input(), |input| law(&world, input));
}

#[test]
fn in_redis() {
    check_in_redis(100, &input(), law);
}
