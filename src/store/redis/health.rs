//! How the servers are, as this process sees it: their breakers, and what calls tell of them.

use std::{ops::RangeInclusive, sync::Arc, time::Duration};

use super::{RedisStore, Settings, classify::Class, transport::connection::Failed, wire};
use crate::{
    clock::SteadyClock,
    name::Name,
    store::guard::breaker::{Breakers, Seems, Told},
};

/// One failure is chance, and each costs somebody a deadline; a pause of the server that is over soon has as many in no
/// time, whatever the number, and then the first pause of the breaker is short.
pub(crate) const DEFAULT_FAILURES: u32 = 5;
/// The slots of a Cluster that have one breaker. redis-rs does not say which master has which slots, but to strategies
/// for reading from replicas, and with one of these it would send READONLY: a replica would then refuse by old data.
const SLOTS_TOGETHER: u16 = 512;
const SLOTS: u16 = 16_384;

impl RedisStore {
    /// How Redis is, as far as this store has seen: nothing is sent.
    ///
    /// For a page of one's own, or a metric. Not for deciding whether the service is healthy: with a
    /// [`FailurePolicy`](crate::FailurePolicy) it answers without Redis, too.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{BreakerState, ConnectionState, RedisStore};
    ///
    /// let store = RedisStore::open("redis://127.0.0.1/")?;
    /// let health = store.health();
    /// // Nobody has asked for anything yet.
    /// assert_eq!(health.connection(), ConnectionState::Idle);
    /// assert!(health.nodes().iter().all(|node| node.breaker() == BreakerState::Closed));
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    #[must_use]
    pub fn health(&self) -> Health {
        let server = self.shared.server();
        let in_slots = server.connection.has_nodes();
        let seen = server.breakers.look().into_iter().zip(0..);
        Health {
            connection: server.connection.state(),
            nodes: seen
                .map(|(seen, place): (_, u16)| NodeHealth {
                    slots: in_slots.then(|| {
                        let first = place * SLOTS_TOGETHER;
                        first..=first + (SLOTS_TOGETHER - 1)
                    }),
                    breaker: match seen.state {
                        Seems::Closed => BreakerState::Closed,
                        Seems::Open => BreakerState::Open,
                        Seems::HalfOpen => BreakerState::HalfOpen,
                    },
                    lasts: seen.lasts,
                    failures: seen.failures,
                })
                .collect(),
        }
    }
}

impl Settings {
    pub(crate) fn breakers(&self, in_slots: bool) -> Breakers {
        let (nodes, place): (_, fn(&Name) -> usize) = if in_slots {
            (usize::from(SLOTS / SLOTS_TOGETHER), place)
        } else {
            (1, |_| 0)
        };
        // That of the logs may stand still, or jump.
        let clock = Arc::new(SteadyClock::new());
        Breakers::new(self.breaker, self.deadline, nodes, place, clock)
    }
}

/// How Redis is, as one [`RedisStore`] sees it: see [`RedisStore::health`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    connection: ConnectionState,
    nodes: Vec<NodeHealth>,
}

impl Health {
    /// Whether there is a connection.
    #[must_use]
    pub fn connection(&self) -> ConnectionState {
        self.connection
    }

    /// The breakers: one, or one for each 512 slots of a Cluster, in their order. None where
    /// [`breaker`](super::RedisStoreBuilder::breaker) is zero.
    #[must_use]
    pub fn nodes(&self) -> &[NodeHealth] {
        &self.nodes
    }

    /// Whether nothing is known to be wrong: no breaker is open, and the last attempt to connect did not fail.
    #[must_use]
    pub fn is_well(&self) -> bool {
        let closed = |node: &NodeHealth| node.breaker == BreakerState::Closed;
        self.connection != ConnectionState::Failing && self.nodes.iter().all(closed)
    }
}

/// How a server is, or the servers of some slots of a Cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeHealth {
    slots: Option<RangeInclusive<u16>>,
    breaker: BreakerState,
    lasts: Duration,
    failures: u32,
}

impl NodeHealth {
    /// The slots of a Cluster for which it stands; `None` where all is on one server.
    #[must_use]
    pub fn slots(&self) -> Option<RangeInclusive<u16>> {
        self.slots.clone()
    }

    /// Whether it is asked.
    #[must_use]
    pub fn breaker(&self) -> BreakerState {
        self.breaker
    }

    /// For how long it has been closed, or not closed: since it was opened, since it was closed again, or since the store
    /// was made.
    #[must_use]
    pub fn lasts(&self) -> Duration {
        self.lasts
    }

    /// How many of the last calls failed: as many as
    /// [`breaker`](super::RedisStoreBuilder::breaker) says open it. Zero while it is not closed.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.failures
    }
}

/// Whether a server is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BreakerState {
    /// Every decision asks it that needs to
    Closed,
    /// None does
    Open,
    /// One does, to find out whether it answers
    HalfOpen,
}

