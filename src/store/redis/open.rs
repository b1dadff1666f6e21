//! The ways to make a [`RedisStore`].

use deadpool_redis::Pool;
#[cfg(any(feature = "cluster", feature = "sentinel"))]
use redis::ConnectionInfo;
use redis::aio::ConnectionLike;

#[cfg(feature = "cluster")]
use super::transport::cluster;
#[cfg(feature = "sentinel")]
use super::transport::sentinel;
use super::{
    builder::RedisStoreBuilder,
    store::RedisStore,
    transport::{address, source::ConnectionSource},
};
use crate::values::error::ConfigError;

/// # Constructors
impl RedisStore {
    /// Opens a store at an address, with the default settings: `builder(address).build()`.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`Store`](crate::ConfigErrorKind::Store) if the address cannot be
    /// parsed.
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

    /// Starts a store at an address: `redis://[user:password@]host[:port][/db]`, over TLS
    /// `rediss://..`, or `redis+unix:///path[?user=..&pass=..&db=..]` for a unix socket.
    ///
    /// In user and password, percent-encode characters with a meaning in an address: `%40` for `@`,
    /// `%2F` for `/`. TLS is the feature `tls`: see
    /// [`authorities`](RedisStoreBuilder::authorities).
    pub fn builder(address: impl AsRef<str>) -> RedisStoreBuilder {
        let address = address::read(address.as_ref());
        RedisStoreBuilder::new(address.and_then(ConnectionSource::address))
    }

    /// Starts a store on a Redis Cluster, by one or more addresses of its nodes; the others are
    /// found there.
    ///
    /// A limiter's keys are in one hash slot, so a decision is still one command, to the master of
    /// that slot. A master that is down or silent costs only its own slots, if the Cluster has
    /// `cluster-require-full-coverage no`. A master whose *host* is gone, so that connecting to it
    /// hangs, delays the others too until a replica takes over: redis-rs sends nothing while it
    /// tries, for a quarter of [`connect_timeout`](RedisStoreBuilder::connect_timeout) at a time.
    /// While a hash slot moves to another master, its limiters meet the failure policy: Redis
    /// answers TRYAGAIN to commands of several keys.
    ///
    /// Commands that may run twice are repeated when a connection is lost, at most five times and 1
    /// to 10 milliseconds apart. [`release`](crate::RateLimiter::release),
    /// [`rename`](crate::RateLimiter::rename) and calls that take in Redisson's format from an
    /// [`Algorithm::FixedWindow`](crate::Algorithm::FixedWindow) or in
    /// [slots](crate::RateLimiter::slots) are sent once, and those in our own format as on [one
    /// server](crate::docs::failure#what-is-retried), over separate connections that the first of
    /// them opens. [`ping`](Self::ping) checks all masters.
    ///
    /// Credentials and `rediss://` apply to all nodes, and all addresses must agree in them. Nodes
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
    pub fn cluster(addresses: impl IntoIterator<Item = impl AsRef<str>>) -> RedisStoreBuilder {
        RedisStoreBuilder::new(read_all(addresses).and_then(cluster::cluster))
    }

    /// Starts a store on the master that sentinels monitor, by one or more addresses of sentinels;
    /// one that answers is enough.
    ///
    /// `master` is the name by which they know it, `mymaster`, or an address with the name as its
    /// host if the master needs credentials, a database or TLS:
    /// `rediss://user:password@mymaster/1`. Those in a sentinel's address are for the sentinel, and
    /// each sentinel may have its own.
    ///
    /// All sentinels are queried, at once, whenever a connection is opened: by the first command,
    /// and when a connection is lost or leads to a replica. So a failover needs no restart.
    ///
    /// The master is reached by the address that sentinels know, so its certificate must have that
    /// one: the IP address, or its name with `sentinel resolve-hostnames yes` and `sentinel
    /// announce-hostnames yes`.
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
    pub fn sentinel(
        sentinels: impl IntoIterator<Item = impl AsRef<str>>,
        master: &str,
    ) -> RedisStoreBuilder {
        let sentinels = read_all(sentinels);
        RedisStoreBuilder::new(sentinels.and_then(|them| sentinel::sentinel(them, master)))
    }

