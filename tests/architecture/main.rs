//! Holds the boundaries between modules, the names of types, the public API and the sizes of the
//! crate.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking; clippy.toml reaches `#[test]` fns only"
)]

mod api;
mod names;
mod size;
mod source;
mod walls;
mod way;
