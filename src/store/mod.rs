//! Is there room? Where limiters are kept, and what they are asked.

pub(crate) mod guard;
pub(crate) mod memory;
#[cfg(feature = "redis")]
pub(crate) mod redis;
pub(crate) mod rule_names;

use std::{
    fmt::Debug,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

pub use self::memory::MemoryStore;
use self::rule_names::RuleNames;
use crate::{
    decision::Decision, demand::Acquire, error::Error, limit::StoredLimit, name::Name,
    receipt::Receipt,
};

/// Where limiters are kept: [`MemoryStore`] or [`RedisStore`](crate::RedisStore).
///
/// Sealed until 1.0, so that the laws every store must keep can still grow.
pub trait Store: sealed::Sealed + Debug + Clone + Send + Sync + 'static {}

impl<S: sealed::Sealed + Debug + Clone + Send + Sync + 'static> Store for S {}

pub(crate) mod sealed {
    use std::sync::Arc;

    // Public only in the eyes of the compiler: the module is private, and so the trait cannot be named outside.
    #[allow(unnameable_types)]
    pub trait Sealed {
        #[doc(hidden)]
        fn handle(&self) -> Handle;
    }

    /// The store behind whatever type it has.
    #[derive(Clone, Debug)]
    #[allow(unnameable_types)]
    pub struct Handle(pub(crate) Arc<dyn super::AnyStore>);
}

/// A store with its guards on, whatever its type.
pub(crate) trait AnyStore: Debug + Send + Sync {
    /// Takes permits, all of them or none, if that can be decided without waiting for anybody. What cannot gets the id by
    /// which it can be given back, and goes to [`acquire`](Self::acquire).
    fn decide_at_once(&self, acquire: &mut Acquire) -> Option<Result<Decision, Error>>;

    /// Takes permits, all of them or none.
    fn acquire(self: Arc<Self>, acquire: Acquire) -> Deciding;

    /// Carries out one of the verbs that do not take permits.
    fn manage(self: Arc<Self>, name: Name, op: Op) -> Managing;

    /// Settles what an acquire took, or may yet take, at `keep` permits: 0 gives all of it back, more than it took charges
    /// the rest. Returns at once; a lost one costs at most one interval, or what was to be charged. A receipt is settled
    /// once.
    fn give_back(&self, receipt: Receipt, keep: u32);

    /// Whether one call reaches only limiters of one identity: a Redis Cluster.
    fn has_slots(&self) -> bool {
        false
    }

    /// What the names of limiters that rules make begin with.
    fn prefix(&self) -> &str;

    /// Which rules count here.
    fn rule_names(&self) -> &RuleNames;
}

/// Takes permits, all of them or none, at once or later.
pub(crate) fn take(store: &Arc<dyn AnyStore>, mut acquire: Acquire) -> Deciding {
    match store.decide_at_once(&mut acquire) {
        Some(decision) => Deciding::ready(decision),
        None => Arc::clone(store).acquire(acquire),
    }
}

pub(crate) type Managing = Pin<Box<dyn Future<Output = Result<Outcome, Error>> + Send>>;

/// A store, or a guard around one, before its type is erased.
///
/// Guards are stores around stores, as tower's layers are services around services.
pub(crate) trait Decide: Debug + Send + Sync + 'static {
    /// Decides for several callers of the same limiters, in the order in which they came: one decision for each. If there
    /// are fewer, the others were not asked for, and their turn is yet to come. There is one at least.
    fn acquire_run(
        &self,
        run: &[Acquire],
    ) -> impl Future<Output = Result<Vec<Decision>, Error>> + Send;

    fn acquire(&self, acquire: &Acquire) -> impl Future<Output = Result<Decision, Error>> + Send;

    fn manage(&self, name: &Name, op: &Op) -> impl Future<Output = Result<Outcome, Error>> + Send;

    fn give_back(&self, receipt: Receipt, keep: u32);

    /// Whether one call decides for several callers of these limiters.
    fn decides_together(&self, acquire: &Acquire) -> bool;

    /// The refusal that is told where the store cannot be asked: the last one, if nothing is known to have made room.
    #[cfg(feature = "redis")]
    fn last_known(&self, _: &Acquire) -> Option<crate::decision::Refusal> {
        None
    }
}

/// The verbs that do not take permits.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// Stores a limit where there is none
    TrySetRate(StoredLimit),
    /// Stores a limit whatever was stored
    SetRate {
        limit: StoredLimit,
        /// Whether what is in use goes on counting.
        keep: bool,
        /// Whether there must be one to change.
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
}

impl Op {
    /// Whether it leaves everything as it is: anything else may make room.
    pub(crate) fn only_reads(&self) -> bool {
        matches!(self, Self::Inspect | Self::Available | Self::TimeToLive)
    }
}

/// On which limiters [`RateLimiter::expire_when`](crate::RateLimiter::expire_when) acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ExpireWhen {
    /// All. Redisson: `expire`
    Always,
    /// Those that would stay. Redisson: `expireIfNotSet`
    NotSet,
    /// Those that would vanish. Redisson: `expireIfSet`
    Set,
    /// Those that would vanish earlier. Redisson: `expireIfGreater`
    Greater,
    /// Those that would vanish later, or stay. Redisson: `expireIfLess`
    Less,
}

/// When a limiter vanishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TimeToLive {
    /// There is none
    Missing,
    /// Never
    Lasting,
    /// After this time
    Left(Duration),
}

/// What a verb found. Each verb has its own variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Changed(bool),
    Limit(Option<StoredLimit>),
    Permits(i64),
    TimeToLive(TimeToLive),
}

/// A decision that is being made. A store in memory has made it at once.
#[must_use = "futures do nothing unless polled"]
#[allow(
    clippy::large_enum_variant,
    reason = "a decision made at once is not to cost an allocation"
)]
pub(crate) enum Deciding {
    Ready(Option<Result<Decision, Error>>),
    Pending(Pin<Box<dyn Future<Output = Result<Decision, Error>> + Send>>),
}

impl Deciding {
    pub(crate) fn ready(decision: Result<Decision, Error>) -> Self {
        Self::Ready(Some(decision))
    }
}

impl Future for Deciding {
    type Output = Result<Decision, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            // Polled again after it was ready: pending for ever, as nobody may rely on more.
            Self::Ready(decision) => decision.take().map_or(Poll::Pending, Poll::Ready),
            Self::Pending(future) => future.as_mut().poll(cx),
        }
    }
}
