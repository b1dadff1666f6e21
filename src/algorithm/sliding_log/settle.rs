//! Settles what was taken: what `settle` of `lua/sliding_log/verbs.lua` does, in Rust.

use super::{Entry, Limiter};
use crate::{
    clock::Now,
    error::ErrorKind,
    limit::StoredLimit,
    receipt::{PermitId, Receipt},
};

impl Limiter {
    /// Settles what one acquire took at `keep` permits. How many were credited; below zero: charged.
    pub(crate) fn settle(
        &mut self,
        receipt: &Receipt,
        keep: u32,
        now: Now,
    ) -> Result<i64, ErrorKind> {
        match keep.checked_sub(receipt.permits) {
            None => Ok(self.give_back(receipt, keep, now)),
            Some(0) => Ok(0),
            Some(more) => self.charge_more(receipt, more, now),
        }
    }

    fn give_back(&mut self, receipt: &Receipt, keep: u32, now: Now) -> i64 {
        let (id, permits) = (receipt.id, receipt.permits);
        let Some(taken) = self.log.remove(id, permits) else {
            return 0;
        };
        let mut credited = i64::from(permits);
        // It can be there already: the acquire was carried out again after it was settled.
        if keep > 0 && !self.log.holds(id, keep) {
            self.log.insert(Entry {
                permits: keep,
                ..taken
            });
            credited -= i64::from(keep);
        }
        self.credit(credited, now, id)
    }

    /// Counts permits as left that are no longer in the log.
    pub(crate) fn credit(&mut self, credited: i64, now: Now, id: PermitId) -> i64 {
        self.value = self.value.map(|value| value + credited);
        if let Some(StoredLimit { rate, interval, .. }) = self.limit {
            self.value = Some(if self.log.is_empty() {
                rate
            } else {
                self.agree(rate, now.ticks(interval), now, id)
            });
        }
        credited
    }

    fn charge_more(&mut self, receipt: &Receipt, more: u32, now: Now) -> Result<i64, ErrorKind> {
        let given = receipt.limit().given().map(|limit| limit.stored());
        let limit = self.limit.or(given).ok_or(ErrorKind::NotInitialized)?;
        self.limit = Some(limit);
        let id = receipt.id.for_more();
        let value = self.agree(limit.rate, now.ticks(limit.interval), now, id);
        let charged = if self.log.holds(id, more) {
            0
        } else {
            self.log.insert(Entry {
                score: now.score(),
                id,
                permits: more,
            });
            i64::from(more)
        };
        // Debt: it was used, so it counts also below zero.
        self.value = Some(value - charged);
        Ok(-charged)
    }
}
