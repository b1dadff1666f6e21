//! Ways to Redis: Cluster, Sentinel, TLS, pools, sockets and users; and what is lost and found on
//! them.

#![cfg(all(feature = "cluster", feature = "sentinel"))]
#![allow(
    unreachable_pub,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "helpers fail the test by panicking, and figures are printed; clippy.toml reaches \
              `#[test]` functions only"
)]

#[cfg(feature = "tls")]
#[path = "../support/certificates.rs"]
mod certificates;
mod cluster;
#[path = "../support/scene.rs"]
mod scene;
mod sentinel;
#[path = "../support/mod.rs"]
mod support;
mod tls;
#[path = "../support/topologies.rs"]
mod topologies;
#[path = "../support/traffic.rs"]
mod traffic;
#[path = "../support/wait.rs"]
mod wait;
mod ways;
