//! The settings of a [`RedisStore`], and their checks.

use std::{fmt, sync::Arc, time::Duration};

#[cfg(feature = "tls")]
use redis::{ClientTlsConfig, TlsCertificates};

use super::{
    header::Header,
    store::{RedisSettings, RedisStore},
    transport::source::ConnectionSource,
};
use crate::{
    sinks::summary::Summary,
    store::guard::outbox::breaker::MOST_FAILURES,
    values::{
        clock::{Clock, LATEST_MILLIS},
        error::{ConfigError, bail},
        name::check_word,
        observe::{Observer, Observers},
    },
};

const DEFAULT_PREFIX: &str = "ratelimit";
const SUMMARY_EVERY: Duration = Duration::from_secs(60);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);
const DEFAULT_DEADLINE: Duration = Duration::from_millis(50);
/// One failure is chance, and each costs a request its deadline. A short pause of the server causes
/// as many at once, whatever the number, and then the first pause of the breaker is short.
const DEFAULT_BREAKER: u32 = 5;
const DEFAULT_DENY_CACHE: Duration = Duration::from_secs(1);
const LONGEST_DENY_CACHE: Duration = Duration::from_secs(60);

/// Builds a [`RedisStore`]: where Redis is, then settings, then [`build`](Self::build).
///
/// [`RedisStore::builder`], [`cluster`](RedisStore::cluster), [`sentinel`](RedisStore::sentinel),
/// [`pool`](RedisStore::pool) and [`connection`](RedisStore::connection) create one. Only `build`
/// returns errors, also for a wrong address. Two stores built from clones of a builder share no
/// connection: to share one, clone the store.
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::RedisStore;
///
/// let store = RedisStore::builder("redis://127.0.0.1/")
///     .prefix("shop")
///     .deadline(Duration::from_millis(20))
///     .build()?;
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
#[derive(Clone)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct RedisStoreBuilder {
    source: Result<ConnectionSource, ConfigError>,
    settings: RedisSettings,
}

impl RedisStoreBuilder {
    pub(super) fn new(source: Result<ConnectionSource, ConfigError>) -> Self {
        Self {
            source,
            settings: RedisSettings {
                prefix: DEFAULT_PREFIX.into(),
                prefers_redisson: false,
                client_id: None,
                clock: None,
                deadline: DEFAULT_DEADLINE,
                deny_cache: DEFAULT_DENY_CACHE,
                breaker: DEFAULT_BREAKER,
                observers: Observers::default(),
                summary: Some(SUMMARY_EVERY),
                script_header: None,
                connect_timeout: CONNECT_TIMEOUT,
                response_timeout: RESPONSE_TIMEOUT,
                #[cfg(feature = "tls")]
                certificates: None,
            },
        }
    }

