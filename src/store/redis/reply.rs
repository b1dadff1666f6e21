//! Reads replies of commands. Pure.

use std::time::Duration;

use redis::Value;

use crate::{
    store::TimeToLive,
    values::{
        error::{Error, ErrorKind},
        limit::at_least_zero,
    },
};

/// Reads a reply of one number.
pub(crate) fn count(reply: &Value) -> Result<i64, Error> {
    match reply {
        Value::Int(count) => Ok(*count),
        _ => Err(unreadable()),
    }
}

/// Reads the reply of PTTL.
pub(crate) fn time_to_live(reply: &Value) -> Result<TimeToLive, Error> {
    Ok(match count(reply)? {
        -2 => TimeToLive::Missing,
        -1 => TimeToLive::Lasting,
        left => TimeToLive::Left(Duration::from_millis(at_least_zero(left))),
    })
}

/// Returns the error of a reply that no server of ours makes.
pub(crate) fn unreadable() -> Error {
    Error::new(ErrorKind::Unavailable).detail("unexpected reply to a script")
}
