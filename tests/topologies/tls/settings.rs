//! Invalid certificates are found before anything is sent, and errors contain none of their bytes.

use kit::{certificates::Authority, scene::*, sentinel::MASTER_NAME};
use tower_ratelimit::deadpool_redis;

use crate::cannot_be_read;

fn complaint(store: RedisStoreBuilder) -> String {
    let error = store.build().unwrap_err();
    assert_eq!(error.kind(), ConfigErrorKind::Store);
    let said = "the certificates for TLS cannot be used: ";
    assert!(error.to_string().starts_with(said), "{error}");
    error.to_string()
}

fn secured() -> RedisStoreBuilder {
    RedisStore::builder("rediss://user:secret@127.0.0.1/")
}

#[test]
fn what_cannot_be_read_is_named() {
    let authority = Authority::new("ours");
    let (client, another) = (authority.issue(&["a"]), authority.issue(&["b"]));
    let shown = |certificate: &str, key: &str| secured().client(certificate, key);
    const NO_CERTIFICATE: &str = "is not a certificate in PEM";
    const NO_KEY: &str = "not a private key in PEM";
    let good = &client.certificate;
    for (certificate, key, words) in [
        ("nothing", &*client.key, NO_CERTIFICATE),
        (&client.key, &client.key, NO_CERTIFICATE),
        (good, "", NO_KEY),
        (good, good, NO_KEY),
        (good, &another.key, "does not match its certificate"),
    ] {
        let complaint = complaint(shown(certificate, key));
        assert!(complaint.contains(words), "{words}: {complaint}");
    }
    let complaint = complaint(secured().authorities(&*client.key));
    assert!(complaint.contains("authority"), "{complaint}");
    let store = shown(&client.certificate, &client.key);
    let shown = format!("{store:?} {:?}", store.clone().build().unwrap());
    for secret in ["secret", "PRIVATE", &client.key[40..60]] {
        assert!(!shown.contains(secret), "{shown}");
    }
}

#[test]
fn certificates_are_for_addresses_with_tls() {
    let authority = Authority::new("ours");
    let plain = [
        RedisStore::builder("redis://127.0.0.1/"),
        RedisStore::builder("redis+unix:///tmp/redis"),
        RedisStore::cluster(["redis://127.0.0.1/"]),
        RedisStore::sentinel(["redis://127.0.0.1/"], MASTER_NAME),
    ];
    for store in plain {
        let complaint = complaint(authority.believed(store));
        assert!(complaint.contains("`rediss://`"), "{complaint}");
    }
    for (sentinel, master) in [("rediss://a/", "m"), ("redis://a/", "rediss://m")] {
        let store = RedisStore::sentinel([sentinel], master);
        authority.believed(store).build().unwrap();
    }
    let store = RedisStore::cluster(["rediss://a/", "rediss://b/"]);
    authority.believed(store).build().unwrap();
    // One node with TLS and one without is a mistake of its own.
    cannot_be_read(RedisStore::cluster(["rediss://a/", "redis://b/"]));
}

#[tokio::test]
async fn a_pool_has_its_own() {
    let server = RedisServer::start();
    let manager = deadpool_redis::Manager::new(server.url()).unwrap();
    let pool = deadpool_redis::Pool::builder(manager);
    let store = RedisStore::pool(pool.build().unwrap());
    let complaint = complaint(Authority::new("ours").believed(store));
    assert!(complaint.contains("pool"), "{complaint}");
}
