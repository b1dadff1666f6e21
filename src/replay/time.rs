//! Reads the times of a log, in microseconds since the epoch, and how far they are apart.

const MONTHS: [&[u8]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];
pub(super) const SECOND: i64 = 1_000_000;

/// Reads a time: `10/Oct/2000:13:55:36 -0700`, RFC 3339, or a number since the epoch, whose size
/// tells seconds, milliseconds, microseconds and nanoseconds apart.
///
/// Fractions of a second may follow in each. A time without an offset is UTC.
pub(super) fn read(text: &str) -> Option<i64> {
    let bytes = text.as_bytes();
    match (bytes.get(2), bytes.get(4)) {
        (Some(b'/'), _) => common(Cursor(bytes)),
        (_, Some(b'-')) => rfc3339(Cursor(bytes)),
        _ => since_epoch(text),
    }
}

fn common(mut text: Cursor<'_>) -> Option<i64> {
    let day = text.number(2)?;
    text.byte(b"/")?;
    let month = text.take(3)?;
    let month = MONTHS.iter().zip(1..).find(|(name, _)| **name == month)?.1;
    text.byte(b"/")?;
    let year = text.number(4)?;
    text.byte(b":")?;
    text.rest_of((year, month, day))
}

fn rfc3339(mut text: Cursor<'_>) -> Option<i64> {
    let year = text.number(4)?;
    text.byte(b"-")?;
    let month = text.number(2)?;
    text.byte(b"-")?;
    let day = text.number(2)?;
    text.byte(b"Tt ")?;
    text.rest_of((year, month, day))
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

/// Reads a number of units of so many microseconds, with or without a fraction.
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

/// The part of a time that is still to be read.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self, one_of: &[u8]) -> Option<u8> {
        let [byte] = *self.take(1)? else { return None };
        one_of.contains(&byte).then_some(byte)
    }

    fn number(&mut self, digits: usize) -> Option<i64> {
        let digits = self.take(digits)?.iter();
        digits.copied().try_fold(0, |number, digit| {
            let digit = digit.is_ascii_digit().then(|| digit - b'0')?;
            Some(number * 10 + i64::from(digit))
        })
    }

    /// Reads the time of a day and the offset.
    fn rest_of(mut self, (year, month, day): (i64, i64, i64)) -> Option<i64> {
        let hour = self.number(2)?;
        self.byte(b":")?;
        let minute = self.number(2)?;
        self.byte(b":")?;
        let second = self.number(2)?;
        // A leap second counts as the first of the next minute.
        let is_valid = (1..=12).contains(&month)
            && (1..=31).contains(&day)
            && hour < 24
            && minute < 60
            && second <= 60;
        if !is_valid {
            return None;
        }
        let micros = self.fraction();
        let minutes = (days(year, month, day) * 24 + hour) * 60 + minute - self.offset()?;
        Some((minutes * 60 + second) * SECOND + micros)
    }

    fn fraction(&mut self) -> i64 {
        let Some((b'.' | b',', rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        let (mut micros, mut weight) = (0, SECOND);
        while let Some((digit @ b'0'..=b'9', rest)) = self.0.split_first() {
            weight /= 10;
            micros += weight * i64::from(digit - b'0');
            self.0 = rest;
        }
        micros
    }

    /// Reads the offset from UTC, in minutes, and nothing behind it.
    fn offset(mut self) -> Option<i64> {
        if let Some((b' ', rest)) = self.0.split_first() {
            self.0 = rest;
        }
        if matches!(self.0, b"" | b"Z" | b"z") {
            return Some(0);
        }
        let sign = if self.byte(b"+-")? == b'-' { -1 } else { 1 };
        let hours = self.number(2)?;
        if let Some((b':', rest)) = self.0.split_first() {
            self.0 = rest;
        }
        let minutes = self.number(2)?;
        self.0.is_empty().then_some(sign * (hours * 60 + minutes))
    }
}

/// Returns the days since 1970 of a date of the Gregorian calendar.
fn days(year: i64, month: i64, day: i64) -> i64 {
    // Years begin in March, so that the day of a leap year is their last.
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    let before_month = (153 * month + 2) / 5;
    365 * year + leap_days + before_month + day - 719_469
}

/// How far the times of a log are apart, as far as it has been read.
#[derive(Default)]
pub(super) struct Resolution {
    /// What divides all times
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

    /// Returns the resolution in microseconds: a minute, a second or a decimal part of one. Few
    /// times may be whole minutes by chance.
    pub(super) fn micros(&self) -> i64 {
        const FEW: u32 = 20;
        let mut steps = [SECOND, 100_000, 10_000, 1000, 100, 10, 1].into_iter();
        if self.times > FEW && self.divisor % (60 * SECOND) == 0 {
            return 60 * SECOND;
        }
        steps.find(|step| self.divisor % step == 0).unwrap_or(1)
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
            (&[][..], SECOND),
            (&[5_000_000], SECOND),
            (&[60_000_000, 180_000_000], SECOND),
            (&[60_000_000; 30], 60 * SECOND),
            (&[5_000_000, 5_120_000], 10_000),
            (&[5_000_000, 5_123_456], 1),
            (&[-3_000_000, 4_500_000], 100_000),
        ] {
            let mut resolution = Resolution::default();
            times.iter().for_each(|time| resolution.add(*time));
            assert_eq!(resolution.micros(), micros, "{times:?}");
        }
    }
}
