//! The outcome of one request of the load.

use super::lanes::{LANES, Lane};
use crate::scene::*;

/// Every request has one of these, and one only.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Answer {
    /// The process that sent the request
    pub handle: usize,
    pub lane: usize,
    pub user: usize,
    pub permits: u32,
    /// Since the load began
    pub sent: Duration,
    pub took: Duration,
    /// The longest time it was allowed to take
    pub budget: Duration,
    pub outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome {
    Granted(By),
    Refused(By, Option<Duration>),
    /// Refused because of too many refusals
    Banned(By, Option<Duration>),
    /// The limit of a `RateLimiter` was not set
    Unset,
    /// An error of a `RateLimiter`, which has no policy
    Failed(ErrorKind),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    Store,
    Cache,
    Lease,
    /// This process, by its share of the limit
    Local,
    /// The rule's policy, any of them
    Policy,
}

impl Answer {
    pub fn lane(&self) -> &'static Lane {
        &LANES[self.lane]
    }

    /// Returns whether the store decided, without a policy or a cached refusal.
    pub fn by_store(&self) -> bool {
        matches!(
            self.outcome,
            Outcome::Granted(By::Store)
                | Outcome::Refused(By::Store, _)
                | Outcome::Banned(By::Store, _)
        )
    }

    /// Returns whether a policy decided because the store could not, a share of the limit included.
    pub fn by_policy(&self) -> bool {
        matches!(
            self.outcome,
            Outcome::Granted(By::Local | By::Policy)
                | Outcome::Refused(By::Local | By::Policy, _)
                | Outcome::Failed(_)
        )
    }

    /// Permits that a store, or a lease of it, has granted.
    pub fn received(&self) -> u64 {
        match self.outcome {
            Outcome::Granted(By::Store | By::Lease) => u64::from(self.permits),
            _ => 0,
        }
    }

    pub fn is_granted(&self) -> bool {
        matches!(self.outcome, Outcome::Granted(_))
    }

    /// One line of a file.
    pub fn write(&self) -> String {
        let (what, wait) = match self.outcome {
            Outcome::Granted(by) => (format!("granted {by:?}"), None),
            Outcome::Refused(by, wait) => (format!("refused {by:?}"), wait),
            Outcome::Banned(by, wait) => (format!("banned {by:?}"), wait),
            Outcome::Unset => ("unset -".to_owned(), None),
            Outcome::Failed(kind) => (format!("failed {kind:?}"), None),
        };
        let wait = wait.map_or_else(|| "-".to_owned(), |wait| wait.as_nanos().to_string());
        format!(
            "{} {} {} {} {} {} {} {what} {wait}\n",
            self.handle,
            self.lane,
            self.user,
            self.permits,
            self.sent.as_nanos(),
            self.took.as_nanos(),
            self.budget.as_nanos(),
        )
    }

    pub fn read(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        let [
            handle,
            lane,
            user,
            permits,
            sent,
            took,
            budget,
            what,
            by,
            wait,
        ] = words[..]
        else {
            return None;
        };
        let time = |text: &str| text.parse().ok().map(Duration::from_nanos);
        let source = || {
            [By::Store, By::Cache, By::Lease, By::Local, By::Policy]
                .into_iter()
                .find(|known| format!("{known:?}") == by)
        };
        let outcome = match what {
            "granted" => Outcome::Granted(source()?),
            "refused" => Outcome::Refused(source()?, time(wait)),
            "banned" => Outcome::Banned(source()?, time(wait)),
            "unset" => Outcome::Unset,
            "failed" => Outcome::Failed(
                FAILURES
                    .into_iter()
                    .find(|known| format!("{known:?}") == by)?,
            ),
            _ => return None,
        };
        Some(Self {
            handle: handle.parse().ok()?,
            lane: lane.parse().ok()?,
            user: user.parse().ok()?,
            permits: permits.parse().ok()?,
            sent: time(sent)?,
            took: time(took)?,
            budget: time(budget)?,
            outcome,
        })
    }
}

/// The errors that a fault may end in. Any other is wrong.
const FAILURES: [ErrorKind; 3] = [
    ErrorKind::Unavailable,
    ErrorKind::Timeout,
    ErrorKind::Rejected,
];

/// Returns the outcome of a decision, or why it cannot belong to this lane.
///
/// Lanes differ in what they allow, so a response to the request of another lane is noticed.
pub fn outcome(lane: &Lane, decision: &Decision) -> Result<Outcome, String> {
    let by = match decision.source() {
        Source::Store => By::Store,
        Source::Cache => By::Cache,
        Source::Lease => By::Lease,
        Source::Local => By::Local,
        Source::None => return Err(format!("nothing for the layer to decide: {decision:?}")),
        // The failure policy.
        _ => By::Policy,
    };
    if by != By::Policy {
        let said: Vec<_> = (decision.limits())
            .map(|limit| (limit.permits(), limit.interval()))
            .collect();
        let asked = lane.limits().map(|limit| match by {
            // The answer tells the share as the limit.
            By::Local => (limit.share() as u64, limit.said().1),
            _ => limit.said(),
        });
        let asked: Vec<_> = asked.collect();
        // On a Cluster a refusal by one slot asks no other.
        let of_us = said.iter().all(|limit| asked.contains(limit)) && !said.is_empty();
        if !of_us || (decision.is_allowed() && said.len() != asked.len()) {
            return Err(format!("asked for {asked:?}, and got {decision:?}"));
        }
    }
    match decision {
        Decision::Allow(_) => Ok(Outcome::Granted(by)),
        Decision::Deny(refusal) => match (refusal.kind(), by) {
            (RefusalKind::OverLimit, By::Store | By::Cache | By::Local) => {
                Ok(Outcome::Refused(by, refusal.retry_after()))
            }
            (RefusalKind::Banned, By::Store | By::Cache) if lane.bans() => {
                Ok(Outcome::Banned(by, refusal.retry_after()))
            }
            (RefusalKind::Unavailable, By::Policy) => Ok(Outcome::Refused(by, None)),
            _ => Err(format!("refused for no reason: {decision:?}")),
        },
    }
}

pub fn failure(kind: ErrorKind) -> Result<Outcome, String> {
    match kind {
        ErrorKind::NotInitialized => Ok(Outcome::Unset),
        kind if FAILURES.contains(&kind) => Ok(Outcome::Failed(kind)),
        kind => Err(format!("no fault ends in {kind:?}")),
    }
}

#[test]
fn a_line_is_read_as_it_was_written() {
    let outcomes = [
        Outcome::Granted(By::Lease),
        Outcome::Refused(By::Cache, Some(Duration::from_nanos(1_234_567))),
        Outcome::Banned(By::Cache, Some(Duration::from_millis(700))),
        Outcome::Granted(By::Local),
        Outcome::Refused(By::Local, Some(Duration::from_millis(530))),
        Outcome::Refused(By::Policy, None),
        Outcome::Failed(ErrorKind::Timeout),
        Outcome::Unset,
    ];
    for outcome in outcomes {
        let answer = Answer {
            handle: 4,
            lane: 2,
            user: 1,
            permits: 3,
            sent: Duration::from_nanos(987_654_321),
            took: Duration::from_micros(17),
            budget: Duration::from_millis(250),
            outcome,
        };
        let line = answer.write();
        assert_eq!(Answer::read(line.trim_end()), Some(answer), "{line}");
    }
    assert_eq!(Answer::read("1 2 3"), None);
}
