//! The sliding log as pure functions of state and now: what the scripts do, in Rust. Who gets what in a call, `call.rs` says.
//!
//! `MemoryStore` counts with them, and the tests hold the script against them, lost keys and resent calls included. So a
//! [`Limiter`] can lack each of its parts, as the keys in Redis can.

mod log;
mod settle;
mod slots;

pub(crate) use self::log::{Entry, Log};
use self::slots::Noting;
use super::{
    answer::{Answer, Changed},
    call::{Counts, Needs},
};
use crate::{
    clock::{Now, TICKS},
    demand::Charge,
    error::ErrorKind,
    limit::{StoredLimit, ahead_of},
    receipt::PermitId,
};

/// Entries beyond those it needs that an acquire removes when somebody reads the permits left.
const PAGE: i64 = 100;

/// One limiter's state: the hash, the value and the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limiter {
    pub(crate) limit: Option<StoredLimit>,
    pub(crate) value: Option<i64>,
    pub(crate) log: Log,
    /// Where the present call notes its grants, unless each is an entry of its own.
    pub(crate) noting: Option<Noting>,
}

impl Counts for Limiter {
    fn limit(&self) -> Option<StoredLimit> {
        self.limit
    }

    fn begin(
        &mut self,
        limit: StoredLimit,
        changed: Changed,
        wanted: i64,
        exact: bool,
        now: Now,
        id: PermitId,
    ) -> i64 {
        let (rate, interval) = (limit.rate, now.ticks(limit.interval));
        if changed == Changed::Rewritten
            && let Some(before) = self.limit
        {
            self.value = match self.value {
                // O(1), and a lowered rate holds at once: value may fall below zero.
                Some(value) if limit.interval == before.interval => {
                    Some(value + rate - before.rate)
                }
                _ => None,
            };
        }
        self.limit = Some(limit);
        let value = match self.value {
            // Enough is left, and the books agree by the number of entries: no entry is looked at.
            Some(value) if !exact && value >= wanted && self.has_single_entries(value) => value,
            _ => self.count(limit, wanted, exact, now, id),
        };
        // Where nothing is left, nothing will be noted.
        if value > 0 {
            self.open_slot(value, rate, interval, now)
        } else {
            value
        }
    }

    fn is_unused(&self, value: i64) -> bool {
        let whole = self.limit.is_some_and(|limit| limit.rate == value);
        whole && self.value.is_none() && self.log.newest().is_none()
    }

    fn unmake(&mut self) {
        self.limit = None;
        self.value = None;
    }

    fn holds(&self, charge: &Charge) -> bool {
        self.log.holds(charge.id, charge.permits)
    }

    fn note(&mut self, charge: &Charge, score: i64) {
        let Charge { permits, id, .. } = *charge;
        if !self.note_in_slot(permits, id) {
            self.log.insert(Entry { score, permits, id });
        }
    }

    fn end(&mut self, answer: &mut Answer, needs: &mut [Needs], exact: bool) {
        let (value, now) = (answer.remaining, answer.now);
        self.write_slot();
        self.value = Some(value);
        let interval = self.limit.map_or(0, |limit| now.ticks(limit.interval));
        let mut newest = self.log.newest();
        if !needs.is_empty() {
            let latest = if now.is_own {
                now.score() + ahead_of(interval)
            } else {
                i64::MAX
            };
            // What is left is free now.
            answer.repaired = self.log.due(needs, value, latest, now.score() - interval);
            for needs in needs {
                needs.wait += interval - now.tick + needs.rounds * interval;
            }
            newest = newest.map(|newest| newest.min(latest));
        }
        // In debt, one more is not free yet; where very much expired at once, what is left is not
        // all.
        let oldest = self.log.oldest().filter(|_| exact && value >= 0);
        answer.next = oldest.map_or(0, |oldest| (oldest + interval - now.tick).max(0));
        answer.reset = match newest {
            Some(newest) if exact => newest + interval - now.tick,
            Some(_) => now.score() + interval - now.tick,
            None => 0,
        };
    }
}

