//! What stands between a caller and Redis, in the one right order.
//!
//! `fallback( deadline( redis ))`: the deadline bounds what a request can lose, so it lies around everything that waits;
//! the fallback sees every error, also that of the deadline. They belong to the store, so that every layer and limiter
//! on it shares them.

#[cfg(feature = "redis")]
pub(crate) mod deadline;
pub(crate) mod fallback;
