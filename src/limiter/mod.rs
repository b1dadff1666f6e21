//! Redisson's `RRateLimiter` for async Rust, without HTTP.

pub(crate) mod all_of;
mod ban;
pub(crate) mod keyed;
mod permits;
mod rate;
mod time_to_live;

use std::{sync::Arc, time::Duration};

use crate::{
    store::{AnyStore, Op, OpResult, Store, rule_names::NameHolder},
    values::{
        charge::Charge,
        compiled_limit::{CompiledLimit, Limiter},
        decision::{Charges, Decision, Grant, RefusalKind},
        demand::{Demand, MaxWait},
        error::{ConfigError, Error, ErrorKind, bail},
        limit::{Algorithm, Limit, LimitSource, Slots, check_lease},
        name::Name,
        observe::{Origin, StateChange},
    },
};

/// One limiter by its exact name: what `redisson.getRateLimiter(name)` is in Java.
///
/// The limit is the stored one; set it with [`try_set_rate`](Self::try_set_rate), here or in Java.
/// Clones are the same limiter. [`Keyed`](crate::Keyed) and
/// [`RateLimitLayer::limiter`](crate::RateLimitLayer::limiter) return limiters whose limit is in
/// the code.
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
    limiter: Limiter,
    /// Set if waiters leave others their share.
    yields: bool,
    /// What changes it, for observers.
    origin: Origin,
    /// Keeps the name of a limit in the code from another limit.
    _holder: Option<Arc<NameHolder>>,
}

impl RateLimiter {
    /// Returns the limiter of this name. Nothing is sent yet.
    ///
    /// The name is used in Redis as it is given, without a prefix. It should not come from a
    /// request: rules build such names.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`Name`](crate::ConfigErrorKind::Name) if the limiter's keys would
    /// fall into different slots of a Redis Cluster, or be another limiter's.
    pub fn new(store: &impl Store, name: &str) -> Result<Self, ConfigError> {
        let (store, name) = (store.handle().0, Name::exact(name)?);
        let compiled = CompiledLimit {
            observers: store.about().observers.clone(),
            ..CompiledLimit::with_defaults(name.as_str(), false, false)
        };
        let limiter = Limiter {
            name,
            compiled: compiled.into(),
        };
        Ok(Self::with(store, limiter))
    }

