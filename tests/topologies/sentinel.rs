//! Addresses of sentinels. `tests/matrix/failover.rs` has real ones, and masters that fail.

use kit::{scene::*, sentinel::MASTER_NAME, server::free_port};

use super::cannot_be_read;

#[tokio::test]
async fn without_a_sentinel_the_store_is_unavailable() {
    let unused = format!("redis://127.0.0.1:{}/", free_port());
    let store = RedisStore::sentinel([unused], MASTER_NAME).build().unwrap();
    fails(store.ping().await, ErrorKind::Unavailable);
}

#[test]
fn bad_addresses_are_refused() {
    for (sentinels, master) in [
        (vec![], MASTER_NAME),
        (vec!["http://a:26379"], MASTER_NAME),
        (vec!["redis://a:26379"], "http://user:secret@mymaster"),
        (vec!["redis://a:26379"], "unix:///tmp/redis"),
    ] {
        cannot_be_read(RedisStore::sentinel(sentinels, master));
    }
    let address = "redis://user:secret@mymaster/1";
    let store = RedisStore::sentinel(["redis://a:26379"], address)
        .build()
        .unwrap();
    assert!(!format!("{store:?}").contains("secret"));
}
