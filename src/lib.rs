#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod all_of;
mod clock;
mod decision;
#[cfg(any(doc, doctest))]
pub mod docs;
mod draft;
mod error;
mod future;
pub mod key;
mod layer;
mod lifetime;
mod limit;
mod limiter;
mod list;
mod macros;
mod name;
mod response;
mod rule;
mod service;
mod settle;
mod store;
mod swap;
#[cfg(feature = "redis")]
mod sync;
#[cfg(any(test, feature = "test-util"))]
mod test_util;

#[cfg(any(test, feature = "test-util"))]
#[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
pub use clock::ManualClock;
#[cfg(feature = "redis")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
pub use store::redis::{
    BreakerState, ConnectionState, Diagnosis, Finding, Health, NodeHealth, OtherClient, RedisStore,
    RedisStoreBuilder, RedissonReleases, ServerFinding, Severity, Verification, VerifiedServer,
};
#[cfg(feature = "redis")]
pub use {deadpool_redis, redis};

#[cfg(interleavings)]
#[path = "../tests/interleavings/models.rs"]
pub mod interleavings;

#[cfg(feature = "config")]
#[cfg_attr(docsrs, doc(cfg(feature = "config")))]
pub use rule::{RulesFile, Watch};

/// The trait of tower that [`RateLimitLayer`] implements: in scope, `layer.layer(service)` works.
pub use tower_layer::Layer;

pub use self::{
    all_of::AllOf,
    clock::{Clock, SystemClock},
    decision::{
        Decision, Decisions, Grant, LimitState, Missing, Receipt, Refusal, RefusalKind, Source,
    },
    error::{ConfigError, Error, ErrorKind},
    future::ResponseFuture,
    layer::{RateLimitLayer, RateLimitLayerBuilder},
    limit::{Algorithm, Limit, RateType},
    limiter::RateLimiter,
    response::{HeaderStyle, OnRefusal, RateLimitBody, ResetUnit},
    rule::{IntoRules, Requests, Rule, RuleLimit, Rules, Tiers, limit_by},
    service::RateLimit,
    settle::{Charge, Cost, Outcome},
    store::{ExpireWhen, FailurePolicy, Local, MemoryStore, Store, TimeToLive},
};
