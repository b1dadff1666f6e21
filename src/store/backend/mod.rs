//! A store of your own: limits in PostgreSQL, DynamoDB or whatever you run already.
//!
//! **Unstable**: it may change in any version. A [`Backend`] keeps bytes by key, and puts new ones
//! instead of old ones. A [`BackendStore`] makes all of a [`MemoryStore`](crate::MemoryStore)
//! of it: every algorithm, several limits, bans, corrections and verbs. In front stand the guards
//! of a `RedisStore`: a deadline, the failure policy with this process's share, the repeated
//! refusal, the queue of callers that wait, the bound of calls in flight, and the breaker.
//!
//! # How it decides
//!
//! It reads the values of a call's limiters, decides as in memory, and swaps those that change for
//! the next, if no other process has done so meanwhile: otherwise it begins again. A refusal writes
//! nothing, unless it counts towards a ban. Callers in this process share calls, also those of
//! several limiters, and none comes between another's.
//!
//! The values of several limiters are swapped [together](Backend::swap_all) where the backend can,
//! and otherwise each by itself. If another process comes between, those that were swapped are
//! swapped back, and all begins again: it never grants too much, but others may be refused
//! meanwhile. A process that ends there leaves permits in use until they expire.
//!
//! # Worst case
//!
//! - It counts by the clock of this process: two that differ by a second grant up to a second's
//!   permits too early, or too late. Run NTP.
//! - A swap whose answer is lost may be done: what it took is given back if its grants have
//!   [entries](crate::Algorithm), and is in use until it expires otherwise. The same holds of one
//!   that arrives after its caller has given up.
//! - Corrections that cannot be made within five seconds are lost, and reported as such
//!   ([`StateChange::Lost`](crate::observe::StateChange)).
//! - Limits [per client](crate::Limit::per_client) are an error: only Redisson has them.
//!
//! [`laws`] checks a backend (with the feature `test-util`). `examples/postgres` and
//! `examples/redb` in the repository are whole ones.
//!
//! # Example
//!
//! The plainest backend there is, `examples/backend.rs`:
//!
//! ```
#![doc = include_str!("../../../examples/backend.rs")]
//! ```

mod call;
mod lanes;
#[cfg(feature = "test-util")]
pub mod laws;
mod opened;
mod store;

use std::{
    fmt::{self, Debug},
    future::Future,
};

pub use self::store::{BackendStore, Settings};
use crate::values::error::{Error, ErrorKind};

/// Keeps bytes by key, and swaps them: what a store of your own implements.
///
/// A key is the name of a limiter: text, at most some hundred bytes of it, in which case counts. A
/// value has some 70 to 110 bytes, 28 more for each grant of a sliding log in the last interval,
/// and some for refusals that count towards a ban.
///
/// The first six bytes of a value are when it may be removed: milliseconds since the epoch,
/// big-endian, so that a database compares them as it compares bytes. A value that is removed early
/// gives its caller the whole limit again; one that stays costs room alone.
///
/// # Errors
///
/// Both return an error of kind [`Unavailable`](ErrorKind::Unavailable) or
/// [`Timeout`](ErrorKind::Timeout) where the server does not work, which counts for the breaker,
/// and of any other kind for other reasons. [`failure`] makes one of the server's own.
///
/// # Cancel safety
///
/// A future is dropped at the deadline. A swap may be done nevertheless.
pub trait Backend: Debug + Send + Sync + 'static {
    /// Returns the value of a key, as it was swapped in last; `None` if it has none.
    fn get(&self, key: &str) -> impl Future<Output = Result<Option<Vec<u8>>, Error>> + Send;

    /// Changes the value of a key in one step, if it is the old one. Returns whether it was.
    fn swap(&self, swap: Swap<'_>) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Changes the values of several keys in one step, if each is the old one. Returns whether they
    /// were; none is changed if one was not. `None`, which is the default, if it cannot do that:
    /// then nothing was changed, and [`swap`](Self::swap) is called for each.
    fn swap_all(&self, _: &[Swap<'_>]) -> impl Future<Output = Result<Option<bool>, Error>> + Send {
        std::future::ready(Ok(None))
    }
}

/// A change of the value of one key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Swap<'a> {
    /// The key.
    pub key: &'a str,
    /// Its value until now; `None` if it has none.
    pub old: Option<&'a [u8]>,
    /// Its value from now on; `None` to remove it.
    pub new: Option<&'a [u8]>,
}

// Keys hold identities, and values may.
impl Debug for Swap<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Swap").finish_non_exhaustive()
    }
}

/// Returns the error of a server, with its own as the source: for logs, not for callers.
pub fn failure(kind: ErrorKind, source: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(kind).caused_by(source)
}
