//! Decides in this process, by a share of each limit, for as long as the store cannot.
//!
//! While the store decides, what it grants is remembered here, where a rule may come to need it: for each key a few
//! counts of the last interval. When the store fails, a limiter is made of them in memory when somebody asks for it
//! first, and it counts from then on as any in memory does. It is kept when the store is back, so that one that fails
//! now and then does not give a share each time; what the store has granted meanwhile is charged then.

mod recent;

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use self::recent::Recent;
use super::fallback::Local;
use crate::{
    clock::{Clock, millis},
    decision::{Decision, Grant, Receipt, Refusal, RefusalKind, Source},
    error::{Error, ErrorKind},
    limit::{LimitSource, RateType},
    store::{Acquire, Charge, MemoryStore, memory::latest, sealed::Sealed},
};

/// What is decided here, and what was decided elsewhere before.
pub(crate) struct Locals {
    limiters: MemoryStore,
    /// Made when a rule first may come to need it.
    recent: OnceLock<Recent>,
    clock: Arc<dyn Clock>,
}

impl Locals {
    /// `clock` is the one to count by.
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            limiters: MemoryStore::new().clock(Arc::clone(&clock)),
            recent: OnceLock::new(),
            clock,
        }
    }

    /// Remembers what the store decided for one that would be decided for here.
    pub(crate) fn saw(&self, acquire: &Acquire, decision: &Decision) {
        let (recent, now) = (self.recent.get_or_init(Recent::new), self.now());
        for charge in acquire.charges() {
            // Only answers tell a limit that is nobody's code.
            let told = decision
                .limits()
                .iter()
                .find(|state| Arc::ptr_eq(&state.rule, &charge.rule));
            let granted = matches!(decision, Decision::Allow(_)) && !charge.shadow;
            if let Some(state) = told
                && (granted || charge.limit == LimitSource::Store)
            {
                let permits = if granted { charge.permits } else { 0 };
                recent.note(&charge.name, state, permits, now);
            }
        }
    }

    /// Settles what was taken here; of what was taken from the store, remembers it.
    ///
    /// Returns the receipt that is the store's.
    pub(crate) fn give_back(&self, receipt: Receipt, keep: u32) -> Option<Receipt> {
        if receipt.local {
            self.limiters.handle().0.give_back(receipt, keep);
            return None;
        }
        if let Some(recent) = self.recent.get()
            && receipt.was_granted()
        {
            recent.settle(&receipt.name, receipt.permits, keep, self.now());
        }
        Some(receipt)
    }

    /// Decides.
    ///
    /// # Errors
    ///
    /// `error`, with which the store failed, where the limit is not known or less than what is asked for; and those of a
    /// store in memory.
    pub(crate) fn decide(
        &self,
        acquire: &Acquire,
        local: Local,
        error: Error,
    ) -> Result<Decision, Error> {
        let enforced = acquire.without_trials();
        let asked = enforced.as_ref().unwrap_or(acquire);
        let Some(mut shared) = self.share(asked, local) else {
            return Err(error);
        };
        for charge in shared.charges() {
            let Some(limit) = charge.limit.given() else {
                continue;
            };
            let interval = limit.stored().interval;
            if let Some(recent) = self.recent.get() {
                recent.hand_over(&charge.name, interval, self.now(), |past| {
                    let past = latest(past, limit.permits());
                    self.limiters.begin_with(charge, &past)
                })?;
            }
        }
        let decided = self.limiters.handle().0.decide_at_once(&mut shared);
        match decided {
            Some(Ok(Decision::Allow(grant))) => Ok(Decision::Allow(taken_here(&grant))),
            // Not for ever, but for as long as the store fails.
            Some(Ok(Decision::Deny(refusal))) if refusal.kind == RefusalKind::AboveRate => {
                Err(error)
            }
            Some(Ok(Decision::Deny(refusal))) => Ok(Decision::Deny(Refusal {
                source: Source::Local,
                ..refusal
            })),
            Some(Err(error)) => Err(error),
            None => Err(ErrorKind::Unavailable.into()),
        }
    }

    /// The same with a share of each limit; none where one is not known.
    fn share(&self, acquire: &Acquire, local: Local) -> Option<Acquire> {
        let share = |charge: &Charge| {
            let limit = match charge.limit {
                LimitSource::Code(limit) | LimitSource::StoreOrInit(limit) => limit,
                LimitSource::Store => self.recent.get()?.limit(&charge.name)?,
            };
            let limit = match limit.rate_type() {
                RateType::Overall => limit.with_permits(local.of(limit.permits())),
                // Each process has all of it.
                RateType::PerClient => limit,
            };
            Some(Charge {
                limit: LimitSource::Code(limit.for_request_key()),
                ..charge.clone()
            })
        };
        Some(Acquire {
            first: share(&acquire.first)?,
            rest: acquire.rest.iter().map(share).collect::<Option<_>>()?,
            // The error is to be heard of here.
            on_failure: None,
            remaining: acquire.remaining,
            patience: None,
            asked: None,
        })
    }

    fn now(&self) -> i64 {
        i64::try_from(millis(&*self.clock)).unwrap_or(i64::MAX)
    }
}

/// The same grant, of which the receipts are not for the store.
fn taken_here(grant: &Grant) -> Grant {
    let receipts = grant.receipts().iter().cloned().map(|receipt| Receipt {
        local: true,
        ..receipt
    });
    Grant::new(
        grant.limits().iter().cloned().collect(),
        receipts.collect(),
        Source::Local,
    )
}

// What it holds has identities in it.
impl fmt::Debug for Locals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locals")
            .field("limiters", &self.limiters)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
