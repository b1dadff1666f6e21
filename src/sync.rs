//! Locks, and two small helpers: [`Once`] and [`OnDrop`].
//!
//! The atomics and locks of modules whose order of steps matters are loom's in
//! `tests/interleavings`, which tries every order.

#[cfg(all(feature = "_guards", not(interleavings)))]
pub(crate) use std::sync::atomic;
#[cfg(not(interleavings))]
pub(crate) use std::sync::{Mutex, MutexGuard};
use std::sync::{
    Mutex as StdMutex, MutexGuard as StdGuard, PoisonError,
    atomic::{AtomicU8, Ordering},
};

#[cfg(interleavings)]
pub(crate) use loom::sync::{Mutex, MutexGuard, atomic};

/// A bit for each thing that is done once.
#[derive(Debug, Default)]
pub(crate) struct Once(AtomicU8);

impl Once {
    /// Sets these bits, and returns those that are new.
    pub(crate) fn set(&self, bits: u8) -> u8 {
        // The plain load keeps the cache line shared where nothing changes.
        if bits & !self.0.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        bits & !self.0.fetch_or(bits, Ordering::Relaxed)
    }

    /// Sets this bit, and returns whether it is new.
    pub(crate) fn claim(&self, bit: u8) -> bool {
        self.set(bit) != 0
    }
}

/// Acts when it is dropped, unless it is disarmed before.
pub(crate) struct OnDrop<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> OnDrop<F> {
    pub(crate) fn new(act: F) -> Self {
        Self(Some(act))
    }

    pub(crate) fn disarm(mut self) {
        self.0 = None;
    }
}

impl<F: FnOnce()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        if let Some(act) = self.0.take() {
            act();
        }
    }
}

/// Locks a mutex of the standard library. What is behind the crate's locks is whole between any two
/// statements, so a panic elsewhere does not spoil it.
pub(crate) fn lock<T>(mutex: &StdMutex<T>) -> StdGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
