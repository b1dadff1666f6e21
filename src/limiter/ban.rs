//! Bans and unbans the caller of a limiter by hand.

use std::time::{Duration, SystemTime};

use super::{RateLimiter, mismatch};
use crate::{
    store::{Op, OpResult},
    values::{error::Error, limit::LONGEST},
};

impl RateLimiter {
    /// Bans the caller of this limiter for `time` from now, whatever ban it has.
    ///
    /// The ban holds for [rules](crate::Rule::ban) and [limits](crate::RateLimiterBuilder::ban)
    /// that ban callers, in all processes: those that know of no earlier ban learn of it with their
    /// next call. A limiter by its exact name bans no caller itself, and neither does Java. It does
    /// not count as one of the bans by which later ones double.
    /// [`RateLimitLayer::limiter`](crate::RateLimitLayer::limiter) finds the limiter of a caller.
    ///
    /// Unit: milliseconds, rounded up, at least one and at most a century.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`ForeignState`](crate::ErrorKind::ForeignState) if something else
    /// is stored under the name of a limiter in our own format, and the errors of a store that
    /// cannot be called.
    ///
    /// # Cancel safety
    ///
    /// Dropping it may leave the caller banned or not.
    ///
    /// # Example
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    ///
    /// use tower_ratelimit::{MemoryStore, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let scraper = RateLimiter::of_rule(&MemoryStore::new(), "memory:{192.0.2.7}:api")?;
    /// scraper.ban_for(Duration::from_secs(3600)).await?;
    /// assert!(scraper.banned_until().await? > Some(SystemTime::now()));
    /// assert!(scraper.unban().await?);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn ban_for(&self, time: Duration) -> Result<(), Error> {
        let millis = time.as_micros().div_ceil(1000);
        let millis = u64::try_from(millis).unwrap_or(LONGEST).clamp(1, LONGEST);
        self.manage_changed(Op::Ban(millis)).await.map(drop)
    }

    /// Ends a ban, and forgets earlier bans and refusals. Returns whether there was a ban.
    ///
    /// Other processes repeat a ban that they know for at most as long as their
    /// [deny cache](crate::RedisStoreBuilder::deny_cache) repeats a refusal. Sent once more after a
    /// lost connection, it may return `false` for its own change.
    ///
    /// # Errors
    ///
    /// Returns the errors of a store that cannot be called.
    ///
    /// # Cancel safety
    ///
    /// Dropping it may leave it done or not.
    ///
    /// # Example
    ///
    /// See [`ban_for`](Self::ban_for).
    pub async fn unban(&self) -> Result<bool, Error> {
        self.manage_changed(Op::Unban).await
    }

    /// Returns until when the caller is banned, by the store's clock to the millisecond; `None` if
    /// it is not.
    ///
    /// # Errors
    ///
    /// Returns the errors of a store that cannot be called.
    ///
    /// # Cancel safety
    ///
    /// Dropping it has no effect.
    ///
    /// # Example
    ///
    /// See [`ban_for`](Self::ban_for).
    pub async fn banned_until(&self) -> Result<Option<SystemTime>, Error> {
        match self.manage(Op::BannedUntil).await? {
            OpResult::Number(0) => Ok(None),
            OpResult::Number(millis) => {
                let since_epoch = Duration::from_millis(u64::try_from(millis).unwrap_or(0));
                Ok(SystemTime::UNIX_EPOCH.checked_add(since_epoch))
            }
            _ => Err(mismatch()),
        }
    }
}
