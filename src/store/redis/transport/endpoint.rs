//! Where Redis is: the ways to make a [`RedisStore`], and where its connections come from.

use std::{sync::Arc, time::Duration};

use deadpool_redis::Pool;
#[cfg(feature = "tls")]
use redis::TlsCertificates;
use redis::{AsyncConnectionConfig, ConnectionInfo, aio::ConnectionLike, io::tcp::TcpSettings};

#[cfg(any(feature = "cluster", feature = "sentinel"))]
use super::topology;
use super::{
    address::{self, refused},
    source::Source,
};
use crate::{
    error::ConfigError,
    store::redis::{RedisStore, RedisStoreBuilder},
};

/// How long the kernel tries to get bytes through before it calls the connection dead; unset, a quarter of an hour.
#[cfg(target_os = "linux")]
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(5);
const TCP_KEEPALIVE: Duration = Duration::from_secs(30);

/// Where connections lead.
#[derive(Clone)]
pub(crate) enum Endpoint {
    Address(Box<redis::Client>),
    #[cfg(feature = "cluster")]
    Cluster(Box<topology::Cluster>),
    #[cfg(feature = "sentinel")]
    Sentinel(Box<topology::Sentinels>),
    /// The caller's own, with the settings it has
    Ready(Source),
}

/// # Ways to Redis
impl RedisStore {
    /// Opens a store at an address, with the default settings: `builder(address).build()`.
    ///
    /// # Errors
    ///
    /// Of kind [`Store`](crate::ConfigErrorKind::Store) if the address cannot be read.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::RedisStore;
    ///
    /// let store = RedisStore::open("redis://127.0.0.1/")?;
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    pub fn open(address: impl AsRef<str>) -> Result<Self, ConfigError> {
        Self::builder(address).build()
    }

    /// Begins a store at an address: `redis://[user:password@]host[:port][/db]`, over TLS
    /// `rediss://..`, or `redis+unix:///path[?user=..&pass=..&db=..]` for a unix socket.
    ///
    /// Characters that have a meaning in an address are percent-encoded in user and password: `%40`
    /// for `@`, `%2F` for `/`. TLS is the feature `tls`: see
    /// [`certificates`](RedisStoreBuilder::certificates).
    pub fn builder(address: impl AsRef<str>) -> RedisStoreBuilder {
        RedisStoreBuilder::new(read_address(address).and_then(|info| {
            // Fails here, and not at the first request, where the platform lacks what the address
            // asks for.
            let client = redis::Client::open(info).map_err(|error| refused(&error))?;
            Ok(Endpoint::Address(Box::new(client)))
        }))
    }

    /// Begins a store on a Redis Cluster, by one or more addresses of its nodes; the others are
    /// found there.
    ///
    /// A limiter's keys are in one slot, so a decision is still one command, to the master of that
    /// slot. A master that is down or silent costs its own slots and no others, if the Cluster has
    /// `cluster-require-full-coverage no`. One whose *host* is gone, so that connecting to it
    /// hangs, holds up the others too until a replica takes over: redis-rs sends nothing while it
    /// tries, for a quarter of [`connect_timeout`](RedisStoreBuilder::connect_timeout) at a time.
    /// While a slot moves to another master, its limiters meet the failure policy: Redis answers
    /// TRYAGAIN to commands of several keys.
    ///
    /// Commands that may run twice are repeated when a connection is lost, five times at most and 1
    /// to 10 milliseconds apart. [`release`](crate::RateLimiter::release),
    /// [`rename`](crate::RateLimiter::rename) and what takes from an
    /// [`Algorithm::FixedWindow`](crate::Algorithm::FixedWindow), by
    /// [`Algorithm::Gcra`](crate::Algorithm::Gcra) or in [slots](crate::RateLimiter::slots) are
    /// sent once, over connections of their own that the first of them makes. [`ping`](Self::ping)
    /// asks all masters.
    ///
    /// Credentials and `rediss://` hold for all nodes, and all addresses must agree in them. Nodes
    /// are reached by the address that they announce, so their certificates must have it: the IP
    /// address, or the name in `cluster-announce-hostname` with `cluster-preferred-endpoint-type
    /// hostname`.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::RedisStore;
    ///
    /// let store = RedisStore::cluster(["redis://10.0.0.1/", "redis://10.0.0.2/"]).build()?;
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    #[cfg(feature = "cluster")]
    #[cfg_attr(docsrs, doc(cfg(feature = "cluster")))]
    pub fn cluster(addresses: impl IntoIterator<Item = impl AsRef<str>>) -> RedisStoreBuilder {
        RedisStoreBuilder::new(read_addresses(addresses).and_then(|nodes| {
            let cluster = topology::Cluster::new(nodes);
            cluster.check().map_err(|error| refused(&error))?;
            Ok(Endpoint::Cluster(Box::new(cluster)))
        }))
    }

