//! Parses the values of options, as users write them.

use std::{str::FromStr, time::Duration};

use http::{HeaderName, HeaderValue};
use tower_ratelimit::Limit;

/// Reads `name=value`.
pub(crate) fn fixed<T: FromStr>(text: &str) -> Result<(String, T), String> {
    let parts = text.split_once('=').filter(|(name, _)| !name.is_empty());
    let fixed = parts.and_then(|(name, value)| Some((name.to_owned(), value.parse().ok()?)));
    fixed.ok_or_else(|| "write a name and its value, as in the help".to_owned())
}

/// Reads a header field, as in `x-api-key: abc`.
pub(crate) fn header(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once(':');
    let parts = parts.map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()));
    let valid = parts.filter(|(name, value)| {
        HeaderName::try_from(name).is_ok() && HeaderValue::try_from(value).is_ok()
    });
    valid.ok_or_else(|| "write a header field as `name: value`".to_owned())
}

/// Reads a share of callers, as in `0.1%`.
pub(crate) fn share(text: &str) -> Result<f64, String> {
    let (number, of) = match text.strip_suffix('%') {
        Some(percent) => (percent.trim(), 100.0),
        None => (text, 1.0),
    };
    let share = number.parse::<f64>().map(|number| number / of);
    let share = share.ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "write a share of callers, as in `0.1%` or `0.001`".to_owned())
}

/// Reads a time, as in `60s`.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    // A time is what follows the slash of a rate, except a day, a week or a month, which are words.
    let unit = text.trim_start_matches(|digit: char| digit.is_ascii_digit());
    let rate = format!("1/{text}").parse().ok();
    let time = rate.map(|limit: Limit| limit.interval());
    let time = time.filter(|_| unit.len() <= "ms".len());
    let time = time.or((text == "0").then_some(Duration::ZERO));
    time.ok_or_else(|| "write a time, as in `60s` or `5m`, or `0`".to_owned())
}

/// Reads a time that is not zero.
pub(crate) fn lasting(text: &str) -> Result<Duration, String> {
    let lasting = time(text).ok().filter(|time| !time.is_zero());
    lasting.ok_or_else(|| "write a time, as in `60s` or `5m`".to_owned())
}

/// The columns that a log may have, by the names that the command gives them.
const COLUMNS: [&str; 8] = [
    "ip", "time", "request", "method", "path", "host", "status", "duration",
];

/// Reads where a column is, as in `time=2+3`, and of a duration the nanoseconds in its unit, as in
/// `duration=took:ms`.
pub(crate) fn place(text: &str) -> Result<(String, String, i64), String> {
    let (name, place) = fixed::<String>(text)?;
    if !COLUMNS.contains(&&*name) || place.is_empty() {
        let known = format!("the columns are `{}`", COLUMNS.join("`, `"));
        return Err(format!("write a column and its place: {known}"));
    }
    let with_unit = place.rsplit_once(':').filter(|_| name == "duration");
    let (column, unit) = with_unit.unwrap_or((&place, "s"));
    let nanos = match unit {
        "s" => 1_000_000_000,
        "ms" => 1_000_000,
        "us" => 1000,
        "ns" => 1,
        _ => return Err(format!("the unit is `s`, `ms`, `us` or `ns`, not `{unit}`")),
    };
    Ok((name, column.to_owned(), nanos))
}
