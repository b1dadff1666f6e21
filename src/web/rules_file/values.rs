//! Reads the rates and times of a rules file.

use std::time::Duration;

use serde::Deserialize;

#[cfg(feature = "calendar")]
use super::reader::Value;
#[cfg(feature = "calendar")]
use crate::limit::StartingOn;
use crate::{
    error::ConfigError,
    limit::{Limit, time},
};

/// A rate: `100/1m`, `5/s`.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Rate(pub(super) Limit);

impl TryFrom<String> for Rate {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let limit = text.parse().map(Self);
        limit.map_err(|error: ConfigError| error.to_string())
    }
}

/// The first day of a week or a month: `15`, `sunday`.
#[cfg(feature = "calendar")]
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "Value<u8, u8>")]
pub(super) struct Day(pub(super) StartingOn);

#[cfg(feature = "calendar")]
impl TryFrom<Value<u8, u8>> for Day {
    type Error = String;

    fn try_from(day: Value<u8, u8>) -> Result<Self, String> {
        let day = match day {
            Value::Scalar(day) | Value::Many(day) => Ok(day.into()),
            Value::Text(day) => day.parse(),
        };
        day.map(Self)
            .map_err(|error: ConfigError| error.to_string())
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
