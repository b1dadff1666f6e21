//! Law O8 under faults: observers see each request of the load once, as it was answered.

use std::collections::BTreeMap;

use super::{
    answer::{Answer, By, Outcome},
    lanes::{LANES, rule},
};
use kit::scene::*;
use tower_ratelimit::{
    Error,
    observe::{Decided, Observer},
};

/// By the first rule, none for an exact name; the result; and the source.
pub type Counts = BTreeMap<(Option<String>, &'static str, &'static str), u64>;

/// The name of the limit of a row's own callers that go together.
pub const CROWD: &str = "crowd";

/// Counts the decisions that observers see.
#[derive(Debug, Default)]
pub struct Observed(Mutex<Counts>);

impl Observer for Observed {
    fn decided(&self, event: &Decided<'_>) {
        let rule = event.rules.first().and_then(|rule| rule.rule);
        let (result, source) = (event.result.as_str(), event.source.as_str());
        let mut counts = self.0.lock().unwrap();
        *counts
            .entry((rule.map(str::to_owned), result, source))
            .or_default() += 1;
    }
}

impl Observed {
    /// Returns what it has seen of the lanes, and of all that have no rule.
    pub fn of_lanes(&self) -> Counts {
        let mut counts = self.0.lock().unwrap().clone();
        let mut lanes: Vec<_> = LANES.iter().filter_map(|lane| rule(lane, 0)).collect();
        lanes.push(CROWD.to_owned());
        counts.retain(|(rule, ..), _| rule.as_ref().is_none_or(|rule| lanes.contains(rule)));
        counts
    }

    /// Takes out what a row has asked besides, of its crowd or of an exact name, and its answer:
    /// none where the caller left.
    pub fn less(&self, rule: Option<&str>, answer: Option<&Result<Decision, Error>>) {
        let (result, source) = match answer {
            Some(Ok(it @ Decision::Allow(_))) => ("allow", it.source().as_str()),
            Some(Ok(it @ Decision::Deny(_))) => ("deny", it.source().as_str()),
            Some(Err(_)) => ("unavailable", "none"),
            None => ("cancelled", "none"),
        };
        let mut counts = self.0.lock().unwrap();
        let key = (rule.map(str::to_owned), result, source);
        let count = counts.get_mut(&key);
        *count.unwrap_or_else(|| panic!("O8: {result} by {source} was not observed")) -= 1;
        counts.retain(|_, count| *count > 0);
    }
}

/// Adds what observers must have seen of an answer.
pub fn count(counts: &mut Counts, answer: &Answer) {
    let lane = answer.lane();
    let rule = rule(lane, 0);
    let (result, source) = words(answer.outcome);
    *counts.entry((rule, result, source)).or_default() += 1;
}

/// Returns the result and the source of an outcome, in the words of observers.
pub fn words(outcome: Outcome) -> (&'static str, &'static str) {
    let source = |by| match by {
        By::Store => "store",
        By::Cache => "cache",
        By::Lease => "lease",
        By::Local => "local",
        By::Policy => "policy",
    };
    match outcome {
        Outcome::Granted(by) => ("allow", source(by)),
        Outcome::Refused(By::Policy, _) => ("unavailable", "policy"),
        Outcome::Refused(by, _) => ("deny", source(by)),
        Outcome::Banned(by, _) => ("banned", source(by)),
        Outcome::Unset | Outcome::Failed(_) => ("unavailable", "none"),
    }
}
