//! Limits and times as text: `100/1m`, `90s`.

use std::{borrow::Cow, fmt, str::FromStr, time::Duration};

use super::{Limit, MOST_LIMITS};
use crate::values::{
    clock::Millis,
    error::{ConfigError, config_error},
};

/// The units of time, each with its milliseconds, the longest first.
const UNITS: [(&str, u64); 5] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1000),
    ("ms", 1),
];

/// What stands between places and the longest time.
const IN_FLIGHT: &str = "in flight";

/// The other forms of a rate.
const BY_CALENDAR: &str = if cfg!(feature = "calendar") {
    "; of the calendar are `100/day`, `/week` and `/month`"
} else {
    "; `day`, `week` and `month` need the feature `calendar`"
};

/// Reads permits, a slash and a time, as rules files have them: `100/1m`, `5/s`; or
/// [places in flight](Limit::in_flight), a slash and the longest time: `4 in flight/30s`. With
/// feature `calendar` also a day, week or month, its zone and its first day: `100/day`,
/// `10000/month Europe/Berlin from 15`. [Several limits](Limit::and) are joined by ` and `:
/// `10/s and 500/h`.
///
/// # Errors
///
/// Returns an error of kind [`Limit`](crate::ConfigErrorKind::Limit), with the text, if it is not
/// of this form, or with the value that is out of range.
///
/// # Example
///
/// ```
/// use tower_ratelimit::Limit;
///
/// let limit: Limit = "100/1m".parse()?;
/// assert_eq!(limit, Limit::per_minute(100));
/// assert_eq!(limit.to_string(), "100/1m");
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
impl FromStr for Limit {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let mut each = text.split(" and ").take(MOST_LIMITS + 1);
        if let (Some(first), true) = (each.next(), text.contains(" and ")) {
            return each.try_fold(first.parse()?, |limit: Self, next| {
                let joined = limit.joined(next.parse()?);
                joined.map_err(|reason| config_error!(Limit: "{text:?} is no rate: {reason}"))
            });
        }
        let refuse = || {
            config_error!(Limit: "{text:?} is not a rate: write permits, a slash and a time, as in \
                `100/1m` or `5/s`, or places, as in `4 in flight/30s`; times end in ms, s, m, h or \
                d, and several limits are joined by ` and `{BY_CALENDAR}")
        };
        let (permits, interval) = text.split_once('/').ok_or_else(refuse)?;
        let (permits, interval) = (permits.trim(), interval.trim());
        if let Some(places) = permits.strip_suffix(IN_FLIGHT) {
            let places = number(places.trim_end()).zip(time(interval));
            let (places, longest) = places.ok_or_else(refuse)?;
            return Self::try_in_flight(places, longest);
        }
        let permits = number(permits).ok_or_else(refuse)?;
        #[cfg(feature = "calendar")]
        if let Some(limit) = Self::in_words(permits, interval) {
            return limit;
        }
        // `5/s` is short for `5/1s`.
        let interval = match interval.as_bytes().first() {
            Some(first) if first.is_ascii_digit() => time(interval),
            _ => time(&format!("1{interval}")),
        };
        Self::try_new(permits, interval.ok_or_else(refuse)?)
    }
}

/// Writes permits, a slash and a time in the longest unit that divides it, as rules files have
/// them: `100/1m`, `4 in flight/30s`; of [several limits](Limit::and) the shortest first:
/// `10/1s and 500/1h`. What is [per client](Limit::per_client), or the
/// [keep-alive time](Limit::keep_alive), is not in the text.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        #[cfg(feature = "calendar")]
        if let Some(calendar) = self.calendar {
            return write!(f, "{}/{calendar}", self.permits());
        }
        for (number, part) in self.parts().rev().enumerate() {
            let begin = if number > 0 { " and " } else { "" };
            let time = TimeText(part.interval);
            let places = if self.in_flight { " in flight" } else { "" };
            write!(f, "{begin}{}{places}/{time}", part.permits)?;
        }
        Ok(())
    }
}

/// Writes a time in ms in the longest unit that divides it: `1h`.
struct TimeText(Millis);

impl fmt::Display for TimeText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |unit: &&(&str, u64)| self.0.is_multiple_of(unit.1);
        let (unit, of) = UNITS.iter().find(fits).unwrap_or(&("ms", 1));
        write!(f, "{}{unit}", self.0 / of)
    }
}

/// Writes the text of a rules file's `rate`: `"100/1m"`.
///
/// # Errors
///
/// Returns an error for a limit that is [per client](Limit::per_client), or has a
/// [keep-alive time](Limit::keep_alive): the text does not have these, and without them it would
/// be read as another limit.
#[cfg(feature = "serde")]
impl serde::Serialize for Limit {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if self.rate_type != super::RateType::Overall || self.keep_alive.is_some() {
            let reason = "is per client or has a keep-alive time, which `permits/time` cannot say";
            return Err(serde::ser::Error::custom(format_args!("{self} {reason}")));
        }
        to.collect_str(self)
    }
}

