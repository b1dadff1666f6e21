//! The algorithms that count permits, as pure functions of a state and an instant.
//!
//! [`limiter::Counter`] is their interface. The scripts in `lua/` do the same in Redis.
//! `CONTRIBUTING.md` says what a new algorithm touches.

pub(crate) mod answer;
pub(crate) mod ban;
pub(crate) mod calendar;
pub(crate) mod call;
pub(crate) mod fixed_window;
pub(crate) mod gcra;
pub(crate) mod limiter;
#[cfg(test)]
mod rounding;
pub(crate) mod sliding_log;

use self::{
    calendar::Calendar, fixed_window::FixedWindow, gcra::Gcra, limiter::LimiterState,
    sliding_log::SlidingLog,
};
use crate::limit::Algorithm;

/// Returns a limiter without a limit, counted by this algorithm.
pub(crate) fn new(algorithm: Algorithm) -> Box<LimiterState> {
    match algorithm {
        Algorithm::SlidingLog => Box::<LimiterState<SlidingLog>>::default(),
        Algorithm::FixedWindow => Box::<LimiterState<FixedWindow>>::default(),
        Algorithm::Gcra => Box::<LimiterState<Gcra>>::default(),
        Algorithm::Calendar => Box::<LimiterState<Calendar>>::default(),
    }
}
