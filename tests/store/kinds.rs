//! Ways to count: what holds of each kind on both stores is in `each`, what the guide
//! says of both formats in `table`, the rest is one kind's own.

mod calendar;
mod each;
mod foreign;
mod gcra;
mod slots;
mod table;
mod window;

use kit::{calendar_key, label_and_used, scene::*, state_key};

/// What these tests ask of a way to count.
trait Kind {
    /// The shortest wait for the third of two permits an hour.
    fn third_of_two_an_hour(self) -> Duration;

    /// Returns a limiter of `permits` an hour that no other test uses.
    async fn hourly(self, store: &impl Store, permits: u64) -> RateLimiter;

    /// A layer of one rule, by which each key has a limiter of its own: `<prefix>:{<key>}:five`.
    fn layer(self, store: &impl Store, limit: Limit) -> RateLimitLayer;
}

impl Kind for Way {
    fn third_of_two_an_hour(self) -> Duration {
        match self {
            Self::Gcra => HOUR / 2,
            _ => HOUR,
        }
    }

    async fn hourly(self, store: &impl Store, permits: u64) -> RateLimiter {
        self.limited(store, Limit::new(permits, HOUR)).await
    }

    fn layer(self, store: &impl Store, limit: Limit) -> RateLimitLayer {
        let rule = Rule::new("five", limit, FromHeader::new("x-key"));
        RateLimitLayer::new(store, self.rule(rule))
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
    async fn new(way: Way, permits: u64) -> Self {
        let store = redis_store().build().unwrap();
        let limiter = way.hourly(&store, permits).await;
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
        "~" => state_key(name),
        suffix => kit::companion(name, suffix),
    }
}

async fn send(layer: &RateLimitLayer, key: &str) -> Response<RateLimitBody<String>> {
    let request = Request::get("/").header("x-key", key);
    kit::scene::send(layer, request.body(()).unwrap()).await
}
