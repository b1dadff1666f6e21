//! Decides for callers in one call, or for one caller in several: no single script reaches all
//! limiters of a list that a Redis Cluster keeps in different hash slots, or if some of them count
//! by windows. (Slots in this file are hash slots.)
//!
//! Of such a list, there is one call for each part. Limiters whose keys callers cannot make up, such as an
//! address's, come first, so that a caller over that limit cannot have invented names looked up;
//! within both groups the likeliest refusal comes first. Permits already taken are given back by
//! receipt when a later call refuses or fails. So a charge may stand for as long as the calls last,
//! and for one interval if this process dies in between.

use std::{cmp::Ordering, mem};

use super::{server::Server, wire};
use crate::{
    decision::{Decision, Grant, LimitState, Refusal, Source},
    demand::{Acquire, Charge},
    error::Error,
    list::List,
    receipt::Receipt,
    store::{Calls, guard::policy},
};

impl Calls for Server {
    async fn acquire_run(&self, run: &[Acquire]) -> Result<List<Decision>, Error> {
        let error = match acquire_all(self, run).await {
            Err(error) => error,
            decisions => return decisions,
        };
        match policy::without_shadows(run, &error) {
            // What is rare is boxed, so that the futures of others have no room for it.
            Some(enforced) => Box::pin(acquire_all(self, &enforced)).await,
            None => Err(error),
        }
    }

    fn decides_together(&self, acquire: &Acquire) -> bool {
        let names = acquire.charges().map(|charge| charge.name());
        wire::is_one_call(names, self.connection.is_cluster())
    }

    fn settle(&self, receipt: Receipt, keep: u32) {
        self.settle(&receipt, keep, false);
    }
}

/// Decides for callers of the same limiters, in one call or one after the other.
async fn acquire_all(server: &Server, run: &[Acquire]) -> Result<List<Decision>, Error> {
    let Some(first) = run.first() else {
        return Ok(List::new());
    };
    first.check()?;
    if server.decides_together(first) {
        return server.acquire_part(first, run).await;
    }
    // One at a time: each caller gets its decision at once, and holds nothing while others are
    // decided.
    let decision = Box::pin(acquire_parts(server, first)).await?;
    Ok(List::from([decision]))
}

/// Decides for one caller, one part after the other.
///
/// # Cancel safety
///
/// Dropping it gives back all that it may have taken.
async fn acquire_parts(server: &Server, acquire: &Acquire) -> Result<Decision, Error> {
    let mut taken = Taken {
        server,
        limits: List::new(),
        receipts: List::new(),
        asking: List::new(),
    };
    for part in parts(acquire, server.connection.is_cluster()) {
        taken.asking = part.receipts();
        let decision = server
            .acquire_part(&part, std::slice::from_ref(&part))
            .await;
        // The call failed or was refused, and what it may have taken was given back.
        taken.asking = List::new();
        let decision = match decision {
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

/// Returns the parts of the list, one for each call.
fn parts(acquire: &Acquire, is_cluster: bool) -> Vec<Acquire> {
    let mut charges: Vec<&Charge> = acquire.charges().collect();
    charges.sort_by(|a, b| {
        let made_up = |charge: &Charge| !charge.bounded;
        let by_key = made_up(a).cmp(&made_up(b));
        by_key.then_with(|| likelier_to_refuse(a, b))
    });
    let mut parts: Vec<Acquire> = Vec::new();
    for charge in charges {
        match parts
            .iter_mut()
            .find(|part| wire::go_together(part.first.name(), charge.name(), is_cluster))
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
fn likelier_to_refuse(a: &Charge, b: &Charge) -> Ordering {
    let part = |charge: &Charge, of: &Charge| {
        let limit = of.limiter.limit.given();
        u128::from(charge.permits) * u128::from(limit.map_or(u64::MAX, |limit| limit.permits()))
    };
    part(b, a).cmp(&part(a, b))
}

/// The permits taken by the calls so far. Dropping it gives them back.
struct Taken<'a> {
    server: &'a Server,
    limits: List<LimitState>,
    receipts: List<Receipt>,
    /// Those of the call that is under way.
    asking: List<Receipt>,
}

impl Taken<'_> {
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

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        for receipt in self.receipts.iter().chain(self.asking.iter()) {
            self.server.settle(receipt, 0, true);
        }
    }
}