    /// Begins a store on the master that sentinels watch over, by one or more addresses of
    /// sentinels; one that answers suffices.
    ///
    /// `master` is the name under which they know it, `mymaster`, or an address with the name for a
    /// host where the master wants credentials, a database or TLS:
    /// `rediss://user:password@mymaster/1`. Those in a sentinel's address are for the sentinel, and
    /// each sentinel may have its own.
    ///
    /// All sentinels are asked, at once, whenever a connection is made: by the first command, and
    /// when a connection is lost or leads to a replica. So a failover needs no restart.
    ///
    /// The master is reached by the address that sentinels know, so its certificate must have that
    /// one: the IP address, or its name with `sentinel resolve-hostnames yes` and
    /// `sentinel announce-hostnames yes`.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::RedisStore;
    ///
    /// let sentinels = ["redis://10.0.0.1:26379/", "redis://10.0.0.2:26379/"];
    /// let store = RedisStore::sentinel(sentinels, "mymaster").build()?;
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    #[cfg(feature = "sentinel")]
    #[cfg_attr(docsrs, doc(cfg(feature = "sentinel")))]
    pub fn sentinel(
        sentinels: impl IntoIterator<Item = impl AsRef<str>>,
        master: &str,
    ) -> RedisStoreBuilder {
        RedisStoreBuilder::new(read_addresses(sentinels).and_then(|sentinels| {
            if master.contains("://") {
                address::read(master)?;
            }
            let sentinels = topology::Sentinels::new(sentinels, master);
            let sentinels = sentinels.map_err(|error| refused(&error))?;
            Ok(Endpoint::Sentinel(Box::new(sentinels)))
        }))
    }

    /// Begins a store whose connections come from a pool: one is checked out for all calls, and
    /// again when it is lost.
    ///
    /// It is taken out of the pool for good, which leaves the pool its full size for others. The
    /// pool's own settings apply to it: switch TCP_NODELAY and the timeouts on there. The size of
    /// the pool does not matter here.
    pub fn pool(pool: Pool) -> RedisStoreBuilder {
        RedisStoreBuilder::new(Ok(Endpoint::Ready(Source::Pool(pool))))
    }

    /// Begins a store on a Redis Cluster, by a pool: as [`pool`](Self::pool).
    ///
    /// Prefer [`cluster`](Self::cluster) unless there is a pool already. What the pool makes has
    /// the settings redis-rs begins with, and `deadpool_redis` has no others: only the store's
    /// [`response_timeout`](RedisStoreBuilder::response_timeout) counts, and a lost command is sent
    /// again up to sixteen times, whichever it is. So [`release`](crate::RateLimiter::release) may
    /// give back twice, when a connection is lost at the wrong moment, and a fixed window, GCRA or
    /// slots may take twice; for one interval at most, all of them. Ordinary limits are not
    /// affected: an acquire that is sent twice takes once.
    #[cfg(feature = "cluster")]
    #[cfg_attr(docsrs, doc(cfg(feature = "cluster")))]
    pub fn cluster_pool(pool: deadpool_redis::cluster::Pool) -> RedisStoreBuilder {
        RedisStoreBuilder::new(Ok(Endpoint::Ready(Source::ClusterPool(pool))))
    }

    /// Begins a store on the master that sentinels watch over, by a pool: as [`pool`](Self::pool).
    ///
    /// A pool keeps connections to a master that has been demoted, which answer PING as before. So
    /// each that is checked out is asked for its `ROLE` first, and dropped if it is no master's:
    /// after a failover the store goes through what is in stock until the pool makes one that is.
    /// [`response_timeout`](RedisStoreBuilder::response_timeout) is the store's.
    #[cfg(feature = "sentinel")]
    #[cfg_attr(docsrs, doc(cfg(feature = "sentinel")))]
    pub fn sentinel_pool(pool: deadpool_redis::sentinel::Pool) -> RedisStoreBuilder {
        RedisStoreBuilder::new(Ok(Endpoint::Ready(Source::SentinelPool(pool))))
    }

