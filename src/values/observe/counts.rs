//! Counts requests by their result and by what decided: [`Counts`], and [`RuleCounts`] for one
//! rule.

use std::{
    collections::BTreeMap,
    iter,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use super::{DecidedRule, RuleResult};
use crate::values::{decision::source::Source, limit::MOST_LIMITS};

/// Counts above zero: for each result, by source.
pub(crate) type ShownCounts = BTreeMap<&'static str, BTreeMap<&'static str, u64>>;

/// Counts by source, and by one of `R` results.
#[derive(Debug)]
pub(crate) struct Counts<const R: usize>([[AtomicU64; Source::ALL.len()]; R]);

impl<const R: usize> Default for Counts<R> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Default::default()))
    }
}

impl<const R: usize> Counts<R> {
    /// Adds one, and returns how many there were before.
    pub(crate) fn add(&self, result: usize, source: Source) -> u64 {
        let count = self.0.get(result).and_then(|by| by.get(source as usize));
        count.map_or(0, |count| count.fetch_add(1, Relaxed))
    }

    /// Returns those above zero, by these results.
    pub(crate) fn shown<T>(&self, results: [(T, &'static str); R]) -> ShownCounts {
        let mut shown = ShownCounts::new();
        for (by_source, (_, result)) in self.0.iter().zip(results) {
            for (count, (_, source)) in by_source.iter().zip(Source::ALL) {
                let count = count.load(Relaxed);
                if count > 0 {
                    shown.entry(result).or_default().insert(source, count);
                }
            }
        }
        shown
    }
}

/// The counts of one rule, or of all that have none.
#[derive(Debug)]
pub(crate) struct RuleCounts {
    /// The identity of the observer that counts here.
    pub(crate) observer: Arc<()>,
    pub(crate) name: Option<Arc<str>>,
    pub(crate) counts: Counts<{ RuleResult::ALL.len() }>,
    /// Permits and milliseconds of each limit that was last seen, the shortest first; zero for
    /// none, and for the time of places in flight.
    pub(crate) limits: [[AtomicU64; 2]; MOST_LIMITS],
    pub(crate) shadow: AtomicBool,
}

impl RuleCounts {
    pub(crate) fn new(observer: &Arc<()>, name: Option<&str>) -> Self {
        Self {
            observer: Arc::clone(observer),
            name: name.map(Arc::from),
            counts: Counts::default(),
            limits: Default::default(),
            shadow: AtomicBool::default(),
        }
    }

    /// Counts a decision, and returns how many like it there were before.
    pub(crate) fn add(&self, rule: &DecidedRule<'_>, source: Source) -> u64 {
        if let Some(limit) = rule.limit.or(rule.observed.limit) {
            let timed = u64::from(!limit.is_in_flight());
            let parts = limit.parts().rev();
            let parts = parts.map(|part| [part.permits, part.interval * timed]);
            let parts = parts.chain(iter::repeat([0; 2]));
            for (last, now) in self.limits.iter().flatten().zip(parts.flatten()) {
                // The plain load keeps the cache line shared where nothing changes.
                if last.load(Relaxed) != now {
                    last.store(now, Relaxed);
                }
            }
        }
        if self.shadow.load(Relaxed) != rule.shadow {
            self.shadow.store(rule.shadow, Relaxed);
        }
        self.counts.add(rule.result as usize, source)
    }
}
