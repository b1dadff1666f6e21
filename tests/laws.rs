//! The laws every store keeps, each as a property of random histories on both stores.
//!
//! L1 never over, L2 exact wait, L3 refusals are free, L5 nothing is lost. Time is a clock that is moved; only
//! `real_time` and a part of `fixed_window` and of `gcra` wait. In Redis they hold on every topology, see `support/topologies.rs`,
//! and in every combination of guards, see `guards`.
//!
//! L5, and L6 (a key is who it says), have one exception: strangers of a full `MemoryStore` are
//! counted approximately, never too much, and that heals an eighth of the interval later, see
//! `tests/memory/strangers.rs`.

#![cfg(all(feature = "redis", feature = "test-util"))]
#![allow(
    dead_code,
    unreachable_pub,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "helpers fail the test by panicking, and say with which guards; clippy.toml reaches `#[test]` functions only"
)]

#[cfg(feature = "tls")]
#[path = "support/certificates.rs"]
mod certificates;
#[path = "laws/exact_wait.rs"]
mod exact_wait;
#[path = "laws/fixed_window.rs"]
mod fixed_window;
#[path = "laws/free_refusals.rs"]
mod free_refusals;
#[path = "laws/gcra.rs"]
mod gcra;
#[path = "laws/guards.rs"]
mod guards;
#[path = "laws/nanoseconds.rs"]
mod nanoseconds;
#[path = "laws/never_over.rs"]
mod never_over;
#[path = "laws/next_permit.rs"]
mod next_permit;
#[path = "laws/nothing_lost.rs"]
mod nothing_lost;
#[path = "laws/real_time.rs"]
mod real_time;
#[path = "laws/settled.rs"]
mod settled;
#[path = "laws/slots.rs"]
mod slots;
mod support;
#[path = "support/topologies.rs"]
mod topologies;
#[path = "laws/world.rs"]
mod world;
