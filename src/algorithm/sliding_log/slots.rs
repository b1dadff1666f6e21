//! A log whose grants are noted in slots: what `lua/slots/entries.lua` does, in Rust.

use super::{Entry, Limiter, PAGE};
use crate::{
    clock::Now,
    error::ErrorKind,
    limit::Slots,
    receipt::{PermitId, Receipt},
};

/// The slot that a call notes its grants in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Noting {
    slots: Slots,
    /// The score of what is noted.
    end: i64,
    /// What is not written yet.
    noted: u32,
    /// An id that nobody else has, for what the slot's own entry cannot hold.
    own: PermitId,
}

impl Limiter {
    /// Notes grants in slots from now on, or else one by one.
    pub(crate) fn note_in(&mut self, slots: Option<Slots>) {
        self.noting = slots.map(|slots| Noting {
            slots,
            end: 0,
            noted: 0,
            own: PermitId([0; 16]),
        });
    }

    /// Finds the slot that `now` is in. Where it has no entry yet, up to two that have expired make place for one: a limiter
    /// that is never exhausted would keep them all.
    pub(crate) fn open_slot(&mut self, value: i64, rate: i64, interval: i64, now: Now) -> i64 {
        let Some(noting) = &mut self.noting else {
            return value;
        };
        noting.end = noting.slots.end(now.score(), interval);
        let end = noting.end;
        if self.log.is_empty() || self.entry_of_slot(end).is_some() {
            return value;
        }
        self.sweep(value, rate, interval, now, i64::MAX, 2)
    }

    /// Notes a grant; false if grants are noted one by one.
    pub(crate) fn note_in_slot(&mut self, permits: u32, id: PermitId) -> bool {
        if (self.noting).is_some_and(|noting| noting.noted.checked_add(permits).is_none()) {
            self.write_slot();
        }
        let Some(noting) = &mut self.noting else {
            return false;
        };
        noting.noted += permits;
        noting.own = id;
        true
    }

    /// Writes what was noted: the slot's entry makes room for one of the sum.
    pub(crate) fn write_slot(&mut self) {
        let Some(Noting {
            end, noted, own, ..
        }) = self.noting
        else {
            return;
        };
        if noted == 0 {
            return;
        }
        let entry = |id, permits| Entry {
            score: end,
            permits,
            id,
        };
        let held = self.entry_of_slot(end);
        let sum = held.map_or(Some(noted), |held| held.permits.checked_add(noted));
        if let (Some(held), None) = (held, sum) {
            // Full: it goes on under another id.
            self.log.remove(held.id, held.permits);
            self.insert_own(entry(own, held.permits));
        }
        let (id, sum) = (id_of_slot(end), sum.unwrap_or(noted));
        if self.log.holds(id, sum) {
            // Somebody set it back.
            self.insert_own(entry(own, noted));
        } else {
            if let Some(held) = held {
                self.log.remove(held.id, held.permits);
            }
            self.log.insert(entry(id, sum));
        }
        if let Some(noting) = &mut self.noting {
            noting.noted = 0;
        }
    }

    /// Settles what was noted in the slot that ends at `end`, if it was, at `keep` permits. How many were credited; below
    /// zero: charged.
    pub(crate) fn settle_in_slot(
        &mut self,
        receipt: &Receipt,
        keep: u32,
        end: i64,
        now: Now,
    ) -> Result<i64, ErrorKind> {
        match receipt.permits.checked_sub(keep) {
            None => self.charge_more_in_slot(receipt, keep - receipt.permits, now),
            Some(less) => Ok(self.give_back_in_slot(receipt, less, end, now)),
        }
    }

    fn give_back_in_slot(&mut self, receipt: &Receipt, less: u32, end: i64, now: Now) -> i64 {
        let Some(held) = self.entry_of_slot(end) else {
            return 0;
        };
        // Others may have given back by number what was noted here.
        let credited = less.min(held.permits);
        self.log.remove(held.id, held.permits);
        let permits = held.permits - credited;
        if permits > 0 {
            let rest = Entry { permits, ..held };
            if self.log.holds(held.id, permits) {
                let id = receipt.id;
                self.insert_own(Entry { id, ..rest });
            } else {
                self.log.insert(rest);
            }
        }
        self.credit(credited.into(), now, receipt.id)
    }

    fn charge_more_in_slot(
        &mut self,
        receipt: &Receipt,
        more: u32,
        now: Now,
    ) -> Result<i64, ErrorKind> {
        let given = receipt.limit().given().map(|limit| limit.stored());
        let limit = self.limit.or(given).ok_or(ErrorKind::NotInitialized)?;
        self.limit = Some(limit);
        let id = receipt.id.for_more();
        let interval = now.ticks(limit.interval);
        let value = self.agree(limit.rate, interval, now, id);
        let value = self.open_slot(value, limit.rate, interval, now);
        self.note_in_slot(more, id);
        self.write_slot();
        // Debt: it was used, so it counts also below zero.
        self.value = Some(value - i64::from(more));
        Ok(-i64::from(more))
    }

    /// Adds an entry under a caller's id. Where that has one already, as where a call comes twice,
    /// under one that follows from it.
    fn insert_own(&mut self, mut entry: Entry) {
        for _ in 0..=u8::MAX {
            if !self.log.holds(entry.id, entry.permits) {
                self.log.insert(entry);
                return;
            }
            entry.id.0[15] = entry.id.0[15].wrapping_add(1);
        }
    }

    /// The slot's entry, unless so many others that ended in the same millisecond stand before it.
    fn entry_of_slot(&self, end: i64) -> Option<Entry> {
        let id = id_of_slot(end);
        let ended = self.log.scored(end).take(PAGE as usize);
        ended.copied().find(|entry| entry.id == id)
    }
}

/// Another slot's of as many permits must be another entry.
fn id_of_slot(end: i64) -> PermitId {
    let mut id = *b"slot:\0\0\0\0\0\0\0\0\0\0\0";
    id[8..].copy_from_slice(&end.to_be_bytes());
    PermitId(id)
}
