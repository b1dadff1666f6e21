//! L3: a request that was refused has taken nothing, whatever its cost.

use proptest::prelude::*;
use tower_ratelimit::{Limit, RateLimiter, Store};

use super::{
    support::{RedisServer, Reply},
    world::{Request, World, check, limit, take, traffic},
};

/// A limit, the traffic before, and by how much each request exceeds what is free.
type Input = (Limit, Vec<Request>, Vec<u32>);

fn input() -> impl Strategy<Value = Input> {
    let excess = prop_oneof![4 => 1u32..4, 1 => 1u32..40, 1 => Just(u32::MAX - 20)];
    let excesses = proptest::collection::vec(excess, 1..8);
    limit().prop_flat_map(move |limit| (Just(limit), traffic(limit, 30), excesses.clone()))
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

#[test]
fn in_memory() {
    let world = World::memory();
    // Nothing to look at from outside but what can be counted.
    check(400, &input(), |input| law(&world, input, |_| ()));
}

#[test]
fn in_redis() {
    let world = World::redis();
    check(150, &input(), |input| law(&world, input, bytes));
}

/// The three keys as they stand.
fn bytes(limiter: &RateLimiter) -> [Reply; 4] {
    let (server, name) = (RedisServer::shared(), limiter.name());
    let log = format!("{{{name}}}:permits");
    [
        server.command(&["HGETALL", name]),
        server.command(&["GET", &format!("{{{name}}}:value")]),
        server.command(&["ZRANGE", &log, "0", "-1", "WITHSCORES"]),
        server.command(&["PTTL", &log]),
    ]
}
