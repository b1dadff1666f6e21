//! Lists of limiters for which no one script can decide: a Redis Cluster keeps them in different slots, or some of them count
//! by windows.
//!
//! One call for each part, the likeliest refusal first. What was taken is given back by receipt when a later call refuses or
//! fails; so a charge may stand for as long as the calls last, and where this process dies in between, for one interval.

use std::cmp::Ordering;

use super::{Server, wire};
use crate::{
    decision::{Decision, Grant, LimitState, Receipt, Refusal, Source},
    error::Error,
    limit::{Algorithm, LimitSource},
    list::List,
    store::{Acquire, Charge, Decide},
};

/// Whether one script decides for all limiters of a list.
pub(super) fn is_one_call(acquire: &Acquire, in_slots: bool) -> bool {
    let mut rest = acquire.rest.iter();
    rest.all(|charge| go_together(&acquire.first, charge, in_slots))
}

/// Hash tags that differ may share a slot, and are taken apart all the same.
fn go_together(a: &Charge, b: &Charge, in_slots: bool) -> bool {
    // A window's script is not safe to send again.
    let logs = [a, b].map(|charge| charge.name.algorithm()) == [Algorithm::SlidingLog; 2];
    logs && (!in_slots || wire::tag(&a.name) == wire::tag(&b.name))
}

/// Decides for one caller, one part after the other.
///
/// # Cancel safety
///
/// Dropping it may leave a part of the list taken; receipts made before give it back.
pub(super) async fn acquire(server: &Server, acquire: &Acquire) -> Result<Decision, Error> {
    let mut taken = Taken {
        limits: List::EMPTY,
        receipts: List::EMPTY,
    };
    for part in parts(acquire, server.connection.has_nodes()) {
        let decision = server
            .acquire_at_once(&part, std::slice::from_ref(&part))
            .await;
        match decision.map(|mut decisions| decisions.pop()) {
            Ok(None) => {}
            Ok(Some(Decision::Allow(grant))) => {
                grant
                    .limits
                    .iter()
                    .for_each(|limit| taken.limits.push(limit.clone()));
                grant
                    .receipts
                    .iter()
                    .for_each(|receipt| taken.receipts.push(receipt.clone()));
            }
            Ok(Some(Decision::Deny(refusal))) => {
                return Ok(Decision::Deny(taken.undo(server, refusal)));
            }
            // What is only tried out comes last, and is no reason to refuse.
            Err(_) if part.is_trial() => {}
            Err(error) => {
                taken.give_back(server);
                return Err(error);
            }
        }
    }
    taken.limits.sort_by(LimitState::by_tightness);
    Ok(Decision::Allow(Grant {
        limits: taken.limits,
        receipts: taken.receipts,
        source: Source::Store,
    }))
}

/// The list, one for each call.
fn parts(acquire: &Acquire, in_slots: bool) -> Vec<Acquire> {
    let mut charges: Vec<&Charge> = acquire.charges().collect();
    charges.sort_by(|a, b| likelier_to_refuse(a, b));
    let mut parts: Vec<Acquire> = Vec::new();
    for charge in charges {
        match parts
            .iter_mut()
            .find(|part| go_together(&part.first, charge, in_slots))
        {
            Some(part) => part.rest.push(charge.clone()),
            None => parts.push(Acquire {
                first: charge.clone(),
                rest: Vec::new(),
                ..acquire.clone()
            }),
        }
    }
    // Where only trials are left, nothing can refuse any more.
    parts.sort_by_key(Acquire::is_trial);
    parts
}

/// Those with the greatest cost for their limit come first; where the limit is not known beforehand, last.
fn likelier_to_refuse(a: &Charge, b: &Charge) -> Ordering {
    let part = |charge: &Charge, of: &Charge| {
        u128::from(charge.permits) * u128::from(known_rate(of).unwrap_or(u64::MAX))
    };
    part(b, a).cmp(&part(a, b))
}

fn known_rate(charge: &Charge) -> Option<u64> {
    match charge.limit {
        LimitSource::Code(limit) | LimitSource::StoreOrInit(limit) => Some(limit.permits()),
        LimitSource::Store => None,
    }
}

/// What the calls up to now have taken.
struct Taken {
    limits: List<LimitState>,
    receipts: List<Receipt>,
}

impl Taken {
    fn give_back(&self, server: &Server) {
        for receipt in self.receipts.iter() {
            server.give_back(receipt.clone(), 0);
        }
    }

    /// Gives back what was taken, and tells of all limits that were met.
    fn undo(self, server: &Server, refusal: Refusal) -> Refusal {
        self.give_back(server);
        let mut limits = refusal.limits;
        for mut limit in self.limits.iter().cloned() {
            // What was left counted what is given back.
            limit.remaining = None;
            limits.push(limit);
        }
        limits.sort_by(LimitState::by_tightness);
        Refusal { limits, ..refusal }
    }
}
