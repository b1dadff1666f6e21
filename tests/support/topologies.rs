//! Every kind of Redis that a store can be on, started when it is first asked for, once in a test binary.

#![allow(dead_code, reason = "each test binary uses part of it")]
#![allow(
    clippy::print_stdout,
    reason = "which of them a test was on is printed; test files may allow it as a whole"
)]

#[cfg(feature = "tls")]
use std::io::{self, Write};
use std::{
    sync::OnceLock,
    time::{Duration, Instant},
};

use tower_ratelimit::{RedisStore, RedisStoreBuilder, deadpool_redis, redis};

#[cfg(feature = "tls")]
use super::certificates::{Authority, HERE};
#[cfg(feature = "cluster")]
use super::support::Cluster;
use super::support::RedisServer;
#[cfg(feature = "tls")]
use super::support::redis_server::Tls;
#[cfg(feature = "sentinel")]
use super::support::sentinel::{MASTER_NAME, Watch};
#[cfg(feature = "sentinel")]
use super::support::{Sentinel, cluster::wait_until};

/// A busy machine is no failure.
const LONG: Duration = Duration::from_secs(20);

/// What the user of the secured ones has for a password, and what their sentinel wants to hear
const PASSWORD: &str = "secret";
#[cfg(all(feature = "sentinel", feature = "tls"))]
const WATCHWORD: &str = "seen";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    Tcp,
    Socket,
    /// As a user with the permissions that the README says are enough
    User,
    Pool,
    #[cfg(feature = "tls")]
    Tls,
    #[cfg(feature = "tls")]
    MutualTls,
    #[cfg(feature = "sentinel")]
    Sentinel,
    #[cfg(feature = "sentinel")]
    SentinelPool,
    /// Mutual TLS to sentinel and master, a password for the one and a user for the other
    #[cfg(all(feature = "sentinel", feature = "tls"))]
    SecuredSentinel,
    #[cfg(feature = "cluster")]
    Cluster,
    #[cfg(feature = "cluster")]
    ClusterPool,
    /// Mutual TLS to each node, as a user
    #[cfg(all(feature = "cluster", feature = "tls"))]
    SecuredCluster,
}

impl Topology {
    /// All of them, except those over TLS where servers were built without it: the standard error
    /// says so
    pub fn all() -> Vec<Self> {
        let mut all = vec![
            Self::Tcp,
            Self::Socket,
            Self::User,
            Self::Pool,
            #[cfg(feature = "tls")]
            Self::Tls,
            #[cfg(feature = "tls")]
            Self::MutualTls,
            #[cfg(feature = "sentinel")]
            Self::Sentinel,
            #[cfg(feature = "sentinel")]
            Self::SentinelPool,
            #[cfg(all(feature = "sentinel", feature = "tls"))]
            Self::SecuredSentinel,
            #[cfg(feature = "cluster")]
            Self::Cluster,
            #[cfg(feature = "cluster")]
            Self::ClusterPool,
            #[cfg(all(feature = "cluster", feature = "tls"))]
            Self::SecuredCluster,
        ];
        #[cfg(feature = "tls")]
        if !has_tls() {
            all.retain(|topology| !topology.is_over_tls());
        }
        all
    }

    #[cfg(feature = "tls")]
    fn is_over_tls(self) -> bool {
        match self {
            Self::Tls | Self::MutualTls => true,
            #[cfg(feature = "sentinel")]
            Self::SecuredSentinel => true,
            #[cfg(feature = "cluster")]
            Self::SecuredCluster => true,
            _ => false,
        }
    }

