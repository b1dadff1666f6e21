//! L3: a refused request has taken nothing, whatever its cost, also next to shadow rules.

use http::request::Parts;
use kit::scene::*;

use super::world::{
    MILLISECOND, Request, World, check_in_redis, law, limit, take, traffic, wait_of,
};

/// A limit, the traffic before, and by how much each request exceeds what is free.
type Input = (Limit, Vec<Request>, Vec<u32>);

fn input() -> impl Strategy<Value = Input> {
    let excess = prop_oneof![4 => 1u32..4, 1 => 1u32..40, 1 => Just(u32::MAX - 120)];
    let excesses = proptest::collection::vec(excess, 1..8);
    limit().prop_flat_map(move |limit| {
        (
            Just(limit),
            traffic(limit, MILLISECOND, 30),
            excesses.clone(),
        )
    })
}

fn law<S: Store, T: PartialEq + std::fmt::Debug>(
    world: &World<S>,
    (limit, traffic, excesses): Input,
    state: impl Fn(&RateLimiter) -> T,
) {
    world.run(async {
        let limiter = world.limiter(limit).await;
        world.send(&limiter, &traffic).await;
        // Counting tidies up, so that nothing is left for the refusals to tidy.
        let free = limiter.available_permits().await.unwrap();
        let before = state(&limiter);
        for excess in excesses {
            let permits = u32::try_from(free).unwrap() + excess;
            let wait = take(&limiter, permits).await.expect_err("there is less");
            assert_eq!(wait.is_none(), u64::from(permits) > limit.permits());
            assert_eq!(state(&limiter), before, "refused {permits} of {free}");
        }
        assert_eq!(limiter.available_permits().await.unwrap(), free);
        if let free @ 1.. = u32::try_from(free).unwrap() {
            assert_eq!(take(&limiter, free).await, Ok(()));
        }
    });
}

// Elsewhere there is nothing to look at from outside but what can be counted.
law! {
    input(), |world, _, input| law(world, input, |_| ());
    in_memory: 400 by [()],
    in_a_store_of_ones_own: 400 by [()],
}

#[test]
fn in_redis() {
    check_in_redis(150, &input(), |world, input| {
        law(world, input, |limiter| {
            bytes(world.server_of(limiter), limiter)
        });
    });
}

/// Requests with an enforced limit and a shadow limit, each at its own cost.
type Trial = (Limit, Limit, Vec<Request>, Vec<u32>);

fn trial() -> impl Strategy<Value = Trial> {
    (limit(), limit()).prop_flat_map(|(kept, tried)| {
        let costs = proptest::collection::vec(1u32..14, 30);
        (
            Just(kept),
            Just(tried),
            traffic(kept, MILLISECOND, 30),
            costs,
        )
    })
}

/// A shadow rule changes no decision. It counts the same as for the admitted requests alone.
fn law_of_trials<S: Store>(world: &World<S>, (kept, tried, traffic, costs): Trial) {
    world.run(async {
        let name = unique("trial");
        let cost = |header: &'static str| {
            move |parts: &Parts| {
                let value = parts.headers.get(header).expect("a cost");
                value.to_str().expect("text").parse().expect("a number")
            }
        };
        let rule = |limit: Limit, kind: &str, header| {
            let rule = Rule::from(limit).named(&format!("{name}-{kind}"));
            rule.cost_by(cost(header))
        };
        let shadow = rule(tried, "tried", "x-tried").shadow();
        let both = layer_of(&world.store, [rule(kept, "kept", "x-kept"), shadow]);
        let kept = layer_of(&world.store, rule(kept, "kept-alone", "x-kept"));
        let tried = layer_of(&world.store, rule(tried, "tried-alone", "x-tried"));
        for (request, tried_cost) in traffic.iter().zip(costs) {
            world.advance(request.pause);
            let ask = async |layer: &RateLimitLayer| {
                let [kept, tried] = [request.permits, tried_cost].map(|it| it.to_string());
                decide(
                    layer,
                    asking("GET /", &[("x-kept", &kept), ("x-tried", &tried)]),
                )
                .await
            };
            let decision = ask(&both).await;
            let state = |decision: &Decision, shadow, is_cached: bool| {
                let mut limits = decision.limits();
                let limit = limits.find(|limit| limit.is_shadow() == shadow);
                let limit = limit.expect("the limit");
                // A limit that refuses alone, whenever it is asked, need not count.
                let hopeless = limit.is_refused() && limit.retry_after().is_none();
                let left = limit.remaining().filter(|_| !hopeless && !is_cached);
                (limit.is_refused(), left, limit.retry_after())
            };
            let alone = ask(&kept).await;
            assert_eq!(wait_of(&decision), wait_of(&alone));
            // A repeated refusal has the number that was left when it was first made.
            let is_cached = [&decision, &alone]
                .map(Decision::source)
                .contains(&Source::Cache);
            let (both, one) = (&decision, &alone);
            assert_eq!(state(both, false, is_cached), state(one, false, is_cached));
            if decision.is_allowed() {
                let alone = ask(&tried).await;
                let is_cached = alone.source() == Source::Cache;
                let (both, one) = (&decision, &alone);
                assert_eq!(state(both, true, is_cached), state(one, false, is_cached));
            }
        }
    });
}

mod of_trials {
    use super::*;

    law! {
        trial(), |world, _, input| law_of_trials(world, input);
        in_memory: 200 by [()],
        in_a_store_of_ones_own: 100 by [()],
        in_redis: 60 by [()],
    }
}

/// The three keys as they stand.
fn bytes(server: &RedisServer, limiter: &RateLimiter) -> [Reply; 4] {
    let name = limiter.name();
    let log = format!("{{{name}}}:permits");
    [
        server.command(&["HGETALL", name]),
        server.command(&["GET", &format!("{{{name}}}:value")]),
        server.command(&["ZRANGE", &log, "0", "-1", "WITHSCORES"]),
        server.command(&["PTTL", &log]),
    ]
}
