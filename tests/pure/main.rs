//! Tests values, rules files, `MemoryStore` and the documents. Only one of them needs a server.

#![allow(
    unreachable_pub,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "helpers fail the test by panicking, and figures are printed; clippy.toml reaches \
              `#[test]` functions only"
)]

mod client_ip;
mod config;
#[cfg(feature = "cli")]
#[path = "../../src/bin/ratelimit/engine/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the command uses the rest")]
mod engine;
mod headers;
mod house;
mod links;
mod lists;
mod memory;
mod operations;
mod pictures;
#[path = "../../benches/shared/plot.rs"]
mod plot;
#[cfg(feature = "cli")]
mod replay;
