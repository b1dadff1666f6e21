//! Limiters in Redis, in the state of Redisson's `RRateLimiter`: shared by every process, Rust or Java.

mod connection;
mod diagnose;
mod gcra;
mod health;
#[cfg(test)]
mod history;
#[cfg(test)]
mod model;
mod returns;
pub(crate) mod rewritten;
mod saga;
mod script;
mod server;
#[cfg(any(feature = "cluster", feature = "sentinel"))]
mod topology;
pub(crate) mod wire;

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use deadpool_redis::Pool;
#[cfg(any(feature = "cluster", feature = "sentinel"))]
use redis::ConnectionInfo;
use redis::{AsyncConnectionConfig, IntoConnectionInfo, aio::ConnectionLike, io::tcp::TcpSettings};

use self::{
    connection::{Connection, Source},
    returns::Returns,
    rewritten::Rewritten,
    server::{Server, random_id},
};
pub use self::{
    diagnose::{Diagnosis, Finding, OtherClient, RedissonReleases},
    health::{BreakerState, ConnectionState, Health, NodeHealth},
};
use super::{
    Acquire, AnyStore, Decide, Deciding, Managing, Op, RuleNames,
    guard::{
        deadline::Deadline,
        deny_cache::{DenyCache, Refusals},
        fallback::{self, Fallback},
        lease::Leasing,
        line::{Line, Lines},
        local::Locals,
    },
    sealed::{Handle, Sealed},
};
use crate::{
    clock::{Clock, SteadyClock},
    decision::{Decision, Receipt},
    error::{ConfigError, Error, ErrorKind},
    name::{Name, is_word},
};

const DEFAULT_PREFIX: &str = "ratelimit";
const DEFAULT_DEADLINE: Duration = Duration::from_millis(50);
const DEFAULT_DENY_CACHE: Duration = Duration::from_secs(1);
const LONGEST_DENY_CACHE: Duration = Duration::from_secs(60);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);
/// How long the kernel tries to get bytes through before it calls the connection dead; unset, a quarter of an hour.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(5);
/// How many leases are given back at once when a store is closed: each is a receipt.
const RETURNED_AT_ONCE: usize = returns::PLACES / 2;
const TCP_KEEPALIVE: Duration = Duration::from_secs(30);

/// Keeps limiters in Redis: one limit for every process on it, Rust or Java.
///
/// The keys and their bytes are those of Redisson's `RRateLimiter` (4.7.0, readable since 3.17.0). One decision is one
/// command, the first for a new key included. Clones share connection and settings.
///
/// # Connection
///
/// One multiplexed connection carries all commands. It is made by the first of them, so a service starts while Redis is
/// down; [`ping`](Self::ping) checks. A lost connection is replaced within a second of Redis being back, and a command
/// whose connection was lost is sent once more with the same ids, which takes nothing twice. TCP_NODELAY and keepalive
/// are on; TCP_USER_TIMEOUT is 5 seconds on Linux, the connect timeout 1 second, the response timeout 500 milliseconds.
/// A request waits at most for the [`deadline`](Self::deadline), 50 milliseconds.
///
/// # Requests that come together
///
/// While a call for some limiters is in flight, other requests for the same ones wait for its reply and then go together, in
/// one call: a busy key costs as few calls as there are round trips, and nobody waits for others to come. See
/// [tuning](crate::docs::tuning).
///
/// # Clock
///
/// The server's by default: no process with a wrong clock can bend a limit.
/// [`client_clock`](Self::client_clock) counts by this process's, as Redisson does.
///
/// # Server
///
/// Redis 6.2 or newer, or Valkey; 7 is best. The README lists the permissions that an ACL user needs.
///
/// # Example
///
/// ```
/// # fn main() -> Result<(), tower_ratelimit::ConfigError> {
/// use tower_ratelimit::{Limit, RateLimitLayer, RedisStore, key::PeerIp};
///
/// let store = RedisStore::open("redis://127.0.0.1/")?.prefix("shop");
/// let layer = RateLimitLayer::new(&store, Limit::per_minute(60).by(PeerIp));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedisStore {
    settings: Settings,
    shared: Arc<Shared>,
}

/// What a store was told. A change makes a new store.
#[derive(Clone)]
struct Settings {
    endpoint: Endpoint,
    prefix: Arc<str>,
    client_id: Option<Arc<str>>,
    clock: Option<Arc<dyn Clock>>,
    deadline: Duration,
    deny_cache: Duration,
    breaker: u32,
    connect_timeout: Duration,
    response_timeout: Duration,
}

