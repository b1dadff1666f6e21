//! Reads the times of a log, in microseconds since the epoch, and finds their resolution.

use std::{borrow::Cow, time::Duration};

use jiff::{
    SignedDuration, Timestamp,
    civil::DateTime,
    fmt::{rfc2822, strtime::BrokenDownTime},
    tz::Offset,
};

pub(crate) const SECOND: i64 = 1_000_000;

/// In nanoseconds, as numbers are read.
const NANOS: i64 = 1_000_000_000;

/// Returns a time in microseconds.
pub(crate) fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

/// Reads a time: `10/Oct/2000:13:55:36 -0700`, RFC 3339 and the like, `Tue, 10 Oct 2000 20:55:36
/// GMT`, or a number since the epoch, whose digits distinguish seconds, milliseconds, microseconds
/// and nanoseconds.
///
/// Fractions of a second may follow in the first two and in numbers. A time without an offset is
/// UTC. A day alone is no time, and neither is a number of any other length: it may be anything.
pub(super) fn read(text: &str) -> Option<i64> {
    let bytes = text.as_bytes();
    let time: Timestamp = match (bytes.get(2), bytes.get(3), bytes.get(4)) {
        (Some(b'/'), ..) => {
            let (zoned, local) = ("%d/%b/%Y:%H:%M:%S%.f %z", "%d/%b/%Y:%H:%M:%S%.f");
            let format = if text.contains(' ') { zoned } else { local };
            let time = BrokenDownTime::parse(format, text).ok()?;
            let local = || Offset::UTC.to_timestamp(time.to_datetime().ok()?).ok();
            time.to_timestamp().ok().or_else(local)?
        }
        (_, Some(b','), _) => rfc2822::parse(text).ok()?.timestamp(),
        (.., Some(b'-' | b'/')) => of_civil(text)?,
        _ => return since_epoch(text),
    };
    Some(time.as_microsecond())
}

/// Reads a year, a month and a day with a time of day, with or without an offset.
fn of_civil(text: &str) -> Option<Timestamp> {
    if !text.contains(':') {
        return None;
    }
    let read = |text: &str| {
        text.parse().ok().or_else(|| {
            let local: DateTime = text.parse().ok()?;
            Offset::UTC.to_timestamp(local).ok()
        })
    };
    // Go writes slashes, and Python a comma before milliseconds.
    read(text).or_else(|| read(&text.replace('/', "-").replace(',', ".")))
}

fn since_epoch(text: &str) -> Option<i64> {
    let text = plain(text)?;
    let unit = match text.bytes().take_while(u8::is_ascii_digit).count() {
        10 => NANOS,
        13 => 1_000_000,
        16 => 1000,
        19 => 1,
        _ => return None,
    };
    Some(decimal(&text, unit)? / 1000)
}

/// Reads a duration in microseconds: `0.005` of the given nanoseconds, or with units of its own, as
/// `5ms` and `1m2.5s`. No request has taken a century.
pub(super) fn duration(text: &str, unit: i64) -> Option<i64> {
    const CENTURY: i64 = 100 * 365 * 86_400 * SECOND;
    let micros = if text.ends_with(|it: char| it.is_alphabetic()) {
        let has_digits = text.starts_with(|it: char| it.is_ascii_digit());
        let time = text.parse::<SignedDuration>().ok().filter(|_| has_digits)?;
        i64::try_from(time.as_micros()).ok()?
    } else {
        decimal(&plain(text)?, unit)? / 1000
    };
    (0..CENTURY).contains(&micros).then_some(micros)
}

/// Reads a number of units, with or without a fraction.
fn decimal(text: &str, unit: i64) -> Option<i64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_number(whole) || !is_number(fraction) {
        return None;
    }
    let mut sum = whole.parse::<i64>().ok()?.checked_mul(unit)?;
    let mut weight = unit;
    for digit in fraction.bytes() {
        weight /= 10;
        sum = sum.checked_add(weight * i64::from(digit - b'0'))?;
    }
    Some(sum)
}

/// Returns a number without an exponent, as JSON writes very small and very large ones with one.
fn plain(text: &str) -> Option<Cow<'_, str>> {
    if text.contains(['e', 'E']) {
        Some(Cow::Owned(text.parse::<f64>().ok()?.to_string()))
    } else {
        Some(Cow::Borrowed(text))
    }
}

/// The units in which the times of a log may differ: a minute, a second, and decimal parts of one.
const STEPS: [i64; 8] = [60_000_000, SECOND, 100_000, 10_000, 1000, 100, 10, 1];

/// The unit in which the times of a log differ, for the part that has been read.
#[derive(Default)]
pub(super) struct Resolution {
    /// The index of the first step that divides all times
    step: usize,
    times: u32,
}

