//! Tests of the library's private parts against a real Redis: `tests/run.sh --inside`.
//!
//! The scripts are held against the pure functions, recorded histories of several stores against a
//! model, and readers against replies that no server gives. `src/store/redis/mod.rs` brings this
//! module into the unit tests under the cfg `inside`, which `tests/inside/rustc` sets: a plain
//! `cargo test --lib` needs no server, and the published crate does not contain these files.

mod fuzz;
mod history;
mod model;

use super::{RedisStore, RedisStoreBuilder, classify, keys, redisson, reply};
