//! The interface of an algorithm, [`Counter`], and a limiter with its algorithm's state,
//! [`LimiterState`].

use std::fmt::Debug;

use super::{
    answer::{Answer, Changed, Verdict},
    bytes::Bytes,
};
use crate::values::{
    charge::{Charge, PermitId, Taken},
    clock::Now,
    error::ErrorKind,
    limit::{self, Counting, Limit, LimitSource, StoredLimit},
};

/// The permits of one limiter that are in use, as one algorithm counts them.
///
/// All methods are pure: a state, the limit and an instant make an answer and the next state. The
/// scripts in `lua/` do the same in Redis, and tests compare the two. So a state can lack each of
/// its parts, as the keys in Redis can. A verb that fails changes nothing.
pub(crate) trait Counter: Debug + Send {
    fn kind(&self) -> limit::Algorithm;

    /// Prepares a call for all other methods: finds its `emission`. Returns the most permits that a
    /// request can take. An error if it cannot count by the limit.
    fn prepare(&self, call: &mut CallContext) -> Result<i64, ErrorKind> {
        Ok(call.limit.rate)
    }

    /// Counts in these slots, or by this calendar, from now on.
    fn count_by(&mut self, _counting: Counting) {}

    /// Begins a call. Returns the permits left: exactly, or well enough to know whether
    /// there are as many as `wanted`. Callers are granted by that number, one after the other; one
    /// that waits long enough finds as many as the limit has.
    fn begin(&mut self, call: &CallContext, wanted: i64) -> i64;

    /// Returns whether the log has the entry of this charge already. False where grants have no
    /// entries.
    fn holds(&self, _charge: &Charge) -> bool {
        false
    }

    /// Records a grant of the call, if each grant has an entry: as of now, or `charge.lead` later.
    fn take(&mut self, _call: &CallContext, _charge: &Charge) {}

    /// Ends a call, which took `taken` permits: stores `answer.remaining`, fills in the times of
    /// `answer`, and sets `wait` in `needs`, which ascend.
    fn end(&mut self, call: &CallContext, taken: i64, answer: &mut Answer, needs: &mut [Needs]);

    /// Takes permits for one caller of this limiter alone, as most are: what
    /// [`acquire`](super::call::acquire) does, without its loops. Whether the caller waits makes no
    /// difference: there is none behind it.
    ///
    /// Compiled for each algorithm by itself, as nearly every request costs this.
    fn acquire_one(
        &mut self,
        stored: &mut Option<StoredLimit>,
        charge: &Charge,
        exact: bool,
        now: Now,
    ) -> Result<Answer, ErrorKind> {
        let (mut call, changed) = CallContext::new(*stored, charge, exact, now)?;
        let most = self.prepare(&mut call)?;
        let mut answer = Answer::new(&call.limit, changed, now);
        let permits = i64::from(charge.permits);
        let is_possible = permits <= most;
        let is_held = charge.may_have_come() && self.holds(charge);
        if !is_possible && !charge.shadow && !is_held && changed == Changed::Nothing {
            answer.verdict = Verdict::AboveRate;
            return Ok(answer);
        }
        if changed != Changed::Nothing {
            *stored = Some(call.limit);
        }
        let wanted = if is_possible || is_held { permits } else { 0 };
        answer.remaining = self.begin(&call, wanted);
        let (mut taken, mut needs) = (0, None);
        // Asked again: `begin` may have dropped its expired entry.
        answer.verdict = if charge.may_have_come() && self.holds(charge) {
            Verdict::Granted
        } else if !is_possible {
            Verdict::AboveRate
        } else if answer.remaining >= permits {
            self.take(&call, charge);
            taken = permits;
            answer.remaining -= permits;
            Verdict::Granted
        } else {
            needs = Some(Needs::new(permits, most, 0));
            Verdict::Refused
        };
        self.end(&call, taken, &mut answer, needs.as_mut_slice());
        if let Some(needs) = needs {
            answer.wait = needs.wait;
        }
        if answer.verdict != Verdict::Granted {
            // The wait says when there is room.
            answer.next = 0;
        }
        Ok(answer)
    }

    /// Returns whether nothing is stored besides the limit, so that a call that takes nothing can
    /// leave the limiter as it was, with [`forget`](Self::forget).
    fn is_unused(&self) -> bool {
        false
    }

    /// Counts the free permits.
    fn available(&mut self, call: &CallContext) -> Result<i64, ErrorKind>;

    /// Gives back up to `wanted` permits, the oldest in use. Returns how many.
    fn release(&mut self, _call: &CallContext, _wanted: i64) -> Result<i64, ErrorKind> {
        Ok(0)
    }

    /// Gives back permits of a grant, as many as still count. Returns how many.
    fn give_back(&mut self, _back: &GiveBack<'_>) -> Result<i64, ErrorKind> {
        Ok(0)
    }

