//! Stores, and their interface: a demand goes in, a decision comes out.
//!
//! A store implements [`Decide`] and its supertrait [`Calls`], in a folder of its own. [`stack`]
//! puts the guards in front.
//!
//! # Concurrency
//!
//! ## Which locks, in which order
//!
//! No lock is held across an await, while a future is polled or dropped, or while a listener is
//! called. None is held while a caller is woken. Few are held at the same time, and then in this
//! order:
//!
//! - The outbox: what a process knows of a node (`Node`) > what its breakers have logged
//!   (`BreakerLog`). The queues of those that wait for permits (`Waits`) are locked alone.
//! - Leases: the shard of the table > what is known of one limiter (`LeaseEntry`) > the balance of
//!   one lease (`Balance`).
//! - The share of a limit in an outage: the grants of some limiters (`Recent`) > the store in
//!   memory.
//! - The store in memory: one `Shard`, or those of a list in the order of their numbers > the names
//!   that are not tracked (`Untracked`).
//!
//! All others are locked alone: those of the deny cache (`Refusals`), of the connection, the
//! runtime of the settle queue (`SettleQueue::runtime`), the names that were rewritten lately, the
//! limits that were last seen (`Locals`), the rules that count in a store (`RuleNames`), and the
//! charges of a request (`Admitted`). Observers are called with none held. A reload of a layer's
//! rules locks out other reloads, and takes the lock of `RuleNames` meanwhile.
//!
//! Settling is called with none of these held, and never comes back to leases. The settle queue
//! then spawns a task and wakes callers of `close`; both take no lock of another part. If it loses
//! a receipt, it calls observers, which may call the store.
//!
//! ## What happens before what
//!
//! - An id is made before the call is sent, and a receipt before the call is awaited. So a
//!   caller that leaves can give back a grant that it has not learnt of.
//! - A refusal is kept only if no listener was called for any of its names since its call began.
//! - A lease is used only if its limiter has not changed since it was asked for.
//! - A verb ends leases before it is sent, and what they give back mostly goes first, so that it
//!   finds their permits free. When it is over, the [`Listeners`] are called before its caller
//!   knows: the deny cache drops refusals, leases end, and those who wait ask again. They are
//!   called in this order, so that a caller that asks again meets nothing stale.
//! - A settlement drops the refusals of its limiter before [`settle`](Calls::settle) returns, if
//!   a grant is settled. The listeners are called once the store has carried it out: only then
//!   is there room. A store in memory carries it out at once.
//! - A call that finds a limit missing or differing calls the listeners before it returns.
//! - A receipt is sent on the connection that carried its call, and so arrives after it, or is
//!   sent once more a second later. A call that arrives later still costs one interval. A receipt
//!   for a shared command that is under way is sent once more when the command ends.
//!
//! ## What may be dropped where
//!
//! - A decision, at every await. What it may have taken stays charged for an HTTP request, and is
//!   given back for a [`RateLimiter`](crate::RateLimiter). Guards give back what a waiter has
//!   taken, and what a lease has taken ahead.
//! - A command that many share is a task: it survives each of its callers, and is dropped with the
//!   last. Waiters whose call takes longer than a deadline are asked for once more, by another id.
//!   Where the runtime of a call ends, its callers send for themselves, or are asked for again.
//! - A caller that leaves before its command is sent takes nothing: a command counts as in flight
//!   before its callers are picked.
//! - A verb, at every await: it may be carried out or not, and listeners are called either way.
//! - A receipt is never awaited. It is lost if its queue is full, or no runtime lasts.
//! - A store: leases give back what they hold, and the settle queue ends when it is empty.

#[cfg(feature = "unstable-store")]
pub mod backend;
#[cfg(feature = "test-util")]
mod failing;
pub(crate) mod guard;
pub(crate) mod memory;
#[cfg(feature = "redis")]
pub(crate) mod redis;
pub(crate) mod report;
pub(crate) mod rule_names;
pub(crate) mod stack;

use std::{
    fmt::{self, Debug},
    future::Future,
    pin::Pin,
    sync::Arc,
    time::Duration,
};

pub use self::memory::{MemoryStore, MemoryStoreBuilder};
use self::rule_names::RuleNames;
use crate::values::{
    List,
    charge::{Charge, PermitId},
    compiled_limit::{CompiledLimit, Limiter},
    decision::{Decision, Refusal},
    demand::Demand,
    error::{ConfigError, Error, bail},
    limit::{Limit, StoredLimit},
    name::Name,
    observe::Observers,
};

/// Keeps limiters: a [`MemoryStore`] or a [`RedisStore`](crate::RedisStore).
///
/// Sealed until 1.0, so that requirements on stores can be added.
pub trait Store: sealed::Sealed + Debug + Clone + Send + Sync + 'static {}

