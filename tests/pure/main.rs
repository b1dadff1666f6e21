//! Tests values, rules files, `MemoryStore` and the documents. Only one of them needs a server.

#![cfg(test)]
#![allow(unreachable_pub, reason = "modules of a suite are for it alone")]

#[cfg(feature = "cli")]
#[path = "../../src/bin/ratelimit/access_log/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the command uses the rest")]
mod access_log;
mod client_ip;
mod config;
mod headers;
mod house;
#[cfg(feature = "cli")]
#[path = "../../src/bin/ratelimit/replay/limits/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the command uses the rest")]
mod limits;
mod links;
mod memory;
mod operations;
mod pictures;
#[path = "../../benches/shared/plot.rs"]
mod plot;
#[cfg(feature = "cli")]
mod replay;