    /// Starts a store whose connections come from a pool: one is checked out for all calls, and
    /// again when it is lost.
    ///
    /// It is taken out of the pool for good, which leaves the pool its full size for other users.
    /// The pool's own settings apply to it: set TCP_NODELAY and the timeouts there. The size of the
    /// pool does not matter here.
    pub fn pool(pool: Pool) -> RedisStoreBuilder {
        RedisStoreBuilder::new(Ok(ConnectionSource::pool(pool)))
    }

    /// Starts a store on a Redis Cluster, by a pool: as [`pool`](Self::pool).
    ///
    /// Prefer [`cluster`](Self::cluster) unless there is a pool already. The pool's connections
    /// have the default settings of redis-rs, and `deadpool_redis` has no others: only the store's
    /// [`response_timeout`](RedisStoreBuilder::response_timeout) applies, and any command that is
    /// lost is sent again up to sixteen times. So [`release`](crate::RateLimiter::release) may
    /// release twice, when a connection is lost at the wrong moment, and a fixed window, GCRA or
    /// slots may take twice; all of them for one interval at most. Ordinary limits are not
    /// affected: an acquire that is sent twice takes once.
    #[cfg(feature = "cluster")]
    pub fn cluster_pool(pool: deadpool_redis::cluster::Pool) -> RedisStoreBuilder {
        RedisStoreBuilder::new(Ok(ConnectionSource::cluster_pool(pool)))
    }

    /// Starts a store on the master that sentinels monitor, by a pool: as [`pool`](Self::pool).
    ///
    /// A pool keeps connections to a master that has been demoted, which answer PING as before. So
    /// each one that is checked out is asked for its `ROLE` first, and dropped if it is no
    /// master's: after a failover the store goes through the stock until the pool makes one that
    /// is. [`response_timeout`](RedisStoreBuilder::response_timeout) is the store's.
    #[cfg(feature = "sentinel")]
    pub fn sentinel_pool(pool: deadpool_redis::sentinel::Pool) -> RedisStoreBuilder {
        RedisStoreBuilder::new(Ok(sentinel::sentinel_pool(pool)))
    }

    /// Starts a store on a connection of the caller's, which maintains itself:
    /// `redis::aio::ConnectionManager` for example.
    ///
    /// It is of [the same `redis`](crate::redis) as this crate's, 1.x, of which you turn on the
    /// feature: `cargo add redis@1 --features connection-manager,tokio-comp`. Address, credentials
    /// and TLS are the connection's, and so is how long connecting may take.
    ///
    /// A bare `MultiplexedConnection` never reconnects: after one lost connection the failure
    /// policy would make every decision until the process restarts. Use [`builder`](Self::builder)
    /// or [`pool`](Self::pool) instead. A `ClusterConnection` repeats commands by itself, so that a
    /// call may take twice: use `RedisStore::cluster`.
    ///
    /// A command waits no longer than the store's
    /// [`response_timeout`](RedisStoreBuilder::response_timeout), whatever the connection does.
    /// redis-rs may never answer a command that comes just as its connection ends: such a command
    /// waits for so long, or for the timeout of that connection.
    ///
    /// # Example
    ///
    /// ```
    /// use redis::aio::{ConnectionManager, ConnectionManagerConfig};
    /// use tower_ratelimit::RedisStore;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = redis::Client::open("redis://127.0.0.1/")?;
    /// // Connects when it is first used, so that a service starts while Redis is down.
    /// let config = ConnectionManagerConfig::new();
    /// let manager = ConnectionManager::new_lazy_with_config(client, config)?;
    /// let store = RedisStore::connection(manager).prefix("shop").build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn connection<C>(connection: C) -> RedisStoreBuilder
    where
        C: ConnectionLike + Clone + Send + Sync + 'static,
    {
        RedisStoreBuilder::new(Ok(ConnectionSource::by_user(connection)))
    }
}

#[cfg(any(feature = "cluster", feature = "sentinel"))]
fn read_all(
    addresses: impl IntoIterator<Item = impl AsRef<str>>,
) -> Result<Vec<ConnectionInfo>, ConfigError> {
    let addresses = addresses.into_iter();
    addresses.map(|it| address::read(it.as_ref())).collect()
}

#[cfg(test)]
#[cfg(not(feature = "tls"))]
mod tests {
    use super::*;

    #[test]
    fn tls_without_its_feature_names_the_feature() {
        let error = RedisStore::open("rediss://user:secret@localhost").unwrap_err();
        assert!(error.to_string().contains("`tls`"), "{error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}
