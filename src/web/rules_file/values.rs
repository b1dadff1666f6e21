//! Reads the times of a rules file.

use std::time::Duration;

use serde::Deserialize;

use crate::limit::time;

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
