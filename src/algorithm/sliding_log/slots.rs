//! A sliding log that merges all grants of a slot in one entry, a bucket, as
//! `lua/slots/entries.lua` does in Redis.

use super::{Entry, PAGE, SlidingLog};
use crate::{
    algorithm::limiter::CallContext,
    values::{charge::PermitId, limit::Slots},
};

/// The bucket that a call records its grants in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bucket {
    pub(super) slots: Slots,
    /// The score of its entry
    end: i64,
    /// The permits that are not in the log yet
    permits: u32,
    /// An id of a caller's, for what the bucket's own entry cannot hold
    own: PermitId,
}

impl Bucket {
    pub(super) fn new(slots: Slots) -> Self {
        Self {
            slots,
            end: 0,
            permits: 0,
            own: PermitId::NONE,
        }
    }
}

impl SlidingLog {
    /// Finds the bucket of now. If it has no entry yet, up to two that have expired make room for
    /// one: a limiter that is never exhausted would keep them all.
    pub(super) fn open_bucket(&mut self, call: &CallContext, value: i64) -> i64 {
        let Some(bucket) = self.bucket_mut() else {
            return value;
        };
        bucket.end = bucket.slots.end(call.now.score(), call.interval());
        let end = bucket.end;
        if self.log.is_empty() || self.entry_of_bucket(end).is_some() {
            return value;
        }
        self.sweep(call, value, i64::MAX, 2)
    }

    /// Records a grant in the bucket.
    pub(super) fn add_to_bucket(&mut self, permits: u32, id: PermitId) {
        let is_full = |bucket: &Bucket| bucket.permits.checked_add(permits).is_none();
        if self.bucket().is_some_and(is_full) {
            self.write_bucket();
        }
        if let Some(bucket) = self.bucket_mut() {
            bucket.permits += permits;
            bucket.own = id;
        }
    }

    /// Writes what was recorded: one of the sum takes the place of the bucket's entry.
    pub(super) fn write_bucket(&mut self) {
        let bucket = self.bucket().copied();
        let Some(Bucket {
            end, permits, own, ..
        }) = bucket.filter(|bucket| bucket.permits > 0)
        else {
            return;
        };
        let entry = |id, permits| Entry {
            score: end,
            permits,
            id,
        };
        let held = self.entry_of_bucket(end);
        let sum = held.map_or(Some(permits), |held| held.permits.checked_add(permits));
        if let (Some(held), None) = (held, sum) {
            // Full: the bucket continues under another id.
            self.log.remove(held.id, held.permits);
            self.insert_own(entry(own, held.permits));
        }
        let (id, sum) = (id_of_bucket(end), sum.unwrap_or(permits));
        if self.log.holds(id, sum) {
            // Its score was set back.
            self.insert_own(entry(own, permits));
        } else {
            if let Some(held) = held {
                self.log.remove(held.id, held.permits);
            }
            self.log.insert(entry(id, sum));
        }
        if let Some(bucket) = self.bucket_mut() {
            bucket.permits = 0;
        }
    }

    /// Removes the entry of the bucket that ends at `end`, if there is one.
    pub(super) fn remove_bucket(&mut self, end: i64) -> Option<Entry> {
        let held = self.entry_of_bucket(end)?;
        self.log.remove(held.id, held.permits)
    }

    /// Adds an entry under a caller's id. Where that has one already, as where a call comes twice,
    /// under one that follows from it.
    pub(super) fn insert_own(&mut self, mut entry: Entry) {
        for _ in 0..=u8::MAX {
            if !self.log.holds(entry.id, entry.permits) {
                self.log.insert(entry);
                return;
            }
            entry.id.0[15] = entry.id.0[15].wrapping_add(1);
        }
    }

    /// Returns the bucket's entry, unless a page of others that ended in the same millisecond
    /// stands before it.
    fn entry_of_bucket(&self, end: i64) -> Option<Entry> {
        let id = id_of_bucket(end);
        let ended = self.log.scored(end).take(PAGE as usize);
        ended.copied().find(|entry| entry.id == id)
    }
}

/// Returns the id of a bucket's entry: that of another bucket with as many permits must differ.
fn id_of_bucket(end: i64) -> PermitId {
    let mut id = *b"slot:\0\0\0\0\0\0\0\0\0\0\0";
    id[8..].copy_from_slice(&end.to_be_bytes());
    PermitId(id)
}
