//! Decides in this process, by a share of each limit, while the store cannot.
//!
//! While the store decides, this process records its grants, for rules that may need them later and
//! for leases: a few counts of the last interval for each key. When the store fails, the first
//! request for a limiter creates that limiter in memory, charged with these counts. It stays when
//! the store is back, so that a store that fails now and then does not grant a share each time: the
//! next failure charges it with what the store granted meanwhile.

pub(crate) mod recent;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use self::recent::Recent;
use crate::{
    macros::warning,
    store::StandIn,
    sync::lock,
    values::{
        charge::Charge,
        compiled_limit::Warning,
        decision::{Decision, Refusal, RefusalKind, Source},
        demand::Demand,
        error::{Error, ErrorKind},
        failure_policy::part,
        limit::{Limit, LimitSource},
    },
};

/// The limiters of this process, and what the store granted before.
pub(crate) struct Locals<L> {
    /// Decides here.
    store: Arc<L>,
    recent: Arc<Recent>,
    /// The limits that only the store knows, as they were last seen on any limiter of a rule, by
    /// the rule's name.
    last_seen: Mutex<HashMap<Arc<str>, Limit>>,
}

impl<L: StandIn> Locals<L> {
    /// `store` counts by the clock of `recent`.
    pub(crate) fn new(store: Arc<L>, recent: Arc<Recent>) -> Self {
        Self {
            store,
            recent,
            last_seen: Mutex::default(),
        }
    }

    /// Records what the store decided for a request that would be decided here in an outage.
    pub(crate) fn record_decision(&self, demand: &Demand, decision: &Decision) {
        for charge in demand.charges() {
            let Some(Charge { standing, .. }) = decision.answer_to(charge) else {
                continue;
            };
            let granted = matches!(decision, Decision::Allow(_)) && !charge.shadow;
            // A limit that no code gives is known from answers alone.
            let is_stored = matches!(charge.compiled().limit, LimitSource::Store);
            if is_stored && let Some(limit) = Limit::of(standing.permits, standing.interval) {
                lock(&self.last_seen).insert(Arc::clone(&charge.compiled().name), limit);
            }
            if granted || is_stored {
                let permits = if granted { charge.permits } else { 0 };
                let left = Duration::ZERO;
                self.recent.record(charge.name(), standing, permits, left);
            }
        }
    }

    /// Settles what was taken here, or records how a grant of the store was settled.
    ///
    /// Returns the receipt that is the store's.
    pub(crate) fn settle(&self, receipt: Charge, keep: u32) -> Option<Charge> {
        if receipt.is_local() {
            self.store.settle(receipt.clone(), keep);
            return receipt.of_store();
        }
        self.recent.settle(&receipt, keep);
        Some(receipt)
    }

    /// Decides by a share of each limit.
    ///
    /// # Errors
    ///
    /// `error`, with which the store failed, if the limit is not known or less than the permits;
    /// and the errors of a store in memory.
    pub(crate) fn decide(
        &self,
        demand: &Demand,
        share: f64,
        error: Error,
    ) -> Result<Decision, Error> {
        let Some(mut reduced) = self.reduced(demand, share) else {
            return Err(error);
        };
        for charge in reduced.charges() {
            // Places in flight are given back by receipts: those of the store find nothing here.
            let limit = charge.compiled().limit.given();
            let Some(limit) = limit.filter(|limit| !limit.is_in_flight()) else {
                continue;
            };
            let interval = limit.stored().interval;
            self.recent.hand_over(charge.name(), interval, |past| {
                self.store.begin_with(charge, past)
            })?;
        }
        let decided = self.store.decide_at_once(&mut reduced);
        match decided.ok_or(ErrorKind::Unavailable)?? {
            Decision::Allow(grant) => Ok(Decision::Allow(grant.by_share())),
            // Above the share, not above the limit: only for as long as the store fails.
            Decision::Deny(refusal) if refusal.kind == RefusalKind::AboveRate => Err(error),
            Decision::Deny(refusal) => Ok(Decision::Deny(Refusal {
                source: Source::Local,
                ..refusal
            })),
        }
    }

    /// Returns the demand that is decided here, by a share of each limit; `None` if a limit is not
    /// known.
    ///
    /// It leaves out shadow rules, and rules that pass uncounted while the store fails.
    fn reduced(&self, demand: &Demand, share: f64) -> Option<Demand> {
        let counted = |charge: &&Charge| !charge.shadow && !charge.allow_on_failure;
        let mut charges = Vec::with_capacity(demand.charges.len());
        for charge in demand.charges().filter(counted) {
            let Some(limit) = self.limit(charge) else {
                if charge.compiled().claim_warning(Warning::Unknown) {
                    warning!(
                        rule = charge.compiled().for_logs(),
                        "requests are refused because only the store knows the limit, and it has \
                         not answered yet: give the rule `or_init`"
                    );
                }
                return None;
            };
            // By a limit per client, each process has all of it.
            let limit = if limit.is_per_client() {
                limit
            } else {
                limit.with_permits(|permits| part(share, permits))
            };
            let limit = LimitSource::Code(limit.for_request_key());
            charges.push(charge.clone().by(limit));
        }
        if charges.is_empty() {
            return None;
        }
        // Without a policy: errors come back to this guard.
        Some(Demand {
            wants_remaining: demand.wants_remaining,
            ..Demand::new(charges.into_iter().collect(), None)
        })
    }

    /// Returns the limit to decide by. One that only the store knows is the one last seen on this
    /// limiter, or on any limiter of its rule.
    fn limit(&self, charge: &Charge) -> Option<Limit> {
        let given = charge.compiled().limit.given().copied();
        let of_limiter = || self.recent.limit(charge.name());
        let of_rule = || lock(&self.last_seen).get(&charge.compiled().name).copied();
        given.or_else(of_limiter).or_else(of_rule)
    }
}

#[cfg(test)]
mod tests;
