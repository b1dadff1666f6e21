//! Every kind of Redis that a store can be on, started when it is first asked for, once in a test
//! binary.

use std::{
    io::{self, Write},
    sync::OnceLock,
};

use tower_ratelimit::{RedisStore, RedisStoreBuilder, deadpool_redis, redis};

use crate::certificates::{Authority, HERE};
use crate::scene::{LONG, patiently, until};
use crate::sentinel::{MASTER_NAME, Watch, Watched};
use crate::server::{Tls, binary};
use crate::{Cluster, RedisServer, Sentinel, permissions};

/// The password of the user of the secured ones, and that of their sentinel
const PASSWORD: &str = "secret";
const WATCHWORD: &str = "seen";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    Tcp,
    Socket,
    /// As a user with the permissions that the guide says are enough
    User,
    Pool,
    Tls,
    MutualTls,
    Sentinel,
    SentinelPool,
    /// Mutual TLS to sentinel and master, a password for the one and a user for the other
    SecuredSentinel,
    Cluster,
    ClusterPool,
    /// Mutual TLS to each node, as a user
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
            Self::Tls,
            Self::MutualTls,
            Self::Sentinel,
            Self::SentinelPool,
            Self::SecuredSentinel,
            Self::Cluster,
            Self::ClusterPool,
            Self::SecuredCluster,
        ];
        if !has_tls() {
            all.retain(|topology| !topology.is_over_tls());
        }
        all
    }

    fn is_over_tls(self) -> bool {
        let over_tls = [
            Self::Tls,
            Self::MutualTls,
            Self::SecuredSentinel,
            Self::SecuredCluster,
        ];
        over_tls.contains(&self)
    }

    /// A new store there, with a long deadline for a busy machine
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
            Self::Tls => authority().believed(RedisStore::builder(tls_url(lone()))),
            Self::MutualTls => shown(RedisStore::builder(tls_url(strict()))),
            Self::Sentinel => RedisStore::sentinel([watched().sentinel.url()], MASTER_NAME),
            Self::SentinelPool => RedisStore::sentinel_pool(sentinel_pool(&watched().sentinel)),
            Self::SecuredSentinel => {
                let port = secured_watched().sentinel.tls_port();
                shown(RedisStore::sentinel(
                    [format!("rediss://:{WATCHWORD}@127.0.0.1:{port}/")],
                    &format!("rediss://limiter:{PASSWORD}@{MASTER_NAME}"),
                ))
            }
            Self::Cluster => RedisStore::cluster(cluster().urls()),
            Self::ClusterPool => RedisStore::cluster_pool(cluster_pool(cluster())),
            Self::SecuredCluster => {
                let nodes = secured_cluster().nodes.iter().map(|node| {
                    let port = node.tls_port();
                    format!("rediss://limiter:{PASSWORD}@127.0.0.1:{port}/")
                });
                shown(RedisStore::cluster(nodes))
            }
        };
        println!("{self:?}");
        patiently(store)
    }

    /// The masters there
    pub fn servers(self) -> Vec<&'static RedisServer> {
        match self {
            Self::Tcp => vec![RedisServer::shared()],
            Self::Socket | Self::User | Self::Pool | Self::Tls => vec![lone()],
            Self::MutualTls => vec![strict()],
            Self::Sentinel | Self::SentinelPool => vec![&watched().master],
            Self::SecuredSentinel => vec![&secured_watched().master],
            Self::Cluster | Self::ClusterPool => cluster().nodes.iter().collect(),
            Self::SecuredCluster => secured_cluster().nodes.iter().collect(),
        }
    }

    /// The server that holds the keys of a name
    pub fn server_of(self, name: &str) -> &'static RedisServer {
        match self {
            Self::Cluster | Self::ClusterPool => cluster().node_of(name),
            Self::SecuredCluster => secured_cluster().node_of(name),
            _ => self.servers()[0],
        }
    }
}

