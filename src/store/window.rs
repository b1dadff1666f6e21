//! The sliding log as pure functions of state and now: what `lua/acquire.lua` does, in Rust.
//!
//! `MemoryStore` counts with them, and the tests hold the script against them, lost keys and resent calls included. So a
//! [`Limiter`] can lack each of its parts, as the keys in Redis can.

mod settle;

use std::collections::VecDeque;

use super::{Answer, Changed, Verdict};
use crate::{
    decision::PermitId,
    error::ErrorKind,
    limit::{LimitSource, StoredLimit},
    list::List,
};

/// Entries beyond those it needs that an acquire removes when somebody reads the permits left.
const PAGE: i64 = 100;
/// The most entries that a repair adds.
const RESTORED: u32 = 100;

/// One limiter's state: the hash, the value and the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limiter {
    pub(crate) limit: Option<StoredLimit>,
    pub(crate) value: Option<i64>,
    pub(crate) log: Log,
}

/// What one call asks of one limiter, whoever its callers are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) limit: LimitSource,
    /// Whether a stored limit that differs from the code's is rewritten.
    pub(crate) rewrite: bool,
    /// Whether the permits left are wanted exactly.
    pub(crate) exact: bool,
    /// Whether the same call may have come before, so that its entries are looked for.
    pub(crate) resendable: bool,
    /// Whether all entries are scored by this clock, so that a score far ahead of it is wrong.
    pub(crate) own_clock: bool,
}

/// One caller of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) permits: u32,
    pub(crate) id: PermitId,
    /// Whether it waits in line: it then is not overtaken by those behind it that wait, too.
    pub(crate) waits: bool,
}

/// The most by which a score may lead the grant it stands for. A constant of the format.
pub(crate) fn ahead_of(interval: i64) -> i64 {
    interval.div_euclid(10)
}

impl Limiter {
    /// Takes permits for each caller, in the order in which they came, or tells when they will be free.
    ///
    /// Each is granted whole or not at all. One that waits and does not fit closes the line to those behind it; one that
    /// does not wait takes what is left. There is one answer for each caller, as they were left by the whole call.
    pub(crate) fn acquire(
        &mut self,
        ask: &Ask,
        callers: &[Caller],
        now: i64,
    ) -> Result<List<Answer>, ErrorKind> {
        let (limit, changed) = self.limit_in_force(ask)?;
        let StoredLimit { rate, interval, .. } = limit;
        let above_rate = Answer {
            verdict: Verdict::AboveRate,
            remaining: 0,
            wait: 0,
            reset: 0,
            now,
            rate,
            interval,
            changed,
            repaired: 0,
        };
        let mut answers = match callers {
            [_] => List::one(above_rate),
            _ => List::Many(vec![above_rate; callers.len()]),
        };
        let holds =
            |log: &Log, caller: &Caller| ask.resendable && log.holds(caller.id, caller.permits);
        // More than the rate only if it was granted before the limit was lowered.
        let wanted: i64 = callers
            .iter()
            .filter(|caller| i64::from(caller.permits) <= rate || holds(&self.log, caller))
            .map(|caller| i64::from(caller.permits))
            .sum();
        if wanted == 0 && changed == Changed::Nothing {
            return Ok(answers);
        }

        let first_id = callers
            .first()
            .map_or(PermitId([0; 16]), |caller| caller.id);
        let mut value = self.agree(rate, interval, now, first_id);
        if !self.log.is_empty() && (ask.exact || value < wanted) {
            let mut budget = wanted + (-value).max(0) + 1;
            let mut enough = wanted;
            if ask.exact {
                budget = budget.max(wanted + PAGE);
                enough = i64::MAX;
            }
            value = self.sweep(value, rate, interval, now, enough, budget);
        }

        let (mut closed, mut in_line, mut repaired) = (false, 0, 0);
        let mut refused = Vec::new();
        for (place, caller) in callers.iter().enumerate() {
            let permits = i64::from(caller.permits);
            if value >= permits && !(closed && caller.waits) {
                answers[place].verdict = Verdict::Granted;
                if !holds(&self.log, caller) {
                    let entry = Entry {
                        score: now,
                        id: caller.id,
                        permits: caller.permits,
                    };
                    self.log.insert(entry);
                    value -= permits;
                }
            } else if holds(&self.log, caller) {
                answers[place].verdict = Verdict::Granted;
            } else if permits <= rate {
                answers[place].verdict = Verdict::Refused;
                let mut needs = permits;
                if caller.waits {
                    needs += in_line;
                    in_line += permits;
                    closed = true;
                }
                // More than the rate is never free at once: each further rate follows an interval later.
                let rounds = (needs - 1).div_euclid(rate);
                refused.push(Refused {
                    place,
                    needs: needs - rounds * rate,
                    later: rounds * interval,
                });
            }
        }
        let mut newest = self.log.newest();
        if !refused.is_empty() {
            refused.sort_by_key(|caller| caller.needs);
            let latest = if ask.own_clock {
                now + ahead_of(interval)
            } else {
                i64::MAX
            };
            // What is left is free now.
            let needs = refused.iter().map(|caller| caller.needs - value);
            let (due, set_back) = self.log.due(needs, latest, now - interval);
            repaired = set_back;
            for (caller, due) in refused.iter().zip(due.iter()) {
                answers[caller.place].wait = due + interval - now + caller.later;
            }
            newest = newest.map(|newest| newest.min(latest));
        }
        self.value = Some(value);
        for answer in answers.iter_mut() {
            answer.remaining = value;
            answer.reset = newest.map_or(0, |newest| newest + interval - now);
            answer.repaired = repaired;
        }
        Ok(answers)
    }

