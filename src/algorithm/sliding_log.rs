//! The algorithm sliding log: decides in Rust as `lua/packed/log.lua` does in Redis; in Redisson's
//! format, `lua/sliding_log` and `lua/slots`.

mod log;
mod several;
mod slots;

pub(crate) use self::log::{Entry, Log};
use self::slots::Bucket;
use super::{
    answer::Answer,
    bytes::bytes,
    limiter::{CallContext, Counter, GiveBack, Needs},
};
use crate::values::{
    charge::{Charge, Taken},
    clock::{Now, TICKS},
    error::ErrorKind,
    limit::Counting,
    limit::{self, Shorter, StoredLimit, ahead_of},
};

/// The number of expired entries that an acquire may remove beyond those it needs, if the permits
/// left are wanted exactly.
const PAGE: i64 = 100;

/// The most entries of a log in our own format: beyond that, those of each thousandth of the
/// interval become one, which expires with the last of them.
const MOST_ENTRIES: usize = 2000;
/// So many of the newest stay single, as their callers may give them back.
const SINGLE: usize = 500;

/// The permits of one limiter that are in use: the value and the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlidingLog {
    pub(crate) value: Option<i64>,
    pub(crate) log: Log,
    /// What few logs count by.
    extra: Option<Box<Extra>>,
}

/// What few logs count by, apart from the limit of the call.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Extra {
    /// With slots: the bucket of the log to which the current call adds its grants
    Slots(Bucket),
    /// The limits other than the longest
    Shorter(Shorter),
}

bytes!(SlidingLog { value, log } extra: None);

impl Counter for SlidingLog {
    fn kind(&self) -> limit::Algorithm {
        limit::Algorithm::SlidingLog
    }

    fn count_by(&mut self, counting: Counting) {
        let shorter = Some(counting.shorter).filter(|shorter| !shorter.is_none());
        if self.bucket().map(|bucket| bucket.slots) == counting.slots && self.shorter() == shorter {
            return;
        }
        let slots = counting.slots.map(|slots| Extra::Slots(Bucket::new(slots)));
        self.extra = slots.or(shorter.map(Extra::Shorter)).map(Box::new);
    }

    #[inline]
    fn prepare(&self, call: &mut CallContext) -> Result<i64, ErrorKind> {
        Ok(match self.extra {
            None => call.limit.rate,
            Some(_) => self.most(call),
        })
    }

    // With `take` and `end`, as in `gcra.rs`.
    #[inline(always)]
    fn begin(&mut self, call: &CallContext, wanted: i64) -> i64 {
        let StoredLimit { rate, interval, .. } = call.limit;
        if call.in_own_format && self.log.len() > MOST_ENTRIES && self.is_long() {
            self.merge(call);
        }
        if let Some(before) = &call.rewritten {
            // O(1): the value may fall below zero.
            let kept = self.value.filter(|_| interval == before.interval);
            self.value = kept.map(|value| value + rate - before.rate);
        }
        // Credits expired permits: if those left are wanted exactly all, up to a bound, otherwise
        // as many as the call needs.
        let value = self.agree(call);
        let budget = wanted + (-value).max(0) + 1;
        let value = if call.exact {
            self.sweep(call, value, i64::MAX, budget.max(wanted + PAGE))
        } else {
            self.sweep(call, value, wanted, budget)
        };
        if self.extra.is_none() {
            return value;
        }
        if let Some(shorter) = self.shorter() {
            self.value = Some(value);
            return self.least(shorter, call.now, value);
        }
        // If nothing is left, nothing will be taken.
        if value > 0 {
            self.open_bucket(call, value)
        } else {
            value
        }
    }

    fn holds(&self, charge: &Charge) -> bool {
        self.log.holds(charge.id, charge.permits)
    }

    #[inline(always)]
    fn take(&mut self, call: &CallContext, charge: &Charge) {
        let Charge {
            permits, id, lead, ..
        } = *charge;
        if self.has_slots() {
            return self.add_to_bucket(permits, id);
        }
        let mut score = call.now.score();
        if lead != 0 {
            // For permits that are taken ahead, later.
            score += call.now.ticks(lead).min(ahead_of(call.interval()));
        }
        self.log.insert(Entry { score, permits, id });
    }

