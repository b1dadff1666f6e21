//! Limits: a number of permits in any interval of a given length.

mod algorithm;
mod ban;
pub(crate) mod calendar;
mod in_flight;
mod several;
mod slots;
mod text;

use std::time::Duration;

#[cfg(feature = "calendar")]
pub use self::calendar::StartingOn;
pub use self::{algorithm::Algorithm, ban::Ban};
pub(crate) use self::{
    algorithm::{Counting, emission},
    calendar::Calendar,
    in_flight::ASKS_AGAIN,
    several::{LimitPart, MOST_LIMITS, Shorter},
    slots::Slots,
    text::{name_of_part, name_of_whole, time},
};
use crate::values::{
    clock::Millis,
    error::{ConfigError, bail, config_error},
};

/// The most permits that a script can count exactly.
const MOST_PERMITS: u64 = (1 << 53) - 1;
/// A century.
pub(crate) const LONGEST: Millis = 36_525 * 24 * 60 * 60 * 1000;

/// The maximum number of permits in any interval of a given length.
///
/// The window slides: wherever an interval begins, no more permits than these are granted in it, in
/// Redis to the millisecond. There is no burst at the turn of a minute, unless an [`Algorithm`]
/// allows one.
///
/// Units: permits are whole numbers from 1 to 2^53 - 1, intervals whole milliseconds from 1 to a
/// century.
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::Limit;
///
/// const API: Limit = Limit::per_second(10);
/// let nightly = Limit::try_new(3, Duration::from_secs(86_400))?;
/// assert_eq!(API.permits(), 10);
/// assert!(Limit::try_new(0, Duration::from_secs(1)).is_err());
/// # let _ = nightly;
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "a limit does nothing until a rule or a limiter uses it"]
pub struct Limit {
    /// The longest first. A part without permits stands for none.
    parts: [LimitPart; MOST_LIMITS],
    rate_type: RateType,
    keep_alive: Option<Millis>,
    /// Set for a limit by the calendar. It takes no memory of its own: the struct has padding
    /// there.
    calendar: Option<Calendar>,
    /// Set for a limit of places in flight, whose interval is how long one is held at most.
    pub(crate) in_flight: bool,
}

/// The clients that share a limit: Redisson's `RateType`, and its numbers on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum RateType {
    /// All together: all processes, Rust and Java
    #[default]
    Overall,
    /// Each client id on its own: a [`RedisStore`](crate::RedisStore), or a Redisson instance
    PerClient,
}

