//! TLS to real servers: the certificates trusted and presented, the errors of refused ones, and
//! recovery without a restart.

mod faults;
mod settings;

use super::patient;
use kit::{
    Cluster,
    certificates::{Authority, HERE},
    scene::*,
    scripted::ScriptedServer,
    sentinel::{MASTER_NAME, Watch, Watched},
    server::Tls,
};

fn url(server: &RedisServer) -> String {
    format!("rediss://127.0.0.1:{}/", server.tls_port())
}

/// Asks for an answer: the page on failure says to do this. Returns what rustls said.
async fn refused(store: RedisStoreBuilder, words: &str) -> String {
    let page = include_str!("../../src/docs/failure.md");
    let (_, page) = page.split_once("\n## TLS\n").expect("a section");
    let error = patient(store).ping().await.expect_err("no TLS");
    let source = std::error::Error::source(&error).expect("a source");
    println!("{error}\n    {source}");
    assert_eq!(error.kind(), ErrorKind::Tls, "{error}: {source}");
    let source = source.to_string();
    let lines = page.lines();
    let mut rows = lines.filter_map(|line| line.strip_prefix("| ")?.split_once(" | "));
    let row = rows.find(|(errors, _)| {
        let mut quoted = errors.split('`').skip(1).step_by(2);
        quoted.any(|it| source.contains(it))
    });
    let (_, remedy) = row.unwrap_or_else(|| panic!("src/docs/failure.md lacks: {source}"));
    assert!(remedy.contains(words), "not {words:?}: {remedy}");
    source
}

async fn accepted(store: RedisStoreBuilder) {
    patient(store).ping().await.unwrap();
}

/// The remedy for a server whose authority is not believed
const BELIEVE: &str = "RedisStoreBuilder::authorities";
/// Those for a client that shows no certificate, and one of another authority
const SHOW: &str = "wants a certificate";
const SHOW_ANOTHER: &str = "tls-ca-cert-file";

/// Servers that want a certificate accept one of their authority alone, and are believed likewise.
async fn are_judged(authority: &Authority, store: impl Fn() -> RedisStoreBuilder) {
    let other = Authority::new("another");
    let client = authority.issue(&["service"]);
    accepted(authority.believed_by(&client, store())).await;
    refused(other.believed_by(&client, store()), BELIEVE).await;
    refused(authority.believed(store()), SHOW).await;
    let foreign = other.issue(&["service"]);
    refused(authority.believed_by(&foreign, store()), SHOW_ANOTHER).await;
}

/// Without a certificate of its own.
fn believing(server: &RedisServer, authority: &Authority) -> RedisStoreBuilder {
    authority.believed(RedisStore::builder(url(server)))
}

fn lenient(tls: &Tls) -> RedisServer {
    RedisServer::start_tls(tls, &["--tls-auth-clients", "no"])
}

#[tokio::test]
async fn a_certificate_that_is_not_right_is_refused() {
    let (authority, other) = (Authority::new("ours"), Authority::new("another"));
    for (tls, words) in [
        (other.issue(HERE), BELIEVE),
        (authority.issue_for(HERE, (2001, 2002)), "has expired"),
        (authority.issue_for(HERE, (2098, 2099)), "not valid yet"),
    ] {
        let server = lenient(&tls);
        refused(believing(&server, &authority), words).await;
    }
    let server = lenient(&authority.issue(&["redis.internal", "localhost"]));
    let said = refused(believing(&server, &authority), "host in the address").await;
    assert!(said.contains("127.0.0.1"), "{said}");
    // By a name that it has, the same server is believed.
    let address = format!("rediss://localhost:{}/", server.tls_port());
    accepted(authority.believed(RedisStore::builder(&address))).await;
    // The machine does not know the tests' authority.
    refused(RedisStore::builder(&address), BELIEVE).await;
}

