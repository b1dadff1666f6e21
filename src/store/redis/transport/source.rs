//! Sources of connections: made here, or taken out of a pool.

use std::{sync::Arc, time::Duration};

use deadpool_redis::Pool;
use redis::{AsyncConnectionConfig, RedisResult};

#[cfg(feature = "tls")]
use super::tls;
#[cfg(feature = "cluster")]
use super::topology::Cluster;
#[cfg(feature = "sentinel")]
use super::topology::{self, Sentinels};
use super::{
    link::{Link, OwnConnection, checked_out},
    stream,
};
use crate::store::guard::breaker::Traffic;

/// The source of connections.
#[derive(Clone)]
pub(crate) enum Source {
    /// They are made here
    Client(Box<redis::Client>, Box<AsyncConnectionConfig>),
    /// They are made by a pool, and taken out of it
    Pool(Pool),
    #[cfg(feature = "cluster")]
    ClusterPool(deadpool_redis::cluster::Pool),
    #[cfg(feature = "sentinel")]
    SentinelPool(deadpool_redis::sentinel::Pool),
    /// A connection to each node, made and repaired by redis-rs
    #[cfg(feature = "cluster")]
    Cluster(Box<Cluster>),
    /// They are made here, to the master that sentinels name at the time
    #[cfg(feature = "sentinel")]
    Sentinel(Box<Sentinels>, Box<AsyncConnectionConfig>),
    /// The user's connection, which looks after itself
    Own(Arc<dyn OwnConnection>),
}

impl Source {
    #[cfg_attr(
        not(feature = "sentinel"),
        allow(unused_variables, reason = "the others have it among their settings")
    )]
    pub(crate) async fn connect(
        &self,
        response_timeout: Duration,
        traffic: Arc<Traffic>,
    ) -> RedisResult<Link> {
        #[cfg(feature = "tls")]
        if self.may_want_tls() {
            tls::choose_provider();
        }
        let connection = match self {
            Self::Client(client, config) => return stream::connect(client, config, traffic).await,
            // A checkout costs a PING, so there is one for each connection and not for each
            // command. Taking it out of the pool leaves the pool its full size for other users.
            Self::Pool(pool) => deadpool_redis::Connection::take(checked_out(pool.get().await)?),
            #[cfg(feature = "cluster")]
            Self::ClusterPool(pool) => {
                let nodes = checked_out(pool.get().await)?;
                return Ok(Link::Cluster(deadpool_redis::cluster::Connection::take(
                    nodes,
                )));
            }
            #[cfg(feature = "sentinel")]
            Self::SentinelPool(pool) => {
                let mut connection = topology::take_master(pool).await?;
                // `deadpool_redis` has no such setting.
                connection.set_response_timeout(response_timeout);
                connection
            }
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => return cluster.connect().await.map(Link::Cluster),
            #[cfg(feature = "sentinel")]
            Self::Sentinel(sentinels, config) => {
                return stream::connect(&sentinels.master().await?, config, traffic).await;
            }
            Self::Own(own) => return Ok(Link::Own(Arc::clone(own))),
        };
        Ok(Link::Multiplexed(connection, None))
    }

    pub(crate) fn renews(&self) -> bool {
        !matches!(self, Self::Own(_))
    }

    /// Returns whether it repairs the connections to its nodes, and repeats lost commands, by
    /// itself.
    pub(crate) fn has_nodes(&self) -> bool {
        #[cfg(feature = "cluster")]
        return matches!(self, Self::Cluster(_) | Self::ClusterPool(_));
        #[cfg(not(feature = "cluster"))]
        false
    }

    /// Returns the same nodes over connections that send nothing twice, if these would.
    pub(crate) fn once(&self) -> Option<Self> {
        match self {
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => cluster
                .repeats()
                .then(|| Self::Cluster(Box::new(cluster.once()))),
            // A pool's connections have the pool's settings.
            _ => None,
        }
    }

    /// Returns whether it sends a command again by itself.
    pub(crate) fn repeats(&self) -> bool {
        match self {
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => cluster.repeats(),
            #[cfg(feature = "cluster")]
            Self::ClusterPool(_) => true,
            _ => false,
        }
    }

    /// It is unknown for a pool.
    #[cfg(feature = "tls")]
    fn may_want_tls(&self) -> bool {
        match self {
            Self::Client(client, _) => tls::is_wanted(client.get_connection_info()),
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => cluster.wants_tls(),
            #[cfg(feature = "sentinel")]
            Self::Sentinel(sentinels, _) => sentinels.wants_tls(),
            Self::Own(_) => false,
            _ => true,
        }
    }
}
