//! What observers keep for a rule, so that they need not look it up: [`Kept`].

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

#[cfg(feature = "metrics")]
use metrics::Counter;

/// The number of results that a request may have by a rule.
#[cfg(feature = "metrics")]
pub(super) const RULE_RESULTS: usize = 11;

/// Stands beside the name of a rule, and goes with it.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// The permits of a limit that is fixed in code or file, and its interval.
    #[cfg_attr(
        not(any(feature = "metrics", feature = "page")),
        allow(
            dead_code,
            reason = "metrics have a gauge of it, and the page shows it"
        )
    )]
    pub(crate) limit: Option<(u64, Duration)>,
    /// The lengths of what stands around the identity in its limiters' names, if observers are
    /// shown it.
    pub(crate) shown: Option<(usize, usize)>,
    /// What the log tells of it.
    pub(super) tally: OnceLock<Arc<Tally>>,
    #[cfg(feature = "metrics")]
    pub(super) counters: OnceLock<Box<Counters>>,
    /// What the page shows of it.
    #[cfg(feature = "page")]
    pub(super) counts: OnceLock<Arc<super::snapshot::RuleCounts>>,
}

impl Kept {
    pub(crate) fn new(limit: Option<(u64, Duration)>, shown: Option<(usize, usize)>) -> Self {
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
pub(super) struct Counters {
    /// By result.
    pub(super) results: [OnceLock<Counter>; RULE_RESULTS],
    pub(super) taken: OnceLock<Counter>,
}

/// What became of requests by one rule.
#[derive(Debug, Default)]
pub(super) struct Tally {
    asked: AtomicU64,
    refused: AtomicU64,
    shadow: AtomicU64,
    /// A bit for each caller that was refused, by its hash.
    callers: AtomicU64,
}

/// What a tally has come to.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Sums {
    pub(super) refused: u64,
    pub(super) shadow: u64,
    pub(super) asked: u64,
    /// An estimate, exact for few.
    pub(super) callers: u64,
}

impl Tally {
    pub(super) fn asked(&self) {
        self.asked.fetch_add(1, Relaxed);
    }

    pub(super) fn refused(&self, caller: u64) {
        self.refused.fetch_add(1, Relaxed);
        let bit = 1 << (caller % u64::from(u64::BITS));
        // The plain load keeps the cache line shared where nothing changes.
        if self.callers.load(Relaxed) & bit == 0 {
            self.callers.fetch_or(bit, Relaxed);
        }
    }

    pub(super) fn refused_in_shadow(&self) {
        self.shadow.fetch_add(1, Relaxed);
    }

    /// Returns what it has come to, and begins anew.
    pub(super) fn take(&self) -> Sums {
        let bits = f64::from(u64::BITS);
        let free = f64::from(self.callers.swap(0, Relaxed).count_zeros()).max(0.5);
        Sums {
            refused: self.refused.swap(0, Relaxed),
            shadow: self.shadow.swap(0, Relaxed),
            asked: self.asked.swap(0, Relaxed),
            // Linear counting: callers that share a bit are estimated by the bits that are free.
            callers: (bits * (bits / free).ln()).round() as u64,
        }
    }
}
