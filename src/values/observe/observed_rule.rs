//! Where observers store their handles for a rule, instead of looking them up for each event:
//! [`ObservedRule`].

#[cfg(any(feature = "page", feature = "redis"))]
use std::sync::Arc;
use std::sync::OnceLock;

#[cfg(feature = "metrics")]
use metrics::Counter;

use crate::values::limit::Limit;

/// Stands next to the name of a rule, and goes with it.
#[derive(Debug, Default)]
pub(crate) struct ObservedRule {
    /// A limit that is fixed in code or file.
    #[cfg_attr(
        not(any(feature = "metrics", feature = "page")),
        allow(
            dead_code,
            reason = "metrics have a gauge of it, and the page shows it"
        )
    )]
    pub(crate) limit: Option<Limit>,
    /// The lengths of what stands around the identity in its limiters' names, if observers are
    /// shown it.
    pub(crate) shown: Option<(usize, usize)>,
    /// The counts for the line in the log.
    #[cfg(feature = "redis")]
    pub(crate) tally: OnceLock<Arc<super::tally::Tally>>,
    #[cfg(feature = "metrics")]
    pub(crate) counters: OnceLock<Box<Counters>>,
    /// The counts that the page shows.
    #[cfg(feature = "page")]
    pub(crate) counts: OnceLock<Arc<super::counts::RuleCounts>>,
}

impl ObservedRule {
    #[allow(
        clippy::needless_update,
        reason = "without features no observer keeps anything"
    )]
    pub(crate) fn new(limit: Option<Limit>, shown: Option<(usize, usize)>) -> Self {
        Self {
            limit,
            shown,
            ..Self::default()
        }
    }
}

/// The counters of one rule.
#[cfg(feature = "metrics")]
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) results: [OnceLock<Counter>; super::RuleResult::ALL.len()],
    pub(crate) taken: OnceLock<Counter>,
}