/// Reads the text of a rules file's `rate`: `"100/1m"`.
///
/// # Errors
///
/// Returns the error of [`from_str`](Self::from_str), which says what is right.
///
/// # Example
///
/// ```
/// use tower_ratelimit::Limit;
///
/// #[derive(serde::Deserialize)]
/// struct Settings {
///     uploads: Limit,
/// }
///
/// let settings: Settings = toml::from_str(r#"uploads = "100/1m""#)?;
/// assert_eq!(settings.uploads, Limit::per_minute(100));
///
/// let error = toml::from_str::<Settings>(r#"uploads = "100 a minute""#).err().unwrap();
/// assert!(error.message().contains("write permits, a slash and a time"));
/// # Ok::<_, toml::de::Error>(())
/// ```
#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Limit {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct LimitVisitor;

        impl serde::de::Visitor<'_> for LimitVisitor {
            type Value = Limit;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a rate such as `100/1m`")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Limit, E> {
                text.parse().map_err(E::custom)
            }
        }

        from.deserialize_str(LimitVisitor)
    }
}

/// Returns the name of one of several limits: the shortest has that of the rule, and the others add
/// their interval: `api.1h`.
pub(crate) fn name_of_part(name: &str, is_shortest: bool, interval: Millis) -> Cow<'_, str> {
    if is_shortest {
        name.into()
    } else {
        format!("{name}.{}", TimeText(interval)).into()
    }
}

/// Returns the name that one of several limits adds its interval to, if this can be its name.
pub(crate) fn name_of_whole(part: &str) -> Option<&str> {
    let (whole, interval) = part.rsplit_once('.')?;
    let interval = u64::try_from(time(interval)?.as_millis()).ok()?;
    (name_of_part(whole, false, interval) == part).then_some(whole)
}

