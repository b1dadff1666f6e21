//! Clocks, and an instant as stores count it: [`Now`]. No other module reads the time.

use std::{
    cell::Cell,
    fmt,
    panic::catch_unwind,
    pin::Pin,
    sync::{Arc, Mutex},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use tokio::runtime::{Handle, Id};

use crate::{
    sync::lock,
    values::error::{Error, ErrorKind},
};

#[cfg(any(test, feature = "test-util"))]
pub use manual::ManualClock;

#[cfg(any(test, feature = "test-util"))]
mod manual;

/// Milliseconds: a length, or a time since the Unix epoch, such as the scores of a log in Redis.
pub(crate) type Millis = u64;

/// The clock that limits are counted by.
///
/// [`SystemClock`] unless a test, or parity with a Java fleet, needs another.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Returns the time since the Unix epoch.
    ///
    /// A [`MemoryStore`](crate::MemoryStore) counts microseconds, and rounds so that no interval
    /// measured on this clock has more than the limit. A [`RedisStore`](crate::RedisStore) counts
    /// whole milliseconds, as Redisson does: finer parts are dropped.
    fn now(&self) -> Duration;

    /// Waits until [`now`](Self::now) is `time` or later. Callers that wait for permits wait by it.
    ///
    /// Default: tokio's timer, for as long as `time` is away. A clock that is moved by hand wakes
    /// its sleepers instead.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    fn sleep_until(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(tokio::time::sleep(time.saturating_sub(self.now())))
    }

    /// Returns whether [`sleep_until`](Self::sleep_until) may be called here: a caller that cannot
    /// wait for permits is refused at once, with the wait.
    ///
    /// Default: whether the caller is on a tokio runtime with a timer. A clock whose `sleep_until`
    /// needs none returns `true`.
    fn can_sleep(&self) -> bool {
        runtime().is_some()
    }
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Duration {
        (**self).now()
    }

    fn sleep_until(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        (**self).sleep_until(time)
    }

    fn can_sleep(&self) -> bool {
        (**self).can_sleep()
    }
}

/// The system's time of day, as `System.currentTimeMillis()` in Java.
///
/// It jumps when the system's clock is set.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        // A time before 1970 counts as 1970.
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
    }
}

/// The system's time of day at its creation, continued by a clock that never jumps.
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

/// The text of an error where [`runtime`] returns none.
pub(crate) const NO_TIMER: &str =
    "it needs a tokio runtime with a timer: `Builder::enable_time` or `enable_all`";

/// Returns the runtime that polls the caller, if it has a timer.
pub(crate) fn runtime() -> Option<Handle> {
    let handle = Handle::try_current().ok()?;
    has_timer(handle.id()).then_some(handle)
}

/// Checks that the runtime that polls the caller has a timer, which a call to a server needs.
///
/// # Errors
///
/// [`ErrorKind::Unavailable`], which says so.
pub(crate) fn check_timer() -> Result<(), Error> {
    runtime().map_or_else(|| Err(no_timer()), |_| Ok(()))
}

/// Returns the error for a missing timer.
pub(crate) fn no_timer() -> Error {
    Error::new(ErrorKind::Unavailable).detail(NO_TIMER)
}

/// Returns whether the present runtime has a timer.
///
/// Only an attempt to create a timer shows it, and panics if there is none. So it is
/// attempted once for each runtime without a timer, and once by each thread for a runtime that has
/// one, where it costs next to nothing.
fn has_timer(present: Id) -> bool {
    /// The most runtimes without a timer that are remembered.
    const MOST: usize = 64;
    static WITHOUT: Mutex<Vec<Id>> = Mutex::new(Vec::new());
    thread_local! {
        static WITH: Cell<Option<Id>> = const { Cell::new(None) };
    }
    if WITH.get() == Some(present) {
        return true;
    }
    let without = || lock(&WITHOUT);
    if without().contains(&present) {
        return false;
    }
    // Not while the lock is held: a panic hook may call this function again.
    let has_timer = catch_unwind(|| drop(tokio::time::sleep(Duration::ZERO))).is_ok();
    if has_timer {
        WITH.set(Some(present));
    } else {
        let mut without = without();
        if without.len() == MOST {
            without.remove(0);
        }
        without.push(present);
    }
    has_timer
}

/// Returns the clock's time in the unit of a log in Redis.
pub(crate) fn millis(clock: &dyn Clock) -> Millis {
    u64::try_from(clock.now().as_millis()).unwrap_or(u64::MAX)
}

/// The latest time by which Redis counts, in ms: a day in May 2109. In µs, and a century later, a
/// script still counts it exactly.
pub(crate) const LATEST_MILLIS: Millis = (1 << 42) - 1;

/// Returns the clock's time as a script takes it: after the latest it stands still, and zero would
/// be the server's clock.
pub(crate) fn sent_millis(clock: &dyn Clock) -> Millis {
    millis(clock).clamp(1, LATEST_MILLIS)
}

