//! Counts the requests of one rule for the line in the log: [`Tally`].

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{DecidedRule, RuleResult};

/// The results of requests by one rule.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    asked: AtomicU64,
    refused: AtomicU64,
    shadow: AtomicU64,
    /// A bit for each caller that was refused, by its hash.
    callers: AtomicU64,
}

/// The sums of a tally.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Sums {
    pub(crate) refused: u64,
    pub(crate) shadow: u64,
    pub(crate) asked: u64,
    /// An estimate, exact for few.
    pub(crate) callers: u64,
}

impl Tally {
    pub(crate) fn add(&self, rule: &DecidedRule<'_>) {
        self.asked.fetch_add(1, Relaxed);
        match rule.result {
            result if result.is_refusal() || result == RuleResult::MissingKey => {
                self.refused.fetch_add(1, Relaxed);
                let bit = 1 << (rule.key_hash % u64::from(u64::BITS));
                // The plain load keeps the cache line shared where nothing changes.
                if self.callers.load(Relaxed) & bit == 0 {
                    self.callers.fetch_or(bit, Relaxed);
                }
            }
            RuleResult::ShadowDeny | RuleResult::ShadowBanned => {
                self.shadow.fetch_add(1, Relaxed);
            }
            _ => {}
        }
    }

    /// Returns its sums, and resets them.
    pub(crate) fn take(&self) -> Sums {
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
