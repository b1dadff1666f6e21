//! The guards between a caller and its store. [`stack`](super::stack) has their order; here is
//! the reason for it.
//!
//! - The failure policy, in `fallback`, comes first: it sees every error, also that of the
//!   deadline, and it records every grant, by which this process decides in an outage.
//! - The deny cache comes before the lease. It hides no leased permits: a lease comes with a grant,
//!   and a grant drops the refusals of its limiter.
//! - The deadline (`outbox/silence.rs`) bounds the delay of a request, so it lies around everything
//!   that waits. The time for which a caller waits for permits comes on top.
//! - The outbox sends one command of a limiter at a time for many callers, puts limiters together
//!   in one command, and bounds the callers in flight to a node. A caller leaves at its deadline;
//!   the command ends when the last of them has left, or by the connection's timeouts. Callers
//!   who would be answered too late are overload: they are not sent but answered by policy, and are
//!   no failure of the server.
//! - The lease is inside the outbox. There it can join a call that is made anyway, and it sees
//!   whether a caller waits, which takes precedence over later callers.
//! - The breaker has two halves. The first is asked before there is a future, so that nothing waits
//!   for a server whose breaker is open. The second is in the store, around each call, because only
//!   there the node is known.
//!
//! They belong to the store, so that every layer and limiter on it shares them.
//!
//! A grant drops a refusal from the deny cache, even a later one of the same shared call. That
//! costs an exhausted limiter one call more, which refuses all its callers.

#[cfg(feature = "_guards")]
mod clock;
#[cfg(feature = "_guards")]
pub(crate) mod deny_cache;
#[cfg(feature = "_guards")]
pub(crate) mod fallback;
pub(crate) mod late;
#[cfg(feature = "_guards")]
pub(crate) mod lease;
#[cfg(feature = "_guards")]
pub(crate) mod local;
pub(crate) mod outbox;
pub(crate) mod policy;
#[cfg(test)]
#[cfg(feature = "_guards")]
pub(crate) mod scripted;

#[cfg(feature = "_guards")]
use crate::values::name::BuildSpread;

/// Values by name, of a bounded number: beyond it, the least used are dropped.
#[cfg(feature = "_guards")]
pub(crate) type Cache<K, V> =
    quick_cache::sync::Cache<K, V, quick_cache::UnitWeighter, BuildSpread>;

/// Makes a cache of at most `most` entries, with room for the first of them.
#[cfg(feature = "_guards")]
pub(crate) fn cache<K: Eq + std::hash::Hash, V: Clone>(first: usize, most: usize) -> Cache<K, V> {
    let (spread, weigher) = (BuildSpread::new(), quick_cache::UnitWeighter);
    Cache::with(first, most as u64, weigher, spread, Default::default())
}