    /// Counts the free permits exactly. `id` marks entries that a repair adds.
    pub(crate) fn available(&mut self, now: i64, id: PermitId) -> Result<i64, ErrorKind> {
        let limit = self.limit.ok_or(ErrorKind::NotInitialized)?;
        let (rate, interval) = (limit.rate, limit.interval);
        let mut value = self.agree(rate, interval, now, id);
        // Where nothing is in use, nothing needs to be noted.
        let counted = self.value.is_some() || !self.log.is_empty();
        if !self.log.is_empty() {
            value = self.sweep(value, rate, interval, now, i64::MAX, i64::MAX);
        }
        if counted {
            self.value = Some(value);
        }
        Ok(value)
    }

    /// Stores a limit where there is none.
    pub(crate) fn try_set_rate(&mut self, limit: StoredLimit) -> bool {
        let unset = self.limit.is_none();
        self.limit.get_or_insert(limit);
        unset
    }

    /// Stores a limit, whatever was stored; `keep` goes on counting what is in use.
    pub(crate) fn set_rate(&mut self, limit: StoredLimit, keep: bool, now: i64) {
        let stored = self.limit.replace(limit);
        let kept = match (stored, self.value) {
            (Some(stored), _) if !keep || stored.rate_type != limit.rate_type => None,
            (Some(stored), Some(value)) if stored.interval == limit.interval => {
                // Below zero if more is in use than the new rate allows: so it holds at once.
                Some(value + limit.rate - stored.rate)
            }
            _ if keep => {
                let live = self.log.live_permits(now - limit.interval);
                (live > 0).then(|| limit.rate - live)
            }
            _ => None,
        };
        self.value = kept;
        if kept.is_none() {
            self.log.clear();
        }
    }

    /// Gives back up to `wanted` permits, the oldest that are in use, and tells how many. `id` marks entries that a repair
    /// adds.
    pub(crate) fn release(
        &mut self,
        wanted: i64,
        now: i64,
        id: PermitId,
    ) -> Result<i64, ErrorKind> {
        let limit = self.limit.ok_or(ErrorKind::NotInitialized)?;
        let (rate, interval) = (limit.rate, limit.interval);
        let mut value = self.agree(rate, interval, now, id);
        if !self.log.is_empty() {
            // What has expired is not in use.
            value = self.sweep(value, rate, interval, now, i64::MAX, i64::MAX);
        }
        let given = self.log.shrink(wanted);
        self.value = Some(if self.log.is_empty() {
            rate
        } else {
            value + given
        });
        Ok(given)
    }