    /// A new store there, with patience for a busy machine
    pub fn store(self) -> RedisStoreBuilder {
        let store = match self {
            Self::Tcp => RedisStore::builder(RedisServer::shared().url()),
            Self::Socket => {
                let path = lone().dir().join(SOCKET);
                RedisStore::builder(format!("redis+unix://{}", path.display()))
            }
            Self::User => {
                let port = lone().port();
                RedisStore::builder(format!("redis://limiter:{PASSWORD}@127.0.0.1:{port}/"))
            }
            Self::Pool => RedisStore::pool(pool(lone())),
            #[cfg(feature = "tls")]
            Self::Tls => RedisStore::builder(tls_url(lone())).certificates(authority().believed()),
            #[cfg(feature = "tls")]
            Self::MutualTls => RedisStore::builder(tls_url(strict())).certificates(shown()),
            #[cfg(feature = "sentinel")]
            Self::Sentinel => RedisStore::sentinel([watched().sentinel.url()], MASTER_NAME),
            #[cfg(feature = "sentinel")]
            Self::SentinelPool => RedisStore::sentinel_pool(sentinel_pool(&watched().sentinel)),
            #[cfg(all(feature = "sentinel", feature = "tls"))]
            Self::SecuredSentinel => {
                let port = secured_watched().sentinel.tls_port();
                RedisStore::sentinel(
                    [format!("rediss://:{WATCHWORD}@127.0.0.1:{port}/")],
                    &format!("rediss://limiter:{PASSWORD}@{MASTER_NAME}"),
                )
                .certificates(shown())
            }
            #[cfg(feature = "cluster")]
            Self::Cluster => RedisStore::cluster(cluster().urls()),
            #[cfg(feature = "cluster")]
            Self::ClusterPool => RedisStore::cluster_pool(cluster_pool(cluster())),
            #[cfg(all(feature = "cluster", feature = "tls"))]
            Self::SecuredCluster => {
                let nodes = secured_cluster().nodes.iter().map(|node| {
                    let port = node.tls_port();
                    format!("rediss://limiter:{PASSWORD}@127.0.0.1:{port}/")
                });
                RedisStore::cluster(nodes).certificates(shown())
            }
        };
        println!("{self:?}");
        store
            .connect_timeout(LONG)
            .response_timeout(LONG)
            .deadline(LONG)
    }

    /// The server that holds the keys of a name
    #[cfg_attr(
        not(feature = "cluster"),
        allow(unused_variables, reason = "one server holds them all")
    )]
    pub fn server_of(self, name: &str) -> &'static RedisServer {
        match self {
            Self::Tcp => RedisServer::shared(),
            Self::Socket | Self::User | Self::Pool => lone(),
            #[cfg(feature = "tls")]
            Self::Tls => lone(),
            #[cfg(feature = "tls")]
            Self::MutualTls => strict(),
            #[cfg(feature = "sentinel")]
            Self::Sentinel | Self::SentinelPool => &watched().master,
            #[cfg(all(feature = "sentinel", feature = "tls"))]
            Self::SecuredSentinel => &secured_watched().master,
            #[cfg(feature = "cluster")]
            Self::Cluster | Self::ClusterPool => cluster().node_of(name),
            #[cfg(all(feature = "cluster", feature = "tls"))]
            Self::SecuredCluster => secured_cluster().node_of(name),
        }
    }
}

/// Waits for the first connection. A pool connects with the timeouts of redis-rs, which a busy machine
/// may miss, and the store answers with the last failure until it tries again.
pub async fn connected(store: RedisStore) -> RedisStore {
    let deadline = Instant::now() + LONG;
    loop {
        match store.ping().await {
            Ok(()) => return store,
            Err(error) if Instant::now() > deadline => {
                panic!("{error}: {:?}", std::error::Error::source(&error))
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

const SOCKET: &str = "socket";

/// A server by itself, with every way in but the strict one
fn lone() -> &'static RedisServer {
    static LONE: OnceLock<RedisServer> = OnceLock::new();
    LONE.get_or_init(|| {
        let args = ["--unixsocket", SOCKET];
        #[cfg(feature = "tls")]
        let server = if has_tls() {
            RedisServer::start_tls(tls(), &[&args[..], &["--tls-auth-clients", "no"]].concat())
        } else {
            RedisServer::start_with(&args)
        };
        #[cfg(not(feature = "tls"))]
        let server = RedisServer::start_with(&args);
        admit(&server, "");
        server
    })
}

/// Makes the user whom the README describes, for any name.
pub fn admit(server: &RedisServer, more: &str) {
    let readme = include_str!("../../README.md");
    let (_, rest) = readme
        .split_once("ACL SETUSER limiter ")
        .expect("the README has the permissions");
    let (rules, _) = rest.split_once("```").expect("a whole block");
    let rules = format!("ACL SETUSER limiter {rules} ~* +del {more}");
    let rules: Vec<_> = rules.split_whitespace().collect();
    assert_eq!(server.cli(&rules), "OK");
}

pub fn pool(server: &RedisServer) -> deadpool_redis::Pool {
    let config = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(LONG))
        .set_response_timeout(Some(LONG));
    let manager = deadpool_redis::Manager::new_with_config(server.url(), config);
    let pool = deadpool_redis::Pool::builder(manager.expect("an address"));
    pool.max_size(2).build().expect("a pool")
}

/// Whether the servers were built with TLS
#[cfg(feature = "tls")]
fn has_tls() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| {
        let has = RedisServer::has_tls(tls());
        if !has {
            // Not by `eprintln!`, which says nothing where the test passes.
            let server = std::env::var("REDIS_SERVER_BIN");
            let _ = writeln!(
                io::stderr(),
                "\n!!! {} was built without TLS.\n\
                 !!! NOT TESTED: Tls, MutualTls, SecuredSentinel, SecuredCluster",
                server.as_deref().unwrap_or("redis-server"),
            );
        }
        has
    })
}

