//! Tests that count something in the whole process (allocations, warnings, panics) and so run one
//! after the other: see `ALONE`.

#![cfg(test)]
#![allow(unreachable_pub, reason = "modules of a suite are for it alone")]

#[cfg(all(feature = "redis", feature = "cli"))]
#[path = "../../src/bin/ratelimit/access_log/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the command uses the rest")]
mod access_log;
mod allocations;
mod call_sites;
#[cfg(all(feature = "redis", feature = "cli"))]
#[path = "../../src/bin/ratelimit/replay/limits/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the command uses the rest")]
mod limits;
#[path = "../../src/macros/logged/log.rs"]
mod log;
#[cfg(all(feature = "redis", feature = "cli"))]
mod replay;
mod warnings;

/// Held by each test: what it counts or replaces is the whole process's.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
