//! Days, weeks and months of a time zone, by jiff.

use std::{fmt, str::FromStr, sync::OnceLock, time::Duration};

use jiff::{
    Timestamp, ToSpan,
    civil::{Date, Time},
    tz::{AmbiguousOffset, TimeZone},
};

use super::Window;
use crate::{
    error::{ConfigError, bail, config_error},
    limit::Limit,
};

/// The zones that limits of this process go by. Each stays, as limits are copied; there are fewer
/// than 600 names.
static ZONES: [OnceLock<TimeZone>; 1024] = [const { OnceLock::new() }; 1024];

/// Which windows a limit goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Calendar {
    period: Period,
    /// 0 for UTC, else the place in [`ZONES`], counted from 1
    zone: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Period {
    Day,
    /// From this day on
    Week(Weekday),
    /// From this day on, or the last of a shorter month
    Month(u8),
}

/// A day of the week.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Weekday {
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
    Sunday,
}

/// The day on which a window begins: see [`Limit::starting_on`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StartingOn {
    /// Of each week
    Weekday(Weekday),
    /// Of each month, from 1 to 31
    Day(u8),
}

impl From<Weekday> for StartingOn {
    fn from(day: Weekday) -> Self {
        Self::Weekday(day)
    }
}

impl From<u8> for StartingOn {
    fn from(day: u8) -> Self {
        Self::Day(day)
    }
}

impl Weekday {
    const ALL: [(&'static str, Self); 7] = [
        ("monday", Self::Monday),
        ("tuesday", Self::Tuesday),
        ("wednesday", Self::Wednesday),
        ("thursday", Self::Thursday),
        ("friday", Self::Friday),
        ("saturday", Self::Saturday),
        ("sunday", Self::Sunday),
    ];
}

/// Reads a number, as `15`, or a day of the week, as `sunday`.
impl FromStr for StartingOn {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let mut days = Weekday::ALL.iter();
        match (text.parse(), days.find(|(name, _)| *name == text)) {
            (Ok(day), _) => Ok(Self::Day(day)),
            (_, Some((_, day))) => Ok(Self::Weekday(*day)),
            _ => {
                bail!(Limit: "{text:?} is not a day: write one of a month, as `15`, or of a week, \
                as `sunday`")
            }
        }
    }
}

/// Limits by the calendar. All permits are free again at the first instant of the next window.
///
/// What was used is stored, and not the limit: a changed rate counts what was used. The clock of
/// the server decides which window it is. **Not for billing**: where a server loses its data, what
/// the month had used is lost, too. See
/// [the guide](crate::docs::guide#days-weeks-and-months).
#[cfg_attr(docsrs, doc(cfg(feature = "calendar")))]
impl Limit {
    /// Limits to `permits` on each day of UTC, or of [a zone](Self::in_zone).
    ///
    /// # Panics
    ///
    /// If `permits` is zero or above 2^53 - 1.
    #[track_caller]
    pub const fn daily(permits: u64) -> Self {
        Self::by_calendar(permits, Period::Day)
    }

    /// Limits to `permits` in each week from Monday on, or from [another day](Self::starting_on),
    /// in UTC or [a zone](Self::in_zone).
    ///
    /// # Panics
    ///
    /// If `permits` is zero or above 2^53 - 1.
    #[track_caller]
    pub const fn weekly(permits: u64) -> Self {
        Self::by_calendar(permits, Period::Week(Weekday::Monday))
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
        Self::by_calendar(permits, Period::Month(1))
    }

    #[track_caller]
    const fn by_calendar(permits: u64, period: Period) -> Self {
        let days = match period {
            Period::Day => 1,
            Period::Week(_) => 7,
            Period::Month(_) => 31,
        };
        Self {
            // As long as its window, which is longer.
            keep_alive: Some(1),
            calendar: Some(Calendar { period, zone: 0 }),
            ..Self::new(permits, Duration::from_secs(days * 86_400))
        }
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
        calendar.zone = zone(name)?;
        Ok(self)
    }

    /// Lets each week begin on a [`Weekday`], or each month on a day from 1 to 31. Default: Monday,
    /// and 1.
    ///
    /// In a month that is shorter, the window begins on its last day: 31 is the last of every
    /// month.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`Limit`](crate::ConfigErrorKind::Limit) if it is no such day, or
    /// the limit is neither weekly nor monthly.
    pub fn starting_on(mut self, day: impl Into<StartingOn>) -> Result<Self, ConfigError> {
        let reason = match (&mut self.calendar, day.into()) {
            (Some(Calendar { period, .. }), day) => match (&mut *period, day) {
                (Period::Week(_), StartingOn::Weekday(day)) => {
                    *period = Period::Week(day);
                    return Ok(self);
                }
                (Period::Month(_), StartingOn::Day(day @ 1..=31)) => {
                    *period = Period::Month(day);
                    return Ok(self);
                }
                (Period::Day, _) => "a day begins at its first instant",
                (Period::Week(_), _) => "a week begins on a day of the week",
                (Period::Month(_), _) => "a month begins on a day from 1 to 31",
            },
            (None, _) => "only weeks and months begin on a day",
        };
        bail!(Limit: "{self} cannot start on another day: {reason}")
    }
}

/// Returns the number of a zone.
fn zone(name: &str) -> Result<u16, ConfigError> {
    if name.eq_ignore_ascii_case("utc") {
        return Ok(0);
    }
    let found = TimeZone::get(name).map_err(|_| {
        if jiff::tz::db().is_definitively_empty() {
            config_error!(Limit: "this machine has no time zone data, and {name:?} is unknown: \
                install its package `tzdata`, or let the variable TZDIR name a folder that has it")
        } else {
            config_error!(Limit: "{name:?} is not a time zone: write an IANA name, as in \
                `Europe/Berlin`, or `UTC`")
        }
    })?;
    let mut zones = ZONES.iter().zip(1..);
    let number = zones.find(|(known, _)| *known.get_or_init(|| found.clone()) == found);
    number
        .map(|(_, number)| number)
        .ok_or_else(|| config_error!(Limit: "there are more than 1024 time zones in use"))
}