    /// Counts the permits left from the log, whatever `value` says, and tells how many had been lost; below zero: how many
    /// were counted twice.
    pub(crate) fn repair(&mut self, now: i64) -> Result<i64, ErrorKind> {
        let StoredLimit { rate, interval, .. } = self.limit.ok_or(ErrorKind::NotInitialized)?;
        if self.value.is_none() && self.log.is_empty() {
            return Ok(0);
        }
        let logged = self.log.permits();
        let live = self.log.live_permits(now - interval);
        let stored = self.value.replace(rate - live);
        // What has expired and was not credited yet was not lost.
        Ok(stored.map_or(0, |stored| rate - logged - stored))
    }

    /// When all permits are free again, if none is taken meanwhile; `None` if they are.
    pub(crate) fn full_at(&self) -> Option<i64> {
        let interval = self.limit.map_or(0, |limit| limit.interval);
        self.log.newest().map(|newest| newest + interval)
    }

    fn limit_in_force(&mut self, ask: &Ask) -> Result<(StoredLimit, Changed), ErrorKind> {
        let (given, stored) = match (ask.limit, self.limit) {
            (LimitSource::Store, None) => return Err(ErrorKind::NotInitialized),
            (LimitSource::Code(given) | LimitSource::StoreOrInit(given), None) => {
                let given = given.stored();
                self.limit = Some(given);
                return Ok((given, Changed::Created));
            }
            (LimitSource::Store | LimitSource::StoreOrInit(_), Some(stored)) => {
                return Ok((stored, Changed::Nothing));
            }
            (LimitSource::Code(given), Some(stored)) => (given.stored(), stored),
        };
        if given.rate_type != stored.rate_type {
            return Err(ErrorKind::RateTypeDiffers);
        }
        let same = given.rate == stored.rate && given.interval == stored.interval;
        if same || !ask.rewrite {
            return Ok((stored, Changed::Nothing));
        }
        self.value = match self.value {
            // O(1), and a lowered rate holds at once: value may fall below zero.
            Some(value) if given.interval == stored.interval => {
                Some(value + given.rate - stored.rate)
            }
            _ => None,
        };
        let written = StoredLimit {
            rate: given.rate,
            interval: given.interval,
            ..stored
        };
        self.limit = Some(written);
        Ok((written, Changed::Rewritten))
    }

    /// Brings permits left and log into agreement, and returns the permits left.
    fn agree(&mut self, rate: i64, interval: i64, now: i64, id: PermitId) -> i64 {
        let Some(newest) = self.log.newest() else {
            return match self.value {
                Some(value) if value < rate => {
                    // Permits are in use though nobody knows since when: as if granted now.
                    self.log.restore(now, rate - value, id);
                    value
                }
                _ => rate,
            };
        };
        if newest + interval <= now {
            self.log.clear();
            return rate;
        }
        match self.value {
            Some(value) if value <= rate => value,
            _ => rate - self.log.live_permits(now - interval),
        }
    }

    /// Credits expired permits, oldest first, until `wanted` are left or `budget` entries that hold permits are gone.
    fn sweep(
        &mut self,
        mut value: i64,
        rate: i64,
        interval: i64,
        now: i64,
        wanted: i64,
        mut budget: i64,
    ) -> i64 {
        while value < wanted && budget > 0 {
            let size = budget.min(PAGE);
            let mut removed = 0;
            while removed < size
                && let Some(oldest) = self.log.pop_expired(now - interval)
            {
                removed += 1;
                value += i64::from(oldest.permits);
                budget -= i64::from(oldest.permits > 0);
            }
            if removed < size {
                break;
            }
        }
        if value > rate {
            rate - self.log.live_permits(now - interval)
        } else {
            value
        }
    }
}