/// Whether there is a connection to Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConnectionState {
    /// None, and nobody has needed one since the store was made or the last one was lost
    Idle,
    /// It is being made
    Connecting,
    /// There is one. A user's own looks after itself, and is always said to be
    Connected,
    /// The last attempt to make one failed, or led to a server that cannot be used
    Failing,
}

/// What a call that failed tells of the server. `in_slots`: it is one of several.
pub(crate) fn told(failed: &Failed, in_slots: bool) -> Told {
    match Class::of(&failed.error) {
        // The others on its node are as they were.
        Class::Moving => Told::Nothing,
        // The calls that go once are lost with their connection, all at the same time, and the next
        // one is made at once or after a pause of its own. A node of a Cluster has no such pauses.
        Class::Lost if !in_slots => Told::Nothing,
        _ if failed.unheard => Told::Failed,
        class => class.told(),
    }
}

fn place(name: &Name) -> usize {
    usize::from(slot(wire::tag(name)) / SLOTS_TOGETHER)
}

/// The slot of a hash tag: its CRC16, as XMODEM has it.
pub(crate) fn slot(tag: &str) -> u16 {
    let crc = tag.bytes().fold(0, |crc: u16, byte| {
        (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| {
            let carry = crc & 0x8000 != 0;
            crc << 1 ^ if carry { 0x1021 } else { 0 }
        })
    });
    crc % SLOTS
}

#[cfg(test)]
mod tests {
    use std::io;

    use redis::RedisError;

    use super::*;
    use crate::error::ConfigErrorKind;

    fn heard(error: impl Into<RedisError>) -> Told {
        let failed = Failed {
            error: error.into(),
            unheard: false,
        };
        told(&failed, false)
    }

    fn says(code: &str) -> RedisError {
        let reply = format!("-{code} in so many words\r\n");
        let value = redis::parse_redis_value(reply.as_bytes()).unwrap();
        value.extract_error().unwrap_err()
    }

    #[test]
    fn what_a_server_says_is_an_answer_unless_it_says_that_it_cannot() {
        for code in [
            "ERR",
            "OOM",
            "MISCONF",
            "NOREPLICAS",
            "NOPERM",
            "NOAUTH",
            "WRONGTYPE",
            "CROSSSLOT",
            "NOSCRIPT",
        ] {
            assert_eq!(heard(says(code)), Told::Answered, "{code}");
        }
        for code in ["LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN"] {
            assert_eq!(heard(says(code)), Told::Failed, "{code}");
        }
        // The connection is replaced, or the slot is moving.
        for code in ["READONLY", "TRYAGAIN"] {
            assert_eq!(heard(says(code)), Told::Nothing, "{code}");
        }
    }

    #[test]
    fn what_was_not_sent_tells_nothing_and_what_was_not_heard_is_a_failure() {
        // The last column: where it was sent, and lost with the connection to the only server.
        for (kind, lost) in [
            (io::ErrorKind::ConnectionRefused, Told::Nothing),
            (io::ErrorKind::ConnectionReset, Told::Nothing),
            (io::ErrorKind::TimedOut, Told::Failed),
        ] {
            let error = || RedisError::from(io::Error::from(kind));
            assert_eq!(heard(error()), Told::Nothing, "{kind}");
            let unheard = Failed {
                error: error(),
                unheard: true,
            };
            assert_eq!(told(&unheard, false), lost, "{kind}");
            assert_eq!(told(&unheard, true), Told::Failed, "{kind}");
        }
        let moving = Failed {
            error: says("TRYAGAIN"),
            unheard: true,
        };
        for in_slots in [false, true] {
            assert_eq!(told(&moving, in_slots), Told::Nothing);
        }
    }

    // redis-cli CLUSTER KEYSLOT.
    #[test]
    fn slots_are_those_of_redis() {
        for (tag, expected) in [("", 0), ("123456789", 12_739), ("foo", 12_182)] {
            assert_eq!(slot(tag), expected, "{tag}");
        }
        for tag in 0..1000 {
            assert!(place(&Name::exact(&format!("a{tag}")).unwrap()) < 32);
        }
    }

    #[test]
    fn more_failures_than_can_be_told_are_a_mistake() {
        let store = |failures| {
            let store = RedisStore::builder("redis://127.0.0.1/").breaker(failures);
            store.build()
        };
        let error = store(33).unwrap_err();
        assert_eq!(error.kind(), ConfigErrorKind::Store);
        assert!(
            error
                .to_string()
                .contains("32 failures at most, not after 33")
        );
        assert_eq!(store(32).unwrap().health().nodes().len(), 1);
        assert_eq!(store(0).unwrap().health().nodes().len(), 0);
        assert!(store(5).unwrap().health().is_well());
    }
}