impl Calendar {
    /// Returns the window of an instant, and the one after it. They depend on the zone data of this
    /// machine; their labels hardly do.
    pub(crate) fn windows(self, now: i64) -> [Window; 2] {
        // Only a clock that is thousands of years off has none.
        self.try_windows(now).unwrap_or([Window::EVER; 2])
    }

    fn try_windows(self, now: i64) -> Result<[Window; 2], jiff::Error> {
        let zone = self.zone();
        let today = zone.to_datetime(Timestamp::from_millisecond(now)?).date();
        let first = self.period.first(today)?;
        let present = self.period.window(zone, first, now)?;
        let next = self.period.window(zone, first, present.end)?;
        Ok([present, next])
    }

    fn zone(self) -> &'static TimeZone {
        static UTC: TimeZone = TimeZone::UTC;
        let place = usize::from(self.zone).checked_sub(1);
        let zone = place.and_then(|place| ZONES.get(place)?.get());
        zone.unwrap_or(&UTC)
    }
}

impl Period {
    /// Returns the last date up to `today` on which a window begins.
    fn first(self, today: Date) -> Result<Date, jiff::Error> {
        Ok(match self {
            Self::Day => today,
            Self::Week(day) => {
                let since = today.weekday().to_monday_zero_offset() - day as i8;
                today.checked_sub(since.rem_euclid(7).days())?
            }
            Self::Month(day) => match in_month(today, day)? {
                first if first <= today => first,
                _ => in_month(today.first_of_month().yesterday()?, day)?,
            },
        })
    }

    /// Returns the date on which the window after that of `first` begins.
    fn after(self, first: Date) -> Result<Date, jiff::Error> {
        match self {
            Self::Day => first.tomorrow(),
            Self::Week(_) => first.checked_add(7.days()),
            Self::Month(day) => in_month(first.last_of_month().tomorrow()?, day),
        }
    }

    /// Returns the window of an instant, which is that of `first` or later.
    ///
    /// Where clocks are set back across midnight, the date falls; windows do not. A date that a
    /// zone skipped has none.
    fn window(self, zone: &TimeZone, mut first: Date, at: i64) -> Result<Window, jiff::Error> {
        let mut start = first_instant(zone, first)?;
        loop {
            let after = self.after(first)?;
            let end = first_instant(zone, after)?;
            if end > at {
                return Ok(Window {
                    label: label(first),
                    start,
                    end,
                });
            }
            (first, start) = (after, end);
        }
    }
}

/// Returns this day of the month of a date, or the month's last.
fn in_month(date: Date, day: u8) -> Result<Date, jiff::Error> {
    let day = day.cast_signed().min(date.days_in_month());
    Date::new(date.year(), date.month(), day)
}

fn label(date: Date) -> i64 {
    let (year, month, day) = (date.year(), date.month(), date.day());
    (i64::from(year) * 100 + i64::from(month)) * 100 + i64::from(day)
}

/// Returns the first instant of a date, in ms since the epoch: the end of the gap that midnight is
/// in, if it is in one.
fn first_instant(zone: &TimeZone, date: Date) -> Result<i64, jiff::Error> {
    let midnight = zone.to_ambiguous_timestamp(date.to_datetime(Time::midnight()));
    let mut instant = midnight.compatible()?;
    if matches!(midnight.offset(), AmbiguousOffset::Gap { .. }) {
        let gap = zone.preceding(instant.checked_add(1.second())?).next();
        instant = gap.map_or(instant, |gap| gap.timestamp());
    }
    Ok(instant.as_millisecond())
}

/// Writes the period as rules files have it, the zone and the first day if they are not the usual
/// ones: `month Europe/Berlin from 15`.
impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.period {
            Period::Day => "day",
            Period::Week(_) => "week",
            Period::Month(_) => "month",
        })?;
        if let Some(name) = self.zone().iana_name().filter(|_| self.zone > 0) {
            write!(f, " {name}")?;
        }
        match self.period {
            Period::Day | Period::Week(Weekday::Monday) | Period::Month(1) => Ok(()),
            Period::Week(day) => write!(f, " from {}", Weekday::ALL[day as usize].0),
            Period::Month(day) => write!(f, " from {day}"),
        }
    }
}

impl Limit {
    /// Reads what follows the slash of a calendar's rate, as it is written.
    pub(in crate::limit) fn in_words(
        permits: u64,
        text: &str,
    ) -> Option<Result<Self, ConfigError>> {
        let mut words = text.split_ascii_whitespace();
        let period = match words.next()? {
            "day" => Period::Day,
            "week" => Period::Week(Weekday::Monday),
            "month" => Period::Month(1),
            _ => return None,
        };
        // The interval is a usual one, so this checks the permits.
        let plain = Self::try_new(permits, Duration::from_secs(1));
        let mut limit = plain.map(|_| Self::by_calendar(permits, period));
        let mut word = words.next();
        if let Some(zone) = word.filter(|word| *word != "from") {
            limit = limit.and_then(|limit| limit.in_zone(zone));
            word = words.next();
        }
        if word.is_some() {
            let day = words.next().filter(|_| word == Some("from"))?;
            let day = day.parse::<StartingOn>();
            limit = limit.and_then(|limit| limit.starting_on(day?));
        }
        words.next().is_none().then_some(limit)
    }
}

#[cfg(test)]
mod tests;
