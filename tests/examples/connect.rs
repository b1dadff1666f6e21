//! `connect`, on a real Redis of each kind.

use std::fs;

use super::{command, document, lines, read};
use kit::{
    Cluster, RedisServer,
    certificates::{Authority, HERE},
    sentinel::{Watch, Watched},
    unique,
};

const KINDS: [&str; 9] = [
    "standalone",
    "tls",
    "mutual-tls",
    "cluster",
    "sentinel",
    "pool",
    "manager",
    "cluster-pool",
    "sentinel-pool",
];

#[test]
fn each_kind_is_connected_to() {
    let authority = Authority::new("ours");
    let tls = authority.issue(HERE);
    let lenient = RedisServer::start_tls(&tls, &["--tls-auth-clients", "no"]);
    let strict = RedisServer::start_tls(&tls, &[]);
    let cluster = Cluster::start();
    let watched = Watched::start(&Watch::default());

    let folder = std::env::temp_dir().join(unique("certificates"));
    fs::create_dir(&folder).unwrap();
    let client = authority.issue(&["service"]);
    for (name, text) in [
        ("ca.pem", &client.authority),
        ("service.pem", &client.certificate),
        ("service.key", &client.key),
    ] {
        fs::write(folder.join(name), text).unwrap();
    }

    let over_tls = |server: &RedisServer| format!("rediss://127.0.0.1:{}/", server.tls_port());
    for kind in KINDS {
        let url = match kind {
            "tls" => over_tls(&lenient),
            "mutual-tls" => over_tls(&strict),
            "cluster" | "cluster-pool" => cluster.urls().join(","),
            "sentinel" | "sentinel-pool" => watched.sentinel.url(),
            _ => lenient.url(),
        };
        let mut connect = command("connect");
        let printed = lines(
            connect
                .arg(kind)
                .env("REDIS_URL", url)
                .env("CERTIFICATES", &folder),
        );
        assert_eq!(printed, [format!("{kind}: one order of 5 a second")]);
    }
    // By what they left behind, each was where its address leads.
    for server in [
        &lenient,
        &strict,
        cluster.node_of("orders"),
        &watched.master,
    ] {
        assert_eq!(server.cli(&["HGET", "orders", "rate"]), "5");
    }
    fs::remove_dir_all(&folder).unwrap();
}

/// As the page says that they are: each in five lines at most, and none is left out.
#[test]
fn each_kind_is_shown_in_five_lines() {
    let source = read("examples/connect.rs");
    let made = source.split(" -> Made {\n").skip(1);
    let lengths: Vec<_> = made
        .map(|rest| rest.split_once("\n}\n").unwrap().0.lines().count())
        .collect();
    assert_eq!(lengths.len(), KINDS.len(), "{lengths:?}");
    assert!(lengths.iter().all(|lines| *lines <= 5), "{lengths:?}");
    let page = read("examples/README.md");
    for kind in KINDS {
        assert!(source.contains(&format!("\"{kind}\" => ")), "{kind}");
        assert!(page.contains(&format!("`{kind}`")), "{kind}");
    }
    let [(line, documented)] = &document("connect")[..] else {
        panic!("one command");
    };
    assert!(line.ends_with("-- cluster"), "{line}");
    assert_eq!(*documented, ["cluster: one order of 5 a second"]);
}