#[derive(Clone)]
enum Endpoint {
    Address(redis::Client),
    #[cfg(feature = "cluster")]
    Cluster(Vec<ConnectionInfo>),
    #[cfg(feature = "sentinel")]
    Sentinel(Box<topology::Sentinels>),
    /// The caller's own, with the settings it has
    Ready(Source),
}

impl RedisStore {
    /// A store at an address: `redis://[user:password@]host[:port][/db]`, `rediss://..` or `redis+unix://..`.
    ///
    /// Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Url`] if the address cannot be read.
    pub fn open(address: impl IntoConnectionInfo) -> Result<Self, ConfigError> {
        let info = address
            .into_connection_info()
            .map_err(|error| bad_url(&error))?;
        let info = info.set_tcp_settings(tcp_settings());
        // Fails here, and not at the first request, where the build lacks TLS.
        let client = redis::Client::open(info).map_err(|error| bad_url(&error))?;
        Ok(Self::with_endpoint(Endpoint::Address(client)))
    }

    /// A store on a Redis Cluster. One or more addresses of its nodes; the others are found there.
    ///
    /// A limiter's keys are in one slot, so a decision is still one command, to the master of that slot. A master that is
    /// down or silent costs its own slots and no others, if the Cluster has `cluster-require-full-coverage no`. One whose
    /// *host* is gone, so that connecting to it hangs, holds up the others too until a replica takes over: redis-rs sends
    /// nothing while it tries, for a quarter of [`connect_timeout`](Self::connect_timeout) at a time. While a slot moves to
    /// another master, its limiters meet the failure policy: Redis answers TRYAGAIN to commands of several keys.
    ///
    /// Commands that may run twice are repeated when a connection is lost, five times at most and 1 to 10 milliseconds
    /// apart. [`release`](crate::RateLimiter::release), [`rename`](crate::RateLimiter::rename) and what takes from an
    /// [`Algorithm::FixedWindow`](crate::Algorithm::FixedWindow), by [`Algorithm::Gcra`](crate::Algorithm::Gcra) or in
    /// [slots](crate::RateLimiter::slots) are sent once, over connections of their own that the first of them makes.
    /// [`ping`](Self::ping) asks all masters. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Url`] if there is no address, one cannot be read, or they differ in credentials or TLS.
    #[cfg(feature = "cluster")]
    #[cfg_attr(docsrs, doc(cfg(feature = "cluster")))]
    pub fn open_cluster(
        addresses: impl IntoIterator<Item = impl IntoConnectionInfo>,
    ) -> Result<Self, ConfigError> {
        let nodes = read_addresses(addresses)?;
        topology::Cluster::new(nodes.clone(), CONNECT_TIMEOUT, RESPONSE_TIMEOUT)
            .check()
            .map_err(|error| bad_url(&error))?;
        Ok(Self::with_endpoint(Endpoint::Cluster(nodes)))
    }

    /// A store on the master that sentinels watch over. One or more addresses of sentinels; one that answers suffices.
    ///
    /// `master` is the name under which they know it, `mymaster`, or an address with the name for a host where the master
    /// wants credentials, a database or TLS: `redis://user:password@mymaster/1`. Those in a sentinel's address are for the
    /// sentinel.
    ///
    /// All sentinels are asked, at once, whenever a connection is made: by the first command, and when a connection is lost
    /// or leads to a replica. So a failover needs no restart. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Url`] if there is no address, or one cannot be read.
    #[cfg(feature = "sentinel")]
    #[cfg_attr(docsrs, doc(cfg(feature = "sentinel")))]
    pub fn open_sentinel(
        sentinels: impl IntoIterator<Item = impl IntoConnectionInfo>,
        master: &str,
    ) -> Result<Self, ConfigError> {
        let sentinels = topology::Sentinels::new(read_addresses(sentinels)?, master)
            .map_err(|error| bad_url(&error))?;
        Ok(Self::with_endpoint(Endpoint::Sentinel(Box::new(sentinels))))
    }

    /// A store whose connections come from a pool: one is checked out for all calls, and again when it is lost.
    ///
    /// The pool's own settings apply to it: switch TCP_NODELAY and the timeouts on there. The size of the pool does not
    /// matter here.
    #[must_use]
    pub fn with_pool(pool: Pool) -> Self {
        Self::with_endpoint(Endpoint::Ready(Source::Pool(pool)))
    }

