//! The algorithm GCRA, a token bucket: decides in Rust as `lua/gcra` does in Redis.
//!
//! Each permit is in use for one emission interval, one after the other. The theoretical arrival
//! time (TAT) is when all of them are free: its distance from now is the number of permits in use.
//! All times are microseconds, whatever a tick of the clock is.

mod pace;

use self::pace::MOST;
pub(crate) use self::pace::Pace;
use super::{
    answer::Answer,
    limiter::{CallContext, Counter, GiveBack, Needs},
};
use crate::{
    charge::{Taken, Tat},
    clock::Now,
    error::ErrorKind,
    limit::{self, StoredLimit},
};

/// The value at which the sum of what was given back wraps around to zero.
const WRAP: i64 = 1 << 52;

/// The permits of one limiter that are in use, as one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gcra {
    pub(crate) stored: Option<State>,
    /// No TAT that it held is later: until then receipts must find what was given back.
    pub(crate) ends: i64,
    /// When it was last begun with nothing in use, rounded up: what is in use is counted from then,
    /// so that a call within the same microsecond does not find that more than was taken.
    pub(crate) since: i64,
}

/// The number that Redis stores: what is in use, and the limit by which it was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) tat: Tat,
    pub(crate) rate: i64,
    /// In ms
    pub(crate) interval: i64,
}

impl State {
    /// Returns whether it was counted by this limit.
    fn is_by(&self, pace: &Pace) -> bool {
        (self.rate, self.interval) == (pace.rate, pace.interval)
    }
}

impl Counter for Gcra {
    fn kind(&self) -> limit::Algorithm {
        limit::Algorithm::Gcra
    }

    fn check(&self, call: &mut CallContext) -> Result<(), ErrorKind> {
        call.emission = pace(&call.limit)?.emission;
        Ok(())
    }

    // This and `end` are most of what a caller of one limiter costs. Inlined there, they find its
    // call and its answer in registers.
    #[inline(always)]
    fn begin(&mut self, call: &CallContext, _wanted: i64) -> i64 {
        let pace = Pace::of_call(call);
        pace.left(self.count_by(&pace, call.now))
    }

    #[inline(always)]
    fn end(&mut self, call: &CallContext, taken: i64, answer: &mut Answer, needs: &mut [Needs]) {
        let (pace, now) = (Pace::of_call(call), call.now);
        // The call has begun by this limit.
        let mut from = self.from(now);
        let mut backlog = (self.stored).map_or(0, |state| (state.tat.at - from).max(0));
        // A call that takes nothing makes no state.
        if taken > 0 {
            (from, backlog) = self.write(&pace, backlog, pace.cost(taken), now);
        }
        // From the tick of now on, as there may be room in the next one.
        let late = from - now.micros();
        let next = pace.next_of(backlog, pace.rate - answer.remaining);
        let backlog = backlog + late;
        for needs in needs {
            let in_line = needs.permits + needs.rounds * pace.rate;
            needs.wait = now.ticks_of_micros(pace.wait(backlog, in_line));
        }
        answer.next = match next {
            0 => 0,
            next => now.ticks_of_micros(next + late),
        };
        answer.reset = now.ticks_of_micros(backlog);
        answer.taken = self.stored.map(|state| Taken::Tat(state.tat));
    }

    fn available(&mut self, call: &CallContext) -> Result<i64, ErrorKind> {
        let pace = Pace::of_call(call);
        // A call that takes nothing changes no limit.
        let backlog = match self.stored.filter(|state| !state.is_by(&pace)) {
            Some(_) => self.backlog(&pace, call.now),
            None => self.count_by(&pace, call.now),
        };
        Ok(pace.left(backlog))
    }

    fn release(&mut self, call: &CallContext, wanted: i64) -> Result<i64, ErrorKind> {
        let pace = Pace::of_call(call);
        let backlog = self.backlog(&pace, call.now);
        let released = pace.used(backlog).min(wanted);
        if released > 0 {
            let rest = (backlog - pace.cost(released)).max(0);
            self.write(&pace, rest, 0, call.now);
        }
        Ok(released)
    }

    /// Gives back what still lies ahead of permits that a grant took when it left the TAT in its
    /// receipt.
    fn give_back(&mut self, back: &GiveBack<'_>) -> Result<i64, ErrorKind> {
        let limit = back.limit.ok_or(ErrorKind::NotInitialized)?;
        let (pace, now) = (pace(&limit)?, back.now);
        let (Some(state), Some(Taken::Tat(tat))) = (self.stored, back.taken) else {
            return Ok(0);
        };
        let backlog = self.backlog(&pace, now);
        // What was given back since may have been before it, and has brought it forward by as much;
        // so has a greater limit.
        let since = (state.tat.given - tat.given).rem_euclid(WRAP)
            + (state.tat.at - self.from(now) - backlog).max(0);
        let ahead = (tat.at - since - now.micros_up()).min(backlog);
        let moved = pace.cost(back.permits.into()).min(ahead);
        if moved <= 0 {
            return Ok(0);
        }
        self.write(&pace, backlog - moved, 0, now);
        Ok(pace.used(moved))
    }

