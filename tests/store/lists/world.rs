//! Both stores, a clock that is moved, and layers of rules.

use crate::scene::*;
use tower_ratelimit::IntoRules;

pub struct World<S> {
    pub store: S,
    pub clock: ManualClock,
}

impl World<MemoryStore> {
    pub fn memory() -> Self {
        let clock = ManualClock::new();
        Self {
            store: MemoryStore::new().clock(clock.clone()),
            clock,
        }
    }
}

impl World<RedisStore> {
    pub fn redis() -> Self {
        let clock = ManualClock::new();
        let store = shared_by_clock(&clock).prefix(&unique("lists"));
        let store = store.build().unwrap();
        Self { store, clock }
    }
}

impl<S: Store> World<S> {
    pub fn layer(&self, rules: impl IntoRules) -> RateLimitLayer {
        layer_of(&self.store, rules)
    }

    pub fn limiter(&self, name: &str) -> RateLimiter {
        RateLimiter::new(&self.store, name).unwrap()
    }

    pub fn advance(&self, time: u64) {
        self.clock.advance(millis(time));
    }
}

/// Sends a request with these headers.
pub async fn ask(layer: &RateLimitLayer, headers: &[(&str, &str)]) -> (StatusCode, Decision) {
    let mut request = Request::builder().uri("/");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let answer = send(layer, request.body(()).unwrap()).await;
    (answer.status(), decision_of(&answer).clone())
}

/// Returns the permits left of the limiter that a rule has made for a key.
pub async fn left_of(layer: &RateLimitLayer, rule: &str, key: &str) -> u64 {
    free(&layer.limiter(rule, [key]).unwrap()).await
}

/// Returns the permits left of each limiter.
pub async fn left(limiters: &[RateLimiter]) -> Vec<u64> {
    let mut left = Vec::new();
    for limiter in limiters {
        left.push(free(limiter).await);
    }
    left
}

/// The limits that refused: each name, and its wait in ms.
pub fn refused_by(refusal: &Refusal) -> Vec<(String, Option<u128>)> {
    let limits = refusal.limits().filter(|limit| limit.is_refused());
    limits
        .map(|limit| {
            let wait = limit.retry_after().map(|wait| wait.as_millis());
            (limit.name().to_owned(), wait)
        })
        .collect()
}

/// Runs scenarios on both stores.
macro_rules! on_both {
    ($($name:ident),+ $(,)?) => {
        mod in_memory {
            $(#[tokio::test]
            async fn $name() {
                super::$name(crate::lists::world::World::memory()).await;
            })+
        }
        mod in_redis {
            $(#[tokio::test]
            async fn $name() {
                super::$name(crate::lists::world::World::redis()).await;
            })+
        }
    };
}
pub(crate) use on_both;