    #[inline(always)]
    fn end(&mut self, call: &CallContext, taken: i64, answer: &mut Answer, needs: &mut [Needs]) {
        let now = call.now;
        let interval = call.interval();
        let shorter = self.shorter();
        let value = match (shorter, self.value) {
            (Some(_), Some(value)) => value - taken,
            _ => answer.remaining,
        };
        if self.has_slots() {
            self.write_bucket();
        }
        if call.exact || !needs.is_empty() {
            answer.repaired = self.set_back(call);
        }
        if !needs.is_empty() {
            // The permits left are free now.
            self.log.due(needs, value, now.score() - interval);
        }
        for needs in &mut *needs {
            let rounds = needs.rounds.saturating_mul(interval);
            needs.wait = (needs.wait + interval - now.tick).saturating_add(rounds);
        }
        if let Some(newest) = self.log.newest() {
            let last = if call.exact { newest } else { now.score() };
            answer.reset = (last + interval - now.tick).max(0);
        }
        // The oldest entry says when one more permit is free. Not in debt: that permit would only
        // reduce the debt.
        if call.exact
            && value >= 0
            && let Some(oldest) = self.log.oldest()
        {
            answer.next = (oldest + interval - now.tick).max(0);
        }
        self.value = Some(value);
        if let Some(shorter) = shorter
            && (call.exact || !needs.is_empty())
        {
            self.end_each(shorter, call, value, answer, needs);
        }
    }

    fn is_unused(&self) -> bool {
        self.value.is_none() && self.log.is_empty()
    }

    fn available(&mut self, call: &CallContext) -> Result<i64, ErrorKind> {
        let mut value = self.agree(call);
        self.set_back(call);
        // If nothing is in use, nothing needs to be stored.
        if !self.is_unused() {
            value = self.sweep(call, value, i64::MAX, i64::MAX);
            self.value = Some(value);
        }
        Ok(match self.shorter() {
            None => value,
            Some(shorter) => self.least(shorter, call.now, value),
        })
    }

    fn release(&mut self, call: &CallContext, wanted: i64) -> Result<i64, ErrorKind> {
        let value = self.agree(call);
        // Expired permits are no longer in use, so they are not released.
        let value = self.sweep(call, value, i64::MAX, i64::MAX);
        self.set_back(call);
        let given = self.log.shrink(wanted);
        self.value = Some(if self.log.is_empty() {
            call.limit.rate
        } else {
            value + given
        });
        Ok(given)
    }

    /// Gives back what one grant took: from its own entry, or from that of a bucket.
    fn give_back(&mut self, back: &GiveBack<'_>) -> Result<i64, ErrorKind> {
        let (id, less) = (back.grant.id, back.permits);
        let held = match back.taken {
            _ if less == 0 => None,
            _ if !self.has_slots() => self.log.remove(id, back.grant.permits),
            Some(Taken::Slot(end)) => self.remove_bucket(end),
            _ => None,
        };
        let Some(held) = held else {
            return Ok(0);
        };
        // A release of a number of permits may have taken some of this bucket's.
        let mut credited = less.min(held.permits);
        let rest = Entry {
            permits: held.permits - credited,
            ..held
        };
        if rest.permits > 0 {
            if !self.log.holds(rest.id, rest.permits) {
                self.log.insert(rest);
            } else if self.has_slots() {
                self.insert_own(Entry { id, ..rest });
            } else {
                // The acquire was repeated after it had been settled, and added its entry again.
                credited = held.permits;
            }
        }
        self.credit(back, credited.into());
        Ok(credited.into())
    }

    fn charge(&mut self, call: &CallContext, permits: u32) -> i64 {
        let id = call.id;
        let value = self.agree(call);
        // Before: with the new entry in the log, it would not show any more that what has expired
        // was credited already.
        let mut value = self.sweep(call, value, i64::MAX, i64::MAX);
        let mut charged = i64::from(permits);
        if self.has_slots() {
            value = self.open_bucket(call, value);
            self.add_to_bucket(permits, id);
            self.write_bucket();
        } else if self.log.holds(id, permits) {
            charged = 0;
        } else {
            let score = call.now.score();
            self.log.insert(Entry { score, permits, id });
        }
        // The permits were used, so they count even if the value falls below zero: a debt.
        self.value = Some(value - charged);
        charged
    }

