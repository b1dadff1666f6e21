//! The store in Redis, with the guards in front of it: [`RedisStore`].

use std::{
    fmt,
    sync::{Arc, OnceLock, atomic::AtomicBool},
    time::Duration,
};

use super::{
    classify,
    header::Header,
    node,
    server::{MOST_REWRITTEN, Server},
    settle_queue::{self, SettleQueue},
    transport::{
        connection::Connection,
        source::{ConnectionSource, Dial},
    },
};
use crate::{
    store::{
        About, AnyStore,
        guard::cache,
        sealed::{Handle, Sealed},
        stack::{self, Guards, Remote},
    },
    values::{
        clock::{self, Clock},
        error::{Error, ErrorKind},
        observe::Observers,
    },
};

/// The number of leases that end at once when a store is closed: each is a receipt.
const RETURNED_AT_ONCE: usize = settle_queue::PLACES / 2;

/// Keeps limiters in Redis: one limit for every process on it.
///
/// The limiters of rules are one small string each. Those that Java shares,
/// [`RateLimiter`](crate::RateLimiter) and [`Rule::shared`](crate::Rule::shared), are byte for byte
/// those of Redisson's `RRateLimiter` (4.7.0, readable since 3.17.0), and with
/// [`redisson`](super::RedisStoreBuilder::redisson) all are. One decision is one command, also the
/// first for a new key. Clones share the connection, the breaker and the deny cache.
///
/// [`open`](Self::open) takes an address and the defaults. Everything else starts with a
/// [`RedisStoreBuilder`](super::RedisStoreBuilder): [`builder`](Self::builder) for one server,
/// [`cluster`](Self::cluster), [`sentinel`](Self::sentinel), or your own pool or connection.
///
/// # Connection
///
/// One multiplexed connection carries all commands. The first command opens it, so a service starts
/// while Redis is down; [`ping`](Self::ping) checks. A lost connection is replaced within a second
/// of Redis being back, and a command whose connection was lost is sent once more with the same
/// ids, which takes nothing twice ([exceptions](crate::docs::failure#what-is-retried)). TCP_NODELAY
/// and keepalive are on; TCP_USER_TIMEOUT is 5 seconds on Linux, the connect timeout 1 second, the
/// response timeout 500 milliseconds. A request waits at most for the
/// [`deadline`](super::RedisStoreBuilder::deadline), 50 milliseconds.
///
/// # Concurrent requests
///
/// While a call for some limiters is in flight, other requests for the same ones wait for its reply
/// and then share one call, also with requests for other limiters in our own format. So a busy key
/// costs at most one call per round trip, and no timer is needed. See
/// [tuning](crate::docs::tuning).
///
/// # Clock
///
/// The server's by default, so that no process with a wrong clock can bend a limit.
/// [`client_clock`](super::RedisStoreBuilder::client_clock) counts by this process's clock, as
/// Redisson does.
///
/// # Server
///
/// Redis 6.2 or newer, Valkey, or another of the [engines](crate::docs::engines). The guide lists
/// the [permissions](crate::docs::guide#permissions-in-redis) that an ACL user needs.
///
/// # Example
///
/// ```
/// # fn main() -> Result<(), tower_ratelimit::ConfigError> {
/// use tower_ratelimit::{Limit, RateLimitLayer, RedisStore, key::PeerIp};
///
/// let store = RedisStore::builder("redis://127.0.0.1/").prefix("shop").build()?;
/// let layer = RateLimitLayer::new(&store, Limit::per_minute(60).by(PeerIp));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedisStore {
    pub(crate) settings: RedisSettings,
    pub(crate) shared: Arc<Remote<Server>>,
}

/// The settings of a store, which never change.
#[derive(Clone)]
pub(crate) struct RedisSettings {
    pub(crate) prefix: Arc<str>,
    /// Set if the limiters of rules are in Redisson's format, where that has their algorithm.
    pub(crate) prefers_redisson: bool,
    pub(crate) client_id: Option<Arc<str>>,
    pub(crate) clock: Option<Arc<dyn Clock>>,
    pub(crate) deadline: Duration,
    pub(crate) deny_cache: Duration,
    pub(crate) breaker: u32,
    pub(crate) observers: Observers,
    pub(crate) summary: Option<Duration>,
    pub(crate) script_header: Option<Arc<str>>,
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
    #[cfg(feature = "tls")]
    pub(crate) certificates: Option<redis::TlsCertificates>,
}

