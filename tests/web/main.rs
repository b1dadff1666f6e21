//! Requests and their answers: the tower contract, servers over sockets, layers beside ours.

#![allow(
    unreachable_pub,
    clippy::duplicate_mod,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers fail the test by panicking; clippy.toml reaches \
              `#[test]` functions only; the example has the orders, too"
)]

mod beside;
mod http;
#[path = "../../examples/orders/mod.rs"]
mod orders;
mod service;
mod tower;
