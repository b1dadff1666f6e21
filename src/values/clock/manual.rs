//! The clock of tests, which stands still until it is moved.

use std::{
    fmt,
    future::poll_fn,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    task::{Poll, Waker},
    time::Duration,
};

use super::Clock;
use crate::sync::lock;

/// A clock that stands still until it is moved, and then wakes the sleepers of that time.
/// Clones are the same clock.
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{Clock, testing::ManualClock};
///
/// let clock = ManualClock::new();
/// let before = clock.now();
/// clock.advance(Duration::from_secs(60));
/// assert_eq!(clock.now() - before, Duration::from_secs(60));
/// ```
#[derive(Clone)]
pub struct ManualClock(Arc<Mutex<ShownTime>>);

struct ShownTime {
    time: Duration,
    sleepers: Vec<Waker>,
}

impl ManualClock {
    /// Returns a clock that shows the second of January 2024, UTC.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(ShownTime {
            time: Duration::from_secs(1_704_153_600),
            sleepers: Vec::new(),
        })))
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        let time = self.now() + by;
        self.set(time);
    }

    /// Sets the clock, also back.
    pub fn set(&self, time: Duration) {
        let mut shown = self.shown();
        shown.time = time;
        let sleepers = std::mem::take(&mut shown.sleepers);
        drop(shown);
        sleepers.into_iter().for_each(Waker::wake);
    }

    /// Returns how many callers wait for a time that is not yet shown, including those that
    /// gave up since the clock was last moved.
    pub fn sleepers(&self) -> usize {
        self.shown().sleepers.len()
    }

    fn shown(&self) -> MutexGuard<'_, ShownTime> {
        lock(&self.0)
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        self.shown().time
    }

    fn sleep_until(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let clock = self.clone();
        Box::pin(poll_fn(move |cx| {
            let mut shown = clock.shown();
            if shown.time >= time {
                return Poll::Ready(());
            }
            shown.sleepers.retain(|it| !it.will_wake(cx.waker()));
            shown.sleepers.push(cx.waker().clone());
            Poll::Pending
        }))
    }

    fn can_sleep(&self) -> bool {
        true
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManualClock")
            .field("now", &self.now())
            .finish_non_exhaustive()
    }
}
