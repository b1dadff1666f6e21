//! A store of your own: limits in PostgreSQL, DynamoDB or whatever you run already.
//!
//! **Unstable**: it may change in any version. [`Backend`] is the whole interface. A
//! [`BackendStore`] puts the crate's guards in front of it, those of a
//! [`RedisStore`](crate::RedisStore): a deadline, the failure policy with this process's share, the
//! repeated refusal, the queue of those that wait, the bound of calls in flight, and the breaker.
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

pub use self::store::BackendStore;
use crate::{
    demand::{self, Acquire},
    error::{Error, ErrorKind},
    limit::{Limit, LimitSource},
    receipt::Receipt,
};

/// Keeps limiters, without guards: what a store of your own implements.
///
/// Each method is one step: no other call is to see half of it.
pub trait Backend: Debug + Send + Sync + 'static {
    /// Takes the permits of all charges or of none, and returns one answer for each, in order.
    ///
    /// It is granted if each enforced charge [fits](Demand::fits). A shadow charge refuses nothing;
    /// of a demand that is granted it is taken if it fits. A grant counts from its instant for one
    /// interval: until then, and not at its end. A refusal takes nothing.
    ///
    /// # Errors
    ///
    /// [`NotInitialized`](crate::ErrorKind::NotInitialized) where a limit must be stored and is
    /// not; [`Unavailable`](crate::ErrorKind::Unavailable) or
    /// [`Timeout`](crate::ErrorKind::Timeout) where the server does not work, which counts for the
    /// breaker. An error has taken nothing, as far as the backend knows.
    ///
    /// # Cancel safety
    ///
    /// It is dropped at the deadline. What it takes all the same is given back by
    /// [`settle`](Self::settle), or is the caller's.
    fn acquire(
        &self,
        demand: Demand<'_>,
    ) -> impl Future<Output = Result<Vec<Answer>, Error>> + Send;

    /// Corrects what a demand took of one limiter. It is called in the background, and an error
    /// loses it: that costs one interval at most.
    ///
    /// To give back twice is to give back once; [`more`](Settlement::more) comes once. It may come for a demand that took nothing, or that is
    /// still under way: send both on one connection, and it comes later.
    ///
    /// # Errors
    ///
    /// Those of the server.
    fn settle(&self, settlement: Settlement<'_>) -> impl Future<Output = Result<(), Error>> + Send;

    /// Carries out one of the verbs of a [`RateLimiter`](crate::RateLimiter).
    ///
    /// # Errors
    ///
    /// [`NotInitialized`](crate::ErrorKind::NotInitialized) where the verb needs a limit,
    /// [`Rejected`](crate::ErrorKind::Rejected) for a verb that the backend does not have, and
    /// those of the server.
    fn manage(
        &self,
        name: &str,
        verb: &Verb,
    ) -> impl Future<Output = Result<Outcome, Error>> + Send;
}

/// Returns the error of a server, with its own as the source: for logs, not for callers.
pub fn failure(kind: ErrorKind, source: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(kind).caused_by(source)
}

/// Permits of one or several limiters, taken together or not at all.
#[derive(Clone, Copy, Debug)]
pub struct Demand<'a>(&'a Acquire);

impl<'a> Demand<'a> {
    /// Returns the random bytes that no other demand has: its grants are found by them.
    pub fn id(&self) -> [u8; 16] {
        self.0.first.id.0
    }

    /// Returns its charges, each of another limiter: at least one.
    pub fn charges(&self) -> impl Iterator<Item = Charge<'a>> + use<'a> {
        self.0.charges().map(Charge)
    }

    /// Returns whether a charge is no reason to refuse the demand, if so many permits are free.
    pub fn fits(&self, charge: Charge<'_>, free: u64) -> bool {
        charge.is_shadow() || u64::from(charge.permits()) <= free
    }
}

/// The permits that a demand takes of one limiter.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a>(&'a demand::Charge);

impl<'a> Charge<'a> {
    /// Returns the limiter's name. It may hold an identity: keep it out of logs.
    pub fn name(&self) -> &'a str {
        self.0.limiter.name.as_str()
    }

    /// Returns how many permits, at least one.
    pub fn permits(&self) -> u32 {
        self.0.permits
    }

    /// Returns where the limit is from.
    pub fn limit(&self) -> LimitFrom {
        match self.0.limit() {
            LimitSource::Code(limit) => LimitFrom::Given(limit),
            LimitSource::Store => LimitFrom::Stored,
            LimitSource::StoreOrInit(limit) => LimitFrom::StoredOr(limit),
        }
    }

    /// Returns whether it refuses nothing, and is only counted.
    pub fn is_shadow(&self) -> bool {
        self.0.shadow
    }
}

/// The source of the limit of a charge. A limit with a
/// [`keep_alive_time`](Limit::keep_alive_time) may be forgotten when it was not used for as long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitFrom {
    /// This one. A stored one that differs is replaced, and what is in use stays in use
    Given(Limit),
    /// The stored one; there must be one
    Stored,
    /// The stored one; if there is none, this one is stored
    StoredOr(Limit),
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
    /// Set if the limit was stored or replaced, so that what is known of it in this process is old.
    pub changed: bool,
}

/// A correction of what a demand took of one limiter.
#[derive(Clone, Copy, Debug)]
pub struct Settlement<'a>(&'a Receipt, u32);

impl<'a> Settlement<'a> {
    /// Returns the limiter's name.
    pub fn name(&self) -> &'a str {
        self.0.name().as_str()
    }

    /// Returns the id of the demand.
    pub fn id(&self) -> [u8; 16] {
        self.0.id.0
    }

    /// Returns how many permits of its grant stay taken; the others are free at once.
    pub fn keep(&self) -> u32 {
        self.1.min(self.0.permits)
    }

    /// Returns how many permits are charged beyond the grant, also beyond the limit: they count
    /// from now on.
    pub fn more(&self) -> u32 {
        self.1.saturating_sub(self.0.permits)
    }

    /// Returns an id for those, so that they count once.
    pub fn id_of_more(&self) -> [u8; 16] {
        self.0.id.for_more().0
    }
}

/// The verbs that do not take permits. Others of [`RateLimiter`](crate::RateLimiter), such as
/// `rename` and `expire`, are [`Rejected`](crate::ErrorKind::Rejected) for a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verb {
    /// Stores a limit where there is none: [`Changed`](Outcome::Changed), whether it did
    TrySetRate(Limit),
    /// Stores a limit whatever was stored: [`Changed`](Outcome::Changed), whether it did
    SetRate {
        /// The limit
        limit: Limit,
        /// Set if permits in use go on counting
        keep: bool,
        /// Set if there must be one to change
        existing: bool,
    },
    /// Gives back so many permits, the oldest in use: [`Permits`](Outcome::Permits), how many
    Release(u32),
    /// Counts the free permits: [`Permits`](Outcome::Permits)
    Available,
    /// Reads the limit: [`Limit`](Outcome::Limit)
    Limit,
    /// Removes the limiter: [`Changed`](Outcome::Changed), whether there was one
    Delete,
}

/// The result of a [`Verb`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Whether it has changed something
    Changed(bool),
    /// The stored limit
    Limit(Option<Limit>),
    /// A number of permits
    Permits(u64),
}
