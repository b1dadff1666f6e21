//! The atomics and locks of what several threads share without more around it.
//!
//! From here, so that `tests/interleavings` can put in loom's, which try every order of what threads do with them.

#[cfg(not(interleavings))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic};

#[cfg(interleavings)]
pub(crate) use loom::sync::{Mutex, MutexGuard, atomic};