impl<S: sealed::Sealed + Debug + Clone + Send + Sync + 'static> Store for S {}

pub(crate) mod sealed {
    use std::sync::Arc;

    // Public to the compiler alone: the module is private, so the trait cannot be named outside.
    #[allow(unnameable_types)]
    pub trait Sealed {
        #[doc(hidden)]
        fn handle(&self) -> Handle;
    }

    /// The store, without its type.
    #[derive(Clone, Debug)]
    #[allow(unnameable_types)]
    pub struct Handle(pub(crate) Arc<dyn super::AnyStore>);
}

/// A store with its guards on, whatever its type: what layers and limiters hold. [`stack`] makes
/// them.
pub(crate) trait AnyStore: Send + Sync {
    /// Takes permits, if that can be decided without waiting for anything: see
    /// [`Decide::decide_at_once`].
    fn decide_at_once(&self, demand: &mut Demand) -> Option<Result<Decision, Error>>;

    /// Takes permits, all of them or none, in time. Called for a demand that could not be decided
    /// at once.
    ///
    /// # Cancel safety
    ///
    /// Dropping it before its call is sent takes nothing. After that, what was or may yet be taken
    /// for a caller that waits for permits or has no policy is given back. A request that does not
    /// wait stays charged.
    fn acquire(self: Arc<Self>, demand: Demand) -> Deciding;

    /// Carries out one of the verbs that do not take permits.
    ///
    /// # Cancel safety
    ///
    /// Dropping it may leave the verb carried out or not: listeners are called either way.
    fn manage(self: Arc<Self>, limiter: Limiter, op: Op) -> Managing;

    /// Settles what an acquire took: see [`Calls::settle`].
    fn settle(&self, receipt: Charge, keep: u32);

    /// Returns the store's prefix, address, rule names and observers.
    fn about(&self) -> &About;
}

impl Debug for dyn AnyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Store")
    }
}

/// The prefix of a store, its address, its rule names and its observers.
#[derive(Debug, Default)]
pub(crate) struct About {
    /// The beginning of the names that rules make.
    pub(crate) prefix: Arc<str>,
    /// For errors: without user and password.
    pub(crate) address: Option<Arc<str>>,
    /// Set if the store cannot count for each client on its own.
    pub(crate) lacks_clients: bool,
    /// The format of its rules' limiters: `Some(true)` Redisson's where that has the algorithm,
    /// `Some(false)` our own, `None` if no store is known, as when a file is checked alone.
    pub(crate) prefers_redisson: Option<bool>,
    pub(crate) rule_names: RuleNames,
    pub(crate) observers: Observers,
}

impl About {
    /// Checks that the store can count by this limit of a rule.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`Rule`](crate::ConfigErrorKind::Rule) if it cannot count for each
    /// client on its own, as the limit asks for; and those of
    /// [`check_in_flight`](CompiledLimit::check_in_flight).
    pub(crate) fn check(&self, owner: &str, of: &CompiledLimit) -> Result<(), ConfigError> {
        let is_per_client = of.limit.given().is_some_and(Limit::is_per_client);
        if self.lacks_clients && is_per_client {
            bail!(Rule: "rule {owner:?} is per client, which a store of your own cannot count: \
                leave `per_client` out");
        }
        of.check_in_flight()
    }
}

/// A decision on its way.
pub(crate) type Deciding = Pin<Box<dyn Future<Output = Result<Decision, Error>> + Send>>;
/// The result of a verb on its way.
pub(crate) type Managing = Pin<Box<dyn Future<Output = Result<OpResult, Error>> + Send>>;

/// A store without its guards, which [`stack`] calls.
///
/// Its errors have no address yet, and no failure policy has answered them.
pub(crate) trait Decide: Calls {
    /// Takes permits, all of them or none, if that can be decided without waiting for anything.
    ///
    /// Asked once per demand, before [`acquire_run`](Calls::acquire_run). A demand that cannot be
    /// decided at once gets the id by which it can be given back. An error means that nothing was
    /// taken.
    fn decide_at_once(&self, demand: &mut Demand) -> Option<Result<Decision, Error>>;

    /// Carries out one of the verbs that do not take permits.
    ///
    /// # Errors
    ///
    /// Those of the store; the verb may still be carried out.
    ///
    /// # Cancel safety
    ///
    /// Dropping it may leave the verb carried out or not. The listeners are called by the stack.
    fn manage(
        &self,
        limiter: &Limiter,
        op: &Op,
    ) -> impl Future<Output = Result<OpResult, Error>> + Send;

    /// Counts that a caller has waited and was refused all the same: limits may ban it for that.
    fn strike(&self, _: &Demand, _: &mut Refusal) {}

