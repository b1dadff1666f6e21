//! The outcome of one request of the load.

use super::lanes::{LANES, Lane};
use kit::scene::*;
use serde::{Deserialize, Serialize};

/// Every request has one of these, and one only.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
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

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub enum Outcome {
    Granted(By),
    Refused(By, Option<Duration>),
    /// Refused because of too many refusals
    Banned(By, Option<Duration>),
    /// The limit of a `RateLimiter` was not set
    Unset,
    /// An error of a `RateLimiter`, which has no policy
    Failed(Failure),
}

/// The errors that a fault may end in. Any other is wrong.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub enum Failure {
    Unavailable,
    Timeout,
    Rejected,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
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
}

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
    Ok(Outcome::Failed(match kind {
        ErrorKind::NotInitialized => return Ok(Outcome::Unset),
        ErrorKind::Unavailable => Failure::Unavailable,
        ErrorKind::Timeout => Failure::Timeout,
        ErrorKind::Rejected => Failure::Rejected,
        kind => return Err(format!("no fault ends in {kind:?}")),
    }))
}