    /// Goes on to the present window. Returns whether that of the receipt is over, so that neither
    /// a credit nor a debt counts.
    fn roll_past(&mut self, _taken: Option<Taken>, _now: Now) -> bool {
        false
    }

    /// Charges permits that were used beyond a grant, also beyond the limit. Returns how many.
    fn charge(&mut self, call: &CallContext, permits: u32) -> i64;

    /// Counts the permits left again. Returns how many had been lost; below zero, counted twice.
    fn repair(&mut self, _call: &CallContext) -> Result<i64, ErrorKind> {
        Ok(0)
    }

    /// Goes on counting what is in use by another limit.
    fn change_limit(&mut self, before: Option<&StoredLimit>, limit: &StoredLimit, now: Now);

    /// Forgets what is in use.
    fn forget(&mut self);

    /// Forgets what an earlier limiter of the name left, if it does not show what is in use.
    fn drop_leftover(&mut self) {}

    /// Returns the permits left as another algorithm finds them under the same key in Redis.
    fn value(&self, _now: Now) -> Option<i64> {
        None
    }

    /// Goes on from the permits that another algorithm left under its key.
    fn resume(&mut self, _limit: &StoredLimit, _value: i64, _now: Now) {}

    /// Returns the tick from which all permits are free again, if none is taken meanwhile, and
    /// nothing can be given back any more. `None` if that is so already.
    fn full_at(&self, limit: &StoredLimit) -> Option<i64>;

    /// Returns the tick from which, at the earliest, nothing of this limit counts any more.
    fn end_of_life(&self, limit: &StoredLimit, now: Now) -> i64;
}

/// What a call or a verb counts by, for one limiter: the same for all its callers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallContext {
    /// The limit in force, which is stored by now
    pub(crate) limit: StoredLimit,
    /// The limit that was stored before, if the call rewrites it. A lowered rate holds at once.
    pub(crate) rewritten: Option<StoredLimit>,
    /// Set if the permits left are wanted exactly.
    pub(crate) exact: bool,
    pub(crate) now: Now,
    /// Marks the entry of a charge, and entries that stand for permits of unknown age.
    pub(crate) id: PermitId,
    /// Of GCRA: the microseconds from permit to permit, computed once for a call.
    pub(super) emission: i64,
    /// Set where the limiter is in our own format.
    pub(super) in_own_format: bool,
}

impl CallContext {
    /// Returns that of a verb, which changes no limit. It is not checked yet.
    pub(super) fn of_verb(limit: StoredLimit, now: Now, id: PermitId) -> Self {
        Self {
            limit,
            rewritten: None,
            exact: true,
            now,
            id,
            emission: 0,
            in_own_format: false,
        }
    }

    /// Returns the interval in ticks.
    pub(super) fn interval(&self) -> i64 {
        self.now.ticks(self.limit.interval)
    }

    /// Finds the limit in force for a call whose first caller asks for `first`, and what the call
    /// makes of the stored limit.
    pub(super) fn new(
        stored: Option<StoredLimit>,
        first: &Charge,
        exact: bool,
        now: Now,
    ) -> Result<(Self, Changed), ErrorKind> {
        let (limit, changed) = match (&first.compiled().limit, stored) {
            (LimitSource::Store, None) => return Err(ErrorKind::NotInitialized),
            (LimitSource::Code(given) | LimitSource::StoreOrInit(given), None) => {
                (given.stored(), Changed::Created)
            }
            (LimitSource::Code(given), Some(stored)) => {
                let StoredLimit {
                    rate,
                    interval,
                    rate_type,
                    ..
                } = given.stored();
                if rate_type != stored.rate_type {
                    return Err(ErrorKind::RateTypeDiffers);
                }
                if (rate, interval) == (stored.rate, stored.interval) {
                    (stored, Changed::Nothing)
                } else {
                    let written = StoredLimit {
                        rate,
                        interval,
                        ..stored
                    };
                    (written, Changed::Rewritten)
                }
            }
            (LimitSource::Store | LimitSource::StoreOrInit(_), Some(stored)) => {
                (stored, Changed::Nothing)
            }
        };
        let call = Self {
            limit,
            rewritten: stored.filter(|_| changed == Changed::Rewritten),
            exact,
            now,
            id: first.id,
            emission: 0,
            in_own_format: first.compiled().counting.in_own_format(),
        };
        Ok((call, changed))
    }
}

/// The permits that must be free for a caller, and the time until they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Needs {
    /// The permits, including those of callers that wait before it, up to the rate.
    pub(crate) permits: i64,
    /// The number of further whole rates that must become free first: never more than the rate is
    /// free at once.
    pub(crate) rounds: i64,
    /// The index of its answer
    pub(super) answer: usize,
    /// Ticks until there is room
    pub(crate) wait: i64,
}