    /// Returns how many limiters are kept in this process.
    fn limiters(&self) -> usize {
        0
    }
}

/// The most callers that a call decides for: some milliseconds of a server's time at the worst.
pub(crate) const MOST_CALLERS: usize = 64;

/// The calls that an outbox sends, by leases or a store.
pub(crate) trait Calls: Send + Sync + 'static {
    /// Returns one decision per caller of the same limiters, in order. Each has its id. If they ask
    /// `again`, a call for them may have been carried out before.
    ///
    /// A shorter list means that the remaining callers were not tried; call again for them. It is
    /// empty only if `run` is.
    ///
    /// # Errors
    ///
    /// An error applies to every caller. The store has given back what an unanswered call may have
    /// taken.
    ///
    /// # Cancel safety
    ///
    /// Dropping it leaves it open whether permits were taken. The code that drops it gives them
    /// back, by receipts that it made before the call.
    fn acquire_run(
        &self,
        run: &[Demand],
        again: bool,
    ) -> impl Future<Output = Result<List<Decision>, Error>> + Send;

    /// Decides for one caller: a run of one.
    #[cfg(any(test, interleavings))]
    fn acquire(&self, demand: &Demand) -> impl Future<Output = Result<Decision, Error>> + Send {
        let decided = self.acquire_run(std::slice::from_ref(demand), false);
        async move { decided.await.map(|mut decided| decided.remove(0)) }
    }

    /// Decides for several runs in one command, each of which [`joins`](Self::joins) others. Each
    /// is answered as if it had been sent alone.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire_run`](Self::acquire_run).
    fn acquire_joint(&self, runs: &[&[Demand]]) -> impl Future<Output = List<Answered>> + Send {
        let apart = runs.iter().map(|_| Answered::Apart { was_sent: false });
        std::future::ready(apart.collect())
    }

    /// Returns what callers of these limiters need of a command that they share with callers of
    /// others; `None` if they go apart.
    fn joins(&self, _: &Demand) -> Option<Joins> {
        None
    }

    /// Waits until a command can be sent. Its callers are picked after that.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    fn ready(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Returns whether one call decides for several callers of these limiters.
    fn decides_together(&self, _: &Demand) -> bool {
        true
    }

    /// Settles what an acquire took, or may yet take, at `keep` permits: 0 gives all of it back,
    /// and more than it took charges the rest.
    ///
    /// Returns at once. It arrives after the call that it is for, or is sent again. One that is
    /// lost costs at most one interval, or what was to be charged. A receipt is settled once.
    fn settle(&self, receipt: Charge, keep: u32);
}

/// What a run needs of a command that it shares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Joins {
    /// Its limits and their bans
    pub(crate) terms: usize,
    /// The most callers of the run that go with others.
    pub(crate) callers: usize,
}

/// What a shared command says of one run.
pub(crate) enum Answered {
    Decided(Result<List<Decision>, Error>),
    /// It is to be asked alone: the command did not answer it, and may have been carried out if it
    /// `was_sent`
    Apart {
        was_sent: bool,
    },
}

/// Returns bytes that no process has used before, also after a fork or a restored snapshot: they
/// come from the operating system each time.
#[cfg(any(feature = "redis", feature = "unstable-store"))]
pub(crate) fn random_id() -> Result<PermitId, Error> {
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(|error| {
        Error::from(crate::values::error::ErrorKind::Unavailable)
            .detail("no entropy")
            .caused_by(error)
    })?;
    Ok(PermitId(id))
}

/// Gives a demand that is to be sent to a server its id and time, and returns `None`; or returns
/// the error that refuses it.
#[cfg(any(feature = "redis", feature = "unstable-store"))]
pub(crate) fn prepare_call(
    refused: Option<Error>,
    demand: &mut Demand,
) -> Option<Result<Decision, Error>> {
    match refused.map_or_else(random_id, Err) {
        Ok(id) => {
            demand.identify(id);
            demand.asked_at = Some(crate::values::clock::moment());
            None
        }
        Err(error) => Some(Err(error)),
    }
}

/// Is called when a limiter changes.
///
/// It is called before the caller of the change gets its answer. So it must not wait, and must not
/// call the store.
pub(crate) trait Listener: Send + Sync {
    /// Learns that the limit or the state of a limiter was changed: forgets what it knew of it.
    fn changed(&self, _name: &Name) {}

    /// Learns that permits of a limiter may have become free, or become free later than a waiter
    /// expects.
    ///
    /// `undone` permits come back from a list of several calls, because one of these was refused.
    /// Waiters with such lists are not woken: they would wake each other without end, to take and
    /// to give back.
    fn room(&self, _name: &Name, _undone: bool) {}
}

/// The listeners of a store, in their order: the deny cache, leases, waiters.
#[derive(Clone)]
pub(crate) struct Listeners(Arc<[Box<dyn Listener>]>);

