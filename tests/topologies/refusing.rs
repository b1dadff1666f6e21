//! Servers that say a word to a new client, unasked, and hang up: at `maxclients`, and in protected
//! mode. On every way a connection is made, the error has the words, or at least the remedy.

use std::{
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, TcpStream, UdpSocket},
};

use super::patient;
use kit::{
    Cluster,
    certificates::{Authority, HERE},
    scene::*,
    scripted::ScriptedServer,
    sentinel::{MASTER_NAME, Watch, Watched},
    topologies::connected,
};

const FULL: &str = "max number of clients";
const DENIED: &str = "Redis is running in protected mode";
const RAISE: &str = "raise `maxclients`";
const PROTECTED: &str = "the server is in protected mode";
/// Words and reset race each other.
const TIMES: usize = 10;

/// A new store is refused each time, with these words of the server and this remedy.
async fn is_refused(what: &str, store: &RedisStoreBuilder, words: &str, remedy: &str) {
    for _ in 0..TIMES {
        refuses(what, &patient(store.clone()), words, remedy).await;
    }
}

async fn refuses(what: &str, store: &RedisStore, words: &str, remedy: &str) {
    let error = store.ping().await.expect_err(what);
    let kind = match remedy {
        PROTECTED => ErrorKind::Rejected,
        _ => ErrorKind::Unavailable,
    };
    assert_eq!(error.kind(), kind, "{what}: {error:?}");
    assert!(error.to_string().contains(remedy), "{what}: {error:?}");
    let source = std::error::Error::source(&error).expect("a source");
    assert!(source.to_string().contains(words), "{what}: {source}");
}

/// Takes a server's last place, until it is dropped.
fn fill(server: &RedisServer) -> TcpStream {
    let client = TcpStream::connect(server.address()).unwrap();
    server.configure("maxclients", "1");
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_at_maxclients_says_so_to_an_address_a_socket_and_a_user() {
    let server = RedisServer::start_with(&["--unixsocket", "socket"]);
    let _client = fill(&server);
    let (port, path) = (server.port(), server.dir().join("socket"));
    for address in [
        server.url(),
        format!("redis://limiter:secret@127.0.0.1:{port}/1"),
        format!("redis://127.0.0.1:{port}/?protocol=resp3"),
        format!("redis+unix://{}", path.display()),
    ] {
        let store = RedisStore::builder(&address);
        is_refused(&address, &store, FULL, RAISE).await;
    }
    // A pool hides the words.
    let pool = RedisStore::pool(kit::topologies::pool(&server));
    refuses("a pool", &patient(pool), "", "may be at `maxclients`").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_connects_again_learns_that_its_place_is_taken() {
    let server = RedisServer::start();
    let store = connected(patient(RedisStore::builder(server.url()))).await;
    let mut client = fill(&server);
    // No other could ask for it: there is no place.
    client
        .write_all(b"CLIENT KILL TYPE normal SKIPME yes\r\n")
        .unwrap();
    let mut killed = [0; 4];
    client.read_exact(&mut killed).unwrap();
    assert_eq!(&killed, b":1\r\n");
    refuses("again", &store, FULL, RAISE).await;
    drop(client);
    connected(store).await;
}

/// As a proxy may do it: the words come first, and what the client sends is read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn words_that_come_before_a_question_are_the_error() {
    const SAYS: &[u8] = b"-DENIED Redis is running in protected mode because so it is.\r\n";
    let server = ScriptedServer::stranger(Some(SAYS));
    let full = ScriptedServer::stranger(Some(b"-ERR max number of clients reached\r\n"));
    let store = RedisStore::builder(server.url());
    is_refused("an address", &store, DENIED, PROTECTED).await;
    is_refused(
        "a node of a Cluster",
        &RedisStore::cluster([server.url()]),
        DENIED,
        PROTECTED,
    )
    .await;
    let store = RedisStore::sentinel([full.url()], MASTER_NAME);
    is_refused("a sentinel", &store, FULL, RAISE).await;
    let nothing = ScriptedServer::stranger(Some(b""));
    let store = RedisStore::builder(nothing.url());
    is_refused("silently", &store, "", "hangs up on a new client").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_at_maxclients_says_so() {
    let cluster = Cluster::start();
    let _clients: Vec<_> = cluster.nodes.iter().map(fill).collect();
    let store = RedisStore::cluster(cluster.urls());
    is_refused("a Cluster", &store, FULL, RAISE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_at_maxclients_says_so_under_sentinel() {
    let watched = Watched::start(&Watch::default());
    let _client = fill(&watched.master);
    let store = RedisStore::sentinel([watched.sentinel.url()], MASTER_NAME);
    is_refused("a master", &store, FULL, RAISE).await;
}

/// Redis closes the connection before the handshake, so there are no words.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_over_tls_at_maxclients_is_recognized() {
    let authority = Authority::new("ours");
    let tls = authority.issue(HERE);
    let server = RedisServer::start_tls(&tls, &["--tls-auth-clients", "no"]);
    let _client = fill(&server);
    let url = format!("rediss://127.0.0.1:{}/", server.tls_port());
    let store = authority.believed(RedisStore::builder(url));
    refuses("TLS", &patient(store), "", "may be at `maxclients`").await;
}

/// Returns an address of this machine that is not its loopback's: a client there is a stranger.
fn elsewhere() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // Nothing is sent.
    socket.connect(("192.0.2.1", 9)).ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_in_protected_mode_says_so() {
    let Some(host) = elsewhere() else {
        println!("NOT TESTED: this machine has no address but its loopback's");
        return;
    };
    let authority = Authority::new("ours");
    let name = host.to_string();
    let tls = authority.issue(&[HERE, &[&*name]].concat());
    let protected = ["--bind", "0.0.0.0", "--protected-mode", "yes"];
    let args = [&protected[..], &["--tls-auth-clients", "no"]].concat();
    let server = RedisServer::start_tls(&tls, &args);
    let plain = RedisStore::builder(format!("redis://{host}:{}/", server.port()));
    is_refused("an address", &plain, DENIED, PROTECTED).await;
    let user = format!("redis://limiter:secret@{host}:{}/1", server.port());
    is_refused("a user", &RedisStore::builder(user), DENIED, PROTECTED).await;
    for address in [
        format!("rediss://{host}:{}/", server.tls_port()),
        format!("rediss://:secret@{host}:{}/1", server.tls_port()),
    ] {
        let store = authority.believed(RedisStore::builder(&address));
        is_refused(&address, &store, DENIED, PROTECTED).await;
        let store = authority.believed(RedisStore::cluster([&address]));
        is_refused("a Cluster over TLS", &store, DENIED, PROTECTED).await;
    }
}
