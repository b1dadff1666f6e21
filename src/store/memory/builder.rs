//! The settings of a store in memory: [`MemoryStoreBuilder`].

use std::sync::Arc;

use super::{
    MemoryStore,
    shared::{MOST_LIMITERS, Shared},
};
#[cfg(feature = "test-util")]
use crate::store::failing;
#[cfg(any(test, feature = "test-util"))]
use crate::values::clock::ManualClock;
#[cfg(feature = "test-util")]
use crate::values::error::ErrorKind;
use crate::{
    store::{About, stack},
    values::{
        clock::{Clock, SteadyClock},
        observe::{Observer, Observers},
    },
};

/// The settings of a [`MemoryStore`], from [`MemoryStore::builder`].
#[derive(Clone, Debug)]
pub struct MemoryStoreBuilder {
    max_limiters: usize,
    /// The system's, steadied, if there is none.
    clock: Option<Arc<dyn Clock>>,
    observers: Observers,
    prefers_redisson: Option<bool>,
    prefix: &'static str,
    /// Set if every call fails.
    #[cfg(feature = "test-util")]
    failing: Option<ErrorKind>,
}

impl MemoryStoreBuilder {
    pub(super) fn new() -> Self {
        Self {
            max_limiters: MOST_LIMITERS,
            clock: None,
            observers: Observers::default(),
            prefers_redisson: Some(false),
            prefix: "memory",
            #[cfg(feature = "test-util")]
            failing: None,
        }
    }

    /// Sets the maximum number of limiters. Default: 100 000. At least 1. Beyond it, limiters are
    /// counted [by an estimate](MemoryStore#bounds).
    #[must_use]
    pub fn max_limiters(mut self, max: usize) -> Self {
        self.max_limiters = max.max(1);
        self
    }

    /// Sets the clock that it counts by. Default: the system's, steadied.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }

    /// Has what a [`RedisStore`](crate::RedisStore) has that was built with
    /// [`redisson`](crate::RedisStoreBuilder::redisson): rules may set what only Redisson's format
    /// has. Default: as any other store in Redis.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Limit, MemoryStore, RateLimitLayer, Rule, key::PeerIp};
    ///
    /// let store = MemoryStore::builder().redisson().build();
    /// let feed = Rule::new("feed", Limit::per_minute(100_000), PeerIp).slots(1000);
    /// let layer = RateLimitLayer::builder(&store).otherwise(feed).build()?;
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    #[must_use]
    pub fn redisson(mut self) -> Self {
        self.prefers_redisson = Some(true);
        self
    }

    /// Lets each rule have the format that it can have: for rules of a file, whose store is not
    /// known.
    #[cfg(feature = "config")]
    pub(crate) fn in_any_format(mut self) -> Self {
        self.prefers_redisson = None;
        self
    }

    /// Sets the prefix of rules' names, so that they are those of another store.
    #[cfg(feature = "_meter")]
    #[doc(hidden)]
    #[must_use]
    pub fn prefix(mut self, prefix: &'static str) -> Self {
        self.prefix = prefix;
        self
    }

    /// Adds an observer, which receives all decisions and changes of the store. Default: none.
    ///
    /// # Example
    ///
    /// See [`Observer`].
    #[must_use]
    pub fn observe(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observers = self.observers.and(observer);
        self
    }

    /// Makes every call fail like this, as those of a `RedisStore` whose server does, for tests of
    /// outages.
    ///
    /// So rules answer by their [`FailurePolicy`], by default by this process's share of the limit,
    /// and a [`RateLimiter`](crate::RateLimiter) returns the error.
    ///
    /// # Example
    ///
    /// ```
    /// # use http::{Request, Response};
    /// # use http_body_util::Full;
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// use tower_ratelimit::{
    ///     ErrorKind, FailurePolicy, Limit, MemoryStore, RateLimitLayer, key::Constant,
    /// };
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let handler = service_fn(async |_: Request<()>| {
    /// #     Ok::<_, std::convert::Infallible>(Response::new(Full::new(bytes::Bytes::new())))
    /// # });
    /// let store = MemoryStore::builder().failing(ErrorKind::Timeout).build();
    /// let login = Limit::per_minute(5).by(Constant("all")).named("login");
    /// let layer = RateLimitLayer::new(&store, login.on_failure(FailurePolicy::Deny));
    /// let response = layer.layer(handler).oneshot(Request::new(())).await?;
    /// assert_eq!(response.status(), 503);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`FailurePolicy`]: crate::FailurePolicy
    #[cfg(feature = "test-util")]
    #[must_use]
    pub fn failing(mut self, kind: ErrorKind) -> Self {
        self.failing = Some(kind);
        self
    }

    /// Builds the store, which is empty.
    #[must_use]
    pub fn build(self) -> MemoryStore {
        let clock = self.clock.unwrap_or_else(|| Arc::new(SteadyClock::new()));
        let about = || About {
            prefix: self.prefix.into(),
            observers: self.observers.clone(),
            prefers_redisson: self.prefers_redisson,
            ..About::default()
        };
        let (shared, stack) = stack::memory(Arc::clone(&clock), about(), |listeners| {
            Shared::new(self.max_limiters, Arc::clone(&clock), listeners)
        });
        #[cfg(feature = "test-util")]
        let stack = match self.failing {
            Some(kind) => failing::failing(kind, clock, about()),
            None => stack,
        };
        MemoryStore { shared, stack }
    }

    /// Builds the store on a clock that stands still until it is moved, and returns both.
    ///
    /// A test need not sleep, and waits are exact: a limit of sixty a minute is tested in no time.
    ///
    /// # Example
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{Limit, MemoryStore, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (store, clock) = MemoryStore::builder().build_manual();
    /// let mails = RateLimiter::new(&store, "mails")?;
    /// mails.try_set_rate(Limit::per_minute(1)).await?;
    ///
    /// mails.try_acquire().await?.assert_allowed();
    /// mails.try_acquire().await?.assert_retry_after(Duration::from_secs(60));
    /// clock.advance(Duration::from_secs(60));
    /// mails.try_acquire().await?.assert_allowed();
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(any(test, feature = "test-util"))]
    #[must_use]
    pub fn build_manual(self) -> (MemoryStore, ManualClock) {
        let clock = ManualClock::new();
        (self.clock(clock.clone()).build(), clock)
    }
}
