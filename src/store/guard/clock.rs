//! The clock that a store counts by, as this process sees it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::values::clock::{Clock, SystemClock, millis, moment};

/// The clock of waits and scores: one of this process, or the server's.
#[derive(Clone)]
pub(crate) struct StoreClock {
    /// `None` for the server's.
    pub(crate) own: Option<Arc<dyn Clock>>,
}

/// An instant, by a clock that never jumps and by one that does not stop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreInstant {
    pub(crate) moment: Instant,
    time: Duration,
}

impl StoreClock {
    /// The server's clock. It is assumed to run as fast as those of this process.
    pub(crate) const SERVER: Self = Self { own: None };

    /// Returns the part of a wait that is not certain: a server's clock is read in whole
    /// milliseconds, and can turn so much earlier than this process sees.
    pub(crate) fn slack(&self) -> Duration {
        if self.own.is_some() {
            Duration::ZERO
        } else {
            Duration::from_millis(1)
        }
    }

    pub(crate) fn now(&self) -> StoreInstant {
        self.now_or_since(moment())
    }

    /// Returns the same of a `moment` that was read just before. What counts from it is never too
    /// short.
    pub(crate) fn now_or_since(&self, moment: Instant) -> StoreInstant {
        StoreInstant {
            moment,
            time: self.own.as_deref().map_or_else(|| SystemClock.now(), whole),
        }
    }

    /// Returns the time since `then`, never too short: [`Duration::MAX`] if the clock of this
    /// process was set back, as the time is not known then.
    ///
    /// By the server's clock it includes the time in which the machine slept. The clock that never
    /// jumps stands still meanwhile, and the time of day does not; but that may be set. The longer
    /// of both is too short only if the time of day was set back and the machine slept.
    pub(crate) fn elapsed(&self, then: &StoreInstant) -> Duration {
        let own = self.own_elapsed(then);
        own.unwrap_or_else(|| self.between(then, &self.now()))
    }

    /// Returns the time from `then` to `now`, by a clock of this process in whole milliseconds:
    /// [`Duration::MAX`] if that was set back.
    pub(crate) fn between(&self, then: &StoreInstant, now: &StoreInstant) -> Duration {
        let time = now.time.checked_sub(then.time);
        match self.own {
            Some(_) => time.unwrap_or(Duration::MAX),
            None => {
                let steady = now.moment.duration_since(then.moment);
                steady.max(time.unwrap_or_default())
            }
        }
    }

    /// Returns the time since `then` by the clock of this process, or by one that never jumps.
    pub(crate) fn steady_elapsed(&self, then: &StoreInstant) -> Duration {
        let steady = || moment().duration_since(then.moment);
        self.own_elapsed(then).unwrap_or_else(steady)
    }

    /// Returns the same by the clock of this process alone; `None` by the server's.
    ///
    /// A call in Redis has the time in whole milliseconds, one in this process in nanoseconds: by
    /// both it is never too short, as only `then` is rounded down.
    pub(crate) fn own_elapsed(&self, then: &StoreInstant) -> Option<Duration> {
        let own = self.own.as_deref()?;
        let elapsed = own.now().checked_sub(then.time);
        Some(elapsed.unwrap_or(Duration::MAX))
    }
}

/// Returns the time in whole milliseconds, rounded down.
fn whole(clock: &dyn Clock) -> Duration {
    Duration::from_millis(millis(clock))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::clock::ManualClock;

    #[test]
    fn a_time_that_the_machine_slept_through_is_not_too_short() {
        let (server, hour) = (StoreClock::SERVER, Duration::from_secs(3600));
        let now = server.now();
        // By one clock it is an hour ago: the other one stood still, or was set.
        let slept = StoreInstant {
            time: now.time - hour,
            ..now
        };
        assert!(server.elapsed(&slept) >= hour);
        let set_back = StoreInstant {
            time: now.time + hour,
            ..now
        };
        assert!(server.elapsed(&set_back) < hour);
        let tick = Duration::from_millis(1);
        let set_back = StoreInstant {
            moment: now.moment.checked_sub(tick).unwrap(),
            time: now.time + hour,
        };
        assert!(server.elapsed(&set_back) >= tick);
    }

    #[test]
    fn a_clock_of_this_process_that_was_set_back_has_no_time() {
        let clock = ManualClock::new();
        let own = StoreClock {
            own: Some(Arc::new(clock.clone())),
        };
        let then = own.now();
        clock.advance(Duration::from_micros(1999));
        assert_eq!(own.elapsed(&then), Duration::from_micros(1999));
        clock.set(clock.now() - Duration::from_millis(2));
        assert_eq!(own.elapsed(&then), Duration::MAX);
    }
}
