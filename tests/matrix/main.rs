//! The fault matrix: 34 faults under load, all guards on, and eight oracles that hold whatever the
//! fault.
//!
//! `matrix/rows.toml` has the list, `matrix/oracles.rs` the oracles, and `matrix/README.md` the
//! table. To run one row: `cargo test --all-features --test matrix row_03 -- --nocapture`.

#![allow(
    unreachable_pub,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "clippy.toml reaches `#[test]` fns only; measured times are printed"
)]

mod after;
mod answer;
mod bans;
mod batches;
mod book;
mod caller;
mod callers;
mod clocks;
mod cluster;
mod data;
mod failover;
#[path = "../monitor/feed.rs"]
mod feed;
mod guards;
mod lanes;
mod leaving;
#[path = "../monitor/ledger.rs"]
mod ledger;
mod load;
mod long;
mod long_log;
mod network;
mod observed;
mod oracles;
#[path = "../support/proxy.rs"]
mod proxy;
mod refusing;
#[path = "../support/scene.rs"]
mod scene;
mod server;
mod shares;
mod sizes;
mod stage;
#[path = "../support/mod.rs"]
mod support;
#[path = "../monitor/watch.rs"]
mod watch;

use support::random;
