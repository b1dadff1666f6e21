//! Limiters in Redis, in the state of Redisson's `RRateLimiter`: shared by every process, Rust or Java.

mod classify;
mod connection;
mod diagnose;
mod endpoint;
#[cfg(test)]
mod fuzz;
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
mod source;
#[cfg(feature = "tls")]
mod tls;
#[cfg(any(feature = "cluster", feature = "sentinel"))]
mod topology;
mod verify;
pub(crate) mod wire;
mod words;

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use self::{
    connection::Connection,
    endpoint::Endpoint,
    returns::Returns,
    rewritten::Rewritten,
    server::{Server, random_id},
};
pub use self::{
    diagnose::{Diagnosis, Finding, OtherClient, RedissonReleases},
    health::{BreakerState, ConnectionState, Health, NodeHealth},
    verify::{ServerFinding, Severity, Verification, VerifiedServer},
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
    clock::{self, Clock, SteadyClock, moment},
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
/// How many leases are given back at once when a store is closed: each is a receipt.
const RETURNED_AT_ONCE: usize = returns::PLACES / 2;

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
/// Redis 6.2 or newer, or Valkey; 7 or newer is better. The README lists the permissions that an ACL user needs.
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

impl RedisStore {
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
        clock::check_timer()?;
        match clock::within(patience, server.connection.send(&redis::cmd("PING"))).await {
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
        let (connecting, response) = (self.connect_timeout, self.response_timeout);
        let source = self.endpoint.source(connecting, response);
        Connection::new(source, connecting, response)
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

    fn acquire(self: Arc<Self>, mut acquire: Acquire) -> Deciding {
        acquire.asked = Some(moment());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_id_is_a_word() {
        let store = RedisStore::open("redis://localhost").unwrap();
        assert_eq!(
            store.client_id("a b").unwrap_err(),
            ConfigError::ClientId("a b".to_owned())
        );
    }
}
