//! Counts requests by their result and by what decided: [`Counts`], and [`RuleCounts`] for one
//! rule.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use serde_json::{Value, json};

use crate::{
    decision::source::Source,
    observe::{DecidedRule, RuleResult},
};

/// The first refusals for each reason are all recorded, so that a handful shows its callers.
const ALL_UP_TO: u64 = 256;
/// One in this many later refusals is recorded.
const ONE_IN: u64 = 16;

/// Counts above zero: for each result, by source.
pub(super) type Shown = BTreeMap<&'static str, BTreeMap<&'static str, u64>>;

/// Counts by source, and by one of `R` results.
#[derive(Debug)]
pub(super) struct Counts<const R: usize>([[AtomicU64; Source::ALL.len()]; R]);

impl<const R: usize> Default for Counts<R> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Default::default()))
    }
}

impl<const R: usize> Counts<R> {
    /// Adds one, and returns how many there were before.
    pub(super) fn add(&self, result: usize, source: Source) -> u64 {
        let count = self.0.get(result).and_then(|by| by.get(source as usize));
        count.map_or(0, |count| count.fetch_add(1, Relaxed))
    }

    /// Returns those above zero, by these results.
    pub(super) fn shown<T>(&self, results: [(T, &'static str); R]) -> Shown {
        let mut shown = Shown::new();
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

/// Returns the number of refusals that this one stands for, after `before` others of its kind;
/// `None` if it is not recorded.
pub(super) fn sampled(before: u64) -> Option<u64> {
    if before < ALL_UP_TO {
        return Some(1);
    }
    // Multiples of the golden ratio: callers that take turns are met as often as all others, which
    // each sixteenth one would not be.
    let mixed = before.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed < u64::MAX / ONE_IN).then_some(ONE_IN)
}

/// The counts of one rule, or of all that have none.
#[derive(Debug)]
pub(in crate::observe) struct RuleCounts {
    /// The identity of the observer that counts here.
    pub(super) observer: Arc<()>,
    pub(super) name: Option<Arc<str>>,
    pub(super) counts: Counts<{ RuleResult::ALL.len() }>,
    /// Permits and milliseconds of the limit that was last seen; zero if none was.
    limit: [AtomicU64; 2],
    shadow: AtomicBool,
}

impl RuleCounts {
    pub(super) fn new(observer: &Arc<()>, name: Option<&str>) -> Self {
        Self {
            observer: Arc::clone(observer),
            name: name.map(Arc::from),
            counts: Counts::default(),
            limit: Default::default(),
            shadow: AtomicBool::default(),
        }
    }

    /// Counts a decision, and returns how many like it there were before.
    pub(super) fn add(&self, rule: &DecidedRule<'_>, source: Source) -> u64 {
        if let Some((permits, interval)) = rule.limit.or(rule.kept.limit) {
            for (last, now) in self.limit.iter().zip([permits, millis(interval)]) {
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

    /// Returns the counts and the limit; `is_met` is false if no rule in force has met a request.
    pub(super) fn shown(&self, is_met: bool) -> Value {
        let [permits, interval] = self.limit.each_ref().map(|it| it.load(Relaxed));
        json!({
            "name": self.name.as_deref(),
            "limit": (permits > 0).then(|| json!({ "permits": permits, "interval_ms": interval })),
            "shadow": self.shadow.load(Relaxed),
            "met": is_met,
            "results": self.counts.shown(RuleResult::ALL),
        })
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
