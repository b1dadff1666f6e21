//! What stands between a caller and its store, in the one right order.
//!
//! `fallback( deadline( deny_cache( line( lease( breaker( redis ))))))`: the fallback sees every error, also that of the deadline; the
//! deadline bounds what a request can lose, so it lies around everything that waits, and the patience that a caller
//! brings comes on top. The cache learns from every answer to those who do not wait, and is asked before all guards: a
//! refusal that it knows is neither a success of the store nor a wait. In the line, a call is in flight for many
//! callers at once: whoever reaches its deadline leaves, and the call ends with the last of them or by the connection's
//! own timeouts.
//!
//! The lease has two sides. Its front is asked first of all: what this process holds is granted before a refusal is told
//! that Redis gave while it was taken, and no future is made for it. Its back stands in the line, and not around it: only
//! there it is seen who is asked for together, so that a lease costs no call of its own, and whether anybody waits, who
//! goes before those still to come. They belong to the store, so that every layer and limiter on it shares them.
//!
//! The breaker has two sides, too. Its front is asked after those that know the answer, before a future is made: while a
//! server is left alone nobody waits for it. Its back is in the store, around each call and not around each list of
//! limiters: only there it is known which node a call goes to. A call has no deadline of its own: it ends with the last
//! of its callers, and the breaker hears of that.
//!
//! What the fallback decides in this process, by a share of a limit, it learns from every grant that passes through it: it
//! lies outermost. Grants out of a lease's front are told it.
//!
//! What the cache learns of a run: a refusal is that of the run's end, and a grant of the same run drops it all the same,
//! as the cache cannot tell it from a later one. That costs a spent limiter one run more, in which all are refused.

#[cfg(feature = "redis")]
pub(crate) mod breaker;
#[cfg(feature = "redis")]
pub(crate) mod deadline;
#[cfg(feature = "redis")]
pub(crate) mod deny_cache;
#[cfg(feature = "redis")]
pub(crate) mod fallback;
#[cfg(feature = "redis")]
pub(crate) mod lease;
pub(crate) mod line;
#[cfg(feature = "redis")]
pub(crate) mod local;
pub(crate) mod policy;