/// A caller that does not fit.
struct Refused {
    place: usize,
    /// The permits that must be free for it, those of the callers that wait before it included, up to the rate.
    needs: i64,
    /// How much later than that its turn is, where they are more than the rate.
    later: i64,
}

/// The grants of the last interval, in the order of the sorted set: by score, then by member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Log(VecDeque<Entry>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) score: i64,
    pub(crate) permits: u32,
    pub(crate) id: PermitId,
}

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

    pub(crate) fn newest(&self) -> Option<i64> {
        self.0.back().map(|entry| entry.score)
    }

    pub(crate) fn insert(&mut self, entry: Entry) {
        // Nearly always the last place: the clock moves on.
        let mut place = self.0.len();
        while place > 0 && self.0[place - 1].rank() > entry.rank() {
            place -= 1;
        }
        self.0.insert(place, entry);
    }

    fn holds(&self, id: PermitId, permits: u32) -> bool {
        self.0
            .iter()
            .any(|entry| entry.id == id && entry.permits == permits)
    }

    fn remove(&mut self, id: PermitId, permits: u32) -> Option<Entry> {
        // Given back soon after it was taken, so from the new end.
        let place = self
            .0
            .iter()
            .rposition(|entry| entry.id == id && entry.permits == permits);
        place.and_then(|place| self.0.remove(place))
    }

    /// Removes permits from the oldest entries, and tells how many there were.
    fn shrink(&mut self, wanted: i64) -> i64 {
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
                self.insert(oldest);
            }
        }
        given
    }

    fn pop_expired(&mut self, up_to: i64) -> Option<Entry> {
        if self.0.front()?.score <= up_to {
            self.0.pop_front()
        } else {
            None
        }
    }

    /// Removes what has expired and returns the sum of what is left.
    fn live_permits(&mut self, up_to: i64) -> i64 {
        while self.pop_expired(up_to).is_some() {}
        self.permits()
    }

    /// The sum of all that is in it.
    fn permits(&self) -> i64 {
        self.0.iter().map(|entry| i64::from(entry.permits)).sum()
    }

    /// For each of `needs`, which do not fall, the score of the entry whose expiry frees as many permits, or of the last
    /// one; `already` where none is needed. Scores beyond `latest` come from a wrong clock and are set back to it on the way;
    /// the second number counts them.
    fn due(
        &mut self,
        needs: impl Iterator<Item = i64>,
        latest: i64,
        already: i64,
    ) -> (List<i64>, i64) {
        let (mut freed, mut last) = (0, already);
        let mut set_back = Vec::new();
        let mut entries = self.0.iter();
        let mut due = List::EMPTY;
        for needed in needs {
            while freed < needed
                && let Some(entry) = entries.next()
            {
                last = entry.score.min(latest);
                if entry.score > latest {
                    set_back.push(*entry);
                }
                freed += i64::from(entry.permits);
            }
            due.push(last);
        }
        for entry in &set_back {
            self.remove(entry.id, entry.permits);
            self.insert(Entry {
                score: latest,
                ..*entry
            });
        }
        (due, i64::try_from(set_back.len()).unwrap_or(i64::MAX))
    }

    fn restore(&mut self, now: i64, mut permits: i64, id: PermitId) {
        let mut chunk = 0u32;
        while permits > 0 && chunk < RESTORED {
            let part = u32::try_from(permits).unwrap_or(u32::MAX);
            self.insert(Entry {
                score: now,
                permits: part,
                id: restored_id(id, chunk),
            });
            permits -= i64::from(part);
            chunk += 1;
        }
    }

    #[cfg(test)]
    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.0.iter()
    }
}

/// The id of an entry that stands for permits of unknown age, as in `lua/lib/state.lua`.
fn restored_id(id: PermitId, chunk: u32) -> PermitId {
    let mut restored = *b"heal:\0\0\0\0\0\0\0\0\0\0\0";
    restored[5..8].copy_from_slice(&chunk.to_be_bytes()[1..]);
    restored[8..].copy_from_slice(&id.0[8..]);
    PermitId(restored)
}
