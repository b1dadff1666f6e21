//! The choice of the algorithm that counts permits: [`Algorithm`], with its settings: [`Counting`].

use std::{fmt, str::FromStr};

use super::{Calendar, Limit, Shorter, Slots, StoredLimit};
use crate::values::error::{ConfigError, bail, config_error};

/// The algorithm that counts the permits in use.
///
/// The algorithm belongs to a limiter's name, and not to its limit: all users of a name must agree
/// on it, in every process, Rust or Java. Rules of one name that disagree on one store are a
/// [`ConfigError`]. Processes that disagree, as while a fleet changes from one to the other, are no
/// error: [`docs::keys`](crate::docs::keys#two-versions-on-one-key) says what they grant together.
///
/// Only a sliding log has an entry for each grant. The others know their last four grants. In
/// Redisson's format, a fixed window and slots know none: there a call is sent once, as it cannot
/// be recognised when it is repeated, and permits of an unacknowledged call cannot be released.
///
/// [`Rule::algorithm`](crate::Rule::algorithm),
/// [`RateLimiterBuilder::algorithm`](crate::RateLimiterBuilder::algorithm) and
/// [`RateLimiter::algorithm`](crate::RateLimiter::algorithm) choose it. Default:
/// [`SlidingLog`](Self::SlidingLog).
///
/// # Example
///
/// ```
/// use tower_ratelimit::{Algorithm, Limit, MemoryStore, RateLimiter};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let feed = RateLimiter::new(&MemoryStore::new(), "feed")?.algorithm(Algorithm::FixedWindow);
/// feed.try_set_rate(Limit::per_minute(100_000)).await?;
/// assert!(feed.try_acquire().await?.is_allowed());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// One entry for each grant of the last interval, as in Redisson since 3.13.3. Exact: no
    /// interval, wherever it begins, has more grants than the limit.
    ///
    /// Beyond some 2000 entries, a log merges all but the newest 500: those within a thousandth of
    /// the interval become one, which expires with the last of them. So a wait is up to a
    /// thousandth of the interval late then, and never early, and a merged grant cannot be given
    /// back. In Redisson's format nothing is merged but in [slots](crate::RateLimiter::slots):
    /// memory grows with the grants of an interval, and so does the cost of the worst call.
    ///
    /// A [`MemoryStore`](crate::MemoryStore) is exact for any interval, measured on its clock. A
    /// [`RedisStore`](crate::RedisStore) is exact to the millisecond: it has whole milliseconds, so
    /// no time span of the interval minus a millisecond has more.
    #[default]
    SlidingLog,
    /// One number that is reset when an interval is over, as in Redisson 3.7.1 to 3.13.2. The
    /// cheapest limiter: constant memory and time at any rate.
    ///
    /// A window begins with the first grant after the last one has ended, so each
    /// limiter has its own. In Redisson's format it lasts one millisecond longer than the interval,
    /// as Redis still keeps the key in it. The server's clock counts, also with
    /// [`client_clock`](crate::RedisStoreBuilder::client_clock).
    ///
    /// Worst case: twice the limit within one interval, around the end of a window.
    /// Grants have no entries. A limiter knows its last four, by which it recognises a call that is
    /// sent again because its connection was lost; in Redisson's format it knows none, and such a
    /// call is an error. Permits that an unanswered call has taken are in use until the window
    /// ends, and so are those of a call dropped in flight. A [`Grant`](crate::Grant) is released
    /// within its window, once; after that it has no effect.
    FixedWindow,
    /// A token bucket, stored as one small number, the theoretical arrival time: permits return one
    /// by one, and the whole limit may be taken at once after a pause. For very large rates and
    /// very many keys: memory and time are constant, no limit is read, and an idle limiter is gone
    /// from Redis within two intervals of its last grant or settlement; after a debt within three,
    /// and a little later where the time below is rounded up. This is not a format of Redisson's:
    /// no Java peer can share it.
    ///
    /// The time from permit to permit is interval / limit, rounded up to microseconds, so that it
    /// never grants too much. At large rates that shows: 600,000 a second become one every 2 us, so
    /// only 500,000 a second pass in the long run. Limits with a whole quotient lose nothing; more
    /// than one permit in a microsecond is a [`ConfigError`]. By a
    /// [`client_clock`](crate::RedisStoreBuilder::client_clock) it counts in whole milliseconds.
    ///
    /// Worst case: in any time span, limit x time / interval, plus the whole limit at once: twice
    /// the limit within one interval. A cost above the limit is always refused. A wait is exact
    /// in memory; from Redis it is in whole milliseconds, rounded up: there is room when it is
    /// over, and none a millisecond before.
    ///
    /// Grants take no more than the whole limit, so all permits are free again an interval later. A
    /// [settlement](crate::RateLimiter::settle) that charges beyond that is a debt of up to as much
    /// again, and more is forgotten: if single responses cost more than the limit in addition to
    /// what they reserve, choose a sliding log. Permits taken by a clock that was fast and is
    /// corrected later are cut to the whole limit if they are more than 2.2 limits; not with a
    /// `client_clock`, as a caller whose own clock is slow sees the same state.
    ///
    /// The limit is in the code alone: that of a [`Rule`](crate::Rule) or of a [`Limit::named`],
    /// sent with each call. No limiter [by its exact name](crate::RateLimiter::new) and no
    /// [shared](crate::Rule::shared) rule counts so. A changed limit applies at once: what is in
    /// use stays in use, in whole permits, up to the new limit.
    ///
    /// Grants have no entries. A limiter in Redis knows its last four, by which it recognises a
    /// call that is sent again because its connection was lost. Permits of an unanswered call are
    /// in use until their time has passed, an interval later at the latest. A
    /// [`Grant`](crate::Grant) is released once: the part of its permits that still lies ahead, and
    /// none if its call was sent again; if others were released meanwhile, it may be less, and
    /// never more while the limiter lives.
    Gcra,
    /// Counts by windows of the calendar. Only limits such as `Limit::monthly` (feature `calendar`)
    /// use it; choosing it for another limit is a [`ConfigError`].
    ///
    /// Worst case: twice the limit around the end of a window. The clock of the server decides,
    /// also with [`client_clock`](crate::RedisStoreBuilder::client_clock). A limiter knows its last
    /// four grants, by which it recognises a call that is sent again. A [`Grant`](crate::Grant) is
    /// settled within its window, once. This is not a format of Redisson's: no Java peer can share
    /// it.
    Calendar,
}