    /// Returns the limiter that a rule, or a [`Keyed`](crate::Keyed), has made under this name in
    /// our own format: for tools that know names alone, as [keys](crate::docs::keys) has them.
    ///
    /// Its limit is in the code of the rule. So it can be deleted and banned, has a time to live,
    /// and settles grants; all that needs the limit, such as
    /// [`available_permits`](Self::available_permits), is an error of kind
    /// [`Limit`](ErrorKind::Limit). Where the rule is at hand,
    /// [`RateLimitLayer::limiter`](crate::RateLimitLayer::limiter) and
    /// [`Keyed::of`](crate::Keyed::of) return it with its limit.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Limit, MemoryStore, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = MemoryStore::new();
    /// let mails = Limit::per_hour(20).named("mails").keyed(&store)?;
    /// mails.of("ann").try_acquire().await?;
    ///
    /// let of_ann = RateLimiter::of_rule(&store, "memory:{ann}:mails")?;
    /// assert!(of_ann.delete().await?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn of_rule(store: &impl Store, name: &str) -> Result<Self, ConfigError> {
        let mut limiter = Self::new(store, name)?;
        limiter.settings().counting.prefers_redisson = false;
        Ok(limiter)
    }

    /// Returns this limiter of a rule, which counts by the rule's limit and bans by its terms.
    pub(crate) fn with(store: Arc<dyn AnyStore>, limiter: Limiter) -> Self {
        let mut new = Self {
            limiter,
            store,
            yields: false,
            origin: Origin::Code,
            _holder: None,
        };
        if new.limiter.compiled.lease.is_some() {
            new.settings().lease = None;
        }
        new
    }

    /// Sets how permits in use are counted. Default: [`Algorithm::SlidingLog`]. All users of a name
    /// must choose the same: see there.
    ///
    /// By [`Algorithm::Gcra`] and [`Algorithm::Calendar`] no store has a limit. By its name such a
    /// limiter can be deleted and banned, has a time to live, and settles grants. All that needs
    /// the limit is an error of kind [`Limit`](ErrorKind::Limit): take [`Limit::named`] with
    /// [`single`](crate::RateLimiterBuilder::single) or [`keyed`](crate::RateLimiterBuilder::keyed)
    /// instead, or [`RateLimitLayer::limiter`](crate::RateLimitLayer::limiter).
    ///
    /// It has no effect where the limit is in the code: there
    /// [`RateLimiterBuilder::algorithm`](crate::RateLimiterBuilder::algorithm) chooses it.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Algorithm, Limit, MemoryStore, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = MemoryStore::new();
    /// // Set by anyone who knows the name, such as an old Redisson.
    /// let feed = RateLimiter::new(&store, "feed")?.algorithm(Algorithm::FixedWindow);
    /// feed.try_set_rate(Limit::per_minute(100_000)).await?;
    /// assert!(feed.try_acquire().await?.is_allowed());
    ///
    /// // Known to the code alone.
    /// let bucket = Limit::per_minute(60).named("bucket").algorithm(Algorithm::Gcra);
    /// assert!(bucket.single(&store)?.try_acquire().await?.is_allowed());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        if self.code_limit().is_none() {
            self.settings().counting.algorithm = algorithm;
        }
        self
    }

    /// Divides the interval into this many slots, and writes one entry for all grants of a slot
    /// instead of one per grant. For large limits that Java shares, or that must be exact: see
    /// [tuning](crate::docs::tuning#large-limits). Default: one entry per grant.
    ///
    /// Permits are in use for up to a slot longer, and no interval has more than the limit, in
    /// Redis to the millisecond. The setting is about the entries that this limiter writes, and not
    /// about how its name is counted: others may use the name with other slots or with none, as
    /// Java does. With another [`Algorithm`] it has no effect. In Redis a stored interval of fewer
    /// milliseconds has a slot for each of them.
    ///
    /// Worst case: a grant cannot be distinguished from others. So an acquire is never sent twice:
    /// a call whose connection is lost is an error, and what it, or a call dropped under way, may
    /// have taken is in use until it expires. A [`Grant`] can be given back once.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`Limit`](crate::ConfigErrorKind::Limit) if there are fewer than 10
    /// or more than 10 000, or if the limit is in the code and no log counts it, or one in our own
    /// format, which merges grants by itself.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Limit, MemoryStore, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let feed = RateLimiter::new(&MemoryStore::new(), "feed")?.slots(1000)?;
    /// feed.try_set_rate(Limit::per_minute(100_000)).await?;
    /// assert!(feed.try_acquire().await?.is_allowed());
    /// # Ok(())
    /// # }
    /// ```
    pub fn slots(mut self, slots: u32) -> Result<Self, ConfigError> {
        let algorithm = self.limiter.compiled.counting.algorithm;
        let may_have_log = match self.code_limit() {
            Some(_) => algorithm.facts().has_log,
            // Another algorithm may still be chosen.
            None => !algorithm.facts().only_own_format,
        };
        if self.code_limit().is_some() && may_have_log && self.in_own_format() {
            bail!(Limit: "{:?} needs no slots, which only logs in Redisson's format have: leave \
                `slots` out, or count in that format", self.name());
        }
        let interval = self.code_limit().map(Limit::interval);
        let slots = Slots::try_new(slots, self.name(), may_have_log, interval.into_iter())?;
        self.settings().counting.slots = Some(slots);
        self.limiter.compiled.check_in_flight()?;
        Ok(self)
    }

    /// Fetches a few permits ahead, holds them for up to this time, and grants from them without
    /// asking the store. Default: zero, which means that every call asks.
    ///
    /// It applies to this limiter and its clones, not to others of the same name. Set the
    /// [`algorithm`](Self::algorithm) and [`slots`](Self::slots) before it. See
    /// [`Rule::lease`](crate::Rule::lease) for what it saves and what it costs. Waiters are served
    /// before permits are fetched ahead. A lease longer than a tenth of the stored interval is cut
    /// to that.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`Limit`](crate::ConfigErrorKind::Limit) if it is not of whole
    /// milliseconds, or the algorithm is another than a [`SlidingLog`](Algorithm::SlidingLog), or
    /// the limiter has [`slots`](Self::slots); of kind [`Rule`](crate::ConfigErrorKind::Rule) if
    /// it bans.
    ///
    /// # Example
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{MemoryStore, RateLimiter};
    ///
    /// let orders = RateLimiter::new(&MemoryStore::new(), "orders")?;
    /// let orders = orders.lease(Duration::from_millis(50))?;
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    pub fn lease(mut self, lease: Duration) -> Result<Self, ConfigError> {
        let compiled = &self.limiter.compiled;
        let (algorithm, in_slots) = (
            compiled.counting.algorithm,
            compiled.counting.slots().is_some(),
        );
        check_lease(self.name(), lease, algorithm, in_slots, self.code_limit())?;
        if let Some(ban) = &compiled.ban {
            ban.check(&compiled.name, !lease.is_zero())?;
        }
        self.settings().lease = (!lease.is_zero()).then_some(lease);
        Ok(self)
    }

    /// Lets other processes take about half of the permits that become free, by asking up to 110
    /// milliseconds late. Where hundreds of permits become free in a second, four Java threads take
    /// between half and four fifths. Default: waiters ask at the millisecond.
    ///
    /// Use it for a limiter that Java waits for, too: Redisson's waiters come back at a tick of
    /// their timer, and get few permits against waiters that always come first. It applies to this
    /// limiter and its clones. A wait with a timeout still ends at its timeout.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{MemoryStore, RateLimiter};
    ///
    /// let orders = RateLimiter::new(&MemoryStore::new(), "orders")?.yield_to_others();
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    #[must_use]
    pub fn yield_to_others(mut self) -> Self {
        self.yields = true;
        self
    }

    /// Reports its changes to observers as those of an operator's tool: for admin routes and
    /// commands. Default: as those of the service's code.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{MemoryStore, RateLimiter};
    ///
    /// let orders = RateLimiter::new(&MemoryStore::new(), "orders")?.by_tool();
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    #[must_use]
    pub fn by_tool(mut self) -> Self {
        self.origin = Origin::Tool;
        self
    }

    /// Takes one permit if there is one now.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`NotInitialized`](ErrorKind::NotInitialized) if no limit is set,
    /// of kind [`Limit`](ErrorKind::Limit) if [no store has it](Self::of_rule), and the errors of a
    /// store that cannot decide; no [`FailurePolicy`](crate::FailurePolicy) applies here.
    ///
    /// # Cancel safety
    ///
    /// Dropping it gives back what it may have taken, if grants have [entries](Algorithm).
    pub async fn try_acquire(&self) -> Result<Decision, Error> {
        self.try_acquire_many(1).await
    }

    /// Takes `permits` if as many are free now; all of them or none.
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire), and of kind [`Permits`](ErrorKind::Permits) if
    /// `permits` is zero.
    ///
    /// # Cancel safety
    ///
    /// Dropping it gives back what it may have taken, if grants have [entries](Algorithm).
    pub async fn try_acquire_many(&self, permits: u32) -> Result<Decision, Error> {
        take(&self.store, self.ask(permits, None)?).await
    }

    /// Takes `permits`, waiting for them no longer than `timeout`.
    ///
    /// Waiters of one store handle are served in the order in which they came;
    /// [`try_acquire`](Self::try_acquire) may overtake them, and other processes have no order with
    /// them. A large request can starve behind small ones of other processes. It is refused at once
    /// if it is known that the permits will not be free in time, after the waiters before it. A
    /// `timeout` of zero is one try.
    ///
    /// A loop around it must sleep by itself: for the refusal's
    /// [`retry_after`](crate::Refusal::retry_after), or for `timeout` as Redisson does. Otherwise
    /// it keeps its thread busy, because a known refusal is answered from memory without a pause.
    ///
    /// # Errors
    ///
    /// As [`try_acquire_many`](Self::try_acquire_many). Without a tokio runtime that has a timer it
    /// cannot wait: it is refused at once, with its wait, and a store in Redis answers
    /// [`Unavailable`](ErrorKind::Unavailable).
    ///
    /// # Cancel safety
    ///
    /// Dropping it leaves the queue and gives back what it may have taken; without
    /// [entries](Algorithm) only if others go on waiting. A future that is kept and not polled
    /// delays others by one deadline of the store at most, or by a tenth of a second in a
    /// [`MemoryStore`](crate::MemoryStore).
    pub async fn try_acquire_for(
        &self,
        permits: u32,
        timeout: Duration,
    ) -> Result<Decision, Error> {
        if timeout.is_zero() {
            return self.try_acquire_many(permits).await;
        }
        let demand = self.ask(permits, Some(self.max_wait(Some(timeout))))?;
        take(&self.store, demand).await
    }

    /// Takes one permit, waiting for it as long as it takes.
    ///
    /// As [`acquire_many`](Self::acquire_many).
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](Self::acquire_many).
    ///
    /// # Cancel safety
    ///
    /// As [`acquire_many`](Self::acquire_many).
    pub async fn acquire(&self) -> Result<Grant, Error> {
        self.acquire_many(1).await
    }

    /// Takes `permits`, waiting for them as long as it takes.
    ///
    /// Waiters are served in the order of [`try_acquire_for`](Self::try_acquire_for). All waiters
    /// of a limiter in one store handle have one call in flight, and none is sent before there can
    /// be room.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`try_acquire_for`](Self::try_acquire_for), also while it waits.
    /// Returns an error of kind [`AboveRate`](ErrorKind::AboveRate) if `permits` is more than the
    /// limit, of kind [`Banned`](ErrorKind::Banned) if the caller is banned, and of kind
    /// [`Unavailable`](ErrorKind::Unavailable) if it must wait without a tokio runtime that has a
    /// timer.
    ///
    /// # Cancel safety
    ///
    /// Dropping it leaves the queue and gives back what it may have taken; without
    /// [entries](Algorithm) only if others go on waiting. A future that is kept and not polled
    /// delays others by one deadline of the store at most, or by a tenth of a second in a
    /// [`MemoryStore`](crate::MemoryStore).
    pub async fn acquire_many(&self, permits: u32) -> Result<Grant, Error> {
        let demand = self.ask(permits, Some(self.max_wait(None)))?;
        granted(take(&self.store, demand).await?)
    }

    /// Returns the name in the store: as given, or as made of a key, which it shows.
    pub fn name(&self) -> &str {
        self.limiter.name.as_str()
    }

    /// Returns how long its waiters wait; `None` waits without end.
    fn max_wait(&self, longest: Option<Duration>) -> MaxWait {
        MaxWait {
            longest,
            queue: None,
            yields: self.yields,
        }
    }

    fn ask(&self, permits: u32, max_wait: Option<MaxWait>) -> Result<Demand, Error> {
        Ok(Demand::new(Charges::one(self.charge(permits)?), max_wait))
    }

    pub(crate) fn charge(&self, permits: u32) -> Result<Charge, Error> {
        if permits == 0 {
            return Err(ErrorKind::Permits.into());
        }
        self.check_known()?;
        Ok(Charge::new(self.limiter.clone(), permits))
    }

    fn settings(&mut self) -> &mut CompiledLimit {
        Arc::make_mut(&mut self.limiter.compiled)
    }

    /// Returns whether it is in our own format, so that no store has its limit.
    fn in_own_format(&self) -> bool {
        self.limiter.compiled.counting.in_own_format()
    }

    /// Checks that its limit is known here, if no store has it.
    fn check_known(&self) -> Result<(), Error> {
        if self.in_own_format() && self.code_limit().is_none() {
            Err(in_code())
        } else {
            Ok(())
        }
    }

    /// Returns the limit, if it is in the code.
    fn code_limit(&self) -> Option<&Limit> {
        match &self.limiter.compiled.limit {
            LimitSource::Code(limit) => Some(limit),
            LimitSource::Store | LimitSource::StoreOrInit(_) => None,
        }
    }

    async fn manage_changed(&self, op: Op) -> Result<bool, Error> {
        match self.manage(op).await? {
            OpResult::Changed(changed) => Ok(changed),
            _ => Err(mismatch()),
        }
    }

    async fn manage_permits(&self, op: Op) -> Result<i64, Error> {
        // Of a limit that is known here and that no store has, this is no more than an unused one.
        let unused = self.limiter.compiled.limit.given().map(|limit| match op {
            Op::Available => limit.most_permits().cast_signed(),
            _ => 0,
        });
        match self.manage(op).await {
            Ok(OpResult::Number(permits)) => Ok(permits),
            Err(error) if error.kind() == ErrorKind::NotInitialized => unused.ok_or(error),
            Ok(_) => Err(mismatch()),
            Err(error) => Err(error),
        }
    }

    async fn manage(&self, op: Op) -> Result<OpResult, Error> {
        match op {
            Op::SetRate { .. }
            | Op::TrySetRate(_)
            | Op::Expire(..)
            | Op::ClearExpire
            | Op::Rename(_)
                if self.in_own_format() || self.code_limit().is_some() =>
            {
                return Err(in_code());
            }
            Op::Available | Op::Release(_) | Op::Inspect => self.check_known()?,
            Op::Repair if self.in_own_format() => return Ok(OpResult::Number(0)),
            _ => {}
        }
        let changes = (!op.only_reads()).then_some(op.verb());
        let managed = Arc::clone(&self.store).manage(self.limiter.clone(), op);
        let result = managed.await?;
        if let Some(verb) = changes {
            let (rule, by) = (self.limiter.compiled.rule(), self.origin);
            let change = StateChange::Managed { verb, rule, by };
            self.store.about().observers.changed(&change);
        }
        Ok(result)
    }
}