    /// Counts the permits left from the log instead of from the value.
    fn repair(&mut self, call: &CallContext) -> Result<i64, ErrorKind> {
        if self.is_unused() {
            return Ok(0);
        }
        let (rate, logged) = (call.limit.rate, self.log.permits());
        let live = self.log.live_permits(call.now.tick - call.interval());
        // By any clock: who repairs trusts it.
        self.log.set_back(latest(call));
        let stored = self.value.replace(rate - live);
        // Expired entries that are not credited yet are not lost.
        Ok(stored.map_or(0, |stored| rate - logged - stored))
    }

    fn change_limit(&mut self, before: Option<&StoredLimit>, limit: &StoredLimit, now: Now) {
        self.value = match (before, self.value) {
            // Below zero if more is in use than the new rate allows, so the new rate holds at once.
            (Some(before), Some(value)) if before.interval == limit.interval => {
                Some(value + limit.rate - before.rate)
            }
            _ => {
                let live = self.log.live_permits(now.tick - now.ticks(limit.interval));
                (live > 0).then(|| limit.rate - live)
            }
        };
        if self.value.is_none() {
            self.log.clear();
        }
    }

    fn forget(&mut self) {
        self.value = None;
        self.log.clear();
    }

    fn drop_leftover(&mut self) {
        self.value = self.value.filter(|_| !self.log.is_empty());
    }

    fn value(&self, _now: Now) -> Option<i64> {
        self.value
    }

    fn resume(&mut self, _limit: &StoredLimit, value: i64, _now: Now) {
        self.value = Some(value);
    }

    fn full_at(&self, limit: &StoredLimit) -> Option<i64> {
        self.log
            .newest()
            .map(|newest| newest + limit.interval * TICKS)
    }

    fn end_of_life(&self, limit: &StoredLimit, now: Now) -> i64 {
        let interval = now.ticks(limit.interval);
        now.score() + interval + ahead_of(interval)
    }
}

impl SlidingLog {
    fn bucket(&self) -> Option<&Bucket> {
        match self.extra.as_deref() {
            Some(Extra::Slots(bucket)) => Some(bucket),
            Some(Extra::Shorter(_)) | None => None,
        }
    }

    fn bucket_mut(&mut self) -> Option<&mut Bucket> {
        match self.extra.as_deref_mut() {
            Some(Extra::Slots(bucket)) => Some(bucket),
            Some(Extra::Shorter(_)) | None => None,
        }
    }

    fn has_slots(&self) -> bool {
        matches!(self.extra.as_deref(), Some(Extra::Slots(_)))
    }

    /// Returns the most permits that a request can take: by the shortest interval they are fewest.
    fn most(&self, call: &CallContext) -> i64 {
        let shortest = self.shorter().and_then(|it| it.iter().next_back());
        shortest.map_or(call.limit.rate, |part| part.permits.cast_signed())
    }

    fn shorter(&self) -> Option<Shorter> {
        match self.extra.as_deref() {
            Some(Extra::Shorter(shorter)) => Some(*shorter),
            Some(Extra::Slots(_)) | None => None,
        }
    }

    /// Returns whether there are more entries than so many for each limit.
    fn is_long(&self) -> bool {
        let shorter = self.shorter().map_or(0, |shorter| shorter.iter().count());
        self.log.len() > MOST_ENTRIES + MOST_ENTRIES / 2 * shorter
    }

    /// Merges entries that no limit tells apart: those that live by the same shortest interval, in
    /// parts of a thousandth of it.
    fn merge(&mut self, call: &CallContext) {
        let (now, longest) = (call.now, call.interval());
        let shorter = self.shorter().unwrap_or_default();
        let intervals = shorter.iter().rev();
        let intervals: Vec<i64> = intervals
            .map(|part| now.ticks(part.interval.cast_signed()))
            .collect();
        let width_at = |score: i64| {
            let mut each = intervals.iter();
            let shortest = each.find(|interval| score > now.tick - **interval);
            shortest.unwrap_or(&longest) / 1000
        };
        self.log.merge(width_at, SINGLE);
    }

    /// Sets back the scores that no clock of this store can have written, as these permits were
    /// taken no later than now. All of them at once: what is asked for next finds the oldest entry.
    /// A caller's clock proves nothing, as it may be slow. Returns how many.
    fn set_back(&mut self, call: &CallContext) -> i64 {
        let (newest, now) = (self.log.newest(), call.now);
        if !now.is_by_caller && newest.is_some_and(|newest| newest > now.score()) {
            self.log.set_back(latest(call))
        } else {
            0
        }
    }

