//! A reserve for a class, as `docs/recipes.md` has it: all requests share one limit, and background
//! requests meet a smaller one as well. Exact: a request passes if and only if each of its limits
//! has room, and the wait is the first instant at which that is so.

use crate::scene::*;
use http::request::Parts;
use proptest::prelude::*;
use tower_ratelimit::Rules;

use super::world::{MILLISECOND, World, check, check_in_redis, wait_of};

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

/// The instants of the grants that one limit counts.
#[derive(Default)]
struct Book(Vec<Duration>);

impl Book {
    /// Returns the time until one more fits.
    fn wait(&self, now: Duration, permits: u64, interval: Duration) -> Duration {
        let permits = usize::try_from(permits).unwrap();
        let oldest = self.0.len().checked_sub(permits).map(|place| self.0[place]);
        oldest.map_or(Duration::ZERO, |at| (at + interval).saturating_sub(now))
    }
}

fn law<S: Store>(world: &World<S>, (all, background, interval, requests): Input) {
    let (key, interval) = (Constant("backend"), millis(interval));
    let name = unique("reserve");
    let rule = |permits, of: &str| {
        let limit = Limit::new(permits, interval).by(key);
        limit.named(&format!("{name}-{of}"))
    };
    let shared = rule(all, "all");
    let rules = Rules::new()
        .on_request(
            is_background,
            [shared.clone(), rule(background, "background")],
        )
        .otherwise(shared);
    let layer = RateLimitLayer::builder(&world.store).rules(rules);
    let service = layer.build().unwrap().layer(service_fn(serve::<String>));
    let mut books = [Book::default(), Book::default()];
    world.run(async {
        for (pause, of_background) in requests {
            world.advance(millis(pause));
            let mut request = Request::new(String::new());
            if of_background {
                request.headers_mut().insert("x-background", 1.into());
            }
            let answer = service.clone().oneshot(request).await.unwrap();
            let now = world.now();
            let mut wait = books[0].wait(now, all, interval);
            if of_background {
                wait = wait.max(books[1].wait(now, background, interval));
            }
            let expected = if wait.is_zero() {
                Ok(())
            } else {
                Err(Some(wait))
            };
            assert_eq!(wait_of(decision_of(&answer)), expected, "{of_background}");
            if wait.is_zero() {
                books[0].0.push(now);
                if of_background {
                    books[1].0.push(now);
                }
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
