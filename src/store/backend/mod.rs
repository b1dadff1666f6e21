//! A store of your own: limits in PostgreSQL, DynamoDB or whatever you run already.
//!
//! **Unstable**: it may change in any version. [`Backend`] is the whole interface: a [`Demand`]
//! in, an [`Answer`] for each of its charges out, settle, manage. A [`BackendStore`] puts the
//! guards of a `RedisStore` in front of it: a deadline, the failure policy with this process's
//! share, the repeated refusal, the queue of callers that wait, the bound of calls in flight, and
//! the breaker.
//!
//! A backend counts by a sliding log without slots, for all clients together. A rule by another
//! [`Algorithm`](crate::Algorithm), with slots or [per client](crate::Limit::per_client) does not
//! build, and a [`RateLimiter`](crate::RateLimiter) by one gets an error of kind
//! [`Limit`](crate::ErrorKind::Limit). A [`lease`](crate::Rule::lease) is ignored, as it changes no
//! answer.
//!
//! [`laws`] checks a backend (with the feature `test-util`). `examples/postgres` in the repository
//! is a whole one.
//!
//! # Example
//!
//! The plainest backend there is, `examples/backend.rs`:
//!
//! ```
#![doc = include_str!("../../../examples/backend.rs")]
//! ```

#[cfg(feature = "test-util")]
pub mod laws;
mod store;

use std::{fmt::Debug, future::Future, time::Duration};

pub use self::store::{BackendStore, Settings};
use crate::values::{
    error::{Error, ErrorKind},
    limit::Limit,
};
pub use crate::{
    store::{Op, OpResult},
    values::{
        charge::Charge,
        demand::Demand,
        limit::{LimitSource, StoredLimit},
        name::Name,
    },
};

/// Keeps limiters, without guards: what a store of your own implements.
///
/// Each method is one step: no other call is to see half of it.
pub trait Backend: Debug + Send + Sync + 'static {
    /// Takes the permits of all charges or of none, and returns one answer for each, in order.
    ///
    /// The demand is granted if there is room for each charge that is no shadow. Then each charge
    /// with room is taken, shadows as well. A grant counts from its instant for one interval: until
    /// then, and not at its end. A refusal takes nothing.
    ///
    /// # Errors
    ///
    /// [`NotInitialized`](ErrorKind::NotInitialized) where a limit must be stored and is not;
    /// [`Unavailable`](ErrorKind::Unavailable) or [`Timeout`](ErrorKind::Timeout) where the server
    /// does not work, which counts for the breaker. A call that fails has taken
    /// nothing that the backend knows of.
    ///
    /// # Cancel safety
    ///
    /// The future is dropped at the deadline. If it takes permits nevertheless, they are given back
    /// by [`settle`](Self::settle), or stay charged to the caller.
    fn acquire(&self, demand: &Demand) -> impl Future<Output = Result<Vec<Answer>, Error>> + Send;

    /// Corrects what a demand took of one limiter. It is called in the background, and an error
    /// loses it: that costs one interval at most.
    ///
    /// A settlement may come for a demand that took nothing, or that is still under way: send both
    /// on one connection, so that the settlement arrives later.
    ///
    /// # Errors
    ///
    /// Those of the server.
    fn settle(&self, name: &Name, settle: Settle)
    -> impl Future<Output = Result<(), Error>> + Send;

    /// Carries out one of the verbs of a [`RateLimiter`](crate::RateLimiter).
    ///
    /// # Errors
    ///
    /// [`NotInitialized`](ErrorKind::NotInitialized) where the verb needs a limit,
    /// [`Rejected`](ErrorKind::Rejected) for a verb that the backend does not have, and those of
    /// the server.
    fn manage(&self, name: &Name, op: &Op) -> impl Future<Output = Result<OpResult, Error>> + Send;
}

/// The answer to one charge. A backend counts by its own clock, so times are from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The limit in force.
    pub limit: Limit,
    /// The permits left after the decision.
    pub remaining: u64,
    /// `None` if there was room. Otherwise the time until there is, if none is taken meanwhile;
    /// of no account for more permits than the limit has.
    pub wait: Option<Duration>,
    /// The time until one more permit is free; zero if all are.
    pub next: Duration,
    /// The time until all permits are free; zero if they are.
    pub reset: Duration,
    /// Set if the limit was stored or replaced, so that what this process knew of it is old.
    pub changed: bool,
}

/// A correction of what a demand took of one limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settle {
    /// Keeps this many permits of the grant with this id, and frees the others at once. It may come
    /// twice
    Keep([u8; 16], u32),
    /// Charges this many permits more from now on, even beyond the limit, as a grant with this id.
    /// It comes once
    Charge([u8; 16], u32),
}

/// Returns the error of a server, with its own as the source: for logs, not for callers.
pub fn failure(kind: ErrorKind, source: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(kind).caused_by(source)
}
