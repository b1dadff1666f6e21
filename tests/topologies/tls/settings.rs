//! Invalid certificates are found before anything is sent, and errors contain none of their bytes.

use crate::scene::*;
use tower_ratelimit::{deadpool_redis, redis::ClientTlsConfig, redis::TlsCertificates};

use super::{certificates::Authority, support::sentinel::MASTER_NAME};

fn complaint(store: RedisStoreBuilder, certificates: TlsCertificates) -> String {
    let error = store.certificates(certificates).build().unwrap_err();
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
    let shown = |certificate: &str, key: &str| TlsCertificates {
        client_tls: Some(ClientTlsConfig {
            client_cert: certificate.as_bytes().to_vec(),
            client_key: key.as_bytes().to_vec(),
        }),
        root_cert: None,
    };
    for (certificates, words) in [
        (shown("nothing", &client.key), "is not a certificate in PEM"),
        (
            shown(&client.key, &client.key),
            "is not a certificate in PEM",
        ),
        (shown(&client.certificate, ""), "not a private key in PEM"),
        (
            shown(&client.certificate, &client.certificate),
            "not a private key in PEM",
        ),
        (
            shown(&client.certificate, &another.key),
            "does not match its certificate",
        ),
        (
            TlsCertificates {
                client_tls: None,
                root_cert: Some(client.key.clone().into_bytes()),
            },
            "authority",
        ),
    ] {
        let complaint = complaint(secured(), certificates);
        assert!(complaint.contains(words), "{complaint}");
    }
    let store = secured().certificates(shown(&client.certificate, &client.key));
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
        let complaint = complaint(store, authority.believed());
        assert!(complaint.contains("`rediss://`"), "{complaint}");
    }
    for (sentinel, master) in [("rediss://a/", "m"), ("redis://a/", "rediss://m")] {
        let store = RedisStore::sentinel([sentinel], master);
        store.certificates(authority.believed()).build().unwrap();
    }
    let store = RedisStore::cluster(["rediss://a/", "rediss://b/"]);
    store.certificates(authority.believed()).build().unwrap();
    // One node with TLS and one without is a mistake of its own.
    let error = RedisStore::cluster(["rediss://a/", "redis://b/"])
        .build()
        .unwrap_err();
    assert_eq!(error.kind(), ConfigErrorKind::Store);
    assert!(
        error
            .to_string()
            .starts_with("the address of Redis cannot be read: ")
    );
}

#[tokio::test]
async fn a_pool_has_its_own() {
    let server = RedisServer::start();
    let manager = deadpool_redis::Manager::new(server.url()).unwrap();
    let pool = deadpool_redis::Pool::builder(manager);
    let store = RedisStore::pool(pool.build().unwrap());
    let complaint = complaint(store, Authority::new("ours").believed());
    assert!(complaint.contains("pool"), "{complaint}");
}