impl Needs {
    pub(super) fn new(permits: i64, rate: i64, answer: usize) -> Self {
        let rounds = (permits - 1).div_euclid(rate);
        Self {
            permits: permits - rounds * rate,
            rounds,
            answer,
            wait: 0,
        }
    }
}

/// The permits of a grant that are given back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GiveBack<'g> {
    /// There may be none any more.
    pub(crate) limit: Option<StoredLimit>,
    pub(crate) grant: &'g Charge,
    pub(crate) taken: Option<Taken>,
    pub(crate) permits: u32,
    pub(crate) now: Now,
}

/// A limiter: its limit, and what is in use of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LimiterState<A: ?Sized = dyn Counter> {
    pub(crate) limit: Option<StoredLimit>,
    pub(crate) state: A,
}

impl<A: Bytes> Bytes for LimiterState<A> {
    fn write(&self, to: &mut Vec<u8>) {
        self.limit.write(to);
        self.state.write(to);
    }

    fn read(from: &mut &[u8]) -> Option<Self> {
        let (limit, state) = (Bytes::read(from)?, Bytes::read(from)?);
        Some(Self { limit, state })
    }
}

impl<A: Counter + ?Sized> LimiterState<A> {
    /// Returns the context of a verb, if there is a limit that can be counted by.
    pub(super) fn verb(&self, now: Now, id: PermitId) -> Result<CallContext, ErrorKind> {
        let limit = self.limit.ok_or(ErrorKind::NotInitialized)?;
        let mut call = CallContext::of_verb(limit, now, id);
        self.state.prepare(&mut call)?;
        Ok(call)
    }

    /// Counts the free permits. `id` marks entries that a repair adds.
    pub(crate) fn available(&mut self, now: Now, id: PermitId) -> Result<i64, ErrorKind> {
        self.state.available(&self.verb(now, id)?)
    }

    /// Gives back up to `wanted` permits, the oldest in use. Returns how many.
    pub(crate) fn release(
        &mut self,
        wanted: i64,
        now: Now,
        id: PermitId,
    ) -> Result<i64, ErrorKind> {
        self.state.release(&self.verb(now, id)?, wanted)
    }

    /// Counts the permits left again. Returns how many had been lost; below zero, counted twice.
    pub(crate) fn repair(&mut self, now: Now) -> Result<i64, ErrorKind> {
        self.state.repair(&self.verb(now, PermitId::NONE)?)
    }

    /// Stores a limit where there is none. Returns whether there was none.
    pub(crate) fn try_set_rate(&mut self, limit: StoredLimit) -> bool {
        let is_unset = self.limit.is_none();
        if is_unset {
            self.limit = Some(limit);
            self.state.drop_leftover();
        }
        is_unset
    }

    /// Stores a limit in place of any other. With `keep`, the permits in use stay in use.
    pub(crate) fn set_rate(&mut self, limit: StoredLimit, keep: bool, now: Now) {
        let before = self.limit.replace(limit);
        if keep && before.is_none_or(|before| before.rate_type == limit.rate_type) {
            self.state.change_limit(before.as_ref(), &limit, now);
        } else {
            self.state.forget();
        }
    }

    /// Settles a grant at `keep` permits. Returns how many were credited; below zero, charged.
    ///
    /// `taken` is where a grant without an entry was taken from: `None` if that is not known, or if
    /// it was settled before. A receipt of another algorithm finds nothing, and of an estimate,
    /// which has no entry, there is nothing to give back.
    pub(crate) fn settle(
        &mut self,
        receipt: &Charge,
        taken: Option<Taken>,
        keep: u32,
        now: Now,
    ) -> Result<i64, ErrorKind> {
        let (counting, kind) = (receipt.compiled().counting, self.state.kind());
        let has_entry = counting.tells_grants_apart();
        if counting.algorithm != kind || (taken.is_none() && !has_entry) {
            return Ok(0);
        }
        self.state.count_by(counting);
        if self.state.roll_past(taken, now) {
            return Ok(0);
        }
        let Some(more @ 1..) = keep.checked_sub(receipt.permits) else {
            if matches!(taken, Some(Taken::Estimate)) {
                return Ok(0);
            }
            return self.state.give_back(&GiveBack {
                limit: self.limit,
                grant: receipt,
                taken,
                permits: receipt.permits.saturating_sub(keep),
                now,
            });
        };
        let given = receipt.limit().given().map(Limit::stored);
        let limit = self.limit.or(given).ok_or(ErrorKind::NotInitialized)?;
        let mut call = CallContext::of_verb(limit, now, receipt.id.for_more());
        call.in_own_format = counting.in_own_format();
        self.state.prepare(&mut call)?;
        self.limit = Some(limit);
        Ok(-self.state.charge(&call, more))
    }

    /// Returns the tick from which all permits are free again; `None` if they are.
    pub(crate) fn full_at(&self) -> Option<i64> {
        self.state.full_at(self.limit.as_ref()?)
    }
}
