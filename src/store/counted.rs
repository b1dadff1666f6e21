//! A limiter in this process, counted in either way, and in the other one after its name was moved to that.

use super::{
    call::Counts,
    fixed_window,
    window::{self, ahead_of},
};
use crate::{
    decision::{PermitId, Receipt},
    error::ErrorKind,
    limit::{Algorithm, StoredLimit},
    name::Name,
};

#[derive(Debug)]
pub(super) enum Counted {
    SlidingLog(window::Limiter),
    FixedWindow(fixed_window::Limiter),
}

/// Marks entries that a repair adds. Nothing is sent twice here, so that they need no ids of their own.
const NO_ID: PermitId = PermitId([0; 16]);

impl Counted {
    pub(super) fn new(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::SlidingLog => Self::SlidingLog(window::Limiter::default()),
            Algorithm::FixedWindow => Self::FixedWindow(fixed_window::Limiter::default()),
        }
    }

    /// Counts by this algorithm from now on. What was counted by another stays in use, as it does in Redis, where both
    /// read the same keys: by the first call of a sliding log as if granted now, in a window until one interval from now.
    pub(super) fn count_by(&mut self, name: &Name, now: i64) {
        match (&mut *self, name.algorithm()) {
            (Self::SlidingLog(log), Algorithm::FixedWindow) => {
                let end = log.limit.map(|limit| now + limit.interval);
                let window = log.value.map(|value| fixed_window::Window { value, end });
                let limit = log.limit;
                *self = Self::FixedWindow(fixed_window::Limiter { limit, window });
            }
            (Self::FixedWindow(window), Algorithm::SlidingLog) => {
                let open = window
                    .window
                    .filter(|window| window.end.is_none_or(|end| end >= now));
                let limiter = window::Limiter {
                    limit: window.limit,
                    value: open.map(|window| window.value),
                    ..window::Limiter::default()
                };
                *self = Self::SlidingLog(limiter);
            }
            (Self::SlidingLog(_), Algorithm::SlidingLog)
            | (Self::FixedWindow(_), Algorithm::FixedWindow) => {}
        }
        if let Self::SlidingLog(log) = self {
            log.note_in(name.slots());
        }
    }

    pub(super) fn limit(&self) -> Option<StoredLimit> {
        match self {
            Self::SlidingLog(log) => log.limit,
            Self::FixedWindow(window) => window.limit,
        }
    }

    /// For how long, at most, anything of this limit counts after it was granted.
    pub(super) fn life(&self, limit: &StoredLimit) -> i64 {
        match self {
            Self::SlidingLog(_) => limit.interval + ahead_of(limit.interval),
            Self::FixedWindow(_) => limit.interval,
        }
    }

    pub(super) fn counts(&mut self) -> &mut dyn Counts {
        match self {
            Self::SlidingLog(log) => log,
            Self::FixedWindow(window) => window,
        }
    }

    pub(super) fn available(&mut self, now: i64) -> Result<i64, ErrorKind> {
        match self {
            Self::SlidingLog(log) => log.available(now, NO_ID),
            Self::FixedWindow(window) => window.available(now),
        }
    }

    pub(super) fn release(&mut self, permits: i64, now: i64) -> Result<i64, ErrorKind> {
        match self {
            Self::SlidingLog(log) => log.release(permits, now, NO_ID),
            Self::FixedWindow(window) => window.release(permits, now),
        }
    }

    pub(super) fn repair(&mut self, now: i64) -> Result<i64, ErrorKind> {
        match self {
            Self::SlidingLog(log) => log.repair(now),
            Self::FixedWindow(window) => window.repair(now),
        }
    }

    pub(super) fn try_set_rate(&mut self, limit: StoredLimit) -> bool {
        match self {
            Self::SlidingLog(log) => log.try_set_rate(limit),
            Self::FixedWindow(window) => window.try_set_rate(limit),
        }
    }

    pub(super) fn set_rate(&mut self, limit: StoredLimit, keep: bool, now: i64) {
        match self {
            Self::SlidingLog(log) => log.set_rate(limit, keep, now),
            Self::FixedWindow(window) => window.set_rate(limit, keep, now),
        }
    }

    /// Settles what was taken at `keep` permits. How many were credited; below zero: charged. A receipt of the other
    /// algorithm finds nothing.
    pub(super) fn settle(
        &mut self,
        receipt: &Receipt,
        keep: u32,
        now: i64,
    ) -> Result<i64, ErrorKind> {
        match (self, receipt.name.algorithm()) {
            (Self::SlidingLog(log), Algorithm::SlidingLog) => {
                log.note_in(receipt.name.slots());
                match (receipt.name.slots(), receipt.settle()) {
                    (None, _) => log.settle(receipt, keep, now),
                    (Some(_), Some(end)) => log.settle_in_slot(receipt, keep, end, now),
                    (Some(_), None) => Ok(0),
                }
            }
            (Self::FixedWindow(window), Algorithm::FixedWindow) => match receipt.settle() {
                Some(end) => {
                    let credited = i64::from(receipt.permits) - i64::from(keep);
                    let given = receipt.limit.given().map(|limit| limit.stored());
                    window.settle(credited, end, given, now)
                }
                None => Ok(0),
            },
            _ => Ok(0),
        }
    }

    pub(super) fn full_at(&self) -> Option<i64> {
        match self {
            Self::SlidingLog(log) => log.full_at(),
            Self::FixedWindow(window) => window.full_at(),
        }
    }
}
