//! The entries of a sliding log, in the order of their scores: [`Log`].

use std::collections::VecDeque;

use crate::{
    algorithm::{bytes::bytes, limiter::Needs},
    values::charge::PermitId,
};

/// The most entries that a repair adds.
const RESTORED: u32 = 100;

/// The grants of the last interval, in the order of the sorted set: by score, then by member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Log(VecDeque<Entry>);

bytes!(Log { 0 });

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) score: i64,
    pub(crate) permits: u32,
    pub(crate) id: PermitId,
}

bytes!(Entry { score, permits, id });

impl Entry {
    /// Where it stands among others: Redis compares members as bytes where scores are equal.
    fn rank(&self) -> (i64, PermitId, [u8; 4]) {
        (self.score, self.id, self.permits.to_le_bytes())
    }
}

impl Log {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn oldest(&self) -> Option<i64> {
        self.0.front().map(|entry| entry.score)
    }

    pub(crate) fn newest(&self) -> Option<i64> {
        self.0.back().map(|entry| entry.score)
    }

    pub(crate) fn insert(&mut self, entry: Entry) {
        // One entry is all that most logs hold.
        if self.0.len() == self.0.capacity() {
            self.0.reserve_exact(self.0.len().max(1));
        }
        let is_later = |held: &Entry| held.rank() > entry.rank();
        if self.0.back().is_some_and(is_later) {
            let later = self.0.iter().rev().take_while(|held| is_later(held));
            let index = self.0.len() - later.count();
            self.0.insert(index, entry);
        } else {
            // Nearly always: the clock moves on.
            self.0.push_back(entry);
        }
    }

    pub(super) fn holds(&self, id: PermitId, permits: u32) -> bool {
        self.0
            .iter()
            .any(|entry| entry.id == id && entry.permits == permits)
    }

    pub(super) fn remove(&mut self, id: PermitId, permits: u32) -> Option<Entry> {
        // Given back soon after it was taken, so from the new end.
        let index = self
            .0
            .iter()
            .rposition(|entry| entry.id == id && entry.permits == permits);
        index.and_then(|index| self.0.remove(index))
    }

    /// Removes permits from the oldest entries. Returns how many there were.
    pub(super) fn shrink(&mut self, wanted: i64) -> i64 {
        let mut given = 0;
        while given < wanted
            && let Some(mut oldest) = self.0.pop_front()
        {
            let held = i64::from(oldest.permits);
            if held <= wanted - given {
                given += held;
            } else {
                // Less than it held, so it fits.
                oldest.permits -= u32::try_from(wanted - given).unwrap_or(0);
                given = wanted;
                // One acquire may be there with as many already, left of what came again or was
                // settled twice.
                self.remove(oldest.id, oldest.permits);
                self.insert(oldest);
            }
        }
        given
    }

    /// The entries of this score, in their order.
    pub(super) fn scored(&self, score: i64) -> impl Iterator<Item = &Entry> {
        let from = self.0.partition_point(|entry| entry.score < score);
        self.0
            .range(from..)
            .take_while(move |entry| entry.score == score)
    }

    pub(super) fn pop_expired(&mut self, up_to: i64) -> Option<Entry> {
        if self.0.front()?.score <= up_to {
            self.0.pop_front()
        } else {
            None
        }
    }

    /// Removes what has expired and returns the sum of what is left.
    pub(super) fn live_permits(&mut self, up_to: i64) -> i64 {
        while self.pop_expired(up_to).is_some() {}
        self.permits()
    }

    /// The sum of all that is in it.
    pub(super) fn permits(&self) -> i64 {
        self.0.iter().map(|entry| i64::from(entry.permits)).sum()
    }

    /// Returns the entries that are later than a score, the oldest first.
    pub(super) fn after(&self, score: i64) -> impl Iterator<Item = &Entry> {
        let from = self.0.partition_point(|entry| entry.score <= score);
        self.0.range(from..)
    }

    /// The sum of those.
    pub(super) fn permits_after(&self, score: i64) -> i64 {
        let newest = self.0.iter().rev();
        let after = newest.take_while(|entry| entry.score > score);
        after.map(|entry| i64::from(entry.permits)).sum()
    }

    /// Gives each of `needs`, in ascending order, the score of the entry whose expiry frees what it
    /// lacks besides what is `left`, or of the last one; `already` where it lacks nothing.
    pub(super) fn due(&self, needs: &mut [Needs], left: i64, already: i64) {
        let (mut freed, mut last) = (left, already);
        let mut entries = self.0.iter();
        for needs in needs {
            while freed < needs.permits
                && let Some(entry) = entries.next()
            {
                last = entry.score;
                freed += i64::from(entry.permits);
            }
            needs.wait = last;
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Merges the entries of each part of time, which is a width of scores, to the last of them:
    /// one that is merged again moves no further. So many of the newest stay as they are.
    pub(super) fn merge(&mut self, width_at: impl Fn(i64) -> i64, newest: usize) {
        let mut part = None;
        let mut merged: VecDeque<Entry> = VecDeque::new();
        let newest = self.0.split_off(self.0.len().saturating_sub(newest));
        for entry in self.0.drain(..) {
            let width = width_at(entry.score).max(1);
            let its_part = (width, entry.score.div_euclid(width));
            if part == Some(its_part)
                && let Some(slot) = merged.back_mut()
                && let Some(permits) = slot.permits.checked_add(entry.permits)
            {
                *slot = Entry {
                    permits,
                    score: entry.score,
                    // What is merged can no longer be given back.
                    id: PermitId::NONE,
                };
            } else {
                part = Some(its_part);
                merged.push_back(entry);
            }
        }
        merged.extend(newest);
        self.0 = merged;
    }

    /// Sets back to `latest` the scores that are later, which a wrong clock has written. Returns
    /// how many.
    pub(super) fn set_back(&mut self, latest: i64) -> i64 {
        if self.newest().is_none_or(|newest| newest <= latest) {
            return 0;
        }
        let from = self.0.partition_point(|entry| entry.score < latest);
        let entries = self.0.make_contiguous().get_mut(from..).unwrap_or_default();
        let mut count = 0;
        for entry in entries.iter_mut() {
            count += i64::from(entry.score > latest);
            entry.score = latest;
        }
        entries.sort_unstable_by_key(Entry::rank);
        count
    }

    pub(super) fn restore(&mut self, score: i64, mut permits: i64, id: PermitId) {
        let mut chunk = 0u32;
        while permits > 0 && chunk < RESTORED {
            let part = u32::try_from(permits).unwrap_or(u32::MAX);
            self.insert(Entry {
                score,
                permits: part,
                id: restored_id(id, chunk),
            });
            permits -= i64::from(part);
            chunk += 1;
        }
    }

    #[cfg(any(test, fleet))]
    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.0.iter()
    }
}

/// The id of an entry that stands for permits of unknown age, as in `lua/sliding_log/state.lua`.
fn restored_id(id: PermitId, chunk: u32) -> PermitId {
    let mut restored = *b"heal:\0\0\0\0\0\0\0\0\0\0\0";
    restored[5..8].copy_from_slice(&chunk.to_be_bytes()[1..]);
    restored[8..].copy_from_slice(&id.0[8..]);
    PermitId(restored)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_has_room_for_twice_its_entries_at_most() {
        let mut log = Log::default();
        for score in 0..20 {
            log.insert(Entry {
                score,
                permits: 1,
                id: PermitId::NONE,
            });
            let (room, held) = (log.0.capacity(), log.0.len());
            assert!(room < 2 * held, "{room} for {held}");
        }
    }
}