impl Listeners {
    pub(crate) fn new(listeners: impl IntoIterator<Item = Box<dyn Listener>>) -> Self {
        Self(listeners.into_iter().collect())
    }

    /// Returns the list of a store that stands alone.
    pub(crate) fn none() -> Self {
        Self::new([])
    }

    pub(crate) fn changed(&self, name: &Name) {
        self.0.iter().for_each(|listener| listener.changed(name));
    }

    pub(crate) fn room(&self, name: &Name, undone: bool) {
        self.0
            .iter()
            .for_each(|listener| listener.room(name, undone));
    }
}

/// A store that decides instead of one that fails.
pub(crate) trait StandIn: Decide {
    /// Charges a limiter with grants of the other store, oldest first, each with its time in ms. A
    /// limiter in use is charged as of now. What exceeds the limit is left out.
    ///
    /// # Errors
    ///
    /// Those of a charge by this store.
    fn begin_with(&self, charge: &Charge, past: Vec<(i64, u32)>) -> Result<(), Error>;
}

/// The verbs that do not take permits.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// Stores a limit where there is none
    TrySetRate(StoredLimit),
    /// Stores a limit whatever was stored
    SetRate {
        limit: StoredLimit,
        /// Set if permits in use go on counting.
        keep: bool,
        /// Set if there must be one to change.
        existing: bool,
    },
    /// Gives back permits, the oldest in use
    Release(u32),
    /// Lets the limiter vanish after so many milliseconds
    Expire(u64, ExpireWhen),
    /// Lets the limiter stay
    ClearExpire,
    /// Asks when the limiter vanishes
    TimeToLive,
    /// Removes the limiter
    Delete,
    /// Reads the limit
    Inspect,
    /// Counts the free permits
    Available,
    /// Gives the limiter another name
    Rename(Name),
    /// Counts the permits left from the log, whatever was counted before
    Repair,
    /// Bans the caller for so many milliseconds
    Ban(u64),
    /// Ends a ban, and forgets refusals
    Unban,
    /// Asks until when the caller is banned, in milliseconds since the epoch; 0 if it is not
    BannedUntil,
}

impl Op {
    /// Returns the name that metrics and logs have for it.
    pub(crate) fn verb(&self) -> &'static str {
        match self {
            Self::TrySetRate(_) => "try_set_rate",
            Self::SetRate { keep: true, .. } => "update_rate",
            Self::SetRate { existing: true, .. } => "reset_rate",
            Self::SetRate { .. } => "set_rate",
            Self::Release(_) => "release",
            Self::Expire(..) => "expire",
            Self::ClearExpire => "clear_expire",
            Self::TimeToLive => "time_to_live",
            Self::Delete => "delete",
            Self::Inspect => "limit",
            Self::Available => "available_permits",
            Self::Rename(_) => "rename",
            Self::Repair => "repair",
            Self::Ban(_) => "ban_for",
            Self::Unban => "unban",
            Self::BannedUntil => "banned_until",
        }
    }

    /// Returns the names whose limiters the verb may change if it is called for `name`.
    pub(crate) fn changes<'a>(&'a self, name: &'a Name) -> impl Iterator<Item = &'a Name> {
        let new_name = match self {
            Self::Rename(new_name) => Some(new_name),
            _ => None,
        };
        let names = [Some(name), new_name].into_iter().flatten();
        names.filter(|_| !self.only_reads())
    }

    /// Returns whether it leaves everything as it is: anything else may make room.
    pub(crate) fn only_reads(&self) -> bool {
        matches!(
            self,
            Self::Inspect | Self::Available | Self::TimeToLive | Self::BannedUntil
        )
    }
}

/// The condition of [`RateLimiter::expire_when`](crate::RateLimiter::expire_when).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ExpireWhen {
    /// Sets any expiry. Redisson: `expire`
    Always,
    /// Only if the limiter has no expiry. Redisson: `expireIfNotSet`
    NotSet,
    /// Only if the limiter has an expiry. Redisson: `expireIfSet`
    Set,
    /// Only if the limiter would expire earlier. Redisson: `expireIfGreater`
    Greater,
    /// Only if the limiter would expire later or not at all. Redisson: `expireIfLess`
    Less,
}

/// When a limiter vanishes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TimeToLive {
    /// There is none
    #[default]
    Missing,
    /// After this time
    Left(Duration),
    /// Never
    Lasting,
}

/// The result of a verb. Each verb has its own variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpResult {
    /// True if it has changed something
    Changed(bool),
    Limit(Option<StoredLimit>),
    /// A number of permits, or of milliseconds since the epoch
    Number(i64),
    /// When the limiter vanishes
    TimeToLive(TimeToLive),
}
