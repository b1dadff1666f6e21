//! None of Redisson's defects: each one known of its RRateLimiter up to 4.7.0 is a test here, on a real Redis.
//!
//! A test provokes the defect, or writes the state by hand that a Redisson client leaves behind, and compares what
//! stands in Redis before and after with the format's description. Its comment says what Redisson does there; `#n` is a
//! thread of redisson/redisson, the rest was measured on 4.7.0. Time is a clock that is moved, but for the tests of the
//! server's clock.

#![cfg(all(feature = "redis", feature = "test-util"))]
#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers fail the test by panicking; clippy.toml reaches `#[test]` functions only"
)]

#[path = "defects/clients.rs"]
mod clients;
#[path = "defects/clocks.rs"]
mod clocks;
#[path = "defects/lives.rs"]
mod lives;
#[path = "defects/lost_keys.rs"]
mod lost_keys;
#[path = "defects/members.rs"]
mod members;
#[path = "defects/monitor.rs"]
mod monitor;
#[path = "defects/names.rs"]
mod names;
#[path = "defects/numbers.rs"]
mod numbers;
#[path = "defects/rates.rs"]
mod rates;
#[path = "defects/release.rs"]
mod release;
#[path = "defects/resend.rs"]
mod resend;
mod support;
#[path = "defects/waits.rs"]
mod waits;
#[path = "defects/world.rs"]
mod world;