    /// Adds permits that were removed from the log to the permits left.
    fn credit(&mut self, back: &GiveBack<'_>, credited: i64) {
        self.value = match back.limit {
            None => self.value.map(|value| value + credited),
            Some(limit) if self.log.is_empty() => Some(limit.rate),
            Some(limit) => {
                self.value = self.value.map(|value| value + credited);
                let call = CallContext::of_verb(limit, back.now, back.grant.id);
                Some(self.agree(&call))
            }
        };
    }

    /// Brings permits left and log into agreement, and returns the permits left.
    fn agree(&mut self, call: &CallContext) -> i64 {
        let (rate, interval, now) = (call.limit.rate, call.interval(), call.now);
        let Some(newest) = self.log.newest() else {
            return match self.value {
                Some(value) => {
                    // Permits are in use for an unknown time: they count as granted now.
                    self.log.restore(now.score(), rate - value, call.id);
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

    /// Credits expired permits, oldest first, until `wanted` are left or `budget` entries that hold
    /// permits are gone.
    fn sweep(&mut self, call: &CallContext, value: i64, wanted: i64, budget: i64) -> i64 {
        let expired = call.now.tick - call.interval();
        let (mut value, mut budget) = (value, budget);
        while value < wanted && budget > 0 {
            let size = budget.min(PAGE);
            let mut removed = 0;
            while removed < size
                && let Some(oldest) = self.log.pop_expired(expired)
            {
                removed += 1;
                value += i64::from(oldest.permits);
                budget -= i64::from(oldest.permits > 0);
            }
            if removed < size {
                break;
            }
        }
        if value > call.limit.rate {
            call.limit.rate - self.log.live_permits(expired)
        } else {
            value
        }
    }
}

/// Returns the latest score of a grant of now.
fn latest(call: &CallContext) -> i64 {
    call.now.score() + ahead_of(call.interval())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        algorithm::limiter::LimiterState,
        values::{charge::PermitId, limit::Limit},
    };

    type Limiter = LimiterState<SlidingLog>;

    fn limiter(entries: &[(i64, u32)]) -> Limiter {
        let mut limiter = Limiter {
            limit: Some(Limit::new(5, Duration::from_millis(700)).stored()),
            ..Limiter::default()
        };
        for (id, (score, permits)) in (0..).zip(entries) {
            limiter.state.log.insert(Entry {
                score: *score,
                permits: *permits,
                id: PermitId([id; 16]),
            });
        }
        limiter
    }

    const ID: PermitId = PermitId([0; 16]);

    /// Only what scripts do not have is tested here. `tests/inside/model` compares the rest with
    /// the scripts.
    #[test]
    fn it_is_full_an_interval_after_the_newest_entry() {
        assert_eq!(limiter(&[]).full_at(), None);
        let mut limiter = limiter(&[(5_000, 1), (5_300, 1), (4_000, 1)]);
        assert_eq!(limiter.full_at(), Some(705_300));
        // A score may lead its grant by a tenth of the interval.
        let over = (limiter.state).end_of_life(&limiter.limit.unwrap(), Now::at(5_000));
        assert_eq!(over, 775_000);
        assert_eq!(limiter.available(Now::at(705_299), ID), Ok(4));
        assert_eq!(limiter.available(Now::at(705_300), ID), Ok(5));
        assert_eq!(limiter.full_at(), None);
    }

    #[test]
    fn a_value_above_the_rate_is_counted_from_the_live_entries() {
        let entries = [(5_000, 6), (5_001, 1), (5_002, 1), (5_003, 1), (5_900, 1)];
        let mut limiter = limiter(&entries);
        limiter.state.value = Some(0);
        // The sweep looks at two entries, though two more have expired.
        let call = CallContext {
            limit: limiter.limit.unwrap(),
            rewritten: None,
            exact: false,
            now: Now::millis(6_000),
            id: ID,
            emission: 0,
            in_own_format: false,
        };
        let left = limiter.state.begin(&call, 1);
        assert_eq!(left, 4);
        assert_eq!(limiter.state.log.permits(), 1);
    }

    #[test]
    fn what_is_left_goes_from_one_algorithm_to_the_next() {
        let mut limiter = limiter(&[]);
        assert_eq!(limiter.state.value(Now::at(5_000)), None);
        let limit = limiter.limit.unwrap();
        limiter.state.resume(&limit, 3, Now::at(5_000));
        assert_eq!(limiter.state.value(Now::at(5_000)), Some(3));
    }
}
