//! Ways to Redis: Cluster, Sentinel, TLS, pools, sockets and users; and what is lost and found on
//! them.

#![allow(
    unreachable_pub,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "helpers fail the test by panicking, and figures are printed; clippy.toml reaches \
              `#[test]` functions only"
)]

#[path = "../support/certificates.rs"]
mod certificates;
mod cluster;
mod refusing;
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
mod ways;

fn patient(store: scene::RedisStoreBuilder) -> scene::RedisStore {
    scene::patiently(store).build().unwrap()
}

/// An address is refused where the store is built, and none of its passwords is shown.
#[track_caller]
fn cannot_be_read(store: scene::RedisStoreBuilder) {
    let shown = format!("{store:?}");
    let error = store.build().unwrap_err();
    assert_eq!(error.kind(), scene::ConfigErrorKind::Store, "{shown}");
    let said = "the address of Redis cannot be read: ";
    assert!(error.to_string().starts_with(said), "{shown}: {error}");
    assert!(!error.to_string().contains("secret"), "{error}");
}
