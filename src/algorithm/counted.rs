//! A limiter in this process, counted in one of the ways, and in another one after its name was moved to that.

use super::{
    answer::Answer,
    call::{self, Counts, Terms},
    fixed_window, gcra, sliding_log,
};
use crate::{
    clock::Now,
    demand::Charge,
    error::ErrorKind,
    limit::{Algorithm, StoredLimit, ahead_of},
    name::Name,
    receipt::{PermitId, Receipt, Taken, Tat},
};

#[derive(Debug)]
pub(crate) enum Counted {
    SlidingLog(sliding_log::Limiter),
    FixedWindow(fixed_window::Limiter),
    Gcra(gcra::Limiter),
}

/// Marks entries that a repair adds. Nothing is sent twice here, so that they need no ids of their own.
const NO_ID: PermitId = PermitId([0; 16]);

impl Counted {
    pub(crate) fn new(algorithm: Algorithm) -> Self {
        Self::unused(algorithm, None)
    }

    fn unused(algorithm: Algorithm, limit: Option<StoredLimit>) -> Self {
        match algorithm {
            Algorithm::SlidingLog => Self::SlidingLog(sliding_log::Limiter {
                limit,
                ..sliding_log::Limiter::default()
            }),
            Algorithm::FixedWindow => Self::FixedWindow(fixed_window::Limiter {
                limit,
                window: None,
            }),
            Algorithm::Gcra => Self::Gcra(gcra::Limiter {
                limit,
                ..gcra::Limiter::default()
            }),
        }
    }

    /// Counts as this name says from now on. What was counted by another algorithm stays in use, as it does in Redis, where
    /// logs and windows read the same keys: by the first call of a sliding log as if granted now, in a window until one
    /// interval from now. GCRA, which keeps another number there, has none of it, and leaves none.
    pub(crate) fn count_by(&mut self, name: &Name, now: Now) {
        self.move_to(name.algorithm(), now);
        if let Self::SlidingLog(log) = self {
            log.note_in(name.slots());
        }
    }

    fn move_to(&mut self, algorithm: Algorithm, now: Now) {
        if self.algorithm() == algorithm {
            return;
        }
        *self = match (&*self, algorithm) {
            (Self::SlidingLog(log), Algorithm::FixedWindow) => {
                let end = log
                    .limit
                    .map(|limit| fixed_window::last_tick(now, limit.interval));
                let window = log.value.map(|value| fixed_window::Window { value, end });
                let limit = log.limit;
                Self::FixedWindow(fixed_window::Limiter { limit, window })
            }
            (Self::FixedWindow(window), Algorithm::SlidingLog) => {
                let open = window
                    .window
                    .filter(|window| window.end.is_none_or(|end| end >= now.tick));
                Self::SlidingLog(sliding_log::Limiter {
                    limit: window.limit,
                    value: open.map(|window| window.value),
                    ..sliding_log::Limiter::default()
                })
            }
            (counted, algorithm) => Self::unused(algorithm, counted.limit()),
        };
    }

    fn algorithm(&self) -> Algorithm {
        match self {
            Self::SlidingLog(_) => Algorithm::SlidingLog,
            Self::FixedWindow(_) => Algorithm::FixedWindow,
            Self::Gcra(_) => Algorithm::Gcra,
        }
    }

    pub(crate) fn limit(&self) -> Option<StoredLimit> {
        match self {
            Self::SlidingLog(log) => log.limit,
            Self::FixedWindow(window) => window.limit,
            Self::Gcra(gcra) => gcra.limit,
        }
    }

    /// From which tick on, at the earliest, nothing of this limit counts any more.
    pub(crate) fn end_of_life(&self, limit: &StoredLimit, now: Now) -> i64 {
        match self {
            Self::SlidingLog(_) => {
                let interval = now.ticks(limit.interval);
                now.score() + interval + ahead_of(interval)
            }
            Self::FixedWindow(_) => fixed_window::last_tick(now, limit.interval) + 1,
            Self::Gcra(gcra) => gcra.full_at().unwrap_or(now.tick),
        }
    }

    pub(crate) fn counts(&mut self) -> &mut dyn Counts {
        match self {
            Self::SlidingLog(log) => log,
            Self::FixedWindow(window) => window,
            Self::Gcra(gcra) => gcra,
        }
    }

