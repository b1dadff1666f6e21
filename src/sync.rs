//! The atomics of modules that several threads share.
//!
//! `tests/interleavings` replaces them with loom's, which try every order of the threads' steps.

#[cfg(not(interleavings))]
pub(crate) use std::sync::atomic;

#[cfg(interleavings)]
pub(crate) use loom::sync::atomic;
