//! What a rule has to know for when the store fails.

use std::sync::OnceLock;
#[cfg(feature = "redis")]
use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
};

#[cfg(feature = "redis")]
use crate::limit::Limit;

/// A rule as the fallback knows it.
#[derive(Debug, Default)]
pub(crate) struct OfRule {
    passes: OnceLock<()>,
    /// The limit that was last seen on any of its limiters, where only the store knows it.
    #[cfg(feature = "redis")]
    last_seen: Mutex<Option<Limit>>,
    /// That its limit, which only the store knows, is not known yet.
    #[cfg(feature = "redis")]
    warned_unknown: AtomicBool,
}

impl OfRule {
    /// Says that its requests pass uncounted while the store fails.
    pub(crate) fn lets_pass(&self) {
        let _ = self.passes.set(());
    }

    /// Whether its requests pass uncounted while the store fails.
    pub(crate) fn passes(&self) -> bool {
        self.passes.get().is_some()
    }
}

#[cfg(feature = "redis")]
impl OfRule {
    /// Returns the limit that was last seen on any of its limiters.
    pub(crate) fn last_seen(&self) -> Option<Limit> {
        *self.lock()
    }

    /// Records the limit of one of its limiters.
    pub(crate) fn sees(&self, limit: Limit) {
        *self.lock() = Some(limit);
    }

    /// Whether it is still to be said that its limit is not known; true once.
    pub(crate) fn is_to_warn(&self) -> bool {
        !self.warned_unknown.swap(true, Ordering::Relaxed)
    }

    /// What is behind the lock is whole between any two statements, so a panic elsewhere does not
    /// spoil it.
    fn lock(&self) -> MutexGuard<'_, Option<Limit>> {
        self.last_seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