    /// Sets the prefix of the names of limiters that rules create. Default: `ratelimit`.
    ///
    /// Limiters with exact names, [`RateLimiter`](crate::RateLimiter) and
    /// [`Rule::shared`](crate::Rule::shared), are not affected. Characters: `A-Z a-z 0-9 . _ -`, at
    /// least one.
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.settings.prefix = prefix.into();
        self
    }

    /// Keeps the limiters of all rules, and of each [`Keyed`](crate::Keyed), in Redisson's format,
    /// under the names of [keys](crate::docs::keys). Default: in our own, one small string each.
    ///
    /// Use it where Java reads the limiters of rules by their names, as in
    /// `redisson.getRateLimiter("ratelimit:{ann}:default")`. A single limit that Java shares needs
    /// no such store: [`Rule::shared`](crate::Rule::shared) and [`RateLimiter`](crate::RateLimiter)
    /// are in Redisson's format in any store.
    ///
    /// It costs two to three times the memory and processor time of Redis. Limits by GCRA and by
    /// the calendar stay in our own format, as Java knows none. What only Redisson's format has is
    /// allowed then, and else a `ConfigError`: [`Rule::slots`](crate::Rule::slots),
    /// [`Limit::keep_alive`](crate::Limit::keep_alive) and
    /// [`Limit::per_client`](crate::Limit::per_client).
    ///
    /// All services that share a limit must choose the same: a limiter has one state in each
    /// format.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::RedisStore;
    ///
    /// let store = RedisStore::builder("redis://127.0.0.1/").redisson().build()?;
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    pub fn redisson(mut self) -> Self {
        self.settings.prefers_redisson = true;
        self
    }

    /// Sets the id of this client, for limits [per client](crate::Limit::per_client). Default: a
    /// random UUID, as in Redisson.
    ///
    /// Characters: `A-Z a-z 0-9 . _ -`, at least one.
    pub fn client_id(mut self, id: &str) -> Self {
        self.settings.client_id = Some(id.into());
        self
    }

    /// Counts by a clock of this process instead of the server's, as Redisson does.
    ///
    /// Every process that shares a limit should then run NTP: a process whose clock is ahead takes
    /// permits early, and makes the others wait. An
    /// [`Algorithm::FixedWindow`](crate::Algorithm::FixedWindow) still ends by the server's clock.
    /// Limits are counted by this clock until May 2109; after that it counts as standing still.
    pub fn client_clock(mut self, clock: impl Clock) -> Self {
        self.settings.clock = Some(Arc::new(clock));
        self
    }

    /// Sets the longest time that a decision may take, not counting
    /// [`Rule::wait`](crate::Rule::wait). Default: 50 milliseconds.
    ///
    /// After that the request meets its [`FailurePolicy`](crate::FailurePolicy), and the permits
    /// that the call may have taken are released. If
    /// [`FailurePolicy::Local`](crate::FailurePolicy::Local) admits the request, they stay charged.
    ///
    /// Choose at least three times the round trip to Redis. A server whose answers take longer than
    /// the way to it and half of what that leaves of the deadline counts as overloaded, and
    /// [few requests](crate::docs::tuning#concurrent-requests-share-a-call) are sent to it at once.
    /// So does one whose answers take two thirds of the deadline, way and all.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.settings.deadline = deadline;
        self
    }

    /// Sets for how long a refusal may be repeated without a call to Redis. Default: 1 second;
    /// zero: not at all; at most a minute.
    ///
    /// A refusal says when there can be room, and is valid until then: the same request is refused
    /// from memory, with the remaining wait and `Source::Cache`. A refusal is dropped when this
    /// store grants or releases permits of one of its limiters, or changes one. If another process
    /// does, the next call to Redis notices it: this time is the longest delay. A key that is
    /// always refused costs Redis at most two calls in this time.
    ///
    /// At most 131 072 refusals are kept. [Tuning](crate::docs::tuning) says when to change it.
    ///
    /// # Example
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::RedisStore;
    ///
    /// let store = RedisStore::builder("redis://127.0.0.1/")
    ///     .deny_cache(Duration::from_secs(10))
    ///     .build()?;
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    pub fn deny_cache(mut self, longest: Duration) -> Self {
        self.settings.deny_cache = longest;
        self
    }

    /// Sets how many failures, among the last twice as many calls, open the breaker. Default: 5;
    /// zero: never; at most 32.
    ///
    /// A call fails if it is given up at the [`deadline`](Self::deadline) while nothing at all
    /// arrives from the server, or if the server answers that it is loading, busy or in a Cluster
    /// that is down. A burst on a server that answers others is no failure. While the breaker is
    /// open, requests meet their [`FailurePolicy`](crate::FailurePolicy) at once, and a
    /// [`RateLimiter`](crate::RateLimiter) returns [`Unavailable`](crate::ErrorKind::Unavailable),
    /// also to callers that wait for permits. After 50 to 100 milliseconds one call is let
    /// through. If it is answered, the breaker closes; if not, the next call is let through after
    /// twice the time, up to a second. See [failure](crate::docs::failure).
    ///
    /// Fewer failures open it sooner, also in a pause of Redis that would have been over soon. If
    /// requests come one at a time, that many of them wait for the whole deadline before it opens.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::RedisStore;
    ///
    /// let store = RedisStore::builder("redis://127.0.0.1/").breaker(10).build()?;
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    pub fn breaker(mut self, failures: u32) -> Self {
        self.settings.breaker = failures;
        self
    }

    /// Adds an observer, which receives all decisions of the store, its calls to Redis and its
    /// changes. Default: none. They are called in the order in which they were added.
    pub fn observe(mut self, observer: Arc<dyn Observer>) -> Self {
        self.settings.observers = self.settings.observers.and(observer);
        self
    }

    /// Sets how often a line of level INFO in the log says which rules refused how many requests,
    /// and how the calls to Redis went. Default: once a minute; `None`: never. There is none while
    /// nothing is refused, not even by a shadow rule, and no call fails.
    ///
    /// `rate limits, last 60 s: login 37 refused of 412 (3 callers), api 0 refused of 9120; store
    /// p99 0.6 ms`. The number of callers is an estimate, and exact for a few.
    pub fn summary(mut self, every: impl Into<Option<Duration>>) -> Self {
        self.settings.summary = every.into();
        self
    }

    /// Puts a line in front of each script that decides for a limiter or changes one, for servers
    /// that read from it how to run a script. Default: none, which is right for Redis and Valkey.
    ///
    /// Upstash takes a lock on the whole database for a script, unless its first line is
    /// `#!lua flags=allow-key-locking`: then calls for different keys run at the same time. Redis
    /// refuses this flag.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::RedisStore;
    ///
    /// let store = RedisStore::builder("redis://default:secret@shop.upstash.example:6379/")
    ///     .script_header("#!lua flags=allow-key-locking")
    ///     .build()?;
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    pub fn script_header(mut self, line: &str) -> Self {
        self.settings.script_header = Some(line.into());
        self
    }

    /// Sets the longest time that connecting may take. Default: 1 second. Requests wait for it no
    /// longer than their [`deadline`](Self::deadline).
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.settings.connect_timeout = timeout;
        self
    }

    /// Sets the longest time that one reply may take; a connection that is silent for as long is
    /// replaced. Default: 500 milliseconds.
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.settings.response_timeout = timeout;
        self
    }

    /// Sets the authorities that must have issued Redis' certificate, in PEM. Default: those that
    /// the machine trusts, read for each connection (`SSL_CERT_FILE` names other ones).
    ///
    /// Redis' certificate must have the name or the IP address in the store's address. If either
    /// side refuses the other's certificate, that is an error of kind
    /// [`Tls`](crate::ErrorKind::Tls) and meets the failure policy. A certificate that is renewed
    /// in Redis counts from the next connection on.
    ///
    /// The cryptography is what the process has chosen for rustls
    /// (`CryptoProvider::install_default`), or ring's if it has chosen none when the first
    /// connection is opened.
    ///
    /// # Example
    ///
    /// ```no_run
    /// use std::fs::read;
    /// use tower_ratelimit::RedisStore;
    ///
    /// let store = RedisStore::builder("rediss://redis.internal:6380/")
    ///     .authorities(read("ca.pem")?)
    ///     .client(read("service.pem")?, read("service.key")?)
    ///     .build()?;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "tls")]
    pub fn authorities(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificates().root_cert = Some(pem.into());
        self
    }

    /// Sets the certificate that this process presents if Redis requires one (mutual TLS), with
    /// those of its issuers behind it, and its private key; both in PEM. Default: none. A renewed
    /// one needs a new store.
    #[cfg(feature = "tls")]
    pub fn client(mut self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.certificates().client_tls = Some(ClientTlsConfig {
            client_cert: certificate.into(),
            client_key: key.into(),
        });
        self
    }

    #[cfg(feature = "tls")]
    fn certificates(&mut self) -> &mut TlsCertificates {
        self.settings.certificates.get_or_insert(TlsCertificates {
            root_cert: None,
            client_tls: None,
        })
    }

    /// Builds the store. Nothing is sent yet; [`RedisStore::ping`] checks that Redis answers.
    ///
    /// # Errors
    ///
    /// The first of these:
    ///
    /// - an address cannot be parsed or used, or there is none;
    /// - a certificate cannot be parsed, the key is not the certificate's, no address begins with
    ///   `rediss://`, or the store is on a pool or connection of the caller's, which has its own;
    /// - the prefix or the client id is empty or has other characters than `A-Z a-z 0-9 . _ -`: an
    ///   error of kind [`Name`](crate::ConfigErrorKind::Name), and all others are of kind
    ///   [`Store`](crate::ConfigErrorKind::Store);
    /// - the `client_clock` shows a time after May 2109, which is too late for limits in Redis;
    /// - the deny cache is longer than a minute;
    /// - the header of scripts is not one line that begins with `#!` or `--`;
    /// - the breaker opens after more than 32 failures.
    pub fn build(self) -> Result<RedisStore, ConfigError> {
        let Self {
            source,
            mut settings,
        } = self;
        let source = source?;
        #[cfg(feature = "tls")]
        if let Some(certificates) = &settings.certificates {
            source.check(certificates)?;
        }
        check_word("a prefix", &settings.prefix)?;
        if let Some(id) = settings.client_id.as_deref() {
            check_word("a client id", id)?;
        }
        if let Some(now) = settings.clock.as_ref().map(|clock| clock.now())
            && now > Duration::from_millis(LATEST_MILLIS)
        {
            bail!(Store: "a client clock shows less than 2^42 ms since 1970, in May 2109, not {now:?}");
        }
        if settings.deny_cache > LONGEST_DENY_CACHE {
            bail!(Store: "a deny cache keeps refusals for a minute at most, not for {:?}",
                settings.deny_cache);
        }
        if settings.breaker > MOST_FAILURES {
            bail!(Store: "a breaker opens after 32 failures at most, not after {}: 0 switches it \
                off", settings.breaker);
        }
        if let Some(every) = settings.summary {
            settings.observers = settings.observers.and(Arc::new(Summary::new(every)));
        }
        let header = settings.script_header.as_deref().map(Header::new);
        let header = header.transpose()?;
        Ok(RedisStore::assemble(source, settings, header))
    }
}