#[tokio::test]
async fn what_a_client_shows_must_be_accepted() {
    let authority = Authority::new("ours");
    let server = RedisServer::start_tls(&authority.issue(HERE), &[]);
    let store = || RedisStore::builder(url(&server));
    are_judged(&authority, store).await;
    let expired = authority.issue_for(&["service"], (2001, 2002));
    let showing = authority.believed_by(&expired, store());
    refused(showing, "has expired: renew").await;
}

/// In TLS 1.2 the handshake itself reports bad certificates, in 1.3 the first reply.
#[tokio::test]
async fn both_versions_are_spoken() {
    let authority = Authority::new("ours");
    let (tls, client) = (authority.issue(HERE), authority.issue(&["service"]));
    for version in ["TLSv1.2", "TLSv1.3"] {
        let server = RedisServer::start_tls(&tls, &["--tls-protocols", version]);
        let store = RedisStore::builder(url(&server));
        accepted(authority.believed_by(&client, store)).await;
        let words = "certificate of this process";
        refused(believing(&server, &authority), words).await;
    }
}

#[tokio::test]
async fn a_port_without_tls_is_recognized() {
    // Redis itself takes a handshake for the beginning of a command, and waits for the rest.
    let plain = ScriptedServer::stranger(Some(b"-ERR unknown command\r\n"));
    let authority = Authority::new("ours");
    let store = RedisStore::builder(format!("rediss://{}/", plain.address()));
    refused(authority.believed(store), "does not speak TLS").await;

    // The other way round the server hangs up and says nothing.
    let server = lenient(&authority.issue(HERE));
    let store = RedisStore::builder(format!("redis://127.0.0.1:{}/", server.tls_port()));
    fails(patient(store).ping().await, ErrorKind::Unavailable);
}

#[tokio::test]
async fn no_certificate_is_trusted_blindly() {
    let authority = Authority::new("ours");
    let server = lenient(&authority.issue(HERE));
    let store = RedisStore::builder(format!("{}#insecure", url(&server)));
    refused(store, "`#insecure`").await;
}

/// Redis-rs tells of a Cluster's nodes in its own words.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_nodes_of_a_cluster_are_judged_as_one_server_is() {
    let authority = Authority::new("ours");
    let cluster = Cluster::start_tls(&authority.issue(HERE));
    let store = || RedisStore::cluster(cluster.nodes.iter().map(url));
    are_judged(&authority, store).await;
}

/// Sentinel and master each have their own TLS and password, and the error says which one refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_and_its_master_are_judged_apart() {
    let authority = Authority::new("ours");
    let tls = authority.issue(HERE);
    let Watched {
        master,
        replica: _replica,
        sentinel,
    } = Watched::start(&Watch {
        tls: Some(&tls),
        password: Some("seen"),
    });
    master.obeys("ACL SETUSER limiter on >secret ~* +@all");

    let client = authority.issue(&["service"]);
    let shown = |store| authority.believed_by(&client, store);
    let store = |watchword: &str, password: &str| {
        let address = format!("rediss://:{watchword}@127.0.0.1:{}/", sentinel.tls_port());
        let known = format!("rediss://limiter:{password}@{MASTER_NAME}");
        RedisStore::sentinel([address], &known)
    };
    are_judged(&authority, || store("seen", "secret")).await;
    for (watchword, password) in [("wrong", "secret"), ("seen", "wrong")] {
        let wrong = shown(store(watchword, password));
        let error = patient(wrong).ping().await.unwrap_err();
        println!("{error}: {:?}", std::error::Error::source(&error));
        assert_eq!(error.kind(), ErrorKind::Rejected, "{watchword} {password}");
        assert!(!format!("{error:?}").contains("secret"), "{error:?}");
    }

    // A sentinel without TLS, before a master with it.
    let address = sentinel.url().replace("redis://", "redis://:seen@");
    let known = format!("rediss://limiter:secret@{MASTER_NAME}");
    accepted(shown(RedisStore::sentinel([address], &known))).await;
}
