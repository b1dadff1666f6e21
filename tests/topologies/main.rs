//! Ways to Redis: Cluster, Sentinel, TLS, pools, sockets and users; and what is lost and found on
//! them.

#![cfg(test)]
#![allow(unreachable_pub, reason = "modules of a suite are for it alone")]

mod cluster;
mod refusing;
mod sentinel;
mod tls;
mod ways;

fn patient(store: kit::scene::RedisStoreBuilder) -> kit::scene::RedisStore {
    kit::scene::patiently(store).build().unwrap()
}

/// An address is refused where the store is built, and none of its passwords is shown.
#[track_caller]
fn cannot_be_read(store: kit::scene::RedisStoreBuilder) {
    let shown = format!("{store:?}");
    let error = store.build().unwrap_err();
    assert_eq!(error.kind(), kit::scene::ConfigErrorKind::Store, "{shown}");
    let said = "the address of Redis cannot be read: ";
    assert!(error.to_string().starts_with(said), "{shown}: {error}");
    assert!(!error.to_string().contains("secret"), "{error}");
}
