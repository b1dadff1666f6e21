//! Reads the times of a log, in microseconds since the epoch, and finds their resolution.

use std::time::Duration;

use jiff::{Timestamp, civil::DateTime, fmt::strtime::BrokenDownTime, tz::Offset};

pub(super) const SECOND: i64 = 1_000_000;

/// Reads a time: `10/Oct/2000:13:55:36 -0700`, RFC 3339, or a number since the epoch, whose size
/// distinguishes seconds, milliseconds, microseconds and nanoseconds.
///
/// Fractions of a second may follow in each. A time of RFC 3339 without an offset is UTC.
pub(super) fn read(text: &str) -> Option<i64> {
    let bytes = text.as_bytes();
    let time: Timestamp = match (bytes.get(2), bytes.get(4)) {
        (Some(b'/'), _) => BrokenDownTime::parse("%d/%b/%Y:%H:%M:%S%.f %z", text)
            .and_then(|time| time.to_timestamp())
            .ok()?,
        (_, Some(b'-')) => text.parse().ok().or_else(|| {
            let local: DateTime = text.parse().ok()?;
            Offset::UTC.to_timestamp(local).ok()
        })?,
        _ => return since_epoch(text),
    };
    Some(time.as_microsecond())
}

fn since_epoch(text: &str) -> Option<i64> {
    let whole = text.bytes().take_while(u8::is_ascii_digit).count();
    match whole {
        1..=11 => decimal(text, SECOND),
        12..=14 => decimal(text, 1000),
        15..=17 => decimal(text, 1),
        18..=19 => Some(decimal(text, 1)? / 1000),
        _ => None,
    }
}

/// Reads a number of units of this many microseconds, with or without a fraction.
pub(super) fn decimal(text: &str, unit: i64) -> Option<i64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_number(whole) || !is_number(fraction) {
        return None;
    }
    let mut micros = whole.parse::<i64>().ok()?.checked_mul(unit)?;
    let mut weight = unit;
    for digit in fraction.bytes() {
        weight /= 10;
        micros = micros.checked_add(weight * i64::from(digit - b'0'))?;
    }
    Some(micros)
}

/// The unit in which the times of a log differ, for the part that has been read.
#[derive(Default)]
pub(super) struct Resolution {
    /// Divides all times
    divisor: i64,
    times: u32,
}

impl Resolution {
    pub(super) fn add(&mut self, time: i64) {
        self.times = self.times.saturating_add(1);
        if self.divisor != 0 && time % self.divisor == 0 {
            return;
        }
        let (mut divisor, mut rest) = (self.divisor, time);
        while rest != 0 {
            (divisor, rest) = (rest, divisor.rem_euclid(rest));
        }
        self.divisor = divisor.abs();
    }

    /// Returns the resolution: a minute, a second or a decimal part of one. Few times may be whole
    /// minutes by chance.
    pub(super) fn get(&self) -> Duration {
        const FEW: u32 = 20;
        let mut steps = [SECOND, 100_000, 10_000, 1000, 100, 10].into_iter();
        let micros = if self.times > FEW && self.divisor % (60 * SECOND) == 0 {
            60 * SECOND
        } else {
            steps.find(|step| self.divisor % step == 0).unwrap_or(1)
        };
        Duration::from_micros(micros.unsigned_abs())
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
            ("971211336", 971_211_336_000_000),
            ("971211336.125", 971_211_336_125_000),
            ("971211336125", 971_211_336_125_000),
            ("971211336125000", 971_211_336_125_000),
            ("971211336125000999", 971_211_336_125_000),
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
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn a_duration_has_a_unit() {
        assert_eq!(decimal("0.125", SECOND), Some(125_000));
        assert_eq!(decimal("12", 1000), Some(12_000));
        assert_eq!(decimal("1.5", 1), Some(1));
        assert_eq!(decimal("-1", SECOND), None);
        assert_eq!(decimal("", SECOND), None);
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
