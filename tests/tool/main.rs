//! The command `ratelimit`, run as its users do.

#![allow(
    unreachable_pub,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "clippy.toml reaches `#[test]` fns only"
)]

mod limiters;
#[path = "../support/scene.rs"]
mod scene;
#[path = "../support/mod.rs"]
mod support;

use std::process::Command;

/// The command, with nothing of this process's surroundings.
fn tool() -> Command {
    let mut tool = Command::new(env!("CARGO_BIN_EXE_ratelimit"));
    tool.env_remove("REDIS_URL").env_remove("REDIS_PASSWORD");
    tool
}