    /// A store on a connection of the caller's, which looks after itself: `redis::aio::ConnectionManager` for example.
    ///
    /// A bare `MultiplexedConnection` never reconnects: after one lost connection every decision would be made by the
    /// failure policy until the process restarts. Use [`open`](Self::open) or [`with_pool`](Self::with_pool) instead.
    #[must_use]
    pub fn with_connection<C>(connection: C) -> Self
    where
        C: ConnectionLike + Clone + Send + Sync + 'static,
    {
        Self::with_endpoint(Endpoint::Ready(Source::Own(Arc::new(connection))))
    }

    /// What the names of limiters that rules make begin with. Default: `ratelimit`.
    ///
    /// Limiters with exact names, [`RateLimiter`](crate::RateLimiter) and
    /// [`Rule::shared`](crate::Rule::shared), are not affected. Characters: `A-Z a-z 0-9 . _ -`; a layer with another
    /// prefix is a [`ConfigError::Prefix`]. Returns a store with a connection of its own.
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.settings.prefix = prefix.into();
        Self::assemble(self.settings)
    }

    /// Which client this is to limits [per client](crate::RateType::PerClient). Default: a random UUID, as in Redisson.
    ///
    /// Returns a store with a connection of its own.
    ///
    /// # Errors
    ///
    /// [`ConfigError::ClientId`] if it has other characters than `A-Z a-z 0-9 . _ -`.
    pub fn client_id(mut self, id: &str) -> Result<Self, ConfigError> {
        if !is_word(id) {
            return Err(ConfigError::ClientId(id.to_owned()));
        }
        self.settings.client_id = Some(id.into());
        Ok(Self::assemble(self.settings))
    }

    /// Counts by a clock of this process instead of the server's, as Redisson does.
    ///
    /// Every process that shares a limit should then run NTP: one that is ahead takes permits early, and makes the
    /// others wait. An [`Algorithm::FixedWindow`](crate::Algorithm::FixedWindow) ends by the server's all the same. Returns a
    /// store with a connection of its own.
    #[must_use]
    pub fn client_clock(mut self, clock: impl Clock) -> Self {
        self.settings.clock = Some(Arc::new(clock));
        Self::assemble(self.settings)
    }

    /// The longest that a decision may take, everything included. Default: 50 milliseconds.
    ///
    /// Then the request meets its [`FailurePolicy`](crate::FailurePolicy), and what the call may have taken is given back.
    /// Returns a store with a connection of its own.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.settings.deadline = deadline;
        Self::assemble(self.settings)
    }

    /// For how long a refusal may be told again without asking Redis. Default: 1 second; zero: not at all.
    ///
    /// A refusal says when there can be room, and stands until then: who asks the same again is told it from memory, with
    /// the wait that is left, and `Source::Cache`. It is dropped when this store grants anything on one of its limiters, gives
    /// back or changes one. What other processes give back or change reaches it when Redis is asked again: this time is
    /// the longest that they wait for that. A key that is refused all the time costs Redis at most two calls in it.
    ///
    /// At most 131 072 refusals are kept. [More](crate::docs::tuning) on when to change it. Returns a store with a
    /// connection of its own.
    ///
    /// # Errors
    ///
    /// [`ConfigError::DenyCache`] if it is longer than a minute.
    ///
    /// # Example
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::RedisStore;
    ///
    /// let store = RedisStore::open("redis://127.0.0.1/")?.deny_cache(Duration::from_secs(10))?;
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    pub fn deny_cache(mut self, longest: Duration) -> Result<Self, ConfigError> {
        if longest > LONGEST_DENY_CACHE {
            return Err(ConfigError::DenyCache(longest));
        }
        self.settings.deny_cache = longest;
        Ok(Self::assemble(self.settings))
    }

    /// The longest that connecting may take. Default: 1 second. Requests do not wait for it longer than their
    /// [`deadline`](Self::deadline).
    ///
    /// Returns a store with a connection of its own.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.settings.connect_timeout = timeout;
        Self::assemble(self.settings)
    }

    /// The longest that one reply may take; a connection that is silent for as long is replaced. Default: 500
    /// milliseconds.
    ///
    /// Returns a store with a connection of its own.
    #[must_use]
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.settings.response_timeout = timeout;
        Self::assemble(self.settings)
    }

    /// Checks that Redis answers.
    ///
    /// # Errors
    ///
    /// Of kind [`Unavailable`](ErrorKind::Unavailable), [`Timeout`](ErrorKind::Timeout) or
    /// [`Rejected`](ErrorKind::Rejected), with Redis' own words as its source.
    ///
    /// # Cancel safety
    ///
    /// Dropping it has no effect.
    pub async fn ping(&self) -> Result<(), Error> {
        let patience = self
            .settings
            .connect_timeout
            .saturating_add(self.settings.response_timeout);
        let server = self.shared.server();
        match crate::clock::within(patience, server.connection.send(&redis::cmd("PING"))).await {
            Some(Ok(_)) => Ok(()),
            Some(Err(failed)) => Err(wire::failure(failed)),
            None => Err(ErrorKind::Timeout.into()),
        }
    }

    /// Gives back what was taken ahead, and waits until everything that was given back has reached Redis: for a graceful
    /// shutdown, after the last request.
    ///
    /// What cannot be sent is kept for a minute at most, so it ends even where Redis is gone; put a shorter timeout around
    /// it where that is too long. The store can be used afterwards.
    ///
    /// # Cancel safety
    ///
    /// Dropping it has no effect: what is queued is sent all the same while the runtime lasts.
    pub async fn close(&self) {
        let (leasing, returns) = (self.shared.leasing(), &self.shared.server().returns);
        // Not more at a time than find a place; those that are taken while it waits are somebody's.
        for _ in 0..leasing.count().div_ceil(RETURNED_AT_ONCE) {
            leasing.end_first(RETURNED_AT_ONCE);
            returns.flush().await;
        }
        returns.flush().await;
    }

    /// How many receipts could not be given back. Each costs its permits for one interval.
    #[must_use]
    pub fn lost_receipts(&self) -> u64 {
        self.shared.server().returns.lost().receipts()
    }

    /// How many extra charges could not be made. Each lets its permits be used twice: see [`Charge`](crate::Charge).
    #[must_use]
    pub fn lost_charges(&self) -> u64 {
        self.shared.server().returns.lost().charges()
    }

    fn with_endpoint(endpoint: Endpoint) -> Self {
        Self::assemble(Settings {
            endpoint,
            prefix: DEFAULT_PREFIX.into(),
            client_id: None,
            clock: None,
            deadline: DEFAULT_DEADLINE,
            deny_cache: DEFAULT_DENY_CACHE,
            breaker: health::DEFAULT_FAILURES,
            connect_timeout: CONNECT_TIMEOUT,
            response_timeout: RESPONSE_TIMEOUT,
        })
    }

    fn assemble(settings: Settings) -> Self {
        let connection = Arc::new(settings.connection());
        let lines = Lines::default();
        let clock = settings.clock.clone();
        let refusals = Arc::new(Refusals::new(settings.deny_cache, clock.clone()));
        let server = Server {
            returns: Returns::new(connection.clone(), lines.clone(), refusals.clone()),
            breakers: settings.breakers(connection.has_nodes()),
            connection,
            client_id: settings
                .client_id
                .clone()
                .map_or_else(OnceLock::new, OnceLock::from),
            clock: clock.clone(),
            rewritten: Rewritten::default(),
            refusals: Arc::clone(&refusals),
        };
        // Who waits for Redis' clock waits by one of this process that never jumps.
        let line_clock = clock.unwrap_or_else(|| Arc::new(SteadyClock::new()));
        let leasing = Leasing::new(
            server,
            settings.clock.clone(),
            Arc::clone(&line_clock),
            lines.clone(),
        );
        let line = Line::new(Arc::new(leasing), Arc::clone(&line_clock), lines);
        let shared = Shared {
            stack: Fallback::new(
                Deadline::new(DenyCache::new(line, refusals), settings.deadline),
                Locals::new(line_clock),
                Arc::new(SteadyClock::new()),
            ),
            prefix: Arc::clone(&settings.prefix),
            rule_names: RuleNames::default(),
        };
        Self {
            settings,
            shared: Arc::new(shared),
        }
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("prefix", &self.settings.prefix)
            .field("deadline", &self.settings.deadline)
            .field("deny_cache", &self.settings.deny_cache)
            .field("connection", &self.shared.server().connection)
            .finish_non_exhaustive()
    }
}

