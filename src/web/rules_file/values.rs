//! Reads the rates and times of a rules file.

use std::time::Duration;

use serde::Deserialize;

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
