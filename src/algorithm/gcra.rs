//! The algorithm GCRA, a token bucket: decides in Rust as `lua/packed` does in Redis.
//!
//! Each permit is in use for one emission interval, one after the other. The theoretical arrival
//! time (TAT) is when all of them are free: its distance from now is the number of permits in use.
//! All times are microseconds, whatever a tick of the clock is.

mod pace;

use self::pace::MOST;
pub(crate) use self::pace::Pace;
use super::{
    answer::Answer,
    bytes::bytes,
    limiter::{CallContext, Counter, GiveBack, Needs},
};
use crate::values::{
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

bytes!(Gcra {
    stored,
    ends,
    since
});

/// What Redis stores: what is in use, and the limit by which it was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) tat: Tat,
    pub(crate) rate: i64,
    /// In ms
    pub(crate) interval: i64,
}

bytes!(State {
    tat,
    rate,
    interval
});

impl State {
    /// Returns whether it was counted by this limit.
    fn was_counted_by(&self, pace: &Pace) -> bool {
        (self.rate, self.interval) == (pace.rate, pace.interval)
    }
}

impl Counter for Gcra {
    fn kind(&self) -> limit::Algorithm {
        limit::Algorithm::Gcra
    }

    fn prepare(&self, call: &mut CallContext) -> Result<i64, ErrorKind> {
        let pace = Pace::of(call.limit.rate, call.limit.interval);
        call.emission = pace.ok_or(ErrorKind::ForeignState)?.emission;
        Ok(call.limit.rate)
    }

    // This and `end` are most of what a caller of one limiter costs. Inlined there, they find its
    // call and its answer in registers.
    #[inline(always)]
    fn begin(&mut self, call: &CallContext, _wanted: i64) -> i64 {
        let pace = Pace::of_call(call);
        pace.left(self.corrected_backlog(&pace, call.now))
    }

    #[inline(always)]
    fn end(&mut self, call: &CallContext, taken: i64, answer: &mut Answer, needs: &mut [Needs]) {
        let (pace, now) = (Pace::of_call(call), call.now);
        let (mut from, mut backlog) = (self.from(now), self.backlog(&pace, now));
        let rest = if taken == 0 {
            self.rest(&pace, now)
        } else {
            None
        };
        // A call that takes nothing makes no state, and leaves one by another limit.
        if taken > 0 {
            backlog += pace.cost(taken);
            from = self.write(&pace, backlog, 0, now);
        }
        // What is in use counts from `from`, which may be a microsecond later than now rounded
        // down, from which the answer's times count.
        let from_is_later_by = from - now.micros();
        let next = pace.next_of(backlog, pace.rate - answer.remaining);
        let backlog = backlog + from_is_later_by;
        for needs in needs {
            let in_line = needs.permits + needs.rounds * pace.rate;
            let wait = pace.wait(backlog, in_line);
            // What is in use goes on by its own limit, as nothing is written.
            let wait = rest.map_or(wait, |(own, ahead)| {
                wait.max(ahead + from_is_later_by - own.cost(pace.rate - in_line.min(pace.rate)))
            });
            needs.wait = now.ticks_of_micros(wait);
        }
        answer.next = match next {
            0 => 0,
            next => now.ticks_of_micros(next + from_is_later_by),
        };
        answer.reset = now.ticks_of_micros(backlog);
        answer.taken = self.stored.map(|state| Taken::Tat(state.tat));
    }

    fn available(&mut self, call: &CallContext) -> Result<i64, ErrorKind> {
        let pace = Pace::of_call(call);
        Ok(pace.left(self.corrected_backlog(&pace, call.now)))
    }

    fn release(&mut self, call: &CallContext, wanted: i64) -> Result<i64, ErrorKind> {
        let last = Tat { at: MOST, given: 0 };
        Ok(self.move_back(wanted, last, call.now))
    }

    /// Gives back what still lies ahead of permits that a grant took when it left the TAT in its
    /// receipt.
    fn give_back(&mut self, back: &GiveBack<'_>) -> Result<i64, ErrorKind> {
        back.limit.ok_or(ErrorKind::NotInitialized)?;
        let Some(Taken::Tat(tat)) = back.taken else {
            return Ok(0);
        };
        Ok(self.move_back(back.permits.into(), tat, back.now))
    }

    /// Charges by the limit of the state, up to twice the whole limit: a debt lasts no longer.
    fn charge(&mut self, call: &CallContext, permits: u32) -> i64 {
        let (pace, now) = (self.pace().unwrap_or(Pace::of_call(call)), call.now);
        let backlog = self.corrected_backlog(&pace, now);
        let most = backlog.max(2 * pace.whole());
        let backlog = backlog.saturating_add(pace.cost(permits.into())).min(most);
        self.write(&pace, backlog, 0, now);
        permits.into()
    }