/// Waits for the first connection. A pool connects with the timeouts of redis-rs, which a busy
/// machine may miss, and the store answers with the last failure until it tries again.
pub async fn connected(store: RedisStore) -> RedisStore {
    until("the store is connected", async || {
        let pinged = store.ping().await;
        pinged.inspect_err(|error| println!("{error:?}")).is_ok()
    })
    .await;
    store
}

const SOCKET: &str = "socket";

/// A server by itself, with every way in but the strict one
fn lone() -> &'static RedisServer {
    static LONE: OnceLock<RedisServer> = OnceLock::new();
    LONE.get_or_init(|| {
        let args = ["--unixsocket", SOCKET];
        let server = if has_tls() {
            RedisServer::start_tls(tls(), &[&args[..], &["--tls-auth-clients", "no"]].concat())
        } else {
            RedisServer::start_with(&args)
        };
        admit(&server, "");
        server
    })
}

/// Makes the user that the guide describes, for any name.
pub fn admit(server: &RedisServer, more: &str) {
    let enough = permissions().join(" ");
    server.obeys(&format!("ACL SETUSER limiter {enough} ~* +del {more}"));
}

pub fn pool(server: &RedisServer) -> deadpool_redis::Pool {
    let config = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(LONG))
        .set_response_timeout(Some(LONG));
    let manager = deadpool_redis::Manager::new_with_config(server.url(), config);
    let pool = deadpool_redis::Pool::builder(manager.expect("an address"));
    pool.max_size(2).build().expect("a pool")
}

/// Returns whether the servers were built with TLS
fn has_tls() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| {
        let has = RedisServer::has_tls(tls());
        if !has {
            // Not by `eprintln!`, which says nothing where the test passes.
            let _ = writeln!(
                io::stderr(),
                "\n!!! {} was built without TLS.\n\
                 !!! NOT TESTED: Tls, MutualTls, SecuredSentinel, SecuredCluster",
                binary(),
            );
        }
        has
    })
}

fn authority() -> &'static Authority {
    static AUTHORITY: OnceLock<Authority> = OnceLock::new();
    AUTHORITY.get_or_init(|| Authority::new("the tests' authority"))
}

fn tls() -> &'static Tls {
    static TLS: OnceLock<Tls> = OnceLock::new();
    TLS.get_or_init(|| authority().issue(HERE))
}

/// Gives a store the certificates that it presents and trusts
fn shown(store: RedisStoreBuilder) -> RedisStoreBuilder {
    static CLIENT: OnceLock<Tls> = OnceLock::new();
    let client = CLIENT.get_or_init(|| authority().issue(&["service"]));
    authority().believed_by(client, store)
}

fn tls_url(server: &RedisServer) -> String {
    format!("rediss://127.0.0.1:{}/", server.tls_port())
}

/// A server that wants to see a certificate
fn strict() -> &'static RedisServer {
    static STRICT: OnceLock<RedisServer> = OnceLock::new();
    STRICT.get_or_init(|| RedisServer::start_tls(tls(), &[]))
}

fn watched() -> &'static Watched {
    static WATCHED: OnceLock<Watched> = OnceLock::new();
    WATCHED.get_or_init(|| Watched::start(&Watch::default()))
}

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

fn secured_watched() -> &'static Watched {
    static WATCHED: OnceLock<Watched> = OnceLock::new();
    WATCHED.get_or_init(|| {
        let watched = Watched::start(&Watch {
            tls: Some(tls()),
            password: Some(WATCHWORD),
        });
        for server in [&watched.master, &watched.replica] {
            admit(server, "+role");
        }
        watched
    })
}

fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(Cluster::start)
}

pub fn cluster_pool(cluster: &Cluster) -> deadpool_redis::cluster::Pool {
    let manager = deadpool_redis::cluster::Manager::new(cluster.urls(), false);
    let pool = deadpool_redis::cluster::Pool::builder(manager.expect("addresses"));
    pool.max_size(2).build().expect("a pool")
}

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
