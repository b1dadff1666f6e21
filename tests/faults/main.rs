//! What callers see while Redis, or the network, fails, and that all recovers by itself.

#![cfg(test)]
#![allow(unreachable_pub, reason = "modules of a suite are for it alone")]

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
