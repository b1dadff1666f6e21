//! Redisson's `RRateLimiter` for async Rust, without HTTP.

use std::sync::Arc;

use crate::{
    decision::{Decision, Receipt},
    error::{ConfigError, Error, ErrorKind},
    limit::{Limit, LimitSource, StoredLimit},
    list::List,
    name::Name,
    store::{Acquire, AnyStore, Charge, Op, Outcome, RuleTag, Store, at_least_zero},
};

/// One limiter by its exact name: what `redisson.getRateLimiter(name)` is in Java.
///
/// The limit is the stored one; set it with [`try_set_rate`](Self::try_set_rate), here or in Java. Clones are the same
/// limiter.
///
/// # Example
///
/// ```
/// use tower_ratelimit::{Decision, Limit, MemoryStore, RateLimiter};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let orders = RateLimiter::new(&MemoryStore::new(), "orders")?;
/// orders.try_set_rate(Limit::per_minute(2)).await?;
///
/// assert!(orders.try_acquire_many(2).await?.is_allowed());
/// match orders.try_acquire().await? {
///     Decision::Allow(_) => unreachable!("two permits a minute"),
///     Decision::Deny(refusal) => println!("come back in {:?}", refusal.retry_after()),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RateLimiter {
    store: Arc<dyn AnyStore>,
    name: Name,
    tag: Arc<RuleTag>,
}

impl RateLimiter {
    /// The limiter of this name. Nothing is sent yet.
    ///
    /// The name stands in Redis as it is given: no prefix. It should not come from a request; rules make such names.
    ///
    /// # Errors
    ///
    /// [`ConfigError::SharedName`] if the limiter's keys would fall into different slots of a Redis Cluster, or be
    /// another limiter's.
    pub fn new(store: &impl Store, name: &str) -> Result<Self, ConfigError> {
        Ok(Self {
            store: store.handle().0,
            name: Name::exact(name)?,
            tag: RuleTag::new(name),
        })
    }

    /// Takes one permit if there is one now.
    ///
    /// # Errors
    ///
    /// Of kind [`NotInitialized`](ErrorKind::NotInitialized) if no limit is set, and those of a store that cannot
    /// decide; no [`FailurePolicy`](crate::FailurePolicy) applies here.
    ///
    /// # Cancel safety
    ///
    /// Dropping it gives back what it may have taken.
    pub async fn try_acquire(&self) -> Result<Decision, Error> {
        self.try_acquire_many(1).await
    }

    /// Takes `permits` if as many are free now; all of them or none.
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire), and of kind [`Permits`](ErrorKind::Permits) if `permits` is zero.
    ///
    /// # Cancel safety
    ///
    /// Dropping it gives back what it may have taken.
    pub async fn try_acquire_many(&self, permits: u32) -> Result<Decision, Error> {
        if permits == 0 {
            return Err(ErrorKind::Permits.into());
        }
        let charge = Charge {
            name: self.name.clone(),
            rule: Arc::clone(&self.tag),
            limit: LimitSource::Store,
            permits,
            id: self.store.permit_id()?,
        };
        let mut unheard = Unheard {
            store: &self.store,
            receipt: Some(charge.receipt()),
        };
        let acquire = Acquire {
            charges: List::one(charge),
            on_failure: None,
            remaining: true,
        };
        let decision = Arc::clone(&self.store).acquire(acquire).await;
        unheard.receipt = None;
        decision
    }

    /// Sets the limit if none is set. Whether it did.
    ///
    /// # Errors
    ///
    /// Those of a store that cannot be asked.
    ///
    /// # Cancel safety
    ///
    /// Dropping it may leave the limit set or not.
    pub async fn try_set_rate(&self, limit: Limit) -> Result<bool, Error> {
        match self.manage(Op::TrySetRate(limit.stored())).await? {
            Outcome::Changed(changed) => Ok(changed),
            _ => Err(mismatch()),
        }
    }

    /// The limit that is set, if there is one. Redisson: `getConfig`.
    ///
    /// # Errors
    ///
    /// Those of a store that cannot be asked, and of kind [`ForeignState`](ErrorKind::ForeignState) if what is stored
    /// is not a limit: Java also stores rates of zero.
    ///
    /// # Cancel safety
    ///
    /// Dropping it has no effect.
    pub async fn limit(&self) -> Result<Option<Limit>, Error> {
        match self.manage(Op::Inspect).await? {
            Outcome::Limit(None) => Ok(None),
            Outcome::Limit(Some(stored)) => readable(&stored).map(Some),
            _ => Err(mismatch()),
        }
    }

    /// How many permits are free now: exact. Zero where more are in use than a lowered limit allows.
    ///
    /// # Errors
    ///
    /// Of kind [`NotInitialized`](ErrorKind::NotInitialized) if no limit is set, and those of a store that cannot be
    /// asked.
    ///
    /// # Cancel safety
    ///
    /// Dropping it has no effect.
    pub async fn available_permits(&self) -> Result<u64, Error> {
        match self.manage(Op::Available).await? {
            Outcome::Permits(permits) => Ok(at_least_zero(permits)),
            _ => Err(mismatch()),
        }
    }

    /// The name, as given.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    async fn manage(&self, op: Op) -> Result<Outcome, Error> {
        Arc::clone(&self.store).manage(self.name.clone(), op).await
    }
}

/// Gives back what a call may have taken if nobody hears its answer.
struct Unheard<'a> {
    store: &'a Arc<dyn AnyStore>,
    receipt: Option<Receipt>,
}

impl Drop for Unheard<'_> {
    fn drop(&mut self) {
        if let Some(receipt) = self.receipt.take() {
            self.store.give_back(receipt);
        }
    }
}

fn readable(stored: &StoredLimit) -> Result<Limit, Error> {
    stored.limit().ok_or_else(|| {
        let what = format!("rate {} in {} ms", stored.rate, stored.interval);
        Error::new(ErrorKind::ForeignState).detail(what)
    })
}

/// Each verb has its own outcome, in every store.
fn mismatch() -> Error {
    Error::new(ErrorKind::ForeignState).detail("an answer to another question")
}
