//! Logs a line per minute if something was refused or failed: [`Summary`].

use std::{
    fmt::Write,
    mem,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use super::durations::Durations;
use crate::{
    macros::notice,
    sync::lock,
    values::{
        clock::moment,
        observe::{Decided, Observer, StoreCall, tally::Tally},
    },
};

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
    calls: Mutex<CallStats>,
}

#[derive(Debug)]
struct CallStats {
    since: Instant,
    durations: Durations,
    failed: u64,
}

impl Summary {
    pub(crate) fn new(every: Duration) -> Self {
        Self {
            every,
            rules: Mutex::default(),
            calls: Mutex::new(CallStats::new(moment())),
        }
    }

    fn tally(&self, name: &str) -> Arc<Tally> {
        let tally = Arc::new(Tally::default());
        lock(&self.rules).push((name.to_owned(), Arc::clone(&tally)));
        tally
    }

    /// Returns the line for what happened since the last one; `None` if nothing was refused and
    /// nothing failed.
    fn line(&self, calls: &CallStats, lasted: Duration) -> Option<String> {
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

impl Observer for Summary {
    fn decided(&self, event: &Decided<'_>) {
        for rule in event.rules {
            if let Some(name) = rule.rule {
                rule.observed
                    .tally
                    .get_or_init(|| self.tally(name))
                    .add(rule);
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
        let calls_before = mem::replace(&mut *calls, CallStats::new(now));
        drop(calls);
        if let Some(line) = self.line(&calls_before, lasted) {
            notice!("{line}");
        }
    }
}

impl CallStats {
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
    use crate::values::{
        error::ErrorKind,
        observe::{DecidedRule, ObservedRule, RuleResult},
    };

    fn call(millis: u64, result: Result<(), ErrorKind>) -> StoreCall<'static> {
        StoreCall {
            operation: "a",
            node: None,
            callers: 1,
            duration: Duration::from_millis(millis),
            result,
        }
    }

    fn rule(observed: &ObservedRule, result: RuleResult, key_hash: u64) -> DecidedRule<'_> {
        DecidedRule {
            rule: Some("a"),
            result,
            shadow: false,
            permits: 1,
            limit: None,
            remaining: None,
            key: None,
            key_hash,
            observed,
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
        for (name, observed) in [("login", &login), ("api", &api), ("gone", &gone)] {
            observed.tally.get_or_init(|| summary.tally(name));
        }
        let mut calls = CallStats::new(moment());
        let minute = Duration::from_secs(60);
        let tally = |observed: &ObservedRule| Arc::clone(observed.tally.get().unwrap());
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
        assert_eq!(summary.line(&CallStats::new(moment()), minute), None);
        assert_eq!(lock(&summary.rules).len(), 2);
    }

    #[test]
    fn callers_are_estimated() {
        for (callers, least, most) in [(0, 0, 0), (1, 1, 1), (30, 20, 40), (10_000, 200, 10_000)] {
            let tally = Tally::default();
            for caller in 0..callers {
                // Hashes, as names have them.
                let hash = crate::values::name::BuildSpread::new();
                let hash = std::hash::BuildHasher::hash_one(&hash, caller);
                tally.add(&rule(&ObservedRule::default(), RuleResult::Deny, hash));
            }
            let estimate = tally.take().callers;
            assert!((least..=most).contains(&estimate), "{callers}: {estimate}");
        }
    }
}