/// Returns the whole milliseconds of a time or a length, as scores have them.
pub(crate) fn millis_of(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// Ticks per millisecond in this process: microseconds.
pub(crate) const TICKS: i64 = 1000;
/// The latest time, in ticks: an interval and more can be added to it.
const LATEST: i64 = i64::MAX / 2;

/// An instant in ticks, the unit that a store counts in: milliseconds in Redis, microseconds in
/// this process.
///
/// A grant is scored by the instant rounded up, and expires by the instant rounded down. So a grant
/// counts for at least a whole interval, wherever between two ticks it begins and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Now {
    /// The tick since the epoch, rounded down.
    pub(crate) tick: i64,
    /// The nanoseconds after that tick.
    past: u32,
    per_ms: i64,
    /// Set if a caller gave the time, which proves nothing about scores by others. If not, all
    /// scores are by this clock, and one far ahead of it is wrong.
    pub(crate) is_by_caller: bool,
}

impl Now {
    /// Returns the present by a clock that all scores are by.
    pub(crate) fn by(clock: &dyn Clock) -> Self {
        let time = clock.now();
        // Beyond the latest tick.
        let seconds = time.as_secs().min(1 << 43).cast_signed();
        let tick = seconds * 1000 * TICKS + i64::from(time.subsec_micros());
        Self {
            tick: tick.min(LATEST),
            past: time.subsec_nanos() % 1000,
            per_ms: TICKS,
            is_by_caller: false,
        }
    }

    /// Returns the instant of a tick of this process.
    pub(crate) const fn at(tick: i64) -> Self {
        Self {
            tick: if tick < LATEST { tick } else { LATEST },
            past: 0,
            per_ms: TICKS,
            is_by_caller: false,
        }
    }

    /// Returns the instant of a millisecond, as Redis counts: it is rounded down for scores, too.
    pub(crate) const fn millis(tick: i64) -> Self {
        Self {
            tick,
            past: 0,
            per_ms: 1,
            is_by_caller: false,
        }
    }

    /// Returns the same instant by a caller's clock, or else by one that all scores are by.
    #[cfg(all(test, inside))]
    pub(crate) const fn by_caller(self, is_by_caller: bool) -> Self {
        Self {
            is_by_caller,
            ..self
        }
    }

    /// Returns the score of a grant: rounded up.
    pub(crate) fn score(&self) -> i64 {
        self.tick + i64::from(self.past > 0)
    }

    /// Converts milliseconds to ticks.
    pub(crate) fn ticks(&self, millis: i64) -> i64 {
        millis.saturating_mul(self.per_ms)
    }

    /// Returns the tick this many milliseconds later.
    pub(crate) fn after(&self, millis: u64) -> i64 {
        let ticks = millis.saturating_mul(self.per_ms.unsigned_abs());
        self.tick.saturating_add_unsigned(ticks)
    }

    /// Converts microseconds to ticks, rounded up.
    pub(crate) fn ticks_of_micros(&self, micros: i64) -> i64 {
        if self.per_ms == TICKS {
            micros
        } else {
            micros.div_euclid(1000) + i64::from(micros.rem_euclid(1000) > 0)
        }
    }

    /// Returns the instant in microseconds, rounded down.
    pub(crate) fn micros(&self) -> i64 {
        self.micros_of(self.tick)
    }

    /// Returns the instant in microseconds, rounded up.
    pub(crate) fn micros_up(&self) -> i64 {
        self.micros_of(self.score())
    }

    fn micros_of(&self, tick: i64) -> i64 {
        if self.per_ms == TICKS {
            tick
        } else {
            tick.saturating_mul(TICKS)
        }
    }

    /// Returns the time until `ticks` after `tick`, exact to the nanosecond; zero if it is over.
    pub(crate) fn until(&self, ticks: i64) -> Duration {
        let past = Duration::from_nanos(self.past.into());
        self.duration(ticks).saturating_sub(past)
    }

    /// Returns the same, counted from the score of a grant: for a new grant, a whole interval.
    pub(crate) fn until_from_score(&self, ticks: i64) -> Duration {
        self.duration(ticks.saturating_sub(i64::from(self.past > 0)))
    }

    fn duration(&self, ticks: i64) -> Duration {
        let micros = self.micros_of(ticks);
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }
}

/// Returns a moment to compare with others of this process; it does not jump.
pub(crate) fn moment() -> Instant {
    Instant::now()
}

/// Waits for `future` no longer than `max_wait`; `None` if it took longer.
///
/// On a tokio runtime without a timer there is no connection either: it then ends at once.
///
/// # Cancel safety
///
/// Dropping it drops `future`.
pub(crate) async fn within<F: Future>(max_wait: Duration, future: F) -> Option<F::Output> {
    runtime()?;
    tokio::time::timeout(max_wait, future).await.ok()
}