impl RedisSettings {
    /// Returns the longest time that connecting and a reply may take.
    pub(crate) fn longest(&self) -> Duration {
        self.connect_timeout.saturating_add(self.response_timeout)
    }
}

impl RedisStore {
    /// Checks that Redis answers.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`Unavailable`](ErrorKind::Unavailable),
    /// [`Timeout`](ErrorKind::Timeout) or [`Rejected`](ErrorKind::Rejected), with Redis' own words
    /// as its source.
    ///
    /// # Cancel safety
    ///
    /// Dropping it has no effect.
    pub async fn ping(&self) -> Result<(), Error> {
        let longest = self.settings.longest();
        let server = self.server();
        clock::check_timer()?;
        match clock::within(longest, server.connection.send(&redis::cmd("PING"), false)).await {
            Some(Ok(_)) => Ok(()),
            Some(Err(failed)) => Err(self.named(classify::failure(failed))),
            None => Err(self.named(ErrorKind::Timeout.into())),
        }
    }

    /// Releases the permits of all leases, and waits until all receipts have reached Redis: for a
    /// graceful shutdown, after the last request.
    ///
    /// A receipt that cannot be sent is kept for a minute at most, so it ends even without Redis;
    /// put a shorter timeout around it if that is too long. The store can be used afterwards.
    ///
    /// # Cancel safety
    ///
    /// Dropping it has no effect: what is queued is still sent while its runtime lasts.
    pub async fn close(&self) {
        let (leases, settle_queue) = (&self.shared.leasing.table, &self.server().settle_queue);
        // No more at a time than there is room for. Leases that are taken meanwhile are in use.
        for _ in 0..leases.count().div_ceil(RETURNED_AT_ONCE) {
            leases.end_first(RETURNED_AT_ONCE);
            settle_queue.flush().await;
        }
        settle_queue.flush().await;
    }

    pub(super) fn assemble(
        source: ConnectionSource,
        settings: RedisSettings,
        header: Option<Arc<Header>>,
    ) -> Self {
        let observers = settings.observers.clone();
        let nodes = node::nodes(settings.breaker, settings.deadline, observers, &source);
        let nodes = Arc::new(nodes);
        let guards = Guards {
            deny_cache: settings.deny_cache,
            nodes: Arc::clone(&nodes),
            own_clock: settings.clock.clone(),
            ends_windows: false,
        };
        let about = About {
            prefix: Arc::clone(&settings.prefix),
            address: source.shown.clone(),
            prefers_redisson: Some(settings.prefers_redisson),
            observers: settings.observers.clone(),
            ..About::default()
        };
        let dial = Dial {
            connect_timeout: settings.connect_timeout,
            response_timeout: settings.response_timeout,
            nodes,
            observers: settings.observers.clone(),
            header,
            #[cfg(feature = "tls")]
            certificates: settings.certificates.clone(),
        };
        let connection = Arc::new(Connection::new(source, dial));
        let no_cross_slot = Arc::<AtomicBool>::default();
        let shared = stack::remote(guards, about, |listeners, bans| Server {
            settle_queue: SettleQueue::new(
                Arc::clone(&connection),
                listeners.clone(),
                settings.observers.clone(),
                Arc::clone(&no_cross_slot),
            ),
            no_cross_slot,
            connection,
            client_id: settings
                .client_id
                .clone()
                .map_or_else(OnceLock::new, OnceLock::from),
            clock: settings.clock.clone(),
            // Rewriting is rare: it grows when needed.
            rewritten: cache(1, MOST_REWRITTEN),
            bans,
            listeners,
        });
        Self { settings, shared }
    }

    pub(crate) fn server(&self) -> &Server {
        &self.shared.server
    }

    /// Names the server that an error is about.
    fn named(&self, error: Error) -> Error {
        error.with_address(self.shared.about().address.as_ref())
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("address", &self.shared.about().address)
            .field("prefix", &self.settings.prefix)
            .field("deadline", &self.settings.deadline)
            .field("deny_cache", &self.settings.deny_cache)
            .field("connection", &self.server().connection.state())
            .finish_non_exhaustive()
    }
}

impl Sealed for RedisStore {
    fn handle(&self) -> Handle {
        Handle(Arc::clone(&self.shared) as _)
    }
}
