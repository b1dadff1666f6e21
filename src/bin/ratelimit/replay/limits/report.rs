//! The report of a replay.

use std::time::Duration;

use serde::{Serialize, Serializer};
use tower_ratelimit::{Algorithm, Limit};

use crate::access_log::RowsRead;

/// The least and the most that a figure may be. Both are the same where it is known.
pub(crate) type Figure = [u64; 2];

/// The result of [`Replay::run`](super::Replay::run).
///
/// A figure is a range where the log's times are coarser than a twentieth of the interval: the true
/// one is in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Report {
    /// The lines that were read, by kind
    #[serde(flatten)]
    pub(crate) read: RowsRead,
    /// The lines without a caller, which no limit counts
    pub(crate) without_caller: u64,
    /// The callers that the requests came from
    pub(crate) callers: u64,
    /// Set if the duration of each request was subtracted
    pub(crate) durations_subtracted: bool,
    /// The effect of each limit, in the order in which they were added
    pub(crate) candidates: Vec<Candidate>,
    /// The smallest limit for each algorithm and interval among them
    pub(crate) smallest: Vec<SmallestLimit>,
    /// The callers with the most requests in one interval of the first limit, the first ten
    pub(crate) busiest: Vec<Busiest>,
    /// The most callers whose state was held at once
    pub(crate) most_active: u64,
    /// The refusals over time, in at most 120 steps of one length
    pub(crate) moments: Vec<Moment>,
}

/// The effect that one limit would have had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Candidate {
    pub(crate) limit: Limit,
    /// The algorithm that counted
    #[serde(serialize_with = "as_text")]
    pub(crate) algorithm: Algorithm,
    /// The callers of whose requests at least one would have been refused
    pub(crate) touched: Figure,
    /// The requests that would have been refused
    pub(crate) refused: Figure,
}

/// The smallest limit that touches fewer callers than the given share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct SmallestLimit {
    #[serde(serialize_with = "as_text")]
    pub(crate) algorithm: Algorithm,
    #[serde(rename = "interval_ms", serialize_with = "in_millis")]
    pub(crate) interval: Duration,
    /// Its permits; `None` if there was no request, or if it would take a second reading to
    /// find them: only those of a sliding log are found in one
    pub(crate) permits: Option<Figure>,
    /// The callers that it touches
    pub(crate) touched: Figure,
    /// The same for one permit less; all of them where no permit would be left
    pub(crate) touched_by_one_less: Figure,
    /// Set if runs of these limits and of one permit less touched as many callers
    pub(crate) verified: bool,
    /// The largest numbers of requests of callers in one interval, at most, each with how many
    /// callers have it
    pub(crate) peaks: Vec<(u64, u64)>,
}

/// A caller with many requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Busiest {
    /// A digest by a secret of this run, unless keys are shown
    pub(crate) caller: String,
    /// Its largest number of requests in one interval
    pub(crate) most: Figure,
}

/// A part of the log's time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Moment {
    /// When it begins, since the epoch
    pub(crate) from_ms: i64,
    /// The requests in it
    pub(crate) requests: u64,
    /// The refusals of each candidate
    pub(crate) refused: Vec<Figure>,
}

fn as_text<S: Serializer>(value: &Algorithm, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

fn in_millis<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}