impl Limit {
    /// Limits to `permits` in any interval of the given length.
    ///
    /// # Panics
    ///
    /// If [`try_new`](Self::try_new) would fail; at compile time in a constant.
    #[allow(
        clippy::panic,
        reason = "documented, and a compile error in a constant"
    )]
    #[track_caller]
    pub const fn new(permits: u64, interval: Duration) -> Self {
        assert!(
            permits >= 1 && permits <= MOST_PERMITS,
            "a limit takes 1 to 2^53 - 1 permits"
        );
        let Some(interval) = whole_millis(interval) else {
            panic!("an interval is of whole milliseconds, at least one and at most a century");
        };
        Self::plain(LimitPart { permits, interval })
    }

    /// Returns the limit of these numbers and of nothing else.
    const fn plain(numbers: LimitPart) -> Self {
        let mut parts = [LimitPart::NONE; MOST_LIMITS];
        parts[0] = numbers;
        Self {
            parts,
            rate_type: RateType::Overall,
            keep_alive: None,
            calendar: None,
            in_flight: false,
        }
    }

    /// Returns the limit of the numbers that a store has, if they are valid.
    pub(crate) fn of(permits: u64, interval: Millis) -> Option<Self> {
        let is_valid = (1..=MOST_PERMITS).contains(&permits) && (1..=LONGEST).contains(&interval);
        is_valid.then_some(Self::plain(LimitPart { permits, interval }))
    }

    /// Limits to `permits` in any interval of the given length, for values from outside of the
    /// code.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`Limit`](crate::ConfigErrorKind::Limit), with the value, if one is
    /// out of range.
    pub fn try_new(permits: u64, interval: Duration) -> Result<Self, ConfigError> {
        if !(1..=MOST_PERMITS).contains(&permits) {
            bail!(Limit: "a limit takes 1 to 2^53 - 1 permits, not {permits}");
        }
        checked_millis(interval)?;
        Ok(Self::new(permits, interval))
    }

    /// Limits to `permits` in any second.
    ///
    /// # Panics
    ///
    /// If `permits` is zero or above 2^53 - 1.
    #[track_caller]
    pub const fn per_second(permits: u64) -> Self {
        Self::new(permits, Duration::from_secs(1))
    }

    /// Limits to `permits` in any 60 seconds.
    ///
    /// # Panics
    ///
    /// If `permits` is zero or above 2^53 - 1.
    #[track_caller]
    pub const fn per_minute(permits: u64) -> Self {
        Self::new(permits, Duration::from_secs(60))
    }

    /// Limits to `permits` in any 3600 seconds.
    ///
    /// # Panics
    ///
    /// If `permits` is zero or above 2^53 - 1.
    #[track_caller]
    pub const fn per_hour(permits: u64) -> Self {
        Self::new(permits, Duration::from_secs(3600))
    }

    /// Limits to `permits` in any 24 hours.
    ///
    /// # Panics
    ///
    /// If `permits` is zero or above 2^53 - 1.
    #[track_caller]
    pub const fn per_day(permits: u64) -> Self {
        Self::new(permits, Duration::from_secs(86_400))
    }

    /// Adds another limit: a request takes its permits from all, or from none.
    ///
    /// Up to four limits of different intervals are one limiter with one state, as in Bucket4j the
    /// bandwidths of a bucket. Each counts exactly, by a sliding log in our own format: another
    /// algorithm, slots, leases, [`per_client`](Self::per_client),
    /// [`keep_alive`](Self::keep_alive), a window of the calendar and Redisson's format are each a
    /// [`ConfigError`] where a rule or a limiter is made, and an error of kind
    /// [`Limit`](crate::ErrorKind::Limit) where a closure finds the limit.
    /// [`LimitState`](crate::LimitState) has an entry for each. In text:
    /// `10/1s and 500/1h`.
    ///
    /// # Panics
    ///
    /// If more than four combine, if one of them is by the calendar, per client or has a keep-alive
    /// time, or if one would never refuse what the others admit: two of one interval, a
    /// shorter one with as many permits, or a longer one with as many as the shorter allows in that
    /// time. At compile time in a constant. For values from outside of the code, parse the text.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Limit, MemoryStore};
    ///
    /// const API: Limit = Limit::per_second(2).and(Limit::per_hour(3));
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (store, clock) = MemoryStore::builder().build_manual();
    /// let api = API.named("api").keyed(&store)?.of("ann");
    /// assert!(api.try_acquire_many(2).await?.is_allowed());
    /// assert!(!api.try_acquire().await?.is_allowed());
    /// clock.advance(std::time::Duration::from_secs(1));
    /// assert!(api.try_acquire().await?.is_allowed());
    /// let refused = api.try_acquire().await?;
    /// let lacking = refused.limits().find(|limit| limit.is_refused()).unwrap();
    /// assert_eq!((lacking.permits(), lacking.remaining()), (3, Some(0)));
    /// # Ok(())
    /// # }
    /// ```
    #[allow(
        clippy::panic,
        reason = "documented, and a compile error in a constant"
    )]
    #[track_caller]
    pub const fn and(self, other: Self) -> Self {
        match self.joined(other) {
            Ok(limit) => limit,
            Err(reason) => panic!("{}", reason),
        }
    }

    /// Gives each client id the whole limit, instead of all of them together: where it is in
    /// Redisson's format, which alone has such limits.
    pub const fn per_client(mut self) -> Self {
        self.rate_type = RateType::PerClient;
        self
    }

    /// Lets an unused limiter in Redisson's format expire in Redis after this time.
    ///
    /// Default: limiters that rules create from a request's key expire after two intervals, and
    /// after at least 60 seconds; all others stay until they are deleted. A limiter in our own
    /// format has no such time: its key is gone when nothing of it is in use.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`Limit`](crate::ConfigErrorKind::Limit) if it is shorter than the
    /// interval, as in Redisson, or not in whole milliseconds; and of a limit by the calendar,
    /// whose count expires with its window.
    pub fn keep_alive(mut self, keep_alive: Duration) -> Result<Self, ConfigError> {
        if self.calendar.is_some() {
            bail!(Limit: "{self} has no keep-alive time: what was used expires with its window");
        }
        let millis = checked_millis(keep_alive)?;
        if millis < self.parts[0].interval {
            bail!(Limit: "a keep-alive time of {keep_alive:?} is shorter than the interval of \
                {:?}", self.interval());
        }
        self.keep_alive = Some(millis);
        Ok(self)
    }

    /// Returns the permits of one interval; of [several limits](Self::and) of the longest one.
    pub const fn permits(&self) -> u64 {
        self.parts[0].permits
    }

    /// Returns the length of the interval; of a limit by the calendar 1, 7 or 31 times 24 hours,
    /// of [several limits](Self::and) the longest.
    pub const fn interval(&self) -> Duration {
        Duration::from_millis(self.parts[0].interval)
    }

    /// Returns whether each client has the limit for itself: see [`per_client`](Self::per_client).
    pub const fn is_per_client(&self) -> bool {
        matches!(self.rate_type, RateType::PerClient)
    }

    /// Returns how long an unused limiter stays, if that was set.
    pub fn keep_alive_time(&self) -> Option<Duration> {
        let keep_alive = self.keep_alive.filter(|_| self.calendar.is_none());
        keep_alive.map(Duration::from_millis)
    }

    /// Returns whether it limits what is in flight: see [`in_flight`](Self::in_flight).
    pub const fn is_in_flight(&self) -> bool {
        self.in_flight
    }

    /// Returns whether it is of [several](Self::and).
    pub(crate) const fn is_several(&self) -> bool {
        self.parts[1].permits > 0
    }

    /// Returns the calendar of a limit by the calendar.
    pub(crate) fn calendar(&self) -> Option<Calendar> {
        self.calendar
    }

    /// Checks that `owner` counts a limit by the calendar by that alone, and no other limit so; one
    /// in our own format without what only Redisson's has; and each by an algorithm that can.
    pub(crate) fn check_counting(
        &self,
        owner: &str,
        by: Algorithm,
        prefers_redisson: bool,
    ) -> Result<(), ConfigError> {
        let in_own_format = !prefers_redisson || by.facts().only_own_format;
        let is_plain = by == Algorithm::SlidingLog && self.rate_type == RateType::Overall;
        match self.calendar {
            Some(_) if !is_plain => {
                bail!(Limit: "{owner:?} counts {self} by the calendar, for all \
                clients together: leave the algorithm and `per_client` out")
            }
            None if self.is_several() && !(in_own_format && is_plain) => {
                bail!(Limit: "{owner:?} counts by {self}, which a sliding log in our own format \
                    alone can: leave the algorithm, `per_client` and Redisson's format out")
            }
            None if by == Algorithm::Calendar => {
                bail!(Limit: "{owner:?} cannot count {self} by the \
                calendar: only days, weeks and months go by it, as in `Limit::monthly(10_000)`")
            }
            None if in_own_format && self.is_per_client() => {
                bail!(Limit: "{owner:?} counts {self} for all clients together: leave \
                `per_client` out, and name the client in the key, or count in Redisson's format")
            }
            None if in_own_format && self.keep_alive.is_some() => {
                bail!(Limit: "{owner:?} counts {self} in a key that is gone after its use: leave \
                `keep_alive` out, or count in Redisson's format")
            }
            _ => by.check(self),
        }
    }

    /// Returns the limit as it is written for a limiter that a rule created from a request's key.
    pub(crate) fn for_request_key(mut self) -> Self {
        let vanishing = (2 * self.parts[0].interval).max(60_000);
        self.keep_alive.get_or_insert(vanishing);
        self
    }

    pub(crate) fn stored(&self) -> StoredLimit {
        StoredLimit {
            // Both are far below 2^63: see MOST_PERMITS and LONGEST.
            rate: self.parts[0].permits.cast_signed(),
            interval: self.parts[0].interval.cast_signed(),
            rate_type: self.rate_type,
            keep_alive: self.keep_alive.unwrap_or(0),
        }
    }
}

