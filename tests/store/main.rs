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
#[path = "../support/certificates.rs"]
mod certificates;
mod defects;
mod deny_cache;
mod diagnose;
#[path = "../monitor/feed.rs"]
mod feed;
mod fleet;
#[path = "../support/guards.rs"]
mod guards;
mod hostile;
mod keyed;
mod kinds;
mod lease;
#[path = "../monitor/ledger.rs"]
mod ledger;
mod limiter;
#[path = "../support/listed.rs"]
mod listed;
mod lists;
#[path = "../../src/macros/logged/log.rs"]
mod log;
mod monitor;
mod observed;
#[path = "../support/proxy.rs"]
mod proxy;
mod queue;
mod raw_state;
mod record;
#[path = "../support/scene.rs"]
mod scene;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/topologies.rs"]
mod topologies;
mod verify;
mod versions;
#[path = "../monitor/watch.rs"]
mod watch;
mod weight;
