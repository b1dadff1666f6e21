//! Both stores, a clock that is moved, and services behind rules.

use crate::scene::*;
use tower::{BoxError, util::BoxCloneSyncService};
use tower_ratelimit::IntoRules;

pub type Service = BoxCloneSyncService<Request<()>, Response<()>, BoxError>;

pub struct World<S> {
    pub store: S,
    pub clock: ManualClock,
    /// The prefix of limiters that rules make.
    prefix: String,
}

impl World<MemoryStore> {
    pub fn memory() -> Self {
        let clock = ManualClock::new();
        Self {
            store: MemoryStore::new().clock(clock.clone()),
            clock,
            prefix: "memory".to_owned(),
        }
    }
}

impl World<RedisStore> {
    pub fn redis() -> Self {
        let (clock, prefix) = (ManualClock::new(), unique("lists"));
        let store = shared_by_clock(&clock).prefix(&prefix).build().unwrap();
        Self {
            store,
            clock,
            prefix,
        }
    }
}

impl<S: Store> World<S> {
    pub fn service(&self, rules: impl IntoRules) -> Service {
        service(&self.store, rules)
    }

    pub fn limiter(&self, name: &str) -> RateLimiter {
        RateLimiter::new(&self.store, name).unwrap()
    }

    /// The permits left of a limiter that a rule has made.
    pub async fn left(&self, identity: &str, rule: &str) -> u64 {
        let limiter = self.limiter(&self.name(identity, rule));
        free(&limiter).await
    }

    /// Returns a rule's name for the limiter of an identity.
    pub fn name(&self, identity: &str, rule: &str) -> String {
        format!("{}:{{{identity}}}:{rule}", self.prefix)
    }

    pub fn advance(&self, time: u64) {
        self.clock.advance(millis(time));
    }
}

pub fn service(store: &impl Store, rules: impl IntoRules) -> Service {
    let service = layer_of(store, rules).layer(service_fn(serve));
    BoxCloneSyncService::new(
        service
            .map_response(|answer| answer.map(drop))
            .map_err(BoxError::from),
    )
}

/// Sends a request with these headers.
pub async fn ask(service: &Service, headers: &[(&str, &str)]) -> (StatusCode, Decision) {
    let mut request = Request::builder().uri("/");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(()).unwrap();
    let answer = service.clone().oneshot(request).await.unwrap();
    let decision = answer.extensions().get::<Decision>().unwrap();
    (answer.status(), decision.clone())
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
