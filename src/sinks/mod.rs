//! What the crate has for users who observe: counters for the `metrics` facade, the page's state,
//! and the line in the log. Each is an [`Observer`](crate::observe::Observer), as a user's own.

#[cfg(feature = "page")]
pub(crate) mod activity;
#[cfg(any(feature = "redis", feature = "page"))]
mod durations;
#[cfg(feature = "metrics")]
pub(crate) mod metrics;
#[cfg(feature = "redis")]
pub(crate) mod summary;

/// The number of servers that are told apart. A Cluster has 33: its connection, and a breaker for
/// each of 32 parts.
#[cfg(any(feature = "metrics", feature = "page"))]
const MOST_NODES: usize = 66;