/// Reads a whole number and a unit.
pub(crate) fn time(text: &str) -> Option<Duration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (count, unit) = text.split_at_checked(digits)?;
    let (_, millis) = UNITS.iter().find(|(name, _)| *name == unit)?;
    number(count)?
        .checked_mul(*millis)
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
    use proptest::prelude::*;

    use super::*;

    const MOST: u64 = (1 << 53) - 1;

    fn limits() -> impl Strategy<Value = Limit> {
        let unit = proptest::sample::select(UNITS.map(|(_, millis)| millis).to_vec());
        let count = prop_oneof![1..=100u64, 1..=36_525u64];
        let interval = (unit, count).prop_map(|(unit, count)| Duration::from_millis(unit * count));
        let permits = prop_oneof![1..=100u64, 1..=MOST];
        (permits, interval, any::<bool>()).prop_map(|(permits, interval, in_flight)| {
            if in_flight {
                Limit::in_flight(permits.min(1000), interval)
            } else {
                Limit::new(permits, interval)
            }
        })
    }

    /// One to six limits, which are one where they combine.
    fn several() -> impl Strategy<Value = Result<Limit, &'static str>> {
        let part = (1..2000u64, 1..2000u64);
        let part = part.prop_map(|(permits, millis)| (permits, Duration::from_millis(millis)));
        let parts = proptest::collection::vec(part, 1..7);
        parts.prop_map(|parts| {
            let mut limits = parts
                .into_iter()
                .map(|(permits, time)| Limit::new(permits, time));
            let first = limits.next().unwrap();
            limits.try_fold(first, Limit::joined)
        })
    }

    /// Texts near to rates, most of them wrong.
    fn texts() -> impl Strategy<Value = String> {
        let part = |parts: &'static [&'static str]| proptest::sample::select(parts);
        let number = part(&[
            "",
            "0",
            "5",
            "-5",
            "5_",
            "1_0",
            "9007199254740992",
            "x",
            " 7",
            "4 in flight",
            "1_000in flight ",
            "1001 in flight",
            "in flight",
        ]);
        let time = part(&[
            "", "/", "/1", "/s", "/1m", "/ 5ms", "/1w", "/0s", "/36526d", "/1m ",
        ]);
        (number, time).prop_map(|(number, time)| format!("{number}{time}"))
    }

    proptest! {
        #[test]
        fn a_limit_reads_back(
            limit in prop_oneof![limits(), several().prop_filter_map("they combine", Result::ok)],
        ) {
            prop_assert_eq!(limit.to_string().parse(), Ok(limit));
        }

        /// Each of them refuses some history that the others alone grant.
        #[test]
        fn no_limit_of_several_is_needless(limit in several()) {
            let parts: Vec<_> = limit.iter().flat_map(Limit::parts).collect();
            for (index, of) in parts.iter().enumerate() {
                // As fast as the others grant.
                let most = parts.iter().enumerate().filter(|(other, _)| *other != index);
                let most = most.map(|(_, it)| it.permits * of.interval.div_ceil(it.interval)).min();
                prop_assert!(most.is_none_or(|most| most > of.permits));
            }
        }

        /// An error names the text or the value, and says what would be right.
        #[test]
        fn a_text_is_a_limit_or_an_error_that_says_what_is_right(text in texts()) {
            match text.parse::<Limit>() {
                Ok(limit) => prop_assert_eq!(limit.to_string().parse(), Ok(limit)),
                Err(error) => {
                    prop_assert_eq!(error.kind(), crate::ConfigErrorKind::Limit);
                    let said = error.to_string();
                    let of_form = said.contains(&format!("{text:?}")) && said.contains("`100/1m`");
                    let of_value = said.contains("2^53 - 1 permits, not ")
                        || said.contains("at most a century, not ")
                        || said.contains("has 1 to 1000 places, not ");
                    prop_assert!(of_form || of_value, "{}", said);
                }
            }
        }
    }

    #[cfg(feature = "serde")]
    mod by_serde {
        use super::*;

        proptest! {
            #[test]
            fn a_text_is_read_as_without_it(text in texts()) {
                let json = serde_json::to_string(&text).unwrap();
                let read = serde_json::from_str::<Limit>(&json);
                match (read, text.parse::<Limit>()) {
                    (Ok(read), Ok(limit)) => {
                        prop_assert_eq!(read, limit);
                        let written = serde_json::to_string(&limit).unwrap();
                        prop_assert_eq!(written, format!("\"{limit}\""));
                    }
                    (Err(error), Err(reason)) => {
                        prop_assert!(error.to_string().starts_with(&reason.to_string()));
                    }
                    (read, parsed) => prop_assert!(false, "{:?} {:?}", read, parsed),
                }
            }
        }

        #[test]
        fn what_the_text_cannot_say_is_refused() {
            let kept = Limit::per_minute(1).keep_alive(Duration::from_secs(90));
            for limit in [Limit::per_minute(1).per_client(), kept.unwrap()] {
                let error = serde_json::to_string(&limit).unwrap_err().to_string();
                assert!(error.contains("1/1m is per client or has"), "{error}");
            }
            let error = serde_json::from_str::<Limit>("100").unwrap_err();
            assert!(
                error.to_string().contains("expected a rate such as"),
                "{error}"
            );
        }
    }

    #[test]
    fn rates_are_read_and_written() {
        for (text, permits, millis, written) in [
            ("100/1m", 100, 60_000, "100/1m"),
            ("5/s", 5, 1000, "5/1s"),
            ("1/500ms", 1, 500, "1/500ms"),
            ("1_000_000 / d", 1_000_000, 86_400_000, "1000000/1d"),
            ("3/90s", 3, 90_000, "3/90s"),
            ("3/24h", 3, 86_400_000, "3/1d"),
            (
                "9007199254740991/36525d",
                (1 << 53) - 1,
                3_155_760_000_000,
                "9007199254740991/36525d",
            ),
            ("4 in flight/90s", 4, 90_000, "4 in flight/90s"),
            ("1_000in flight / 60m", 1000, 3_600_000, "1000 in flight/1h"),
        ] {
            let limit: Limit = text.parse().unwrap();
            assert_eq!(limit.is_in_flight(), text.contains("flight"));
            assert_eq!(limit.permits(), permits, "{text}");
            assert_eq!(limit.interval(), Duration::from_millis(millis), "{text}");
            assert_eq!(limit.to_string(), written);
        }
        for text in [
            "",
            "5",
            "/1m",
            "5/",
            "5/1w",
            "-5/1s",
            "0/1s",
            "5/0s",
            "5_/1s",
            "0 in flight/1s",
            "1001 in flight/1s",
            "5 in flight",
            "5 in flight/s",
            "5 inflight/1s",
        ] {
            let error = text.parse::<Limit>().unwrap_err();
            assert_eq!(error.kind(), crate::ConfigErrorKind::Limit, "{text}");
        }
    }

    #[test]
    fn limits_that_do_not_combine_say_why() {
        for (text, why) in [
            ("5/s and 9/s", "same interval"),
            ("5/s and 5/m", "takes fewer permits: else the longer one"),
            ("5/s and 300/m", "than the shorter one allows"),
            ("1/s and 2/3s and 3/9s and 4/30s and 5/90s", "at most four"),
        ] {
            let error = text.parse::<Limit>().unwrap_err().to_string();
            assert!(
                error.contains(why) && error.contains(&format!("{text:?}")),
                "{error}"
            );
        }
        let many = "5/s and ".repeat(100_000);
        assert!(many.parse::<Limit>().is_err());
        for text in [
            "5/s and",
            "and 5/s",
            " and ",
            "5/s and 5",
            "5/s and 9/m and",
        ] {
            let error = text.parse::<Limit>().unwrap_err();
            assert_eq!(error.kind(), crate::ConfigErrorKind::Limit, "{text}");
        }
        let several = Limit::per_second(5).and(Limit::per_minute(9));
        for limit in [
            several.per_client(),
            several.keep_alive(Duration::from_secs(60)).unwrap(),
        ] {
            assert!(limit.joined(Limit::per_hour(99)).is_err());
        }
    }

    #[test]
    fn times_are_read() {
        assert_eq!(time("90s"), Some(Duration::from_secs(90)));
        assert_eq!(time("2h"), Some(Duration::from_secs(7200)));
        assert_eq!(time("2"), None);
    }
}
