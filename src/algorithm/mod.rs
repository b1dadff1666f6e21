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
use crate::{clock::Now, limit::Algorithm, name::Name};

/// Returns a limiter without a limit, counted by this algorithm.
pub(crate) fn new(algorithm: Algorithm) -> Box<LimiterState> {
    match algorithm {
        Algorithm::SlidingLog => Box::<LimiterState<SlidingLog>>::default(),
        Algorithm::FixedWindow => Box::<LimiterState<FixedWindow>>::default(),
        Algorithm::Gcra => Box::<LimiterState<Gcra>>::default(),
        Algorithm::Calendar => Box::<LimiterState<Calendar>>::default(),
    }
}

/// Counts a limiter as this name says from now on.
///
/// Permits that another algorithm counted stay in use, as in Redis, where logs and windows read the
/// same keys: by the first call of a sliding log as if granted now, in a window until one interval
/// from now. GCRA, which keeps another number there, and the calendar, which has a key of its own,
/// take over nothing, and leave nothing.
pub(crate) fn count_by(limiter: &mut Box<LimiterState>, name: &Name, now: Now) {
    if limiter.state.kind() != name.algorithm() {
        let before = std::mem::replace(limiter, new(name.algorithm()));
        limiter.limit = before.limit;
        if let (Some(limit), Some(value)) = (before.limit, before.state.value(now)) {
            limiter.state.resume(&limit, value, now);
        }
    }
    limiter.state.count_by(name.counting());
}
