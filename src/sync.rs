//! The atomics and locks of modules that several threads share.
//!
//! `tests/interleavings` replaces them with loom's, which try every order of the threads' steps.

#[cfg(not(interleavings))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic};

#[cfg(interleavings)]
pub(crate) use loom::sync::{Mutex, MutexGuard, atomic};
