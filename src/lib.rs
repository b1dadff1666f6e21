#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod algorithm;
mod clock;
mod decision;
mod demand;
#[cfg(any(doc, doctest))]
pub mod docs;
mod error;
mod failure_policy;
#[cfg(feature = "inspect")]
mod inspect;
mod limit;
mod limiter;
mod list;
mod macros;
mod name;
mod receipt;
mod store;
#[cfg(feature = "redis")]
mod sync;
#[cfg(any(test, feature = "test-util"))]
mod test_util;
mod web;

#[cfg(any(test, feature = "test-util"))]
#[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
pub use clock::ManualClock;
#[cfg(feature = "redis")]
pub use deadpool_redis;
#[cfg(feature = "inspect")]
#[cfg_attr(docsrs, doc(cfg(feature = "inspect")))]
pub use inspect::{
    diagnose::{Diagnosis, Finding, OtherClient, RedissonReleases},
    verify::{ServerFinding, Severity, Verification, VerifiedServer},
};
#[cfg(feature = "redis")]
pub use redis;
#[cfg(feature = "redis")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
pub use store::redis::{
    BreakerState, ConnectionState, Health, NodeHealth, RedisStore, RedisStoreBuilder,
};

pub use web::key;

#[cfg(interleavings)]
#[path = "../tests/interleavings/models.rs"]
pub mod interleavings;

#[cfg(feature = "config")]
#[cfg_attr(docsrs, doc(cfg(feature = "config")))]
pub use web::rules_file::{RulesFile, watch::Watch};

/// The trait of tower that [`RateLimitLayer`] implements: in scope, `layer.layer(service)` works.
pub use tower_layer::Layer;

pub use crate::{
    clock::{Clock, SystemClock},
    decision::{Decision, Decisions, Grant, LimitState, Missing, Refusal, RefusalKind, Source},
    error::{ConfigError, ConfigErrorKind, Error, ErrorKind},
    failure_policy::{FailurePolicy, Local},
    limit::{Algorithm, Limit, RateType},
    limiter::{RateLimiter, all_of::AllOf},
    receipt::Receipt,
    store::{ExpireWhen, MemoryStore, Store, TimeToLive},
    web::{
        answer::{HeaderStyle, OnRefusal, RateLimitBody, ResetUnit},
        charge::{Charge, Cost, Outcome},
        future::ResponseFuture,
        layer::{RateLimitLayer, RateLimitLayerBuilder},
        rule::{IntoRules, Requests, Rule, RuleLimit, Rules, Tiers, limit_by},
        service::RateLimit,
    },
};
