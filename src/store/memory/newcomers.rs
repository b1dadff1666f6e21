//! What a store does with untracked names, and with those that it tracks later: it charges their
//! limiters with what they took.

use super::{
    shard::KeptLimiter,
    shared::Shared,
    untracked::{Locked, Untracked, latest},
};
use crate::values::{
    charge::{Charge, PermitId},
    clock::Now,
    compiled_limit::Limiter,
    error::Error,
    limit::{Limit, at_least_zero},
};

impl KeptLimiter {
    /// Takes grants from elsewhere, each with its time, the earliest first.
    pub(super) fn charge_past(
        &mut self,
        limiter: &Limiter,
        past: &[(i64, u32)],
        now: Now,
    ) -> Result<(), Error> {
        let (id, mut full_at) = (PermitId::next(), self.limiter.full_at());
        if full_at.take_if(|end| *end <= now.tick).is_some() {
            // A window that is over would begin again with the first of them.
            self.limiter.state.forget();
        }
        let mut past = past.iter();
        past.try_for_each(|(at, permits)| {
            // A grant cannot be earlier than those in use at that time.
            let at = full_at.map_or(*at, |end| end.max(*at).min(now.tick));
            self.charge(limiter, (id, *permits), Now::at(at))
        })
    }
}

impl Shared {
    /// Locks the untracked names. A caller that needs locks of shards takes them before.
    pub(super) fn untracked(&self) -> Locked<'_> {
        self.untracked.lock(|| self.now())
    }

    /// Charges a newcomer with the permits it took while it was untracked.
    pub(super) fn charge_estimated(
        &self,
        kept: &mut KeptLimiter,
        limiter: &Limiter,
        now: Now,
    ) -> Result<(), Error> {
        let stored = limiter.compiled.limit.given().map(Limit::stored);
        let Some(stored) = stored.or(kept.limiter.limit) else {
            return Ok(());
        };
        if !self.untracked.any() {
            return Ok(());
        }
        let past = self.untracked().past(&limiter.name, &stored);
        let past = latest(past, at_least_zero(stored.rate));
        kept.charge_past(limiter, &past, now)
    }

    /// Charges the permits that a receipt's grant used beyond its own, to an untracked name.
    pub(super) fn owe(&self, receipt: &Charge, keep: u32, now: Now) {
        let is_settled = receipt.taken.is_some() && receipt.claim_mark().is_none();
        let more = keep.saturating_sub(receipt.permits);
        if !is_settled {
            self.charge_untracked(&receipt.limiter, &[(now.score(), more)]);
        }
    }

    /// Adds to the permits of an untracked name, whose shard is locked. Returns whether that
    /// can be counted.
    pub(super) fn charge_untracked(&self, limiter: &Limiter, past: &[(i64, u32)]) -> bool {
        let given = limiter.compiled.limit.given();
        let Some(limit) = given.filter(|limit| Untracked::can_count(Some(limit))) else {
            return false;
        };
        let mut untracked = self.untracked();
        past.iter()
            .all(|taken| untracked.add(&limiter.name, limit, self.max, *taken))
    }
}
