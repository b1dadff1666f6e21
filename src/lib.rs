#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]
// Some items are used by one of these features alone. Without that feature they are dead code,
// which is allowed here once instead of on each of them. With all five features the lints apply.
#![cfg_attr(
    not(all(
        feature = "cluster",
        feature = "config",
        feature = "inspect",
        feature = "tls",
        feature = "unstable-store"
    )),
    allow(
        dead_code,
        unreachable_pub,
        unused_imports,
        unused_macros,
        unused_variables
    )
)]

mod algorithm;
#[cfg(feature = "_meter")]
#[doc(hidden)]
pub mod command;
#[cfg(any(doc, doctest))]
pub mod docs;
#[cfg(feature = "inspect")]
pub mod inspect;
mod limiter;
mod macros;
pub mod observe;
mod sinks;
mod store;
mod sync;
#[cfg(any(test, feature = "test-util"))]
pub mod testing;
mod values;
mod web;

#[cfg(feature = "redis")]
pub use deadpool_redis;
#[cfg(feature = "redis")]
pub use redis;
#[cfg(feature = "unstable-store")]
pub use store::backend;
#[cfg(feature = "redis")]
pub use store::redis::{
    BreakerState, ConnectionState, Health, NodeHealth, RedisStore, RedisStoreBuilder,
};
#[cfg(feature = "calendar")]
pub use values::limit::StartingOn;

pub use web::key;

#[cfg(interleavings)]
#[path = "../tests/interleavings/models.rs"]
pub mod interleavings;

#[cfg(fleet)]
#[path = "../benches/fleet/world/mod.rs"]
pub mod fleet;

#[cfg(feature = "page")]
pub use web::page::page;

#[cfg(feature = "config")]
pub use web::rules_file::{RulesFile, watch::Watch};

/// The trait of tower that [`RateLimitLayer`] implements: in scope, `layer.layer(service)` works.
pub use tower_layer::Layer;

pub use crate::{
    limiter::{
        RateLimiter,
        all_of::AllOf,
        keyed::{Keyed, LimiterKey, RateLimiterBuilder},
    },
    store::{ExpireWhen, MemoryStore, MemoryStoreBuilder, Store, TimeToLive},
    values::{
        clock::{Clock, SystemClock},
        decision::{Decision, Grant, LimitState, Missing, Refusal, RefusalKind, Source},
        error::{ConfigError, ConfigErrorKind, Error, ErrorKind},
        failure_policy::FailurePolicy,
        limit::{Algorithm, Ban, Limit},
    },
    web::{
        answer::HeaderStyle,
        builder::RateLimitLayerBuilder,
        charge::{Cost, Outcome, RateLimitBody},
        layer::RateLimitLayer,
        rule::{IntoRules, Requests, Rule, RuleLimit, Rules, Tiers, limit_by},
        service::{RateLimit, ResponseFuture},
    },
};
