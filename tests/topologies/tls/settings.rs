//! Invalid certificates are found before anything is sent, and errors contain none of their bytes.

use crate::scene::*;
use tower_ratelimit::{deadpool_redis, redis::ClientTlsConfig, redis::TlsCertificates};

use crate::{cannot_be_read, certificates::Authority, support::sentinel::MASTER_NAME};

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
        let complaint = complaint(secured(), shown(certificate, key));
        assert!(complaint.contains(words), "{words}: {complaint}");
    }
    let no_authority = TlsCertificates {
        client_tls: None,
        root_cert: Some(client.key.clone().into_bytes()),
    };
    let complaint = complaint(secured(), no_authority);
    assert!(complaint.contains("authority"), "{complaint}");
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
    cannot_be_read(RedisStore::cluster(["rediss://a/", "redis://b/"]));
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
