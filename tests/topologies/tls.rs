//! TLS to real servers: the certificates trusted and presented, the errors of refused ones, and
//! recovery without a restart.

#![cfg(all(feature = "cluster", feature = "sentinel", feature = "tls"))]

mod faults;
mod settings;

use crate::scene::*;
use crate::{certificates, support, traffic, wait};
use std::{io::Read, io::Write, net::Ipv4Addr, net::TcpListener};

use crate::certificates::{Authority, HERE};
use crate::{
    support::Cluster, support::Sentinel, support::cluster::wait_until, support::redis_server::Tls,
    support::sentinel::MASTER_NAME, support::sentinel::Watch,
};
use tower_ratelimit::redis::TlsCertificates;

fn url(server: &RedisServer) -> String {
    format!("rediss://127.0.0.1:{}/", server.tls_port())
}

fn patient(store: RedisStoreBuilder) -> RedisStore {
    patiently(store).build().unwrap()
}

/// Asks for an answer, and returns what the page on failure says to do, and what rustls said.
async fn refused(store: RedisStoreBuilder) -> (String, String) {
    let page = include_str!("../../src/docs/failure.md");
    let (_, page) = page.split_once("\n## TLS\n").expect("a section");
    let error = patient(store).ping().await.expect_err("no TLS");
    let source = std::error::Error::source(&error).expect("a source");
    println!("{error}\n    {source}");
    assert_eq!(error.kind(), ErrorKind::Tls, "{error}: {source}");
    let source = source.to_string();
    let mut rows = page
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split_once(" | "));
    let row = rows.find(|(words, _)| {
        words
            .split('`')
            .skip(1)
            .step_by(2)
            .any(|it| source.contains(it))
    });
    let (_, remedy) = row.unwrap_or_else(|| panic!("src/docs/failure.md lacks: {source}"));
    (remedy.to_owned(), source)
}

/// Without a certificate of its own.
fn believing(server: &RedisServer, authority: &Authority) -> RedisStoreBuilder {
    RedisStore::builder(url(server)).certificates(authority.believed())
}

fn lenient(tls: &Tls) -> RedisServer {
    RedisServer::start_tls(tls, &["--tls-auth-clients", "no"])
}

#[tokio::test]
async fn an_unknown_authority_is_refused() {
    let (authority, other) = (Authority::new("ours"), Authority::new("another"));
    let server = lenient(&authority.issue(HERE));
    patient(believing(&server, &authority))
        .ping()
        .await
        .unwrap();

    let (remedy, _) = refused(believing(&server, &other)).await;
    assert!(
        remedy.contains("RedisStoreBuilder::certificates"),
        "{remedy}"
    );
    // Nor does the machine know the tests' authority.
    let (remedy, _) = refused(RedisStore::builder(url(&server))).await;
    assert!(
        remedy.contains("RedisStoreBuilder::certificates"),
        "{remedy}"
    );
}

#[tokio::test]
async fn certificates_of_other_years_are_refused() {
    let authority = Authority::new("ours");
    for (years, words) in [
        ((2001, 2002), "has expired"),
        ((2098, 2099), "not valid yet"),
    ] {
        let server = lenient(&authority.issue_for(HERE, years));
        let (remedy, _) = refused(believing(&server, &authority)).await;
        assert!(remedy.contains(words), "{remedy}");
    }
}

#[tokio::test]
async fn a_certificate_of_another_host_is_refused() {
    let authority = Authority::new("ours");
    let server = lenient(&authority.issue(&["redis.internal", "localhost"]));
    let (remedy, said) = refused(believing(&server, &authority)).await;
    assert!(remedy.contains("host in the address"), "{remedy}");
    assert!(said.contains("127.0.0.1"), "{said}");
    // By a name that it has, the same server is believed.
    let address = format!("rediss://localhost:{}/", server.tls_port());
    let store = RedisStore::builder(address).certificates(authority.believed());
    patient(store).ping().await.unwrap();
}

#[tokio::test]
async fn what_a_client_shows_must_be_accepted() {
    let (authority, other) = (Authority::new("ours"), Authority::new("another"));
    let server = RedisServer::start_tls(&authority.issue(HERE), &[]);
    let showing = |client: &Tls| {
        RedisStore::builder(url(&server)).certificates(authority.believed_by(client))
    };
    let client = authority.issue(&["service"]);
    patient(showing(&client)).ping().await.unwrap();

    let (remedy, _) = refused(believing(&server, &authority)).await;
    assert!(remedy.contains("wants a certificate"), "{remedy}");
    let (remedy, _) = refused(showing(&other.issue(&["service"]))).await;
    assert!(remedy.contains("tls-ca-cert-file"), "{remedy}");
    let (remedy, _) = refused(showing(&authority.issue_for(&["service"], (2001, 2002)))).await;
    assert!(remedy.contains("has expired: renew"), "{remedy}");
}

/// In TLS 1.2 the handshake itself reports bad certificates, in 1.3 the first reply.
#[tokio::test]
async fn both_versions_are_spoken() {
    let authority = Authority::new("ours");
    let (tls, client) = (authority.issue(HERE), authority.issue(&["service"]));
    for version in ["TLSv1.2", "TLSv1.3"] {
        let server = RedisServer::start_tls(&tls, &["--tls-protocols", version]);
        let shown = authority.believed_by(&client);
        let store = RedisStore::builder(url(&server)).certificates(shown);
        patient(store).ping().await.unwrap();
        let (remedy, _) = refused(believing(&server, &authority)).await;
        assert!(remedy.contains("certificate of this process"), "{remedy}");
    }
}

