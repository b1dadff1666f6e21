//! Reads the rates and times of a rules file.

use std::time::Duration;

use serde::Deserialize;

use crate::limit::Limit;

/// A rate: `100/1m`, `5/s`.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Rate(pub(super) Limit);

impl TryFrom<String> for Rate {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let refuse = || {
            format!(
                "{text:?} is not a rate: write permits, a slash and a time, as in `100/1m` or \
                 `5/s`; times end in ms, s, m, h or d"
            )
        };
        let (permits, interval) = text.split_once('/').ok_or_else(refuse)?;
        let permits = number(permits.trim()).ok_or_else(refuse)?;
        let interval = interval.trim();
        // `5/s` is short for `5/1s`.
        let interval = match interval.as_bytes().first() {
            Some(first) if first.is_ascii_digit() => time(interval),
            _ => time(&format!("1{interval}")),
        };
        let limit = Limit::try_new(permits, interval.ok_or_else(refuse)?);
        limit.map(Self).map_err(|error| error.to_string())
    }
}

/// A time: `500ms`, `90s`, `1h`.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Time(pub(super) Duration);

impl TryFrom<String> for Time {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        time(&text).map(Self).ok_or_else(|| {
            format!(
                "{text:?} is not a time: write a whole number and one of ms, s, m, h or d, as in \
                 `90s`"
            )
        })
    }
}

fn time(text: &str) -> Option<Duration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (count, unit) = text.split_at_checked(digits)?;
    let millis = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    number(count)?
        .checked_mul(millis)
        .map(Duration::from_millis)
}

/// Parses digits, which may have `_` between them for readability.
fn number(text: &str) -> Option<u64> {
    let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_digit);
    let bytes = text.as_bytes();
    if !ends(bytes.first()) || !ends(bytes.last()) {
        return None;
    }
    text.replace('_', "").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(text: &str) -> Result<Limit, String> {
        Rate::try_from(text.to_owned()).map(|rate| rate.0)
    }

    fn duration(text: &str) -> Result<Duration, String> {
        Time::try_from(text.to_owned()).map(|time| time.0)
    }

    #[test]
    fn rates_are_read() {
        for (text, permits, millis) in [
            ("100/1m", 100, 60_000),
            ("5/s", 5, 1000),
            ("1/500ms", 1, 500),
            ("1_000_000 / d", 1_000_000, 86_400_000),
            ("9007199254740991/36525d", (1 << 53) - 1, 3_155_760_000_000),
        ] {
            let limit = rate(text).unwrap();
            assert_eq!(limit.permits(), permits, "{text}");
            assert_eq!(limit.interval(), Duration::from_millis(millis), "{text}");
        }
    }

    #[test]
    fn times_are_read() {
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("2h"), Ok(Duration::from_secs(7200)));
    }
}