    // Its limit is in the code, and goes with each call.
    fn change_limit(&mut self, _before: Option<&StoredLimit>, _limit: &StoredLimit, _now: Now) {}

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
    /// Returns how far TAT lies ahead by this limit. A TAT further ahead than any debt is of a
    /// clock that was set back since, and is first moved to one whole interval; not if callers
    /// bring the clock, which proves nothing.
    #[inline(always)]
    fn corrected_backlog(&mut self, pace: &Pace, now: Now) -> i64 {
        let Some(state) = self.stored else {
            return 0;
        };
        let ahead = (state.tat.at - self.from(now)).max(0);
        if state.was_counted_by(pace) && (ahead <= pace.whole() || now.is_by_caller) {
            ahead
        } else {
            self.recount(pace, now)
        }
    }

    /// The rest of [`corrected_backlog`](Self::corrected_backlog): of a state by another limit, or
    /// of a TAT further ahead than a whole interval.
    #[cold]
    fn recount(&mut self, pace: &Pace, now: Now) -> i64 {
        if let Some(own) = self.pace()
            && !now.is_by_caller
        {
            let (ahead, whole) = (self.ahead(now), own.whole());
            if ahead > 2 * whole + whole / 5 {
                self.write(&own, whole, 0, now);
            }
        }
        self.backlog(pace, now)
    }

    /// Returns how far TAT lies ahead by this limit. What was counted by another limit is the same
    /// permits at the pace of this one, within what either can hold.
    #[inline(always)]
    fn backlog(&self, pace: &Pace, now: Now) -> i64 {
        let ahead = self.ahead(now);
        match self.stored {
            Some(state) if !state.was_counted_by(pace) => self.converted(pace, ahead, now),
            _ => ahead,
        }
    }

    #[cold]
    fn converted(&self, pace: &Pace, ahead: i64, now: Now) -> i64 {
        let used = self.pace().map_or(0, |own| {
            let most = if now.is_by_caller { MOST } else { own.whole() };
            own.used(ahead.min(most))
        });
        pace.cost(used).min(pace.whole())
    }

    /// Returns the limit of the state and how far TAT lies ahead, if it is not this limit.
    fn rest(&self, pace: &Pace, now: Now) -> Option<(Pace, i64)> {
        let state = self.stored.filter(|state| !state.was_counted_by(pace))?;
        Some((Pace::of(state.rate, state.interval)?, self.ahead(now)))
    }

    fn ahead(&self, now: Now) -> i64 {
        let from = self.from(now);
        (self.stored).map_or(0, |state| (state.tat.at - from).max(0))
    }

    /// Returns the limit of the state.
    fn pace(&self) -> Option<Pace> {
        self.stored
            .and_then(|state| Pace::of(state.rate, state.interval))
    }

    /// Moves TAT back by so many permits, as far as those lie ahead that were taken when TAT was
    /// there. Returns how many are free again.
    fn move_back(&mut self, permits: i64, tat: Tat, now: Now) -> i64 {
        let (Some(state), Some(pace)) = (self.stored, self.pace()) else {
            return 0;
        };
        let backlog = self.corrected_backlog(&pace, now);
        // What was given back since may have been before them, and has brought them forward by as
        // much.
        let since = (state.tat.given - tat.given).rem_euclid(WRAP);
        let ahead = (tat.at - since - now.micros_up()).min(backlog);
        let moved = pace.cost(permits).min(ahead).max(0);
        if moved > 0 {
            self.write(&pace, backlog - moved, moved, now);
        }
        pace.used(moved)
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

    /// Stores how much lies ahead of now, after so much was given back. Returns the time from which
    /// it counts.
    #[inline]
    fn write(&mut self, pace: &Pace, backlog: i64, given_back: i64, now: Now) -> i64 {
        if self.ahead(now) == 0 {
            // Rounded up, as any grant is.
            self.since = now.micros_up();
        }
        let from = self.from(now);
        let at = from.saturating_add(backlog).min(MOST);
        let given = self.stored.map_or(0, |State { tat, .. }| tat.given);
        self.ends = self.ends.max(at);
        self.stored = Some(State {
            tat: Tat {
                at,
                given: (given + given_back) % WRAP,
            },
            rate: pace.rate,
            interval: pace.interval,
        });
        from
    }
}

#[cfg(test)]
mod tests;