/// Writes the name that it has in a rules file, such as `sliding-log`.
impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.facts().word)
    }
}

/// Reads the name that it has in a rules file, such as `sliding-log`.
///
/// # Errors
///
/// Returns an error of kind [`Limit`](crate::ConfigErrorKind::Limit) for any other text.
impl FromStr for Algorithm {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let found = Self::ALL.into_iter().find(|it| it.facts().word == text);
        found.ok_or_else(|| {
            let all = Self::ALL.map(|it| it.facts().word).join(", ");
            config_error!(Limit: "{text:?} is no algorithm: there are {all}")
        })
    }
}

/// What others must know of an algorithm, apart from how it counts.
pub(crate) struct Facts {
    /// Its name in a rules file
    pub(crate) word: &'static str,
    /// Set if it keeps a log of grants, whose entries tell them apart or are merged in slots: then
    /// a call may be sent again, and permits can be leased.
    pub(crate) has_log: bool,
    /// Set if Java knows no such limiters, so that all are in our own format.
    pub(crate) only_own_format: bool,
    /// Set if its waits use the server's clock, even if calls carry another one: a window ends when
    /// its key does.
    pub(crate) waits_by_server: bool,
    /// Why no permits can be leased, of one without a log.
    pub(crate) no_lease: &'static str,
}

impl Algorithm {
    /// All algorithms that a setting chooses.
    pub(crate) const ALL: [Self; 3] = [Self::SlidingLog, Self::FixedWindow, Self::Gcra];