/// The source of the limit that applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LimitSource {
    /// The given one: a differing stored one is rewritten
    Code(Limit),
    /// The stored one; there must be one
    Store,
    /// The stored one; if there is none, this one is stored
    StoreOrInit(Limit),
}

impl LimitSource {
    /// Returns the limit that code gives: the one in force, or the one to store where none is.
    pub(crate) fn given(&self) -> Option<&Limit> {
        match self {
            Self::Code(limit) | Self::StoreOrInit(limit) => Some(limit),
            Self::Store => None,
        }
    }
}

/// A limit as a store holds it. Java peers may have written numbers that a [`Limit`] does not
/// allow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoredLimit {
    pub(crate) rate: i64,
    pub(crate) interval: i64,
    pub(crate) rate_type: RateType,
    /// Milliseconds, 0 for none.
    pub(crate) keep_alive: Millis,
}

impl StoredLimit {
    /// Returns the limit, if it is valid.
    pub(crate) fn limit(&self) -> Option<Limit> {
        let mut limit = Limit::of(self.rate.try_into().ok()?, self.interval.try_into().ok()?)?;
        limit.rate_type = self.rate_type;
        limit.keep_alive = (self.keep_alive > 0).then_some(self.keep_alive);
        Some(limit)
    }
}

/// Checks a lease of `owner`, with its limit if that is known. If not, a lease is cut to a tenth of
/// the interval in force when it is taken.
///
/// # Errors
///
/// Returns an error of kind [`Limit`](crate::ConfigErrorKind::Limit), with the lease and what is
/// wrong with it.
pub(crate) fn check_lease(
    owner: &str,
    lease: Duration,
    algorithm: Algorithm,
    in_slots: bool,
    limit: Option<&Limit>,
) -> Result<(), ConfigError> {
    if lease.is_zero() {
        return Ok(());
    }
    let reason = if whole_millis(lease).is_none() {
        "it is not in whole milliseconds, up to a century"
    } else if limit.is_some_and(|limit| lease > limit.interval() / 10) {
        "it is longer than a tenth of the interval"
    } else if limit.is_some_and(|limit| limit.calendar.is_some()) {
        Algorithm::Calendar.facts().no_lease
    } else if limit.is_some_and(|limit| limit.in_flight) {
        "a place that nothing holds would be taken"
    } else if limit.is_some_and(Limit::is_several) {
        "only a single limit is leased"
    } else if !algorithm.facts().has_log {
        algorithm.facts().no_lease
    } else if in_slots {
        // The end of a slot and that of a lease add up to more than the score offset allows.
        "its grants are merged in slots"
    } else {
        return Ok(());
    };
    bail!(Limit: "{owner:?} cannot lease permits for {lease:?}: {reason}")
}