/// Returns the grant of a wait without end, which is refused only for more than the limit, or for
/// a ban.
fn granted(decision: Decision) -> Result<Grant, Error> {
    match decision {
        Decision::Allow(grant) => Ok(grant),
        Decision::Deny(refusal) => Err(match refusal.kind() {
            RefusalKind::Banned => ErrorKind::Banned.into(),
            _ => ErrorKind::AboveRate.into(),
        }),
    }
}

/// Takes permits, first from the guards that decide at once.
///
/// # Cancel safety
///
/// Dropping it gives back what it may have taken: see [`AnyStore::acquire`].
async fn take(store: &Arc<dyn AnyStore>, mut demand: Demand) -> Result<Decision, Error> {
    match store.decide_at_once(&mut demand) {
        Some(decision) => decision,
        None => Arc::clone(store).acquire(demand).await,
    }
}

/// Returns the error for a limit in the code where a store is to have it.
fn in_code() -> Error {
    let detail = "it is in the code alone: `Limit::named(..).algorithm(..)` with `.single(&store)` \
                  or `.keyed(&store)` makes its limiters, `RateLimitLayer::limiter` returns those \
                  of a rule, `limiters_of` those of a request, and `delete` forgets what is used";
    Error::new(ErrorKind::Limit).detail(detail)
}

/// Returns the error for an outcome of another verb, which no store returns.
fn mismatch() -> Error {
    Error::new(ErrorKind::ForeignState).detail("the store answered a different verb")
}