impl Limiter {
    /// Counts the free permits exactly. `id` marks entries that a repair adds.
    pub(crate) fn available(&mut self, now: Now, id: PermitId) -> Result<i64, ErrorKind> {
        let limit = self.limit.ok_or(ErrorKind::NotInitialized)?;
        let (rate, interval) = (limit.rate, now.ticks(limit.interval));
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
    pub(crate) fn set_rate(&mut self, limit: StoredLimit, keep: bool, now: Now) {
        let stored = self.limit.replace(limit);
        let kept = match (stored, self.value) {
            (Some(stored), _) if !keep || stored.rate_type != limit.rate_type => None,
            (Some(stored), Some(value)) if stored.interval == limit.interval => {
                // Below zero if more is in use than the new rate allows: so it holds at once.
                Some(value + limit.rate - stored.rate)
            }
            _ if keep => {
                let live = self.log.live_permits(now.tick - now.ticks(limit.interval));
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
        now: Now,
        id: PermitId,
    ) -> Result<i64, ErrorKind> {
        let limit = self.limit.ok_or(ErrorKind::NotInitialized)?;
        let (rate, interval) = (limit.rate, now.ticks(limit.interval));
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
    pub(crate) fn repair(&mut self, now: Now) -> Result<i64, ErrorKind> {
        let limit = self.limit.ok_or(ErrorKind::NotInitialized)?;
        let (rate, interval) = (limit.rate, now.ticks(limit.interval));
        if self.value.is_none() && self.log.is_empty() {
            return Ok(0);
        }
        let logged = self.log.permits();
        let live = self.log.live_permits(now.tick - interval);
        let stored = self.value.replace(rate - live);
        // What has expired and was not credited yet was not lost.
        Ok(stored.map_or(0, |stored| rate - logged - stored))
    }

    /// The tick from which all permits are free again, if none is taken meanwhile; `None` if they
    /// are. Of this process.
    pub(crate) fn full_at(&self) -> Option<i64> {
        let interval = self.limit.map_or(0, |limit| limit.interval * TICKS);
        self.log.newest().map(|newest| newest + interval)
    }

    /// Whether books with this value agree if each entry holds one permit, as most do where grants are noted one by one.
    fn has_single_entries(&self, value: i64) -> bool {
        let rate = self.limit.map_or(0, |limit| limit.rate);
        self.noting.is_none() && self.log.count() == rate - value
    }

    /// Counts the permits left, and credits what has expired: all of it, within bounds, or as much as is wanted.
    fn count(
        &mut self,
        limit: StoredLimit,
        wanted: i64,
        exact: bool,
        now: Now,
        id: PermitId,
    ) -> i64 {
        let (rate, interval) = (limit.rate, now.ticks(limit.interval));
        let value = self.agree(rate, interval, now, id);
        let budget = wanted + (-value).max(0) + 1;
        if exact {
            let budget = budget.max(wanted + PAGE);
            self.sweep(value, rate, interval, now, i64::MAX, budget)
        } else {
            self.sweep(value, rate, interval, now, wanted, budget)
        }
    }

    /// Brings permits left and log into agreement, and returns the permits left.
    fn agree(&mut self, rate: i64, interval: i64, now: Now, id: PermitId) -> i64 {
        let Some(newest) = self.log.newest() else {
            return match self.value {
                Some(value) => {
                    // Permits are in use though nobody knows since when: as if granted now.
                    self.log.restore(now.score(), rate - value, id);
                    value.min(rate)
                }
                None => rate,
            };
        };
        if newest + interval <= now.tick {
            self.log.clear();
            return rate;
        }
        match self.value {
            Some(value) if value <= rate => value,
            _ => rate - self.log.live_permits(now.tick - interval),
        }
    }

    /// Credits expired permits, oldest first, until `wanted` are left or `budget` entries that hold permits are gone.
    fn sweep(
        &mut self,
        mut value: i64,
        rate: i64,
        interval: i64,
        now: Now,
        wanted: i64,
        mut budget: i64,
    ) -> i64 {
        while value < wanted && budget > 0 {
            let size = budget.min(PAGE);
            let mut removed = 0;
            while removed < size
                && let Some(oldest) = self.log.pop_expired(now.tick - interval)
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
            rate - self.log.live_permits(now.tick - interval)
        } else {
            value
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::limit::Limit;

    fn limiter(entries: &[(i64, u32)]) -> Limiter {
        let mut limiter = Limiter {
            limit: Some(Limit::new(5, Duration::from_millis(700)).stored()),
            ..Limiter::default()
        };
        for (id, (score, permits)) in (0..).zip(entries) {
            limiter.log.insert(Entry {
                score: *score,
                permits: *permits,
                id: PermitId([id; 16]),
            });
        }
        limiter
    }

    const ID: PermitId = PermitId([0; 16]);

    /// The rest is held against the scripts: `tests/inside/model`. They forget nothing that can still be asked for.
    #[test]
    fn it_is_full_an_interval_after_the_newest_entry() {
        assert_eq!(limiter(&[]).full_at(), None);
        let mut limiter = limiter(&[(5_000, 1), (5_300, 1), (4_000, 1)]);
        assert_eq!(limiter.full_at(), Some(705_300));
        assert_eq!(limiter.available(Now::at(705_299), ID), Ok(4));
        assert_eq!(limiter.available(Now::at(705_300), ID), Ok(5));
        assert_eq!(limiter.full_at(), None);
    }

    #[test]
    fn where_more_than_the_rate_would_be_left_what_is_live_is_counted() {
        let entries = [(5_000, 6), (5_001, 1), (5_002, 1), (5_003, 1), (5_900, 1)];
        let mut limiter = limiter(&entries);
        limiter.value = Some(0);
        let stored = limiter.limit.unwrap();
        // It looks at two, and the others have expired, too.
        let now = Now::millis(6_000);
        let left = limiter.begin(stored, Changed::Nothing, 1, false, now, ID);
        assert_eq!(left, 4);
        assert_eq!(limiter.log.permits(), 1);
    }
}
