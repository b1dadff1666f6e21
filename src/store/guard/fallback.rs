//! Decides by the failure policy of the rules when the store cannot.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use super::{
    deny_cache::Refusals,
    late::Late,
    local::Locals,
    policy::{answer_by, refuses_anyway},
};
use crate::{
    macros::{notice, warning},
    store::StandIn,
    values::{
        charge::{Charge, TakenFrom},
        clock::{Clock, millis},
        decision::{Decision, Source},
        demand::Demand,
        error::{Error, ErrorKind},
        failure_policy::FailurePolicy,
    },
};

/// Answers by the caller's policy when the store cannot decide, and logs once that the store began
/// to fail and once that it recovered.
pub(crate) struct Fallback<L> {
    /// The refusals that stay valid in an outage.
    refusals: Arc<Refusals>,
    pub(crate) locals: Locals<L>,
    /// The clock that failures are timed by.
    clock: Arc<dyn Clock>,
    failing: AtomicBool,
    /// The time of the last failure in milliseconds; zero for none.
    failed_last: AtomicU64,
}

/// The time without a failure after which a store counts as recovered, so that one that fails now
/// and then is logged once.
const CALM: Duration = Duration::from_secs(1);

/// Returns whether the store is at fault, and not the limiter or the question.
fn is_of_store(error: &Error) -> bool {
    !matches!(
        error.kind(),
        ErrorKind::NotInitialized
            | ErrorKind::RateTypeDiffers
            | ErrorKind::ForeignState
            | ErrorKind::Permits
            | ErrorKind::Limit
    )
}

impl<L: StandIn> Fallback<L> {
    /// `clock` is one that never jumps; `locals` count by that of the limits.
    pub(crate) fn new(refusals: Arc<Refusals>, locals: Locals<L>, clock: Arc<dyn Clock>) -> Self {
        Self {
            refusals,
            locals,
            clock,
            failing: AtomicBool::new(false),
            failed_last: AtomicU64::new(0),
        }
    }

    /// Returns the answer to a demand that a failing store was not sent.
    pub(crate) fn unsent(&self, demand: &Demand, error: Error) -> Result<Decision, Error> {
        self.record_failure(&error);
        self.without_store(demand, error)
    }

    /// Returns the answer to a call that is over. `give_back` takes the receipts of permits that
    /// the caller does not pay for.
    pub(crate) fn answer(
        &self,
        demand: &Demand,
        decision: Result<Decision, Error>,
        give_back: impl Fn(Charge),
    ) -> Result<Decision, Error> {
        let error = match decision {
            Ok(decision) => {
                // The plain load keeps the cache line shared while nothing changes.
                if self.failing.load(Ordering::Relaxed) {
                    let last = Duration::from_millis(self.failed_last.load(Ordering::Relaxed));
                    let calm = self.clock.now().saturating_sub(last) >= CALM;
                    if calm && self.failing.swap(false, Ordering::Relaxed) {
                        notice!("rate limit store answers again");
                    }
                }
                // A lease was recorded when it was taken.
                if matches!(demand.on_failure, Some(FailurePolicy::Local(_)))
                    && decision.source() != Source::Lease
                {
                    self.locals.record_decision(demand, &decision);
                }
                return Ok(decision);
            }
            Err(error) => error,
        };
        let late = Late::of(&error);
        // The server works: it was sent more than it can answer in time, or would have been.
        let is_overload = matches!(late, Some(Late::Slow | Late::Unsent));
        if !is_overload && is_of_store(&error) {
            self.record_failure(&error);
        }
        let is_given_up = matches!(late, Some(Late::Silence | Late::Slow));
        if is_given_up && demand.unsent.get().is_none() {
            return self.after_giving_up(demand, error, give_back);
        }
        self.without_store(demand, error)
    }

    /// Returns the last known refusal, or the answer of the policy.
    fn without_store(&self, demand: &Demand, error: Error) -> Result<Decision, Error> {
        let Some(policy) = demand.on_failure else {
            return Err(error);
        };
        if is_of_store(&error)
            && let Some(refusal) = self.refusals.last_known(demand)
        {
            return Ok(Decision::Deny(refusal));
        }
        match policy {
            FailurePolicy::Local(local) if !demand.is_all_shadow() && !refuses_anyway(&error) => {
                match self.locals.decide(demand, local, error) {
                    Err(error) => answer_by(demand, error, FailurePolicy::Deny),
                    decision => decision,
                }
            }
            policy => answer_by(demand, error, policy),
        }
    }

    /// Returns the answer to a caller whose call was given up at its deadline. The call may still
    /// have taken permits.
    ///
    /// If a share of the limit admits the request, those permits stay taken, and are settled with
    /// what is counted here. Everything else that it asked for is given back. (Callers that wait
    /// for permits, and lists that take several calls, have given back when they were given up.)
    fn after_giving_up(
        &self,
        demand: &Demand,
        error: Error,
        give_back: impl Fn(Charge),
    ) -> Result<Decision, Error> {
        let mut decision = self.without_store(demand, error);
        let kept = match &mut decision {
            Ok(Decision::Allow(grant)) if demand.max_wait.is_none() => grant.charges_mut(),
            _ => &mut [],
        };
        for charge in demand.charges() {
            let sent = charge.made(demand.asked_at);
            let mut kept = kept.iter_mut();
            match kept.find(|kept| kept.name() == charge.name()) {
                Some(kept) => kept.taken_from = TakenFrom::LocalAndStore(sent.into()),
                None => give_back(sent),
            }
        }
        decision
    }

    fn record_failure(&self, error: &Error) {
        let now = millis(&*self.clock);
        self.failed_last.store(now, Ordering::Relaxed);
        if !self.failing.load(Ordering::Relaxed) && !self.failing.swap(true, Ordering::Relaxed) {
            warning!(
                error = %error,
                cause = error.cause(),
                "rate limit store failing: applying failure policies"
            );
        }
    }
}

#[cfg(test)]
mod tests;
