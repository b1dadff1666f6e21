//! Decides for one caller in several calls, where no single script reaches all limiters of its
//! list: a Redis Cluster, or an address that stands for several shards, keeps them in different
//! hash slots, or some of them count by fixed windows, GCRA or the calendar. (Slots in this file
//! are hash slots.)
//!
//! There is one call for each part of the list. Limiters whose keys callers cannot invent, such as
//! addresses, come first: so a caller over such a limit causes no calls for names that it invents.
//! Within both groups the likeliest refusal comes first. Permits already taken are given back by
//! receipt when a later call refuses or fails. So a charge may last as long as the calls, or one
//! interval if this process dies in between.

use std::{cmp::Ordering, mem, slice};

use super::{server::Server, wire};
use crate::{
    decision::{Decision, Grant, LimitState, Refusal, Source},
    demand::{Acquire, LimiterCharge},
    error::Error,
    list::List,
    receipt::Receipt,
};

impl Server {
    /// Decides for one caller, one part after the other.
    ///
    /// # Cancel safety
    ///
    /// Dropping it gives back all that it may have taken.
    pub(super) async fn acquire_in_calls(&self, acquire: &Acquire) -> Result<Decision, Error> {
        let mut taken = TakenSoFar {
            server: self,
            limits: List::new(),
            receipts: List::new(),
        };
        for part in parts(acquire, self.has_slots()) {
            let before = taken.receipts.len();
            taken.receipts.extend(part.receipts());
            let decided = self.acquire_together(&part, slice::from_ref(&part)).await;
            // A call that failed or was refused has given back what it may have taken.
            taken.receipts.truncate(before);
            let decision = match decided {
                // Shadow rules come last, and are no reason to refuse.
                Err(_) if part.is_all_shadow() => continue,
                decisions => decisions?.into_iter().next(),
            };
            match decision {
                None => {}
                Some(Decision::Allow(grant)) => {
                    taken.limits.extend(grant.states().iter().cloned());
                    taken.receipts.extend(grant.receipts().iter().cloned());
                }
                Some(Decision::Deny(refusal)) => return Ok(Decision::Deny(taken.refused(refusal))),
            }
        }
        let mut limits = mem::take(&mut taken.limits);
        limits.sort_by(LimitState::by_tightness);
        let receipts = mem::take(&mut taken.receipts);
        Ok(Decision::Allow(Grant::new(limits, receipts, Source::Store)))
    }
}

/// Returns the parts of the list, one for each call.
fn parts(acquire: &Acquire, in_slots: bool) -> Vec<Acquire> {
    let mut charges: Vec<&LimiterCharge> = acquire.charges().collect();
    charges.sort_by(|a, b| {
        let bounded_first = b.of().key_is_bounded.cmp(&a.of().key_is_bounded);
        bounded_first.then_with(|| likelier_to_refuse(a, b))
    });
    let mut parts: Vec<Acquire> = Vec::new();
    for charge in charges {
        match parts
            .iter_mut()
            .find(|part| wire::go_together(&part.first, charge, in_slots))
        {
            Some(part) => part.rest.push(charge.clone()),
            None => parts.push(Acquire {
                first: charge.clone(),
                rest: Vec::new(),
                ..acquire.clone()
            }),
        }
    }
    // Once only shadow rules are left, nothing can refuse.
    parts.sort_by_key(Acquire::is_all_shadow);
    parts
}

/// Orders charges by cost relative to their limit, the highest first; unknown limits come last.
fn likelier_to_refuse(a: &LimiterCharge, b: &LimiterCharge) -> Ordering {
    let part = |charge: &LimiterCharge, of: &LimiterCharge| {
        let limit = of.limiter.of.limit.given();
        u128::from(charge.permits) * u128::from(limit.map_or(u64::MAX, |limit| limit.permits()))
    };
    part(b, a).cmp(&part(a, b))
}

/// The permits taken by the calls so far. Dropping it gives them back.
struct TakenSoFar<'a> {
    server: &'a Server,
    limits: List<LimitState>,
    /// Also those of the call that is under way.
    receipts: List<Receipt>,
}

impl TakenSoFar<'_> {
    /// Returns a refusal with the state of all limits that the calls have met.
    fn refused(&self, refusal: Refusal) -> Refusal {
        let mut limits = refusal.limits;
        for mut limit in self.limits.iter().cloned() {
            // The number left did not count the permits that are now given back.
            limit.remaining = None;
            limits.push(limit);
        }
        limits.sort_by(LimitState::by_tightness);
        Refusal { limits, ..refusal }
    }
}

impl Drop for TakenSoFar<'_> {
    fn drop(&mut self) {
        for receipt in &self.receipts {
            self.server.queue_settlement(receipt, 0, true);
        }
    }
}
