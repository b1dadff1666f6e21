//! The verbs for the life of a limiter: expiry, deletion and renaming.

use std::time::Duration;

use super::{RateLimiter, mismatch};
use crate::{
    store::{ExpireWhen, Op, OpResult, TimeToLive},
    values::{
        compiled_limit::{CompiledLimit, Limiter},
        error::{Error, ErrorKind},
        limit::LimitSource,
        name::Name,
    },
};

impl RateLimiter {
    /// Returns whether the limiter exists. Redisson: `isExists`.
    ///
    /// In our own format, a state that an earlier limit of the calendar left counts, too.
    ///
    /// # Errors
    ///
    /// Returns the errors of a store that cannot be called.
    ///
    /// # Cancel safety
    ///
    /// Dropping it has no effect.
    pub async fn exists(&self) -> Result<bool, Error> {
        Ok(self.time_to_live().await? != TimeToLive::Missing)
    }

    /// Returns when the limiter expires. Redisson: `remainTimeToLive`.
    ///
    /// # Errors
    ///
    /// Returns the errors of a store that cannot be called.
    ///
    /// # Cancel safety
    ///
    /// Dropping it has no effect.
    pub async fn time_to_live(&self) -> Result<TimeToLive, Error> {
        match self.manage(Op::TimeToLive).await? {
            OpResult::TimeToLive(left) => Ok(left),
            _ => Err(mismatch()),
        }
    }

    /// Lets the limiter expire after `time`, in whole milliseconds. Returns whether it exists.
    /// Redisson: `expire`.
    ///
    /// With a keep-alive time, the next acquire that takes something replaces it by that; in Redis,
    /// only if `time` is longer than that, or less than half of it is left.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`Limit`](ErrorKind::Limit) if the limit is
    /// [in the code](crate::Keyed), where it expires by itself, and the errors of a store that
    /// cannot be called.
    ///
    /// # Cancel safety
    ///
    /// Dropping it may leave it done or not.
    pub async fn expire(&self, time: Duration) -> Result<bool, Error> {
        self.expire_when(time, ExpireWhen::Always).await
    }

    /// Lets the limiter expire after `time` if `when` applies. Returns whether it did.
    ///
    /// Sent once more after a lost connection, it may return `false` for its own change.
    ///
    /// # Errors
    ///
    /// As [`expire`](Self::expire).
    ///
    /// # Cancel safety
    ///
    /// Dropping it may leave it done or not.
    pub async fn expire_when(&self, time: Duration, when: ExpireWhen) -> Result<bool, Error> {
        // The longest time that Redis can add to the present one.
        let millis = u64::try_from(time.as_millis())
            .unwrap_or(u64::MAX)
            .min(1 << 52);
        self.manage_changed(Op::Expire(millis, when)).await
    }

    /// Removes the expiry of the limiter. Returns whether it had one. Redisson: `clearExpire`.
    ///
    /// A keep-alive time is kept: the next acquire applies it again.
    ///
    /// Sent once more after a lost connection, it may return `false` for its own change.
    ///
    /// # Errors
    ///
    /// As [`expire`](Self::expire).
    ///
    /// # Cancel safety
    ///
    /// Dropping it may leave it done or not.
    pub async fn clear_expire(&self) -> Result<bool, Error> {
        self.manage_changed(Op::ClearExpire).await
    }

    /// Removes the limiter with its limit. Returns whether there was one. Redisson: `delete`.
    ///
    /// With a limit per client, only this client's part is removed: other clients' ids are not
    /// known.
    ///
    /// Sent once more after a lost connection, it may return `false` for its own change.
    ///
    /// # Errors
    ///
    /// Returns the errors of a store that cannot be called.
    ///
    /// # Cancel safety
    ///
    /// Dropping it may leave it done or not.
    pub async fn delete(&self) -> Result<bool, Error> {
        self.manage_changed(Op::Delete).await
    }

    /// Gives the limiter another name, with its limit and what is in use. A limiter that had that
    /// name is lost. Redisson: `rename`, which leaves behind what is in use.
    ///
    /// With a limit per client, only this client's part moves. It is never sent twice: after a lost
    /// connection it is unknown whether it was carried out.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`NotInitialized`](ErrorKind::NotInitialized) if there is none,
    /// [`Name`](ErrorKind::Name) if `name` cannot name a limiter,
    /// [`OtherSlot`](ErrorKind::OtherSlot) if the two names are in different hash slots of a
    /// Cluster, [`Limit`](ErrorKind::Limit) if the limit is [in the code](crate::Keyed), and the
    /// errors of a store that cannot be called.
    ///
    /// # Cancel safety
    ///
    /// Dropping it may leave it done or not.
    pub async fn rename(&self, name: &str) -> Result<Self, Error> {
        let new =
            Name::exact(name).map_err(|error| Error::new(ErrorKind::Name).caused_by(error))?;
        if !self.manage_changed(Op::Rename(new.clone())).await? {
            return Err(ErrorKind::NotInitialized.into());
        }
        // That of a rule has its limit in the store by now, and no rule counts by the new name.
        let compiled = CompiledLimit {
            is_rule: false,
            limit: LimitSource::Store,
            ban: None,
            ..self.limiter.compiled.named(name)
        };
        let limiter = Limiter {
            name: new,
            compiled: compiled.into(),
        };
        Ok(Self {
            limiter,
            ..self.clone()
        })
    }
}
