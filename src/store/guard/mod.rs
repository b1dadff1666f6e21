//! The guards between a caller and its store. [`stack`](super::stack) has their order, as one
//! function; here is the reason for each place.
//!
//! - The failure policy is outermost, in `fallback`: it sees every error, also that of the
//!   deadline, and it learns from every grant what this process may decide by in an outage.
//! - The deadline bounds what a request can lose, so it lies around everything that waits. The
//!   time that a caller is ready to wait for permits comes on top.
//! - The deny cache is asked before the lease. It hides no permits in hand: a lease comes with a
//!   grant, and a grant drops the refusals of its limiter.
//! - The queue has one call of a limiter in flight for many callers, and bounds the calls in flight
//!   to a node. A caller that reaches its deadline leaves, and the call ends with the last of them,
//!   or by the connection's timeouts. Calls beyond the bound are overload: answered by policy, and
//!   no failure of the server.
//! - The lease sees in the queue who is asked for together, so that it costs no call of its own,
//!   and whether a caller waits, which goes before those still to come.
//! - The breaker's first half is asked before there is a future: while a server is left alone,
//!   nothing waits for it. Its second half is in the store, around each call: only there the node
//!   is known.
//!
//! They belong to the store, so that every layer and limiter on it shares them.
//!
//! A grant drops a refusal from the deny cache, also one of the same shared call, which may be the
//! later of the two. That costs a spent limiter one call more, in which all are refused.

#[cfg(feature = "_guards")]
pub(crate) mod breaker;
#[cfg(feature = "_guards")]
mod clock;
#[cfg(feature = "_guards")]
pub(crate) mod deadline;
#[cfg(feature = "_guards")]
pub(crate) mod deny_cache;
#[cfg(feature = "_guards")]
pub(crate) mod fallback;
pub(crate) mod late;
#[cfg(feature = "_guards")]
pub(crate) mod lease;
#[cfg(feature = "_guards")]
pub(crate) mod local;
pub(crate) mod policy;
pub(crate) mod queue;
#[cfg(test)]
#[cfg(feature = "_guards")]
pub(crate) mod scripted;

#[cfg(feature = "_guards")]
use crate::name::BuildSpread;

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
