//! Requests and their answers: the tower contract, servers over sockets, layers beside ours.

#![cfg(test)]
#![allow(
    unreachable_pub,
    clippy::duplicate_mod,
    reason = "modules are for the suite alone, and the example has the orders, too"
)]

mod beside;
mod http;
#[path = "../../examples/orders/mod.rs"]
mod orders;
mod service;
mod tower;
