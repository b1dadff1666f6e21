//! Computes the days, weeks and months of a time zone, by jiff.

use std::{fmt, iter, str::FromStr, sync::OnceLock, time::Duration};

use jiff::{
    Error, Timestamp, ToSpan,
    civil::{Date, Time, Weekday},
    tz::{AmbiguousOffset, TimeZone, db},
};

use super::Window;
use crate::values::{
    error::{ConfigError, bail, config_error},
    limit::Limit,
};

/// The zones of limits in this process, except UTC. Each stays, as limits are copied; there
/// are fewer than 600 names.
static ZONES: [OnceLock<TimeZone>; 1024] = [const { OnceLock::new() }; 1024];
static UTC: TimeZone = TimeZone::UTC;

/// The windows of a limit: days, weeks or months of a time zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Calendar {
    windows: Windows,
    /// The index in [`ZONES`] and one more; 0 for UTC.
    zone: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Windows {
    Days,
    /// From this day of the week
    Weeks(StartingOn),
    /// From this day of the month
    Months(u8),
}

/// The day on which a window begins: see [`Limit::starting_on`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub enum StartingOn {
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
    Sunday,
    /// Of the month, from 1 to 31
    Day(u8),
}

use StartingOn::{Day, Friday, Monday, Saturday, Sunday, Thursday, Tuesday, Wednesday};

const WEEK: [StartingOn; 7] = [
    Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday,
];

impl From<u8> for StartingOn {
    fn from(day: u8) -> Self {
        Day(day)
    }
}

/// Reads a day of the month, as `15`, or of the week, as `sunday`.
impl FromStr for StartingOn {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let day = text.parse().map(Day).ok();
        let of_week = || WEEK.into_iter().find(|day| day.to_string() == text);
        day.or_else(of_week).ok_or_else(
            || config_error!(Limit: "{text:?} is not a day: write `15`, or `sunday` for a week"),
        )
    }
}

/// Writes it as it is read.
impl fmt::Display for StartingOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Day(day) => write!(f, "{day}"),
            of_week => f.write_str(&format!("{of_week:?}").to_lowercase()),
        }
    }
}

/// Limits by the calendar. All permits are free again at the first instant of the next window.
///
/// Only the permits used are stored, not the limit: after a change of the rate they still count.
/// The clock of the server decides which window it is. **Not for billing**: if a server loses its
/// data, the count of the month is lost. See [the guide](crate::docs::guide#days-weeks-and-months).
impl Limit {
    /// Limits to `permits` on each day of UTC, or of [a zone](Self::in_zone).
    ///
    /// # Panics
    ///
    /// If `permits` is zero or above 2^53 - 1.
    #[track_caller]
    pub const fn daily(permits: u64) -> Self {
        Self::by_calendar(permits, Windows::Days, 1)
    }

    /// Limits to `permits` in each week from Monday on, or from [another day](Self::starting_on),
    /// in UTC or [a zone](Self::in_zone).
    ///
    /// # Panics
    ///
    /// If `permits` is zero or above 2^53 - 1.
    #[track_caller]
    pub const fn weekly(permits: u64) -> Self {
        Self::by_calendar(permits, Windows::Weeks(Monday), 7)
    }

    /// Limits to `permits` in each month, or from [another day](Self::starting_on) to the same day
    /// of the next one, in UTC or [a zone](Self::in_zone).
    ///
    /// # Panics
    ///
    /// If `permits` is zero or above 2^53 - 1.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Limit, MemoryStore, RateLimitLayer, key::FromHeader};
    ///
    /// let quota = Limit::monthly(10_000).in_zone("Europe/Berlin")?.starting_on(15)?;
    /// let rule = quota.by(FromHeader::new("x-tenant")).named("quota");
    /// let layer = RateLimitLayer::new(&MemoryStore::new(), rule);
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    #[track_caller]
    pub const fn monthly(permits: u64) -> Self {
        Self::by_calendar(permits, Windows::Months(1), 31)
    }