impl Sealed for RedisStore {
    fn handle(&self) -> Handle {
        Handle(self.shared.clone())
    }
}

impl Settings {
    fn connection(&self) -> Connection {
        let config = || {
            AsyncConnectionConfig::new()
                .set_connection_timeout(Some(self.connect_timeout))
                .set_response_timeout(Some(self.response_timeout))
        };
        let source = match &self.endpoint {
            Endpoint::Address(client) => Source::Client(client.clone(), Box::new(config())),
            #[cfg(feature = "cluster")]
            Endpoint::Cluster(nodes) => Source::Cluster(Box::new(topology::Cluster::new(
                nodes.clone(),
                self.connect_timeout,
                self.response_timeout,
            ))),
            #[cfg(feature = "sentinel")]
            Endpoint::Sentinel(sentinels) => {
                Source::Sentinel(sentinels.clone(), Box::new(config()))
            }
            Endpoint::Ready(source) => source.clone(),
        };
        Connection::new(source, self.connect_timeout, self.response_timeout)
    }
}

/// The store with its guards on.
#[derive(Debug)]
struct Shared {
    stack: Fallback<Deadline<DenyCache<Line<Leasing<Server>>>>>,
    prefix: Arc<str>,
    rule_names: RuleNames,
}

impl Shared {
    fn deny_cache(&self) -> &DenyCache<Line<Leasing<Server>>> {
        self.stack.inner().inner()
    }

