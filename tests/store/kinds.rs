//! Ways to count: what holds of each kind on both stores is in `each`, the rest is one kind's own.

mod each;
mod gcra;
mod slots;
mod window;

use crate::scene::*;

/// A way to count.
trait Kind {
    /// The shortest wait for the third of two permits an hour.
    const THIRD_OF_TWO_AN_HOUR: Duration = HOUR;
    /// Set if the value in Redis is a decimal number.
    const IS_DECIMAL: bool = true;

    fn limiter(limiter: RateLimiter) -> RateLimiter;
    fn rule(rule: Rule) -> Rule;

    fn named(store: &impl Store, name: &str) -> RateLimiter {
        Self::limiter(RateLimiter::new(store, name).unwrap())
    }

    /// Returns a limiter of `permits` an hour that no other test uses.
    async fn hourly(store: &impl Store, permits: u64) -> RateLimiter {
        let limiter = Self::named(store, &unique("kind"));
        let limit = Limit::new(permits, HOUR);
        assert!(limiter.try_set_rate(limit).await.unwrap());
        limiter
    }

    /// A layer of one rule, by which each key has a limiter of its own: `<prefix>:{<key>}:five`.
    fn layer(store: &impl Store, limit: Limit) -> RateLimitLayer {
        let rule = Rule::new("five", limit, FromHeader::new("x-key"));
        RateLimitLayer::new(store, Self::rule(rule))
    }
}

struct Log;
/// A log with ten slots in each interval.
struct Slots;
struct Gcra;
struct Window;

impl Kind for Log {
    fn limiter(limiter: RateLimiter) -> RateLimiter {
        limiter
    }

    fn rule(rule: Rule) -> Rule {
        rule
    }
}

impl Kind for Slots {
    fn limiter(limiter: RateLimiter) -> RateLimiter {
        limiter.slots(10).unwrap()
    }

    fn rule(rule: Rule) -> Rule {
        rule.slots(10)
    }
}

impl Kind for Gcra {
    const THIRD_OF_TWO_AN_HOUR: Duration = secs(1800);
    const IS_DECIMAL: bool = false;

    fn limiter(limiter: RateLimiter) -> RateLimiter {
        limiter.algorithm(Algorithm::Gcra)
    }

    fn rule(rule: Rule) -> Rule {
        rule.algorithm(Algorithm::Gcra)
    }
}

impl Kind for Window {
    fn limiter(limiter: RateLimiter) -> RateLimiter {
        limiter.algorithm(Algorithm::FixedWindow)
    }

    fn rule(rule: Rule) -> Rule {
        rule.algorithm(Algorithm::FixedWindow)
    }
}

/// A patient store of client `7d9`.
fn redis_store() -> RedisStoreBuilder {
    shared_redis().client_id("7d9")
}

/// A limiter in Redis, and what stands there of it.
struct State {
    limiter: RateLimiter,
    store: RedisStore,
}

impl State {
    async fn new<K: Kind>(permits: u64) -> Self {
        let store = redis_store().build().unwrap();
        let limiter = K::hourly(&store, permits).await;
        Self { limiter, store }
    }

    fn ask(&self, verb: &str, suffix: &str, arguments: &[&str]) -> String {
        let key = key(self.limiter.name(), suffix);
        RedisServer::shared().cli(&[&[verb, &key], arguments].concat())
    }

    fn exists(&self, suffix: &str) -> bool {
        self.ask("EXISTS", suffix, &[]) == "1"
    }

    /// The milliseconds that are left to a key.
    fn left(&self, suffix: &str) -> i64 {
        self.ask("PTTL", suffix, &[]).parse().unwrap()
    }
}

fn key(name: &str, suffix: &str) -> String {
    match suffix {
        "" => name.to_owned(),
        suffix => format!("{{{name}}}:{suffix}"),
    }
}

async fn send(layer: &RateLimitLayer, key: &str) -> Response<RateLimitBody<String>> {
    let request = Request::get("/").header("x-key", key);
    crate::scene::send(layer, request.body(()).unwrap()).await
}
