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
        let store = patient(RedisServer::shared().url())
            .prefix(&prefix)
            .client_clock(clock.clone())
            .build()
            .unwrap();
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
        limiter.available_permits().await.unwrap()
    }

    /// Returns a rule's name for the limiter of an identity.
    pub fn name(&self, identity: &str, rule: &str) -> String {
        format!("{}:{{{identity}}}:{rule}", self.prefix)
    }

    pub fn advance(&self, millis: u64) {
        self.clock.advance(Duration::from_millis(millis));
    }
}

pub fn service(store: &impl Store, rules: impl IntoRules) -> Service {
    let layer = RateLimitLayer::builder(store).otherwise(rules);
    over(&layer.build().unwrap())
}

pub fn over(layer: &RateLimitLayer) -> Service {
    let inner =
        service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new())));
    let service = layer.layer(inner);
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

pub fn grant(decision: Decision) -> Grant {
    match decision {
        Decision::Allow(grant) => grant,
        Decision::Deny(refusal) => panic!("{refusal:?}"),
    }
}

pub fn refusal(decision: Decision) -> Refusal {
    match decision {
        Decision::Deny(refusal) => refusal,
        Decision::Allow(grant) => panic!("{grant:?}"),
    }
}

/// The limits that refused: each name, and its wait in ms.
pub fn refused(refusal: &Refusal) -> Vec<(String, Option<u128>)> {
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