    fn leasing(&self) -> &Leasing<Server> {
        self.deny_cache().inner().inner()
    }

    fn server(&self) -> &Server {
        self.leasing().inner()
    }
}

impl AnyStore for Shared {
    fn decide_at_once(&self, acquire: &mut Acquire) -> Option<Result<Decision, Error>> {
        // First: it is the shorter look, and no refusal is told while there are permits in hand.
        if let Some(granted) = self.leasing().take(acquire) {
            self.stack.saw(acquire, &granted);
            return Some(Ok(granted));
        }
        if let Some(refusal) = self.deny_cache().known(acquire) {
            return Some(Ok(Decision::Deny(refusal)));
        }
        if let Some(error) = self.server().breakers.refuses(acquire) {
            return Some(self.stack.unasked(acquire, error));
        }
        match random_id() {
            Ok(id) => {
                acquire.identify(id);
                None
            }
            // Without entropy nothing can be sent; the policy decides, as for any other failure.
            Err(error) => Some(fallback::settle(acquire, Err(error))),
        }
    }

    fn acquire(self: Arc<Self>, acquire: Acquire) -> Deciding {
        Deciding::Pending(Box::pin(async move { self.stack.acquire(&acquire).await }))
    }

    fn manage(self: Arc<Self>, name: Name, op: Op) -> Managing {
        Box::pin(async move { self.stack.manage(&name, &op).await })
    }

    fn give_back(&self, receipt: Receipt, keep: u32) {
        self.stack.give_back(receipt, keep);
    }

    fn has_slots(&self) -> bool {
        self.server().connection.has_nodes()
    }

    fn prefix(&self) -> &str {
        &self.prefix
    }

    fn rule_names(&self) -> &RuleNames {
        &self.rule_names
    }
}

fn tcp_settings() -> TcpSettings {
    let keepalive = redis::io::tcp::socket2::TcpKeepalive::new().with_time(TCP_KEEPALIVE);
    let settings = TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(keepalive);
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(TCP_USER_TIMEOUT);
    settings
}

#[cfg(any(feature = "cluster", feature = "sentinel"))]
fn read_addresses(
    addresses: impl IntoIterator<Item = impl IntoConnectionInfo>,
) -> Result<Vec<ConnectionInfo>, ConfigError> {
    addresses
        .into_iter()
        .map(|address| {
            let info = address.into_connection_info();
            info.map(|info| info.set_tcp_settings(tcp_settings()))
                .map_err(|error| bad_url(&error))
        })
        .collect()
}

fn bad_url(error: &redis::RedisError) -> ConfigError {
    // The category and not the whole error: that may repeat a password.
    ConfigError::Url(error.category().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_address_is_an_error_without_its_password() {
        let error = RedisStore::open("http://user:secret@localhost").unwrap_err();
        assert!(matches!(error, ConfigError::Url(_)));
        assert!(!error.to_string().contains("secret"));
        let store = RedisStore::open("redis://user:secret@localhost").unwrap();
        assert!(!format!("{store:?}").contains("secret"));
        assert_eq!(
            store.client_id("a b").unwrap_err(),
            ConfigError::ClientId("a b".to_owned())
        );
    }
}