    /// Begins a store on a connection of the caller's, which looks after itself:
    /// `redis::aio::ConnectionManager` for example.
    ///
    /// A bare `MultiplexedConnection` never reconnects: after one lost connection every decision
    /// would be made by the failure policy until the process restarts. Use
    /// [`builder`](Self::builder) or [`pool`](Self::pool) instead.
    ///
    /// No command is waited for longer than the store's
    /// [`response_timeout`](RedisStoreBuilder::response_timeout), whatever the connection does.
    pub fn connection<C>(connection: C) -> RedisStoreBuilder
    where
        C: ConnectionLike + Clone + Send + Sync + 'static,
    {
        RedisStoreBuilder::new(Ok(Endpoint::Ready(Source::Own(Arc::new(connection)))))
    }
}

impl Endpoint {
    pub(crate) fn source(&self, connect_timeout: Duration, response_timeout: Duration) -> Source {
        let config = || {
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(connect_timeout))
                .set_response_timeout(Some(response_timeout));
            Box::new(config)
        };
        match self {
            Self::Address(client) => Source::Client(client.clone(), config()),
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => {
                let cluster = (**cluster).clone();
                Source::Cluster(Box::new(cluster.waiting(connect_timeout, response_timeout)))
            }
            #[cfg(feature = "sentinel")]
            Self::Sentinel(sentinels) => Source::Sentinel(sentinels.clone(), config()),
            Self::Ready(source) => source.clone(),
        }
    }

    /// Where it leads, without user and password; `None` where that is the caller's affair.
    pub(crate) fn shown(&self) -> Option<Arc<str>> {
        match self {
            Self::Address(client) => Some(address::shown(client.get_connection_info()).into()),
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => Some(cluster.shown().into()),
            #[cfg(feature = "sentinel")]
            Self::Sentinel(sentinels) => Some(sentinels.shown().into()),
            Self::Ready(_) => None,
        }
    }

    #[cfg(feature = "tls")]
    pub(crate) fn with_certificates(
        self,
        certificates: TlsCertificates,
    ) -> Result<Self, ConfigError> {
        match self {
            Self::Address(client) => {
                let info = super::tls::equip(client.get_connection_info(), certificates)?;
                let client = redis::Client::open(info).map_err(|error| refused(&error))?;
                Ok(Self::Address(Box::new(client)))
            }
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => {
                let cluster = cluster.with_certificates(certificates)?;
                Ok(Self::Cluster(Box::new(cluster)))
            }
            #[cfg(feature = "sentinel")]
            Self::Sentinel(sentinels) => {
                let sentinels = sentinels.with_certificates(certificates)?;
                Ok(Self::Sentinel(Box::new(sentinels)))
            }
            Self::Ready(_) => Err(super::tls::unusable(
                "a pool or connection that is made elsewhere is given them there",
            )),
        }
    }
}

pub(crate) fn tcp_settings() -> TcpSettings {
    let keepalive = redis::io::tcp::socket2::TcpKeepalive::new().with_time(TCP_KEEPALIVE);
    let settings = TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(keepalive);
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(TCP_USER_TIMEOUT);
    settings
}

fn read_address(address: impl AsRef<str>) -> Result<ConnectionInfo, ConfigError> {
    let info = address::read(address.as_ref())?;
    Ok(info.set_tcp_settings(tcp_settings()))
}

#[cfg(any(feature = "cluster", feature = "sentinel"))]
fn read_addresses(
    addresses: impl IntoIterator<Item = impl AsRef<str>>,
) -> Result<Vec<ConnectionInfo>, ConfigError> {
    addresses.into_iter().map(read_address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ConfigErrorKind;

    #[test]
    fn a_bad_address_is_an_error_without_its_password() {
        let error = RedisStore::open("http://user:secret@localhost").unwrap_err();
        assert_eq!(error.kind(), ConfigErrorKind::Store);
        assert!(
            error
                .to_string()
                .starts_with("the address of Redis cannot be read: ")
        );
        assert!(!error.to_string().contains("secret"));
        let store = RedisStore::open("redis://user:secret@localhost").unwrap();
        assert!(!format!("{store:?}").contains("secret"));
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn tls_without_its_feature_names_the_feature() {
        let error = RedisStore::open("rediss://user:secret@localhost").unwrap_err();
        assert!(error.to_string().contains("`tls`"), "{error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}
