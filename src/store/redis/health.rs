//! The state of the servers as this process sees it, from breakers and calls, for `health()`.

use std::{ops::RangeInclusive, sync::atomic::Ordering::Relaxed, time::Duration};

use super::{node::slots_of, store::RedisStore, transport::connection::ConnectionState};
pub use crate::store::guard::outbox::breaker::BreakerState;

impl RedisStore {
    /// Returns the state of Redis, as this store has seen it: nothing is sent.
    ///
    /// For a page of your own, or a metric. Not for deciding whether the service is healthy: with a
    /// [`FailurePolicy`](crate::FailurePolicy) it also answers without Redis.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{BreakerState, ConnectionState, RedisStore};
    ///
    /// let store = RedisStore::open("redis://127.0.0.1/")?;
    /// let health = store.health();
    /// // No request has been made yet.
    /// assert_eq!(health.connection, ConnectionState::Idle);
    /// assert!(health.nodes.iter().all(|node| node.breaker == BreakerState::Closed));
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    pub fn health(&self) -> Health {
        let server = self.server();
        let is_cluster = server.connection.source.is_cluster;
        let seen = server.connection.dial.nodes.look().into_iter().zip(0..);
        let counts = &server.settle_queue.counts;
        Health {
            lost_receipts: counts.lost_receipts.load(Relaxed),
            lost_charges: counts.lost_charges.load(Relaxed),
            connection: server.connection.state(),
            nodes: seen
                .map(|((breaker, lasts, failures), index): (_, u16)| NodeHealth {
                    slots: is_cluster.then(|| slots_of(index)),
                    breaker,
                    lasts,
                    failures,
                })
                .collect(),
        }
    }
}

/// The state of Redis, as one [`RedisStore`] sees it: see [`RedisStore::health`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// The state of the connection
    pub connection: ConnectionState,
    /// The breakers: one, or one for each 512 hash slots of a Cluster, in their order. None if
    /// [`breaker`](super::RedisStoreBuilder::breaker) is zero
    pub nodes: Vec<NodeHealth>,
    /// How many receipts could not be released, since the store was built. Each costs its permits
    /// for one interval
    pub lost_receipts: u64,
    /// How many extra charges could not be made. That usage is never charged: see
    /// [`Grant`](crate::Grant)
    pub lost_charges: u64,
}

impl Health {
    /// Returns whether nothing is known to be wrong: no breaker is open, and the last attempt to
    /// connect did not fail.
    pub fn is_well(&self) -> bool {
        let closed = |node: &NodeHealth| node.breaker == BreakerState::Closed;
        self.connection != ConnectionState::Failing && self.nodes.iter().all(closed)
    }
}

/// The state of a server, or of the servers of some hash slots of a Cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeHealth {
    /// Its hash slots in a Cluster; `None` on a single server
    pub slots: Option<RangeInclusive<u16>>,
    /// The state of the breaker
    pub breaker: BreakerState,
    /// For how long it has been closed, or not closed: since it opened, since it closed again, or
    /// since the store was built
    pub lasts: Duration,
    /// How many of the last calls failed: as many as
    /// [`breaker`](super::RedisStoreBuilder::breaker) says open it. Zero while it is not closed
    pub failures: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_breaker_that_is_off_has_no_nodes() {
        let store = |failures| {
            let store = RedisStore::builder("redis://127.0.0.1/").breaker(failures);
            store.build()
        };
        assert_eq!(store(32).unwrap().health().nodes.len(), 1);
        assert_eq!(store(0).unwrap().health().nodes.len(), 0);
        assert!(store(5).unwrap().health().is_well());
    }
}