#[tokio::test]
async fn a_port_without_tls_is_recognized() {
    // Redis itself takes a handshake for the beginning of a command, and waits for the rest.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let answering = thread::spawn(move || {
        let (mut connection, _) = listener.accept().unwrap();
        connection.write_all(b"-ERR unknown command\r\n").unwrap();
        // Until the other side hangs up.
        connection.read_to_end(&mut Vec::new())
    });
    let authority = Authority::new("ours");
    let store = RedisStore::builder(format!("rediss://{address}/"));
    let (remedy, _) = refused(store.certificates(authority.believed())).await;
    assert!(remedy.contains("does not speak TLS"), "{remedy}");
    let _ = answering.join().unwrap();

    // The other way round the server hangs up and says nothing.
    let server = lenient(&authority.issue(HERE));
    let store = RedisStore::builder(format!("redis://127.0.0.1:{}/", server.tls_port()));
    let error = patient(store).ping().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test]
async fn no_certificate_is_trusted_blindly() {
    let authority = Authority::new("ours");
    let server = lenient(&authority.issue(HERE));
    let store = RedisStore::builder(format!("{}#insecure", url(&server)));
    let (remedy, _) = refused(store).await;
    assert!(remedy.contains("`#insecure`"), "{remedy}");
}

/// Redis-rs tells of a Cluster's nodes in its own words.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_nodes_of_a_cluster_are_judged_as_one_server_is() {
    let (authority, other) = (Authority::new("ours"), Authority::new("another"));
    let cluster = Cluster::start_tls(&authority.issue(HERE));
    let store = |certificates: TlsCertificates| {
        let nodes = cluster.nodes.iter().map(url);
        RedisStore::cluster(nodes).certificates(certificates)
    };
    let client = authority.issue(&["service"]);
    patient(store(authority.believed_by(&client)))
        .ping()
        .await
        .unwrap();
    for (certificates, words) in [
        (
            other.believed_by(&client),
            "RedisStoreBuilder::certificates",
        ),
        (authority.believed(), "wants a certificate"),
        (
            authority.believed_by(&other.issue(&["service"])),
            "tls-ca-cert-file",
        ),
    ] {
        let (remedy, _) = refused(store(certificates)).await;
        assert!(remedy.contains(words), "{remedy}");
    }
}

/// Sentinel and master each have their own TLS and password, and the error says which one refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_and_its_master_are_judged_apart() {
    let (authority, other) = (Authority::new("ours"), Authority::new("another"));
    let tls = authority.issue(HERE);
    let over_tls = ["--tls-replication", "yes"];
    let master = RedisServer::start_tls(&tls, &over_tls);
    let port = master.tls_port().to_string();
    let follows = [&over_tls[..], &["--replicaof", "127.0.0.1", &port]].concat();
    let replica = RedisServer::start_tls(&tls, &follows);
    wait_until("the replica follows", || {
        let info = replica.cli(&["INFO", "replication"]);
        info.contains("master_link_status:up")
    });
    let limiter = ["ACL", "SETUSER", "limiter", "on", ">secret", "~*", "+@all"];
    assert_eq!(master.cli(&limiter), "OK");
    let watch = Watch {
        tls: Some(&tls),
        password: Some("seen"),
        silence: 60_000,
    };
    let sentinel = Sentinel::start_with(&master, &replica, &watch);

    let client = authority.issue(&["service"]);
    let store = |watchword: &str, password: &str| {
        let address = format!("rediss://:{watchword}@127.0.0.1:{}/", sentinel.tls_port());
        let known = format!("rediss://limiter:{password}@{MASTER_NAME}");
        RedisStore::sentinel([address], &known)
    };
    let shown = || authority.believed_by(&client);
    let right = store("seen", "secret").certificates(shown());
    patient(right).ping().await.unwrap();
    for (watchword, password) in [("wrong", "secret"), ("seen", "wrong")] {
        let wrong = store(watchword, password).certificates(shown());
        let error = patient(wrong).ping().await.unwrap_err();
        println!("{error}: {:?}", std::error::Error::source(&error));
        assert_eq!(error.kind(), ErrorKind::Rejected, "{watchword} {password}");
        assert!(!format!("{error:?}").contains("secret"), "{error:?}");
    }
    for (certificates, words) in [
        (
            other.believed_by(&client),
            "RedisStoreBuilder::certificates",
        ),
        (authority.believed(), "wants a certificate"),
    ] {
        let wrong = store("seen", "secret").certificates(certificates);
        let (remedy, _) = refused(wrong).await;
        assert!(remedy.contains(words), "{remedy}");
    }

    // A sentinel without TLS, before a master with it.
    let address = sentinel.url().replace("redis://", "redis://:seen@");
    let known = format!("rediss://limiter:secret@{MASTER_NAME}");
    let mixed = RedisStore::sentinel([address], &known);
    let mixed = mixed.certificates(shown());
    patient(mixed).ping().await.unwrap();
}