fn checked_millis(interval: Duration) -> Result<Millis, ConfigError> {
    whole_millis(interval).ok_or_else(|| {
        config_error!(Limit: "an interval is of whole milliseconds, at least one and at most a \
            century, not {interval:?}")
    })
}

const fn whole_millis(interval: Duration) -> Option<Millis> {
    let millis = interval.as_millis();
    let whole = interval.subsec_nanos().is_multiple_of(1_000_000);
    if whole && millis >= 1 && millis <= LONGEST as u128 {
        Some(millis as u64)
    } else {
        None
    }
}

/// The most by which a score may lead the grant it stands for, in ticks or ms as the interval. A
/// constant of the format.
pub(crate) fn ahead_of(interval: i64) -> i64 {
    interval.div_euclid(10)
}

/// Returns a count that other processes may have brought below zero.
pub(crate) fn at_least_zero(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_reach_as_far_as_is_promised() {
        let second = Duration::from_secs(1);
        let century = Duration::from_secs(3_155_760_000);
        for (permits, interval, is_taken) in [
            (1, Duration::from_millis(1), true),
            ((1 << 53) - 1, second, true),
            (1, century, true),
            (0, second, false),
            (1 << 53, second, false),
            (u64::MAX, second, false),
            (1, Duration::ZERO, false),
            (1, Duration::from_micros(999), false),
            (1, Duration::from_micros(1500), false),
            (1, century + Duration::from_millis(1), false),
        ] {
            let limit = Limit::try_new(permits, interval).map(|limit| limit.permits());
            assert_eq!(limit.is_ok(), is_taken, "{permits} in {interval:?}");
        }
        // As in Redisson, which requires no more than one interval.
        let minute = Limit::per_minute(1);
        for (secs, is_taken) in [(59, false), (60, true)] {
            let time = Duration::from_secs(secs);
            let kept = minute.keep_alive(time).map(|limit| limit.keep_alive_time());
            assert_eq!(kept.ok(), is_taken.then_some(Some(time)), "{secs} s");
        }
        assert_eq!(minute.keep_alive_time(), None);
    }

    #[test]
    fn a_stored_limit_reads_back() {
        let limit = Limit::per_hour(7)
            .per_client()
            .keep_alive(Duration::from_secs(7200))
            .unwrap();
        assert_eq!(limit.stored().limit(), Some(limit));
        let lasting = Limit::per_hour(7);
        assert_eq!(lasting.stored().limit(), Some(lasting));
        for (limit, kept) in [
            (Limit::per_second(1), 60_000),
            (Limit::per_minute(1), 120_000),
        ] {
            assert_eq!(limit.for_request_key().keep_alive, Some(kept));
        }
    }

    #[test]
    fn a_lease_is_for_a_log_and_a_tenth_of_the_interval() {
        let minute = Limit::per_minute(10);
        for (lease, algorithm, in_slots, is_taken) in [
            (6000, Algorithm::SlidingLog, false, true),
            (6001, Algorithm::SlidingLog, false, false),
            (6000, Algorithm::SlidingLog, true, false),
            (6000, Algorithm::FixedWindow, false, false),
            (6000, Algorithm::Gcra, false, false),
            (0, Algorithm::Gcra, true, true),
        ] {
            let lease = Duration::from_millis(lease);
            let checked = check_lease("login", lease, algorithm, in_slots, Some(&minute));
            assert_eq!(checked.is_ok(), is_taken, "{lease:?} by {algorithm:?}");
        }
        let lease = Duration::from_micros(1500);
        let checked = check_lease("login", lease, Algorithm::SlidingLog, false, None);
        assert!(checked.is_err());
    }

    #[test]
    fn the_calendar_counts_its_own_limits_alone() {
        let daily = Limit::per_day(9);
        for (algorithm, is_taken) in [
            (Algorithm::SlidingLog, true),
            (Algorithm::Gcra, true),
            (Algorithm::Calendar, false),
        ] {
            let checked = daily.check_counting("login", algorithm, true);
            assert_eq!(checked.is_ok(), is_taken, "{algorithm:?}");
        }
    }
}
