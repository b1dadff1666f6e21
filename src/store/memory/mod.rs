//! The store in the memory of this process, for development, tests and single-process services.

#[cfg(feature = "unstable-store")]
mod borrowed;
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

use self::shared::{MOST_LIMITERS, Shared};
#[cfg(feature = "test-util")]
use super::failing;
use super::{
    About, AnyStore,
    sealed::{Handle, Sealed},
    stack,
};
use crate::values::{
    clock::{Clock, SteadyClock},
    error::ErrorKind,
    observe::{Observer, Observers},
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
/// newcomers are estimated when some 94 000 places are taken, and a part looks for idle limiters
/// once for several newcomers.) A newcomer is granted no more than its limit in any interval.
/// Permits granted to it count an eighth of the interval longer, and permits it gives back are
/// ignored. While there are newcomers, the estimate takes memory for each of at most four
/// intervals, and twice if an interval has limits of up to 255 permits and larger ones: 144 to 288
/// bytes for each limiter of the bound, 19 MB by default.
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
/// Larger limits have half as many cells in the same memory: 8, 53 and 88 % in the last three rows.
/// It takes the whole limit of each key: a million keys with one request each refuse no newcomer a
/// limit of 100. A larger bound has more cells: set it to a third of the keys that you expect in a
/// flood, or count in Redis.
///
/// If no estimate can be made, for a limit of more than 65 535 permits or a fifth interval, a
/// newcomer is refused as [unavailable](crate::RefusalKind::Unavailable) whatever its
/// [`FailurePolicy`](crate::FailurePolicy): otherwise a caller could lift the limit by filling the
/// store.
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
    /// Set if every call fails, for tests.
    failing: Option<ErrorKind>,
}

impl MemoryStore {
    /// Creates an empty store.
    #[must_use]
    pub fn new() -> Self {
        let clock = Arc::new(SteadyClock::new());
        Self::build(
            MOST_LIMITERS,
            clock,
            About::in_memory(Observers::default(), false),
            None,
        )
    }

    /// Sets the maximum number of limiters. Default: 100 000. At least 1. Beyond it, limiters are
    /// counted [by an estimate](Self#bounds).
    ///
    /// Returns a new, empty store.
    #[must_use]
    pub fn max_limiters(self, max: usize) -> Self {
        let clock = Arc::clone(&self.shared.clock);
        Self::build(max.max(1), clock, self.about(), self.failing)
    }

    /// Sets the clock that it counts by. Default: the system's, steadied.
    ///
    /// Returns a new, empty store.
    #[must_use]
    pub fn clock(self, clock: impl Clock) -> Self {
        let clock = Arc::new(clock);
        Self::build(self.shared.max, clock, self.about(), self.failing)
    }

    /// Has what a [`RedisStore`](crate::RedisStore) has that was built with
    /// [`redisson`](crate::RedisStoreBuilder::redisson): rules may set what only Redisson's format
    /// has. Default: as any other store in Redis.
    ///
    /// Returns a new, empty store.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Limit, MemoryStore, RateLimitLayer, Rule, key::PeerIp};
    ///
    /// let store = MemoryStore::new().redisson();
    /// let feed = Rule::new("feed", Limit::per_minute(100_000), PeerIp).slots(1000);
    /// let layer = RateLimitLayer::builder(&store).otherwise(feed).build()?;
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    #[must_use]
    pub fn redisson(self) -> Self {
        let clock = Arc::clone(&self.shared.clock);
        let about = About::in_memory(self.about().observers, true);
        Self::build(self.shared.max, clock, about, self.failing)
    }

    /// Adds an observer, which receives all decisions and changes of the store. Default: none.
    ///
    /// Returns a new, empty store.
    ///
    /// # Example
    ///
    /// See [`Observer`].
    #[must_use]
    pub fn observe(self, observer: Arc<dyn Observer>) -> Self {
        let About {
            observers,
            in_redisson,
            ..
        } = self.about();
        let clock = Arc::clone(&self.shared.clock);
        let about = About::in_memory(observers.and(observer), in_redisson);
        Self::build(self.shared.max, clock, about, self.failing)
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

    /// Returns what a new store like this one is.
    fn about(&self) -> About {
        let about = self.stack.about();
        About::in_memory(about.observers.clone(), about.in_redisson)
    }

    /// Returns a new store whose calls all fail like this.
    #[cfg(feature = "test-util")]
    pub(crate) fn with_failing(self, kind: ErrorKind) -> Self {
        let clock = Arc::clone(&self.shared.clock);
        Self::build(self.shared.max, clock, self.about(), Some(kind))
    }

    fn build(max: usize, clock: Arc<dyn Clock>, about: About, failing: Option<ErrorKind>) -> Self {
        let (shared, stack) = stack::memory(Arc::clone(&clock), about, |listeners| {
            Shared::new(max, clock, listeners)
        });
        #[cfg(feature = "test-util")]
        let stack = match failing {
            Some(kind) => {
                let about = stack.about();
                let about = About::in_memory(about.observers.clone(), about.in_redisson);
                failing::failing(kind, Arc::clone(&shared.clock), about)
            }
            None => stack,
        };
        Self {
            shared,
            stack,
            failing,
        }
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
