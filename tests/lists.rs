//! Several limits at once: all of them are charged, or none is, through a layer and through `RateLimiter::all`.

#![cfg(all(feature = "redis", feature = "test-util"))]
#![allow(
    unreachable_pub,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "clippy.toml reaches `#[test]` fns only; a random run prints its seed"
)]

#[cfg(feature = "cluster")]
#[path = "lists/cluster.rs"]
mod cluster;
#[path = "monitor/feed.rs"]
mod feed;
#[path = "lists/fleet.rs"]
mod fleet;
#[path = "lists/layer.rs"]
mod layer;
#[path = "lists/memory.rs"]
mod memory;
#[path = "faults/proxy.rs"]
mod proxy;
#[path = "lists/record.rs"]
mod record;
mod support;
#[path = "lists/together.rs"]
mod together;
#[path = "lists/world.rs"]
mod world;
