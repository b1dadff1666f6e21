//! The verbs for the limit of a limiter: set, change and read it.

use super::{RateLimiter, in_code, mismatch};
use crate::{
    store::{Op, OpResult},
    values::{
        error::{Error, ErrorKind},
        limit::{Limit, StoredLimit},
    },
};

impl RateLimiter {
    /// Sets the limit if none is set. Returns whether it did.
    ///
    /// If the connection is lost on the way, the call is sent once more. It then finds the limit
    /// that it has set itself, and returns `false`.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`Limit`](ErrorKind::Limit) if it or the limiter's own is
    /// [in the code](crate::Keyed), and the errors of a store that cannot be called.
    ///
    /// # Cancel safety
    ///
    /// Dropping it may leave the limit set or not.
    pub async fn try_set_rate(&self, limit: Limit) -> Result<bool, Error> {
        let limit = Self::settable(limit)?;
        self.manage_changed(Op::TrySetRate(limit)).await
    }

    /// Sets the limit in place of any other, and makes all of its permits free. Redisson:
    /// `setRate`.
    ///
    /// Without a keep-alive time the limiter stays until it is deleted, even if it had an expiry
    /// before.
    ///
    /// # Errors
    ///
    /// As [`try_set_rate`](Self::try_set_rate).
    ///
    /// # Cancel safety
    ///
    /// Dropping it may leave the limit set or not.
    pub async fn set_rate(&self, limit: Limit) -> Result<(), Error> {
        self.change(limit, false, false).await.map(drop)
    }

    /// Sets the limit in place of any other, and keeps the permits in use. Redisson: `setRate` with
    /// `keepState(true)`.
    ///
    /// A lower limit holds at once, as with [`update_rate`](Self::update_rate). A limit of another
    /// [rate type](Limit::per_client) starts with all permits free, because it is counted under
    /// other keys.
    ///
    /// # Errors
    ///
    /// As [`try_set_rate`](Self::try_set_rate).
    ///
    /// # Cancel safety
    ///
    /// Dropping it may leave the limit set or not.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Limit, MemoryStore, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let orders = RateLimiter::new(&MemoryStore::new(), "orders")?;
    /// // At every start of a service: what is in use by then stays in use.
    /// orders.set_or_update_rate(Limit::per_minute(20)).await?;
    /// assert!(orders.try_acquire_many(3).await?.is_allowed());
    /// orders.set_or_update_rate(Limit::per_minute(20)).await?;
    /// assert_eq!(orders.available_permits().await?, 17);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn set_or_update_rate(&self, limit: Limit) -> Result<(), Error> {
        self.change(limit, true, false).await.map(drop)
    }

    /// Changes the limit that is set, and keeps the permits in use. Returns whether there was
    /// a limit to change. Redisson: `updateRate` with `keepState(true)`.
    ///
    /// A lower limit holds at once: if more is in use than it allows, no caller is admitted until
    /// that has expired. (Redisson forgets the excess, so that under load a lower limit never takes
    /// effect.)
    ///
    /// # Errors
    ///
    /// As [`try_set_rate`](Self::try_set_rate).
    ///
    /// # Cancel safety
    ///
    /// Dropping it may leave the limit changed or not.
    pub async fn update_rate(&self, limit: Limit) -> Result<bool, Error> {
        self.change(limit, true, true).await
    }

    /// Changes the limit that is set, and makes all of its permits free. Returns whether there was
    /// a limit to change. Redisson: `updateRate`.
    ///
    /// # Errors
    ///
    /// As [`try_set_rate`](Self::try_set_rate).
    ///
    /// # Cancel safety
    ///
    /// Dropping it may leave the limit changed or not.
    pub async fn reset_rate(&self, limit: Limit) -> Result<bool, Error> {
        self.change(limit, false, true).await
    }

    /// Returns the limit that is set, if there is one. Redisson: `getConfig`.
    ///
    /// If it is [in the code](crate::Keyed), that one, with the time for which an unused limiter
    /// is kept.
    ///
    /// # Errors
    ///
    /// Returns the errors of a store that cannot be called, of kind
    /// [`ForeignState`](ErrorKind::ForeignState) if what is stored is not a limit (Java also stores
    /// rates of zero), and of kind [`Limit`](ErrorKind::Limit) if [no store
    /// has one](Self::of_rule).
    ///
    /// # Cancel safety
    ///
    /// Dropping it has no effect.
    pub async fn limit(&self) -> Result<Option<Limit>, Error> {
        if let Some(limit) = self.code_limit() {
            return Ok(Some(*limit));
        }
        match self.manage(Op::Inspect).await? {
            OpResult::Limit(None) => Ok(None),
            OpResult::Limit(Some(stored)) => stored.limit().map(Some).ok_or_else(|| {
                let what = format!("rate {} in {} ms", stored.rate, stored.interval);
                Error::new(ErrorKind::ForeignState).detail(what)
            }),
            _ => Err(mismatch()),
        }
    }

    /// Returns a limit as a store has it, if it can have it.
    fn settable(limit: Limit) -> Result<StoredLimit, Error> {
        if limit.calendar().is_some() || limit.is_in_flight() || limit.is_several() {
            return Err(in_code());
        }
        Ok(limit.stored())
    }

    async fn change(&self, limit: Limit, keep: bool, existing: bool) -> Result<bool, Error> {
        let limit = Self::settable(limit)?;
        self.manage_changed(Op::SetRate {
            limit,
            keep,
            existing,
        })
        .await
    }
}