    fn charge(&mut self, call: &CallContext, permits: u32) -> i64 {
        let pace = Pace::of_call(call);
        let backlog = self.backlog(&pace, call.now);
        self.write(&pace, backlog, pace.cost(permits.into()), call.now);
        permits.into()
    }

    /// Forgets what is in use beyond the whole limit, by any clock.
    fn repair(&mut self, call: &CallContext) -> Result<i64, ErrorKind> {
        let (pace, now) = (Pace::of_call(call), call.now);
        let backlog = self.ahead(&pace, now, false);
        let from = self.from(now);
        if self.stored.is_some_and(|state| state.tat.at > from) {
            // A wrong clock may have put it far off.
            self.ends = 0;
            self.write(&pace, backlog.min(pace.whole()), 0, now);
        }
        Ok((pace.used(backlog) - pace.rate).max(0))
    }

    fn change_limit(&mut self, _before: Option<&StoredLimit>, limit: &StoredLimit, now: Now) {
        if let Ok(pace) = pace(limit) {
            self.count_by(&pace, now);
        }
    }

    fn forget(&mut self) {
        self.stored = None;
    }

    fn full_at(&self, _limit: &StoredLimit) -> Option<i64> {
        self.stored.map(|_| self.ends)
    }

    fn end_of_life(&self, limit: &StoredLimit, now: Now) -> i64 {
        self.full_at(limit).unwrap_or(now.tick)
    }
}

impl Gcra {
    /// Counts what is in use by this limit from now on. Returns how far TAT lies ahead.
    ///
    /// Where it lies further ahead than the limit allows it is set back, so that the work of a
    /// wrong clock is over an interval after a call has met it.
    #[inline(always)]
    fn count_by(&mut self, pace: &Pace, now: Now) -> i64 {
        let Some(state) = self.stored else {
            return 0;
        };
        let ahead = (state.tat.at - self.from(now)).max(0);
        if state.is_by(pace) && (ahead <= pace.whole() || !now.is_own) {
            ahead
        } else {
            self.recount(pace, now)
        }
    }

    /// Does that where something is to be changed.
    #[cold]
    fn recount(&mut self, pace: &Pace, now: Now) -> i64 {
        let backlog = self.backlog(pace, now);
        self.write(pace, backlog, 0, now);
        backlog
    }

    /// Returns how far TAT lies ahead by this limit: by the store's own clock no further than all
    /// permits take, as more than those was never in use. By a caller's, which may be slow, that
    /// proves nothing.
    fn backlog(&self, pace: &Pace, now: Now) -> i64 {
        self.ahead(pace, now, now.is_own)
    }

    /// The same, `cut` to what all permits take or not. What was counted by another limit is the
    /// same permits at the pace of this one, within what it can hold.
    fn ahead(&self, pace: &Pace, now: Now, cut: bool) -> i64 {
        let Some(state) = self.stored else {
            return 0;
        };
        let ahead = (state.tat.at - self.from(now)).max(0);
        let cut_to = |pace: &Pace, ahead: i64| if cut { ahead.min(pace.whole()) } else { ahead };
        if state.is_by(pace) {
            return cut_to(pace, ahead);
        }
        let Some(old) = Pace::of(state.rate, state.interval) else {
            return cut_to(pace, ahead);
        };
        let used = old.used(cut_to(&old, ahead));
        pace.cost(used).min(pace.whole())
    }

    /// Returns the time from which what is in use counts, in us: now, rounded down; in the
    /// microsecond in which the first of it was taken, the time of that.
    fn from(&self, now: Now) -> i64 {
        if self.since == now.micros_up() {
            self.since
        } else {
            now.micros()
        }
    }

    /// Stores how much lies ahead of now: what is `kept` of what did, and what is `added`, up to
    /// the whole limit: a debt lasts no longer. For receipts, what is not kept was given back.
    /// Returns the time from which it counts, and how much it is.
    #[inline]
    fn write(&mut self, pace: &Pace, kept: i64, added: i64, now: Now) -> (i64, i64) {
        if kept == 0 {
            // Rounded up, as any grant is.
            self.since = now.micros_up();
        }
        let from = self.from(now);
        let given = self.stored.map_or(0, |State { tat, .. }| {
            (tat.given + (tat.at - from - kept).max(0)).rem_euclid(WRAP)
        });
        let most = pace.whole().max(kept).min(MOST - from);
        let backlog = kept.saturating_add(added).min(most);
        let at = from + backlog;
        self.ends = self.ends.max(at);
        self.stored = Some(State {
            tat: Tat { at, given },
            rate: pace.rate,
            interval: pace.interval,
        });
        (from, backlog)
    }
}

fn pace(limit: &StoredLimit) -> Result<Pace, ErrorKind> {
    Pace::of(limit.rate, limit.interval).ok_or(ErrorKind::ForeignState)
}

#[cfg(test)]
mod tests;