    /// Takes permits for one caller of this limiter alone.
    pub(crate) fn acquire_one(
        &mut self,
        charge: &Charge,
        exact: bool,
        now: Now,
    ) -> Result<Answer, ErrorKind> {
        let terms = Terms::HERE;
        match self {
            Self::SlidingLog(log) => call::acquire_one(log, charge, terms, exact, now),
            Self::FixedWindow(window) => call::acquire_one(window, charge, terms, exact, now),
            Self::Gcra(gcra) => call::acquire_one(gcra, charge, terms, exact, now),
        }
    }

    pub(crate) fn available(&mut self, now: Now) -> Result<i64, ErrorKind> {
        match self {
            Self::SlidingLog(log) => log.available(now, NO_ID),
            Self::FixedWindow(window) => window.available(now),
            Self::Gcra(gcra) => gcra.available(now),
        }
    }

    pub(crate) fn release(&mut self, permits: i64, now: Now) -> Result<i64, ErrorKind> {
        match self {
            Self::SlidingLog(log) => log.release(permits, now, NO_ID),
            Self::FixedWindow(window) => window.release(permits, now),
            Self::Gcra(gcra) => gcra.release(permits, now),
        }
    }

    pub(crate) fn repair(&mut self, now: Now) -> Result<i64, ErrorKind> {
        match self {
            Self::SlidingLog(log) => log.repair(now),
            Self::FixedWindow(window) => window.repair(now),
            Self::Gcra(gcra) => gcra.repair(now),
        }
    }

    pub(crate) fn try_set_rate(&mut self, limit: StoredLimit) -> bool {
        match self {
            Self::SlidingLog(log) => log.try_set_rate(limit),
            Self::FixedWindow(window) => window.try_set_rate(limit),
            Self::Gcra(gcra) => gcra.try_set_rate(limit),
        }
    }

    pub(crate) fn set_rate(&mut self, limit: StoredLimit, keep: bool, now: Now) {
        match self {
            Self::SlidingLog(log) => log.set_rate(limit, keep, now),
            Self::FixedWindow(window) => window.set_rate(limit, keep, now),
            Self::Gcra(gcra) => gcra.set_rate(limit, keep, now),
        }
    }

    /// Settles what was taken at `keep` permits. How many were credited; below zero: charged. A receipt of another algorithm
    /// finds nothing, and one of an estimate can only be charged more.
    pub(crate) fn settle(
        &mut self,
        receipt: &Receipt,
        keep: u32,
        now: Now,
    ) -> Result<i64, ErrorKind> {
        if receipt.name().algorithm() != self.algorithm() {
            return Ok(0);
        }
        let taken = receipt.settle();
        // What an estimate took has no entry here; a charge needs none.
        if matches!(taken, Some(Taken::Estimate)) && keep <= receipt.permits {
            return Ok(0);
        }
        if let Self::SlidingLog(log) = self {
            log.note_in(receipt.name().slots());
            return match (receipt.name().slots(), taken) {
                (None, _) => log.settle(receipt, keep, now),
                (Some(_), Some(Taken::Slot(end))) => log.settle_in_slot(receipt, keep, end, now),
                (Some(_), Some(Taken::Estimate)) => {
                    log.settle_in_slot(receipt, keep, now.score(), now)
                }
                (Some(_), _) => Ok(0),
            };
        }
        let credited = i64::from(receipt.permits) - i64::from(keep);
        let given = receipt.limit().given().map(|limit| limit.stored());
        match (self, taken) {
            (Self::FixedWindow(window), Some(Taken::Window(end))) => {
                window.settle(credited, end, given, now)
            }
            (Self::FixedWindow(window), Some(Taken::Estimate)) => {
                window.settle(credited, now.tick, given, now)
            }
            (Self::Gcra(gcra), Some(Taken::Tat(tat))) => gcra.settle(credited, tat, given, now),
            (Self::Gcra(gcra), Some(Taken::Estimate)) => {
                let tat = Tat { at: 0, given: 0 };
                gcra.settle(credited, tat, given, now)
            }
            _ => Ok(0),
        }
    }

    /// The tick from which all permits are free again; `None` if they are.
    pub(crate) fn full_at(&self) -> Option<i64> {
        match self {
            Self::SlidingLog(log) => log.full_at(),
            Self::FixedWindow(window) => window.full_at(),
            Self::Gcra(gcra) => gcra.full_at(),
        }
    }
}
