//! The fault matrix: 26 faults under load, all guards on, and seven oracles that hold whatever the fault.
//!
//! `matrix/rows.rs` has the list, `matrix/oracles.rs` the oracles, and the page `failure` the table. One row:
//! `cargo test --all-features --test matrix row_03 -- --nocapture`.

#![cfg(all(feature = "cluster", feature = "sentinel"))]
#![allow(
    unreachable_pub,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "clippy.toml reaches `#[test]` fns only; measured times are printed"
)]

#[path = "matrix/answer.rs"]
mod answer;
#[path = "matrix/book.rs"]
#[allow(dead_code, reason = "the long run has its answers in a file")]
mod book;
#[path = "matrix/caller.rs"]
mod caller;
#[path = "matrix/callers.rs"]
mod callers;
#[path = "matrix/clocks.rs"]
mod clocks;
#[path = "matrix/cluster.rs"]
mod cluster;
#[path = "matrix/data.rs"]
mod data;
#[path = "matrix/failover.rs"]
mod failover;
#[path = "monitor/feed.rs"]
#[allow(dead_code, reason = "only what it reads is of use here")]
mod feed;
#[path = "matrix/guards.rs"]
mod guards;
#[path = "matrix/lanes.rs"]
mod lanes;
#[path = "matrix/ledger.rs"]
mod ledger;
#[path = "matrix/load.rs"]
#[allow(dead_code, reason = "the long run has its answers in a file")]
mod load;
#[path = "matrix/network.rs"]
mod network;
#[path = "matrix/oracles.rs"]
mod oracles;
#[path = "faults/proxy.rs"]
mod proxy;
#[path = "matrix/refusing.rs"]
mod refusing;
#[path = "matrix/server.rs"]
mod server;
#[path = "matrix/shares.rs"]
mod shares;
#[path = "matrix/sizes.rs"]
mod sizes;
#[path = "matrix/stage.rs"]
mod stage;
mod support;
#[path = "matrix/watch.rs"]
mod watch;

use support::random;
