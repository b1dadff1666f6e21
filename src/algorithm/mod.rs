//! The algorithms that count permits, as pure functions of a state and an instant.
//!
//! [`limiter::Counter`] is their interface, and [`AnyLimiter`] a limiter of any of them. The
//! scripts in `lua/` do the same in Redis. `CONTRIBUTING.md` says what a new algorithm touches.

pub(crate) mod answer;
pub(crate) mod ban;
pub(crate) mod bytes;
pub(crate) mod calendar;
pub(crate) mod call;
pub(crate) mod fixed_window;
pub(crate) mod gcra;
pub(crate) mod limiter;
pub(crate) mod sliding_log;

use std::ops::{Deref, DerefMut};

use self::{
    answer::Answer,
    bytes::Bytes,
    calendar::CalendarCount,
    fixed_window::FixedWindow,
    gcra::Gcra,
    limiter::{Counter, LimiterState},
    sliding_log::SlidingLog,
};
use crate::values::{charge::Charge, clock::Now, error::ErrorKind, limit::Algorithm};

/// A limiter by value, counted by one of the algorithms.
#[derive(Debug)]
pub(crate) enum AnyLimiter {
    Log(LimiterState<SlidingLog>),
    Window(LimiterState<FixedWindow>),
    Gcra(LimiterState<Gcra>),
    /// Rare, and larger than the others.
    Calendar(Box<LimiterState<CalendarCount>>),
}

impl AnyLimiter {
    /// Returns a limiter without a limit, counted by this algorithm.
    pub(crate) fn new(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::SlidingLog => Self::Log(LimiterState::default()),
            Algorithm::FixedWindow => Self::Window(LimiterState::default()),
            Algorithm::Gcra => Self::Gcra(LimiterState::default()),
            Algorithm::Calendar => Self::Calendar(Box::default()),
        }
    }

    /// Returns a copy of a state that is small, to put it back; `None` for a log.
    pub(crate) fn small(&self) -> Option<Self> {
        match self {
            Self::Log(_) => None,
            Self::Window(limiter) => Some(Self::Window(limiter.clone())),
            Self::Gcra(limiter) => Some(Self::Gcra(limiter.clone())),
            Self::Calendar(limiter) => Some(Self::Calendar(limiter.clone())),
        }
    }

    /// Takes permits for one caller of this limiter alone, as nearly every request does: compiled
    /// for each algorithm by itself, where all other methods go through the interface.
    #[inline]
    pub(crate) fn acquire_one(
        &mut self,
        charge: &Charge,
        exact: bool,
        now: Now,
    ) -> Result<Answer, ErrorKind> {
        match self {
            Self::Log(LimiterState { limit, state }) => {
                state.acquire_one(limit, charge, exact, now)
            }
            Self::Window(LimiterState { limit, state }) => {
                state.acquire_one(limit, charge, exact, now)
            }
            Self::Gcra(LimiterState { limit, state }) => {
                state.acquire_one(limit, charge, exact, now)
            }
            Self::Calendar(limiter) => {
                let LimiterState { limit, state } = &mut **limiter;
                state.acquire_one(limit, charge, exact, now)
            }
        }
    }
}

impl Bytes for AnyLimiter {
    fn write(&self, to: &mut Vec<u8>) {
        let tag: u8 = match self {
            Self::Log(_) => 0,
            Self::Window(_) => 1,
            Self::Gcra(_) => 2,
            Self::Calendar(_) => 3,
        };
        tag.write(to);
        match self {
            Self::Log(limiter) => limiter.write(to),
            Self::Window(limiter) => limiter.write(to),
            Self::Gcra(limiter) => limiter.write(to),
            Self::Calendar(limiter) => limiter.write(to),
        }
    }

    fn read(from: &mut &[u8]) -> Option<Self> {
        Some(match u8::read(from)? {
            0 => Self::Log(Bytes::read(from)?),
            1 => Self::Window(Bytes::read(from)?),
            2 => Self::Gcra(Bytes::read(from)?),
            3 => Self::Calendar(Box::new(Bytes::read(from)?)),
            _ => return None,
        })
    }
}

impl Deref for AnyLimiter {
    type Target = LimiterState;

    fn deref(&self) -> &LimiterState {
        match self {
            Self::Log(limiter) => limiter,
            Self::Window(limiter) => limiter,
            Self::Gcra(limiter) => limiter,
            Self::Calendar(limiter) => &**limiter,
        }
    }
}

impl DerefMut for AnyLimiter {
    fn deref_mut(&mut self) -> &mut LimiterState {
        match self {
            Self::Log(limiter) => limiter,
            Self::Window(limiter) => limiter,
            Self::Gcra(limiter) => limiter,
            Self::Calendar(limiter) => &mut **limiter,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A store in this process has one for each key.
    #[test]
    fn a_limiter_is_small() {
        let sizes = [
            size_of::<LimiterState<Gcra>>(),
            size_of::<LimiterState<FixedWindow>>(),
            size_of::<LimiterState<SlidingLog>>(),
        ];
        assert!(size_of::<AnyLimiter>() <= 96, "{sizes:?}");
    }
}
