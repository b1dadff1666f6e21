//! Both stores and their guards: decisions, the state in Redis, and attacks by callers.

#![allow(
    unreachable_pub,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "helpers fail the test by panicking, and figures are printed; clippy.toml reaches \
              `#[test]` functions only"
)]

mod bans;
mod cases;
mod defects;
mod deny_cache;
mod diagnose;
mod fleet;
mod hostile;
mod keyed;
mod kinds;
mod lease;
mod limiter;
mod lists;
#[path = "../../src/macros/logged/log.rs"]
mod log;
mod monitor;
mod observed;
mod queue;
mod stored_limits;
mod verify;
mod weight;
