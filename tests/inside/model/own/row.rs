//! The rows and stamps of calls.

use super::super::*;
use crate::store::redis::packed::{Stamp, gcra::GcraRow, log::LogRow, row::Row, window::WindowRow};

/// A rate and an interval.
pub(super) type Terms = (u64, u64);

/// The row of a limit.
pub(super) fn row(algorithm: Algorithm, (rate, interval): Terms) -> Row {
    let limit = Limit::new(rate, Duration::from_millis(interval));
    let (rate, interval) = (rate.cast_signed(), interval.cast_signed());
    match algorithm {
        Algorithm::FixedWindow => Row::Window(WindowRow { rate, interval }),
        Algorithm::Gcra => {
            let pace = crate::algorithm::gcra::Pace::of(rate, interval).unwrap();
            Row::Gcra(GcraRow(pace))
        }
        _ => Row::Log(LogRow::of(&limit)),
    }
}

pub(super) fn stamp(id: PermitId, now: Option<i64>) -> Stamp {
    let now = now.map(i64::cast_unsigned);
    Stamp { id, now }
}

pub(super) fn instant(now: i64) -> Now {
    Now::millis(now).by_caller(true)
}
