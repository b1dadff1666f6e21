//! Shared by the integration tests: `mod support;` brings it into a test binary.

#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    reason = "every test binary compiles its own copy and uses part of it"
)]
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test helper fails the test by panicking; clippy.toml reaches `#[test]` fns only"
)]

pub mod cluster;
pub mod random;
pub mod redis_server;
pub mod scripted;
pub mod sentinel;

pub use cluster::Cluster;
pub use redis_server::{RedisServer, Reply};
pub use sentinel::Sentinel;

use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

/// A name that no other call returns, in this process or in one that runs beside it
///
/// Keeps tests on one server apart: name every limiter by it.
pub fn unique(prefix: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{prefix}-{}-{n}", process::id())
}
