//! What callers see while Redis, or the network, fails, and that all recovers by itself.

#![allow(
    unreachable_pub,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "clippy.toml reaches `#[test]` fns only; measured times are printed"
)]

mod addresses;
mod breaker;
mod burst;
mod delivery;
mod down;
mod local;
#[path = "../../src/macros/logged/log.rs"]
mod log;
mod logs;
#[path = "../../src/store/redis/classify/page.rs"]
mod page;
mod permissions;
mod receipts;
mod runtimes;
mod scripted;
mod scripts;
mod shards;
mod silence;