impl fmt::Debug for RedisStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.source.as_ref().map(|source| &source.shown);
        f.debug_struct("RedisStoreBuilder")
            .field("address", &address)
            .field("prefix", &self.settings.prefix)
            .field("deadline", &self.settings.deadline)
            .field("deny_cache", &self.settings.deny_cache)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_any_text() {
        let address = String::from("redis://localhost");
        assert!(RedisStore::open(&address).is_ok());
        assert!(RedisStore::open(address.as_str()).is_ok());
        #[cfg(feature = "cluster")]
        assert!(RedisStore::cluster([&address]).build().is_ok());
        assert!(RedisStore::open(address).is_ok());
    }

    #[test]
    fn the_last_setting_of_a_kind_counts() {
        let store = RedisStore::builder("redis://localhost")
            .prefix("a b")
            .prefix("shop")
            .breaker(99)
            .breaker(1);
        assert!(store.clone().build().is_ok());
        assert!(store.prefix("").build().is_err());
    }

    #[test]
    fn clones_of_a_store_share_everything_and_builders_nothing() {
        let builder = RedisStore::builder("redis://localhost");
        let store = builder.clone().build().unwrap();
        assert!(Arc::ptr_eq(&store.shared, &store.clone().shared));
        let other = builder.build().unwrap();
        assert!(!Arc::ptr_eq(&store.shared, &other.shared));
    }
}