    #[inline]
    pub(crate) const fn facts(self) -> Facts {
        match self {
            Self::SlidingLog => Facts {
                word: "sliding-log",
                has_log: true,
                only_own_format: false,
                waits_by_server: false,
                no_lease: "",
            },
            Self::FixedWindow => Facts {
                word: "fixed-window",
                has_log: false,
                only_own_format: false,
                waits_by_server: true,
                no_lease: "a fixed window has no entry that could be scored at its end",
            },
            Self::Gcra => Facts {
                word: "gcra",
                has_log: false,
                only_own_format: true,
                waits_by_server: false,
                no_lease: "GCRA has no entry that could be scored at its end",
            },
            Self::Calendar => Facts {
                word: "calendar",
                has_log: false,
                only_own_format: true,
                waits_by_server: true,
                no_lease: "a window of the calendar has no entry that could be scored",
            },
        }
    }

    /// Checks that the algorithm can count so many permits in such an interval.
    pub(crate) fn check(self, limit: &Limit) -> Result<(), ConfigError> {
        let StoredLimit { rate, interval, .. } = limit.stored();
        if self == Self::Gcra && emission(rate, interval).is_none() {
            bail!(Limit: "{rate} permits in {:?} are more than one in each microsecond, the most \
                that `Algorithm::Gcra` counts", limit.interval());
        }
        Ok(())
    }
}

/// The way to count grants: the algorithm, its slots and its calendar.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counting {
    pub(crate) algorithm: Algorithm,
    pub(crate) slots: Option<Slots>,
    /// Set with [`Algorithm::Calendar`] alone.
    pub(crate) calendar: Option<Calendar>,
    /// The limits other than the longest, which only a log in our own format has.
    pub(crate) shorter: Shorter,
    /// Set if its limiters are in Redisson's format, which Java shares, where that has the
    /// algorithm.
    pub(crate) prefers_redisson: bool,
}

impl Counting {
    /// Returns how a limit is counted: by its calendar, if it has one, else like this.
    pub(crate) fn for_limit(self, limit: Option<&Limit>) -> Self {
        match limit.and_then(Limit::calendar) {
            None => Self {
                shorter: limit.map(Limit::shorter).unwrap_or_default(),
                ..self
            },
            calendar => Self {
                algorithm: Algorithm::Calendar,
                slots: None,
                calendar,
                ..self
            },
        }
    }

    /// Returns it without the shorter limits.
    pub(crate) fn by_longest(self) -> Self {
        let shorter = Shorter::default();
        Self { shorter, ..self }
    }

    /// Returns whether its limiters are in our own format, so that their limit is in the code
    /// alone.
    pub(crate) fn in_own_format(&self) -> bool {
        !self.prefers_redisson || self.algorithm.facts().only_own_format
    }

    /// Returns the slots, which only a log has.
    pub(crate) fn slots(&self) -> Option<Slots> {
        self.slots.filter(|_| self.algorithm.facts().has_log)
    }

    /// Returns whether each grant is an entry of its own, by which a repeated call is recognised.
    pub(crate) fn tells_grants_apart(&self) -> bool {
        self.algorithm.facts().has_log && self.slots.is_none()
    }
}

/// Returns the microseconds from permit to permit, rounded up; `None` for more than one permit in
/// each.
pub(crate) fn emission(rate: i64, interval: i64) -> Option<i64> {
    let micros = interval.checked_mul(1000)?;
    // Both are positive then.
    (1..=micros)
        .contains(&rate)
        .then(|| (micros - 1) / rate + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_that_a_setting_chooses_is_listed() {
        let source = include_str!("algorithm.rs");
        let (_, variants) = source.split_once("\npub enum Algorithm {\n").unwrap();
        let (variants, _) = variants.split_once("\n}").unwrap();
        let names = variants
            .lines()
            .filter_map(|line| line.trim().strip_suffix(','));
        let names: Vec<_> = names.filter(|name| !name.contains(' ')).collect();
        let listed = Algorithm::ALL.into_iter().chain([Algorithm::Calendar]);
        let listed: Vec<_> = listed.map(|it| format!("{it:?}")).collect();
        assert_eq!(names, listed);
    }
}
