//! The script that keeps limiters packed in one string each, and its twin in Rust: random histories
//! in which they agree, and cases that these do not reach.

#![allow(
    unreachable_pub,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test fails by panicking; clippy.toml reaches `#[test]` fns only"
)]

mod histories;
mod plan;
mod play;
mod rules;
mod twin;
mod versions;
mod world;
