//! What observers keep for a rule, so that they need not look it up: [`Kept`].

#[cfg(feature = "metrics")]
use std::sync::OnceLock;

#[cfg(feature = "metrics")]
use metrics::Counter;

/// The number of results that a request may have by a rule.
#[cfg(feature = "metrics")]
pub(super) const RULE_RESULTS: usize = 9;

/// Stands beside the name of a rule, and goes with it.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// The permits of a limit that is fixed in code or file, and the seconds of its interval.
    pub(crate) limit: Option<(u64, f64)>,
    #[cfg(feature = "metrics")]
    pub(super) counters: OnceLock<Box<Counters>>,
}

/// The counters of one rule.
#[cfg(feature = "metrics")]
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// By result.
    pub(super) results: [OnceLock<Counter>; RULE_RESULTS],
    pub(super) taken: OnceLock<Counter>,
}
