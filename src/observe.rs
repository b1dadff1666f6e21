//! Reports of what happens, for metrics, logs and the page: [`Observer`].
//!
//! Observers only report: nothing that the crate does depends on them. They receive each decision
//! once, whether a store made it, a guard in front of it, a failure policy, or a list of the layer.

#[cfg(feature = "page")]
pub use crate::sinks::activity::Activity;
#[cfg(feature = "metrics")]
pub use crate::sinks::metrics::Metrics;
pub use crate::values::observe::{
    Decided, DecidedRule, Observer, Origin, RequestResult, RuleResult, StateChange, StoreCall,
};
