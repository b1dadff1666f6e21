//! The fault matrix: 34 faults under load, all guards on, and eight oracles that hold whatever the
//! fault.
//!
//! `matrix/rows.toml` has the list, `matrix/oracles.rs` the oracles, and `matrix/README.md` the
//! table. To run one row: `cargo test --all-features --test matrix row_03 -- --nocapture`.

#![cfg(test)]
#![allow(unreachable_pub, reason = "modules of a suite are for it alone")]

mod after;
mod answer;
mod bans;
mod batches;
mod caller;
mod callers;
mod clocks;
mod cluster;
mod data;
mod failover;
mod guards;
mod lanes;
mod leaving;
mod load;
mod long;
mod long_log;
mod network;
mod observed;
mod oracles;
mod record;
mod refusing;
mod server;
mod shares;
mod sizes;
mod stage;
mod ways;

use kit::random;
