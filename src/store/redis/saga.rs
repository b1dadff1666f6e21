//! Decides for one caller in several calls, where no single script reaches all limiters of its
//! list: a Redis Cluster, or an address that stands for several shards, keeps them in different
//! hash slots, or some of them count by fixed windows, or only some are in our own format, or
//! there are too many for one. (Slots in this file are hash slots.)
//!
//! There is one call for each part of the list. Limiters whose keys callers cannot invent, such as
//! addresses, come first: so a caller over such a limit causes no calls for names that it invents.
//! Within both groups the likeliest refusal comes first. Permits already taken are given back by
//! receipt when a later call refuses or fails. So a charge may last as long as the calls, or one
//! interval if this process dies in between.

use std::{cmp::Ordering, mem, slice};

use super::{keys, packed, server::Server};
use crate::values::{
    charge::Charge,
    decision::{Charges, Decision, Grant, Refusal, Source},
    demand::Demand,
    error::Error,
    limit::Algorithm,
};

impl Server {
    /// Decides for one caller, one part after the other.
    ///
    /// # Cancel safety
    ///
    /// Dropping it gives back all that it may have taken.
    pub(super) async fn acquire_in_calls(&self, demand: &Demand) -> Result<Decision, Error> {
        let mut taken = TakenSoFar {
            server: self,
            charges: Vec::new(),
        };
        for part in self.parts(demand) {
            let before = taken.charges.len();
            taken.charges.extend(part.to_settle());
            let decided = self.acquire_callers(slice::from_ref(&part), false).await;
            // A call that failed or was refused has given back what it may have taken.
            taken.charges.truncate(before);
            let decision = match decided {
                // Shadow rules come last, and are no reason to refuse.
                Err(_) if part.is_all_shadow() => continue,
                decisions => decisions?.into_iter().next(),
            };
            match decision {
                None => {}
                Some(Decision::Allow(grant)) => taken.charges.extend_from_slice(grant.charges()),
                Some(Decision::Deny(refusal)) => return Ok(Decision::Deny(taken.refused(refusal))),
            }
        }
        let mut charges = mem::take(&mut taken.charges);
        charges.sort_by(Charge::by_tightness);
        let charges = charges.into_iter().collect();
        Ok(Decision::Allow(Grant::new(charges, Source::Store)))
    }

    /// Returns the parts of the list, one for each call.
    fn parts(&self, demand: &Demand) -> Vec<Demand> {
        let mut charges: Vec<&Charge> = demand.charges().collect();
        charges.sort_by(|a, b| {
            let bounded_first = b
                .compiled()
                .key_is_bounded
                .cmp(&a.compiled().key_is_bounded);
            bounded_first.then_with(|| likelier_to_refuse(a, b))
        });
        let in_slots = self.has_slots();
        let mut parts: Vec<Demand> = Vec::new();
        for charge in charges {
            match parts.iter_mut().find(|part| {
                part.charges.len() < packed::MOST_TOGETHER
                    && self.go_together(part.first(), charge, in_slots)
            }) {
                Some(part) => part.charges.push(charge.clone()),
                None => parts.push(Demand {
                    charges: Charges::one(charge.clone()),
                    ..demand.clone()
                }),
            }
        }
        // Once only shadow rules are left, nothing can refuse.
        parts.sort_by_key(Demand::is_all_shadow);
        parts
    }

    /// Returns whether one script decides for both. Hash tags that differ may share a hash slot,
    /// and are treated as apart all the same.
    pub(super) fn go_together(&self, a: &Charge, b: &Charge, in_slots: bool) -> bool {
        let [a_by, b_by] = [a, b].map(|charge| charge.compiled().counting);
        let [a_algorithm, b_algorithm] = [a_by.algorithm, b_by.algorithm];
        let are_together = match (a_by.in_own_format(), b_by.in_own_format()) {
            // One call has one clock.
            (true, true) => {
                let by_server = |of: Algorithm| of.facts().waits_by_server;
                self.clock.is_none() || by_server(a_algorithm) == by_server(b_algorithm)
            }
            (false, false) => a_algorithm.facts().has_log && b_algorithm.facts().has_log,
            _ => false,
        };
        are_together && (!in_slots || keys::tag(a.name()) == keys::tag(b.name()))
    }
}

/// Orders charges by cost relative to their limit, the highest first; unknown limits come last.
fn likelier_to_refuse(a: &Charge, b: &Charge) -> Ordering {
    let part = |charge: &Charge, of: &Charge| {
        let limit = of.limiter.compiled.limit.given();
        u128::from(charge.permits)
            * u128::from(limit.map_or(u64::MAX, |limit| limit.most_permits()))
    };
    part(b, a).cmp(&part(a, b))
}

/// The permits taken by the calls so far. Dropping it gives them back.
struct TakenSoFar<'a> {
    server: &'a Server,
    /// Also those of the call that is under way.
    charges: Vec<Charge>,
}

impl TakenSoFar<'_> {
    /// Returns a refusal with the state of all limits that the calls have met.
    fn refused(&self, refusal: Refusal) -> Refusal {
        let mut charges = refusal.charges;
        for mut charge in self.charges.iter().cloned() {
            // The number left did not count the permits that are now given back.
            charge.standing.remaining = None;
            charges.push(charge);
        }
        charges.sort_by(Charge::by_tightness);
        Refusal { charges, ..refusal }
    }
}

impl Drop for TakenSoFar<'_> {
    fn drop(&mut self) {
        for charge in self.charges.iter().filter(|charge| charge.took()) {
            self.server.queue_settlement(charge, 0, true);
        }
    }
}
