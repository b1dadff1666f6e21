//! The locks of the crate.
//!
//! The atomics and locks of modules whose order of steps matters are loom's in
//! `tests/interleavings`, which tries every order.

use std::sync::{Mutex as StdMutex, MutexGuard as StdGuard, PoisonError};
#[cfg(all(feature = "redis", not(interleavings)))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic};

#[cfg(interleavings)]
pub(crate) use loom::sync::{Mutex, MutexGuard, atomic};

/// Locks a mutex of the standard library. What is behind the crate's locks is whole between any two
/// statements, so a panic elsewhere does not spoil it.
pub(crate) fn lock<T>(mutex: &StdMutex<T>) -> StdGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
