//! Logs a line per minute if something was refused or failed: [`Summary`].

use std::{
    fmt::Write,
    mem,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use super::{Decided, DecidedRule, Observer, RuleResult, StoreCall, durations::Durations};
use crate::{clock::moment, macros::notice, sync::lock};

/// The rules that a line names, those with the most refusals first.
const NAMED: usize = 8;

/// Adds up the results of rules and calls, for a line in the log.
///
/// The line is logged when a call to the store ends, so that requests need not read the clock.
/// Without calls the only refusals are those that the deny cache repeats, while it keeps them.
#[derive(Debug)]
pub(crate) struct Summary {
    every: Duration,
    rules: Mutex<Vec<(String, Arc<Tally>)>>,
    calls: Mutex<Calls>,
}

#[derive(Debug)]
struct Calls {
    since: Instant,
    durations: Durations,
    failed: u64,
}

impl Summary {
    pub(crate) fn new(every: Duration) -> Self {
        Self {
            every,
            rules: Mutex::default(),
            calls: Mutex::new(Calls::new(moment())),
        }
    }

    fn tally(&self, name: &str) -> Arc<Tally> {
        let tally = Arc::new(Tally::default());
        lock(&self.rules).push((name.to_owned(), Arc::clone(&tally)));
        tally
    }

    /// Returns the line for what happened since the last one; `None` if nothing was refused and
    /// nothing failed.
    fn line(&self, calls: &Calls, lasted: Duration) -> Option<String> {
        let mut rules = lock(&self.rules);
        let mut sums: Vec<_> = rules
            .iter()
            .map(|(name, tally)| (tally.take(), name.clone()))
            .collect();
        // A reload has replaced the others.
        rules.retain(|(_, tally)| Arc::strong_count(tally) > 1);
        drop(rules);
        sums.retain(|(sums, _)| sums.asked > 0);
        if calls.failed == 0 && sums.iter().all(|(sums, _)| sums.refused + sums.shadow == 0) {
            return None;
        }
        sums.sort_by(|one, other| other.cmp(one));
        let mut line = format!("rate limits, last {} s:", lasted.as_secs());
        for (sums, name) in sums.iter().take(NAMED) {
            let _ = write!(line, " {name} {} refused of {}", sums.refused, sums.asked);
            if sums.refused > 0 {
                let plural = if sums.callers == 1 { "" } else { "s" };
                let _ = write!(line, " ({} caller{plural})", sums.callers);
            }
            if sums.shadow > 0 {
                let _ = write!(line, " and {} in shadow", sums.shadow);
            }
            line.push(',');
        }
        if let Some(more) = sums.len().checked_sub(NAMED).filter(|more| *more > 0) {
            let _ = write!(line, " and {more} more rules,");
        }
        line.pop();
        if let Some(slowest) = calls.durations.percentile(99) {
            let _ = write!(line, "; store p99 {:.1} ms", slowest.as_secs_f64() * 1e3);
        }
        if calls.failed > 0 {
            let _ = write!(line, ", failed calls {}", calls.failed);
        }
        Some(line)
    }
}

/// The results of requests by one rule.
#[derive(Debug, Default)]
pub(super) struct Tally {
    asked: AtomicU64,
    refused: AtomicU64,
    shadow: AtomicU64,
    /// A bit for each caller that was refused, by its hash.
    callers: AtomicU64,
}

/// The sums of a tally.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Sums {
    refused: u64,
    shadow: u64,
    asked: u64,
    /// An estimate, exact for few.
    callers: u64,
}

impl Tally {
    fn add(&self, rule: &DecidedRule<'_>) {
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
    fn take(&self) -> Sums {
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

impl Observer for Summary {
    fn decided(&self, event: &Decided<'_>) {
        for rule in event.rules {
            if let Some(name) = rule.rule {
                rule.kept.tally.get_or_init(|| self.tally(name)).add(rule);
            }
        }
    }

    fn called(&self, event: &StoreCall<'_>) {
        let mut calls = lock(&self.calls);
        calls.add(event);
        let now = moment();
        let lasted = now.saturating_duration_since(calls.since);
        if lasted < self.every {
            return;
        }
        let calls_before = mem::replace(&mut *calls, Calls::new(now));
        drop(calls);
        if let Some(line) = self.line(&calls_before, lasted) {
            notice!("{line}");
        }
    }
}

impl Calls {
    fn new(since: Instant) -> Self {
        Self {
            since,
            durations: Durations::default(),
            failed: 0,
        }
    }

    fn add(&mut self, call: &StoreCall<'_>) {
        self.failed += u64::from(call.result.is_err());
        self.durations.add(call.duration);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{error::ErrorKind, observe::observed_rule::ObservedRule};

    fn call(millis: u64, result: Result<(), ErrorKind>) -> StoreCall<'static> {
        StoreCall {
            operation: "a",
            node: None,
            callers: 1,
            duration: Duration::from_millis(millis),
            result,
        }
    }

    fn rule(kept: &ObservedRule, result: RuleResult, key_hash: u64) -> DecidedRule<'_> {
        DecidedRule {
            rule: Some("a"),
            result,
            shadow: false,
            permits: 1,
            limit: None,
            remaining: None,
            key: None,
            key_hash,
            kept,
        }
    }

    #[test]
    fn a_line_says_what_was_refused_and_how_calls_went() {
        let summary = Summary::new(Duration::from_secs(60));
        let (login, api, gone) = (
            ObservedRule::default(),
            ObservedRule::default(),
            ObservedRule::default(),
        );
        for (name, kept) in [("login", &login), ("api", &api), ("gone", &gone)] {
            kept.tally.get_or_init(|| summary.tally(name));
        }
        let mut calls = Calls::new(moment());
        let minute = Duration::from_secs(60);
        let tally = |kept: &ObservedRule| Arc::clone(kept.tally.get().unwrap());
        tally(&api).add(&rule(&api, RuleResult::Taken, 1));
        (0..99).for_each(|_| calls.add(&call(1, Ok(()))));
        assert_eq!(summary.line(&calls, minute), None);
        for (result, key_hash) in [
            (RuleResult::Deny, 7),
            (RuleResult::Deny, 7),
            (RuleResult::QueueFull, 9),
            (RuleResult::Taken, 11),
        ] {
            tally(&login).add(&rule(&login, result, key_hash));
        }
        tally(&api).add(&rule(&api, RuleResult::ShadowDeny, 1));
        calls.add(&call(900, Err(ErrorKind::Timeout)));
        let line = summary.line(&calls, minute).unwrap();
        assert_eq!(
            line,
            "rate limits, last 60 s: login 3 refused of 4 (2 callers), api 0 refused of 1 and 1 in \
             shadow; store p99 1.1 ms, failed calls 1"
        );
        // The next line counts from zero, and forgets rules that a reload has replaced.
        drop(gone);
        assert_eq!(summary.line(&Calls::new(moment()), minute), None);
        assert_eq!(lock(&summary.rules).len(), 2);
    }

    #[test]
    fn callers_are_estimated() {
        for (callers, least, most) in [(0, 0, 0), (1, 1, 1), (30, 20, 40), (10_000, 200, 10_000)] {
            let tally = Tally::default();
            for caller in 0..callers {
                // Hashes, as names have them.
                let hash = crate::name::BuildSpread::new();
                let hash = std::hash::BuildHasher::hash_one(&hash, caller);
                tally.add(&rule(&ObservedRule::default(), RuleResult::Deny, hash));
            }
            let estimate = tally.take().callers;
            assert!((least..=most).contains(&estimate), "{callers}: {estimate}");
        }
    }
}