impl Resolution {
    pub(super) fn add(&mut self, time: i64) {
        self.times = self.times.saturating_add(1);
        while time % STEPS[self.step] != 0 {
            self.step += 1;
        }
    }

    /// Returns the resolution. Few times may be whole minutes by chance.
    pub(super) fn get(&self) -> Duration {
        const FEW: u32 = 20;
        let least = usize::from(self.times <= FEW);
        Duration::from_micros(STEPS[self.step.max(least)].unsigned_abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_every_form() {
        for (text, micros) in [
            ("10/Oct/2000:13:55:36 -0700", 971_211_336_000_000),
            ("10/Oct/2000:13:55:36.125 -0700", 971_211_336_125_000),
            ("2000-10-10T20:55:36Z", 971_211_336_000_000),
            ("2000-10-10 20:55:36", 971_211_336_000_000),
            ("2000-10-10T22:25:36.5+01:30", 971_211_336_500_000),
            ("2024-02-29T00:00:00Z", 1_709_164_800_000_000),
            ("2000-03-01T00:00:00Z", 951_868_800_000_000),
            ("1970-01-01T00:00:00Z", 0),
            ("1969-12-31T23:59:59Z", -1_000_000),
            ("10/Oct/2000:20:55:36.125", 971_211_336_125_000),
            ("2000-10-10T20:55:36+0000", 971_211_336_000_000),
            ("2000-10-10 20:55:36,125", 971_211_336_125_000),
            ("2000/10/10 20:55:36", 971_211_336_000_000),
            ("Tue, 10 Oct 2000 20:55:36 GMT", 971_211_336_000_000),
            ("1771211336", 1_771_211_336_000_000),
            ("1771211336.125", 1_771_211_336_125_000),
            ("1.771211336125e9", 1_771_211_336_125_000),
            ("1771211336125", 1_771_211_336_125_000),
            ("1771211336125000", 1_771_211_336_125_000),
            ("1771211336125000999", 1_771_211_336_125_000),
            ("1.771211336125e18", 1_771_211_336_125_000),
        ] {
            assert_eq!(read(text), Some(micros), "{text}");
        }
        for text in [
            "",
            "-",
            "10/Foo/2000:13:55:36 -0700",
            "32/Oct/2000:13:55:36 -0700",
            "10/Oct/2000:13:55",
            "2000-13-10T20:55:36Z",
            "2000-10-10T24:00:00Z",
            "2000-10-10T20:55:36Zulu",
            "12.3.4",
            "99999999999999999999",
            "1e-2147483648",
            "1e2147483647",
            // A day, a time of day, a status, a port and an hour.
            "2000-10-10",
            "10/Oct/2000",
            "20001010",
            "20001010205536",
            "20:55:36",
            "200",
            "0.029",
            "54321",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn a_duration_has_a_unit() {
        for (text, unit, micros) in [
            ("0.125", NANOS, Some(125_000)),
            ("12", 1_000_000, Some(12_000)),
            ("1.5", 1000, Some(1)),
            ("5000000", 1, Some(5000)),
            ("5e-6", NANOS, Some(5)),
            ("1.25E-2", NANOS, Some(12_500)),
            ("2.5e3", 1000, Some(2500)),
            ("5ms", NANOS, Some(5000)),
            ("0.017s", 1, Some(17_000)),
            ("13.25\u{b5}s", NANOS, Some(13)),
            ("1500ns", NANOS, Some(1)),
            ("1m2.5s", NANOS, Some(62_500_000)),
            ("3153599999", NANOS, Some(3_153_599_999_000_000)),
            ("3153600000", NANOS, None),
            ("-1", NANOS, None),
            ("", NANOS, None),
            ("5 ms", NANOS, Some(5000)),
            ("5 ms ago", NANOS, None),
            ("5days", NANOS, None),
            ("ms", NANOS, None),
            ("1e99", NANOS, None),
            ("e", NANOS, None),
        ] {
            assert_eq!(duration(text, unit), micros, "{text}");
        }
    }

    #[test]
    fn the_resolution_is_what_divides_all_times() {
        for (times, micros) in [
            (&[][..], 1_000_000),
            (&[5_000_000], 1_000_000),
            (&[60_000_000, 180_000_000], 1_000_000),
            (&[60_000_000; 30], 60_000_000),
            (&[5_000_000, 5_120_000], 10_000),
            (&[5_000_000, 5_123_456], 1),
            (&[-3_000_000, 4_500_000], 100_000),
        ] {
            let mut resolution = Resolution::default();
            times.iter().for_each(|time| resolution.add(*time));
            assert_eq!(resolution.get(), Duration::from_micros(micros), "{times:?}");
        }
    }
}
