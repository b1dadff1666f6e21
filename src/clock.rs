//! The only reader of the time.

use std::{
    fmt,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Milliseconds since the Unix epoch: the scores in the log.
pub(crate) type Millis = u64;

/// Tells the time that limits are counted by.
///
/// [`SystemClock`] unless a test, or parity with a Java fleet, asks for another.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The time since the Unix epoch. Milliseconds count; finer parts are dropped.
    fn now(&self) -> Duration;
}

impl<C: Clock + ?Sized> Clock for std::sync::Arc<C> {
    fn now(&self) -> Duration {
        (**self).now()
    }
}

/// The system's time of day, as `System.currentTimeMillis()` in Java.
///
/// It jumps when the system's clock is set.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        // Before 1970 every limit is at its beginning.
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
    }
}

/// The system's time of day when it was made, carried on by a clock that never jumps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SteadyClock {
    made: Instant,
    made_at: Duration,
}

impl SteadyClock {
    pub(crate) fn new() -> Self {
        Self {
            made: Instant::now(),
            made_at: SystemClock.now(),
        }
    }
}

impl Clock for SteadyClock {
    fn now(&self) -> Duration {
        self.made_at + self.made.elapsed()
    }
}

/// The clock's time in the unit of the log.
pub(crate) fn millis(clock: &dyn Clock) -> Millis {
    u64::try_from(clock.now().as_millis()).unwrap_or(u64::MAX)
}

/// A moment to compare with others of this process; it does not jump.
#[cfg(feature = "redis")]
pub(crate) fn moment() -> Instant {
    Instant::now()
}

/// Waits for `future` no longer than `patience`; `None` if it took longer.
///
/// Without a tokio runtime around it there is no timer, and no connection either: it then ends at once.
///
/// # Cancel safety
///
/// Dropping it drops `future`.
#[cfg(feature = "redis")]
pub(crate) async fn within<F: Future>(patience: Duration, future: F) -> Option<F::Output> {
    tokio::runtime::Handle::try_current().ok()?;
    tokio::time::timeout(patience, future).await.ok()
}

#[cfg(any(test, feature = "test-util"))]
pub use manual::ManualClock;

#[cfg(any(test, feature = "test-util"))]
mod manual {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicU64, Ordering},
        },
        time::Duration,
    };

    use super::Clock;

    /// A clock that stands still until it is moved. Clones are the same clock.
    ///
    /// # Example
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{Clock, ManualClock};
    ///
    /// let clock = ManualClock::new();
    /// let before = clock.now();
    /// clock.advance(Duration::from_secs(60));
    /// assert_eq!(clock.now() - before, Duration::from_secs(60));
    /// ```
    #[derive(Clone, Debug)]
    pub struct ManualClock(Arc<AtomicU64>);

    impl ManualClock {
        /// A clock that shows the second of January 2024, UTC.
        #[must_use]
        pub fn new() -> Self {
            Self::starting_at(Duration::from_secs(1_704_153_600))
        }

        /// A clock that shows `time` since the Unix epoch, in whole milliseconds.
        #[must_use]
        pub fn starting_at(time: Duration) -> Self {
            let clock = Self(Arc::default());
            clock.set(time);
            clock
        }

        /// Moves the clock on.
        pub fn advance(&self, by: Duration) {
            self.0.fetch_add(whole_millis(by), Ordering::SeqCst);
        }

        /// Sets the clock, also back.
        pub fn set(&self, time: Duration) {
            self.0.store(whole_millis(time), Ordering::SeqCst);
        }
    }

    impl Default for ManualClock {
        fn default() -> Self {
            Self::new()
        }
    }

    impl Clock for ManualClock {
        fn now(&self) -> Duration {
            Duration::from_millis(self.0.load(Ordering::SeqCst))
        }
    }

    fn whole_millis(time: Duration) -> u64 {
        u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
    }
}
