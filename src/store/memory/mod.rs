//! The store in the memory of this process, for development, tests and single-process services.

#[cfg(feature = "unstable-store")]
mod borrowed;
mod builder;
mod file;
mod lists;
mod newcomers;
mod saved;
mod shard;
pub(crate) mod shared;
mod sketch;
pub(super) mod untracked;
mod verbs;

use std::{fmt, sync::Arc};

pub use self::builder::MemoryStoreBuilder;
use self::shared::Shared;
use super::{
    AnyStore,
    sealed::{Handle, Sealed},
};

/// Keeps limiters in this process.
///
/// The store for development, tests and services that run as a single process. It has the same
/// algorithms as [`RedisStore`](crate::RedisStore), in microseconds instead of milliseconds, and
/// needs no server. Limits and waits are exact at any interval. Clones share
/// their limiters.
///
/// # Bounds
///
/// It holds up to 100 000 limiters by default. Each takes some 220 to 350 bytes, and up to 64 more
/// for each grant of the last interval; expired grants are overwritten by later ones. At the bound,
/// a new key takes the place of a limiter that a rule made and whose permits are all free again, so
/// that no key regains a quota by being forgotten. If none is found, the newcomer is counted by an
/// estimate, which it shares with others. (A store for 2 048 limiters or more is divided into up to
/// 64 parts by the hash of the key, each with its share of the bound. So by default the first
/// newcomers are estimated when there are some 94 000 limiters, and a part looks for idle limiters
/// once for several newcomers.) A newcomer is granted no more than its limit in any interval.
/// Permits granted to it count an eighth of the interval longer, and permits it gives back are
/// ignored. While there are newcomers, the estimate takes 144 to 288 bytes for each limiter of the
/// bound, 19 MB by default. It takes this for each of at most four intervals, and for each of three
/// sizes of limits: up to 255 permits, up to 65 535, and more.
///
/// A newcomer may be refused early, if many others have spent their limits in the same eighth of
/// the interval. In a store of the default size, of limits up to 255 permits:
///
/// | keys that have spent their limits | newcomers that are refused |
/// |---|---|
/// | 200 000 | 0.1 % |
/// | 300 000 | 1 % |
/// | 600 000 | 14 % |
/// | 1 000 000 | 45 % |
///
/// Limits of up to 65 535 permits have half as many cells in the same memory: 8, 53 and 88 % in the
/// last three rows. Larger ones have a quarter: 8, 38, 91 and 99.6 % in the four rows.
/// It takes the whole limit of each key: a million keys with one request each refuse no newcomer a
/// limit of 100. A larger bound has more cells: set it to a third of the keys that you expect in a
/// flood, or count in Redis.
///
/// If no estimate can be made, a newcomer is refused as
/// [unavailable](crate::RefusalKind::Unavailable) whatever its
/// [`FailurePolicy`](crate::FailurePolicy): otherwise a caller could lift the limit by filling the
/// store. This is so for [several limits in one](crate::Limit::and), for a limit of more than
/// 4 294 967 295 permits, and for a fifth interval.
///
/// # Example
///
/// ```
/// # use tower_ratelimit::{Limit, MemoryStore, RateLimitLayer, key::PeerIp};
/// let store = MemoryStore::new();
/// let layer = RateLimitLayer::new(&store, Limit::per_minute(60).by(PeerIp));
/// ```
#[derive(Clone)]
pub struct MemoryStore {
    pub(crate) shared: Arc<Shared>,
    stack: Arc<dyn AnyStore>,
}

impl MemoryStore {
    /// Creates an empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// Begins a store with settings.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Limit, MemoryStore, RateLimitLayer, key::PeerIp};
    ///
    /// // For a flood of 900 000 callers: a third of them.
    /// let store = MemoryStore::builder().max_limiters(300_000).build();
    /// let layer = RateLimitLayer::new(&store, Limit::per_minute(60).by(PeerIp));
    /// ```
    #[must_use]
    pub fn builder() -> MemoryStoreBuilder {
        MemoryStoreBuilder::new()
    }

    /// Returns how many limiters it holds.
    pub fn len(&self) -> usize {
        self.shared.len()
    }

    /// Returns whether it holds no limiter.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets the limiters that rules made and whose permits are all free again. No decision
    /// depends on them. The store does so by itself only at the [bound](Self#bounds).
    pub fn forget_idle(&self) {
        self.shared.forget_idle();
    }

    /// Returns how many decisions it has made by an estimate, because it was [full](Self#bounds).
    ///
    /// They have [`Source::Estimate`](crate::Source::Estimate). While there are some, one warning a
    /// minute reports them.
    pub fn estimated(&self) -> u64 {
        self.shared.untracked.decided()
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("limiters", &self.len())
            .field("max_limiters", &self.shared.max)
            .finish_non_exhaustive()
    }
}

impl Sealed for MemoryStore {
    fn handle(&self) -> Handle {
        Handle(Arc::clone(&self.stack))
    }
}