    #[track_caller]
    const fn by_calendar(permits: u64, windows: Windows, days: u64) -> Self {
        let mut limit = Self::new(permits, Duration::from_secs(days * 86_400));
        // As long as its window, which is longer.
        limit.keep_alive = Some(1);
        limit.calendar = Some(Calendar { windows, zone: 0 });
        limit
    }

    /// Lets the windows begin and end by the clocks of this zone, an IANA name. Default: UTC.
    ///
    /// A window begins at the first instant of its date: after midnight, where that is skipped, and
    /// at the first of two.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`Limit`](crate::ConfigErrorKind::Limit) if the limit is not
    /// daily, weekly or monthly, if there is no such zone, or if this machine has no zone data.
    pub fn in_zone(mut self, name: &str) -> Result<Self, ConfigError> {
        let Some(calendar) = &mut self.calendar else {
            bail!(Limit: "{self} has no zone: only days, weeks and months have one");
        };
        let found = match TimeZone::get(name) {
            Ok(zone) => zone,
            Err(_) if db().is_definitively_empty() => bail!(Limit: "this machine has no time zone \
                data, and so no {name:?}: install its package `tzdata`, or let the variable TZDIR \
                name a folder that has them"),
            Err(_) => bail!(Limit: "{name:?} is not a time zone: write an IANA name, as in \
                `Europe/Berlin`, or `UTC`"),
        };
        let others = ZONES.iter().map(|zone| zone.get_or_init(|| found.clone()));
        let mut zones = iter::once(&UTC).chain(others);
        let index = zones.position(|zone| *zone == found);
        let zone = index.and_then(|index| u16::try_from(index).ok());
        calendar.zone =
            zone.ok_or_else(|| config_error!(Limit: "too many time zones are in use"))?;
        Ok(self)
    }

    /// Lets each week begin on a day such as [`StartingOn::Sunday`], or each month on a day
    /// from 1 to 31. Default: Monday, and 1.
    ///
    /// In a month that is shorter, the window begins on its last day: 31 is the last of every
    /// month.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`Limit`](crate::ConfigErrorKind::Limit) if it is no such day, or
    /// the limit is neither weekly nor monthly.
    pub fn starting_on(mut self, day: impl Into<StartingOn>) -> Result<Self, ConfigError> {
        let windows = self.calendar.as_mut().map(|calendar| &mut calendar.windows);
        match (windows, day.into()) {
            (Some(Windows::Months(first)), Day(day @ 1..=31)) => *first = day,
            (Some(Windows::Weeks(first)), day) if !matches!(day, Day(_)) => *first = day,
            (_, day) => {
                bail!(Limit: "{self} cannot start on {day}: a week starts on a day such as \
                `sunday`, a month on one from 1 to 31, and all others have no such day")
            }
        }
        Ok(self)
    }

    /// Reads what follows the slash of a rate: `month`, `month Europe/Berlin from 15`. `None` if it
    /// is none of the calendar.
    pub(in crate::values::limit) fn in_words(
        permits: u64,
        text: &str,
    ) -> Option<Result<Self, ConfigError>> {
        let (text, day) = text.split_once(" from ").unwrap_or((text, ""));
        let (period, zone) = text.split_once(' ').unwrap_or((text, "UTC"));
        let whole = match period {
            "day" => Self::daily,
            "week" => Self::weekly,
            "month" => Self::monthly,
            _ => return None,
        };
        // The interval is a usual one, so this checks the permits.
        let limit = Self::try_new(permits, Duration::from_secs(1));
        let limit = limit.and_then(|_| whole(permits).in_zone(zone));
        Some(match day {
            "" => limit,
            day => limit.and_then(|limit| limit.starting_on(day.parse::<StartingOn>()?)),
        })
    }
}