#[cfg(feature = "tls")]
fn authority() -> &'static Authority {
    static AUTHORITY: OnceLock<Authority> = OnceLock::new();
    AUTHORITY.get_or_init(|| Authority::new("the tests' authority"))
}

#[cfg(feature = "tls")]
fn tls() -> &'static Tls {
    static TLS: OnceLock<Tls> = OnceLock::new();
    TLS.get_or_init(|| authority().issue(HERE))
}

/// What the store shows, and believes
#[cfg(feature = "tls")]
fn shown() -> redis::TlsCertificates {
    static CLIENT: OnceLock<Tls> = OnceLock::new();
    let client = CLIENT.get_or_init(|| authority().issue(&["service"]));
    authority().believed_by(client)
}

#[cfg(feature = "tls")]
fn tls_url(server: &RedisServer) -> String {
    format!("rediss://127.0.0.1:{}/", server.tls_port())
}

/// A server that wants to see a certificate
#[cfg(feature = "tls")]
fn strict() -> &'static RedisServer {
    static STRICT: OnceLock<RedisServer> = OnceLock::new();
    STRICT.get_or_init(|| RedisServer::start_tls(tls(), &[]))
}

#[cfg(feature = "sentinel")]
pub struct Watched {
    pub master: RedisServer,
    pub replica: RedisServer,
    pub sentinel: Sentinel,
}

#[cfg(feature = "sentinel")]
fn watched() -> &'static Watched {
    static WATCHED: OnceLock<Watched> = OnceLock::new();
    WATCHED.get_or_init(start_watched)
}

/// A master, its replica, and the sentinel that watches over them
#[cfg(feature = "sentinel")]
pub fn start_watched() -> Watched {
    let master = RedisServer::start();
    let port = master.port().to_string();
    let replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &port]);
    wait_for_replica(&replica);
    let sentinel = Sentinel::start_with(&master, &replica, &patient());
    Watched {
        master,
        replica,
        sentinel,
    }
}

/// So that a busy machine is not taken for a dead master.
#[cfg(feature = "sentinel")]
fn patient() -> Watch<'static> {
    Watch {
        silence: 60_000,
        ..Watch::default()
    }
}

#[cfg(feature = "sentinel")]
pub fn wait_for_replica(replica: &RedisServer) {
    wait_until("the replica follows", || {
        let info = replica.cli(&["INFO", "replication"]);
        info.contains("master_link_status:up")
    });
}

#[cfg(feature = "sentinel")]
pub fn sentinel_pool(sentinel: &Sentinel) -> deadpool_redis::sentinel::Pool {
    let manager = deadpool_redis::sentinel::Manager::new(
        vec![sentinel.url()],
        MASTER_NAME.to_owned(),
        None,
        deadpool_redis::sentinel::SentinelServerType::Master,
    );
    let pool = deadpool_redis::sentinel::Pool::builder(manager.expect("an address"));
    pool.max_size(4).build().expect("a pool")
}

#[cfg(all(feature = "sentinel", feature = "tls"))]
fn secured_watched() -> &'static Watched {
    static WATCHED: OnceLock<Watched> = OnceLock::new();
    WATCHED.get_or_init(|| {
        let over_tls = ["--tls-replication", "yes"];
        let master = RedisServer::start_tls(tls(), &over_tls);
        let port = master.tls_port().to_string();
        let follows = [&over_tls[..], &["--replicaof", "127.0.0.1", &port]].concat();
        let replica = RedisServer::start_tls(tls(), &follows);
        wait_for_replica(&replica);
        for server in [&master, &replica] {
            admit(server, "+role");
        }
        let watch = Watch {
            tls: Some(tls()),
            password: Some(WATCHWORD),
            ..patient()
        };
        let sentinel = Sentinel::start_with(&master, &replica, &watch);
        Watched {
            master,
            replica,
            sentinel,
        }
    })
}

#[cfg(feature = "cluster")]
fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(Cluster::start)
}

#[cfg(feature = "cluster")]
pub fn cluster_pool(cluster: &Cluster) -> deadpool_redis::cluster::Pool {
    let manager = deadpool_redis::cluster::Manager::new(cluster.urls(), false);
    let pool = deadpool_redis::cluster::Pool::builder(manager.expect("addresses"));
    pool.max_size(2).build().expect("a pool")
}

#[cfg(all(feature = "cluster", feature = "tls"))]
fn secured_cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| {
        let cluster = Cluster::start_tls(tls());
        for node in &cluster.nodes {
            admit(node, "+cluster|slots");
        }
        cluster
    })
}
