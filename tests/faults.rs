//! What callers see while Redis, or the way to it, is broken, and that it heals without them.

#![cfg(feature = "redis")]
#![allow(
    unreachable_pub,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "clippy.toml reaches `#[test]` fns only; measured times are printed"
)]

#[path = "faults/addresses.rs"]
mod addresses;
#[path = "faults/breaker.rs"]
mod breaker;
#[path = "faults/burst.rs"]
mod burst;
#[path = "faults/delivery.rs"]
mod delivery;
#[path = "faults/down.rs"]
mod down;
#[path = "faults/local.rs"]
mod local;
#[path = "support/log.rs"]
mod log;
#[path = "faults/logs.rs"]
mod logs;
#[path = "faults/loss.rs"]
mod loss;
#[path = "faults/page.rs"]
mod page;
#[path = "faults/permissions.rs"]
mod permissions;
#[path = "faults/proxy.rs"]
mod proxy;
#[path = "faults/runtimes.rs"]
mod runtimes;
#[path = "faults/scripted.rs"]
mod scripted;
#[path = "faults/scripts.rs"]
mod scripts;
#[path = "faults/settling.rs"]
mod settling;
#[path = "faults/silence.rs"]
mod silence;
#[path = "faults/sources.rs"]
mod sources;
mod support;
#[path = "faults/timers.rs"]
mod timers;
#[path = "faults/traffic.rs"]
mod traffic;
#[path = "faults/wait.rs"]
mod wait;