impl Calendar {
    /// Returns the window of an instant, and the one after it; empty ones by a clock that is
    /// thousands of years off.
    ///
    /// They depend on the zone data of this machine; their labels hardly do.
    pub(crate) fn windows(self, now: i64) -> [Window; 2] {
        self.try_windows(now).unwrap_or_default()
    }

    fn try_windows(self, now: i64) -> Result<[Window; 2], Error> {
        let today = Timestamp::from_millisecond(now)?;
        let first = self.first_up_to(self.zone().to_datetime(today).date())?;
        let present = self.window(first, now)?;
        Ok([present, self.window(first, present.end)?])
    }

    fn zone(self) -> &'static TimeZone {
        let index = usize::from(self.zone).checked_sub(1);
        let zone = index.and_then(|index| ZONES.get(index)?.get());
        zone.unwrap_or(&UTC)
    }

    /// Returns the last date up to `today` on which a window begins.
    fn first_up_to(self, today: Date) -> Result<Date, Error> {
        match self.windows {
            Windows::Days => Ok(today),
            Windows::Weeks(first) => {
                let index = WEEK.iter().position(|day| *day == first).unwrap_or(0);
                let weekday = Weekday::from_monday_zero_offset(index as i8)?;
                today.tomorrow()?.nth_weekday(-1, weekday)
            }
            Windows::Months(day) => match in_month(today, day)? {
                first if first <= today => Ok(first),
                _ => in_month(today.first_of_month().yesterday()?, day),
            },
        }
    }

    /// Returns the window of an instant, which is that of the date `first` or later.
    ///
    /// If clocks are set back across midnight, the date goes back, but windows do not. A date that
    /// a zone skipped has no window.
    fn window(self, mut first: Date, at: i64) -> Result<Window, Error> {
        loop {
            let after = match self.windows {
                Windows::Days => first.tomorrow()?,
                Windows::Weeks(_) => first.checked_add(7.days())?,
                Windows::Months(day) => in_month(first.last_of_month().tomorrow()?, day)?,
            };
            let end = self.first_instant(after)?;
            if end > at {
                let (year, month) = (i64::from(first.year()), i64::from(first.month()));
                let label = (year * 100 + month) * 100 + i64::from(first.day());
                let start = self.first_instant(first)?;
                return Ok(Window { label, start, end });
            }
            first = after;
        }
    }

    /// Returns the first instant of a date, in ms since the epoch: the end of the gap that midnight
    /// is in, if it is in one.
    fn first_instant(self, date: Date) -> Result<i64, Error> {
        let midnight = date.to_datetime(Time::midnight());
        let midnight = self.zone().to_ambiguous_timestamp(midnight);
        let mut instant = midnight.compatible()?;
        if matches!(midnight.offset(), AmbiguousOffset::Gap { .. }) {
            let gap = self
                .zone()
                .preceding(instant.checked_add(1.second())?)
                .next();
            instant = gap.map_or(instant, |gap| gap.timestamp());
        }
        Ok(instant.as_millisecond())
    }
}

/// Returns this day of the month of a date, or the month's last.
fn in_month(date: Date, day: u8) -> Result<Date, Error> {
    let day = day.cast_signed().min(date.days_in_month());
    Date::new(date.year(), date.month(), day)
}

/// Writes the period, and the zone and the first day where they are not the usual ones: `month
/// Europe/Berlin from 15`.
impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (period, first) = match self.windows {
            Windows::Days => ("day", Day(1)),
            Windows::Weeks(first) => ("week", first),
            Windows::Months(first) => ("month", Day(first)),
        };
        f.write_str(period)?;
        if let Some(name) = self.zone().iana_name().filter(|_| self.zone > 0) {
            write!(f, " {name}")?;
        }
        match first {
            Day(1) | Monday => Ok(()),
            day => write!(f, " from {day}"),
        }
    }
}

#[cfg(test)]
mod tests;
