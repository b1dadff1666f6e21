//! Takes permits of several limiters together, without HTTP: [`AllOf`].

use std::{collections::HashSet, sync::Arc, time::Duration};

use super::{RateLimiter, granted, take};
use crate::{
    store::AnyStore,
    values::{
        decision::{Decision, Grant},
        demand::{Demand, MaxWait},
        error::{ConfigError, Error, ErrorKind, bail},
    },
};

/// Several limiters whose permits are taken together: from all or from none. Made by
/// [`RateLimiter::all`].
///
/// One call decides, if all are in one format. If one limiter refuses, nothing is taken from the
/// others, and the refusal's wait is the longest of theirs. On a Redis Cluster that holds for
/// limiters whose names have the same hash tag, such as `{shop}a` and `{shop}b`. Others are asked
/// one hash slot after the other, and what was taken is given back when a later one refuses. Until
/// then these permits are in use, or for one interval if this process dies in between.
///
/// # Example
///
/// ```
/// use tower_ratelimit::{Limit, MemoryStore, RateLimiter};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MemoryStore::new();
/// let second = RateLimiter::new(&store, "{mail}:s")?;
/// let hour = RateLimiter::new(&store, "{mail}:h")?;
/// second.try_set_rate(Limit::per_second(10)).await?;
/// hour.try_set_rate(Limit::per_hour(10)).await?;
///
/// let mail = RateLimiter::all([&second, &hour])?;
/// assert!(mail.try_acquire_many(8).await?.is_allowed());
/// // The hour refuses, and the second loses nothing.
/// assert!(!mail.try_acquire_many(3).await?.is_allowed());
/// assert_eq!(hour.available_permits().await?, 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct AllOf {
    store: Arc<dyn AnyStore>,
    /// One of this store at least, and none twice.
    limiters: Vec<RateLimiter>,
}

impl RateLimiter {
    /// Combines several limiters, to take permits from all of them or from none.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`Rule`](crate::ConfigErrorKind::Rule) if there are none, if one is
    /// there twice, or if they are of different store handles.
    pub fn all<'a>(limiters: impl IntoIterator<Item = &'a Self>) -> Result<AllOf, ConfigError> {
        let refuse =
            |reason| bail!(Rule: "permits of these limiters cannot be taken together: {reason}");
        let limiters: Vec<_> = limiters.into_iter().cloned().collect();
        let Some(store) = limiters.first().map(|first| Arc::clone(&first.store)) else {
            return refuse("there are none");
        };
        let mut names = HashSet::new();
        for limiter in &limiters {
            if !Arc::ptr_eq(&store, &limiter.store) {
                return refuse("they are of different store handles");
            }
            if !names.insert(limiter.name()) {
                return refuse("one of them stands there twice");
            }
        }
        Ok(AllOf { store, limiters })
    }
}

impl AllOf {
    /// Takes one permit from each limiter if all have one now.
    ///
    /// # Errors
    ///
    /// As [`RateLimiter::try_acquire`]: one limiter without a limit is an error of all.
    ///
    /// # Cancel safety
    ///
    /// Dropping it gives back what it may have taken.
    pub async fn try_acquire(&self) -> Result<Decision, Error> {
        self.try_acquire_many(1).await
    }

    /// Takes `permits` from each limiter if all have as many now.
    ///
    /// # Errors
    ///
    /// As [`RateLimiter::try_acquire_many`].
    ///
    /// # Cancel safety
    ///
    /// Dropping it gives back what it may have taken.
    pub async fn try_acquire_many(&self, permits: u32) -> Result<Decision, Error> {
        let permits = vec![permits; self.limiters.len()];
        self.try_acquire_each(&permits).await
    }

    /// Takes from each limiter its own number of permits, in their order, if all have as many now.
    ///
    /// # Errors
    ///
    /// As [`RateLimiter::try_acquire_many`], and of kind [`Permits`](ErrorKind::Permits) if there
    /// are not as many numbers as limiters.
    ///
    /// # Cancel safety
    ///
    /// Dropping it gives back what it may have taken.
    pub async fn try_acquire_each(&self, permits: &[u32]) -> Result<Decision, Error> {
        take(&self.store, self.ask(permits, None)?).await
    }

    /// Takes `permits` from each limiter, waiting for them no longer than `timeout`.
    ///
    /// Callers that wait for the same limiters, in the same order, share one queue. Callers that
    /// wait for one of these limiters alone share another, and the two queues have no order with
    /// each other.
    ///
    /// # Errors
    ///
    /// As [`RateLimiter::try_acquire_for`].
    ///
    /// # Cancel safety
    ///
    /// As [`RateLimiter::try_acquire_for`].
    pub async fn try_acquire_for(
        &self,
        permits: u32,
        timeout: Duration,
    ) -> Result<Decision, Error> {
        if timeout.is_zero() {
            return self.try_acquire_many(permits).await;
        }
        self.wait(permits, Some(timeout)).await
    }

    /// Takes one permit from each limiter, waiting for them as long as it takes.
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](Self::acquire_many).
    ///
    /// # Cancel safety
    ///
    /// As [`RateLimiter::acquire_many`].
    pub async fn acquire(&self) -> Result<Grant, Error> {
        self.acquire_many(1).await
    }

    /// Takes `permits` from each limiter, waiting for them as long as it takes.
    ///
    /// In the order of [`try_acquire_for`](Self::try_acquire_for).
    ///
    /// # Errors
    ///
    /// As [`RateLimiter::acquire_many`].
    ///
    /// # Cancel safety
    ///
    /// As [`RateLimiter::acquire_many`].
    pub async fn acquire_many(&self, permits: u32) -> Result<Grant, Error> {
        granted(self.wait(permits, None).await?)
    }

    /// Gives back, whole, what a grant took from these limiters.
    ///
    /// As [`RateLimiter::give_back`].
    pub fn give_back(&self, grant: &Grant) {
        for limiter in &self.limiters {
            limiter.give_back(grant);
        }
    }

    async fn wait(&self, permits: u32, longest: Option<Duration>) -> Result<Decision, Error> {
        let max_wait = MaxWait {
            longest,
            queue: None,
            yields: self.limiters.iter().any(|limiter| limiter.yields),
        };
        let permits = vec![permits; self.limiters.len()];
        take(&self.store, self.ask(&permits, Some(max_wait))?).await
    }

    fn ask(&self, permits: &[u32], max_wait: Option<MaxWait>) -> Result<Demand, Error> {
        if permits.len() != self.limiters.len() {
            return Err(ErrorKind::Permits.into());
        }
        let each = self.limiters.iter().zip(permits);
        let charges = each.map(|(limiter, permits)| limiter.charge(*permits));
        Ok(Demand::new(charges.collect::<Result<_, _>>()?, max_wait))
    }
}
