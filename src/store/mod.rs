//! Is there room? Where limiters are kept, and what they are asked.

mod answer;
pub(crate) mod call;
mod claims;
mod counted;
pub(crate) mod fixed_window;
pub(crate) mod gcra;
pub(crate) mod guard;
mod memory;
#[cfg(feature = "redis")]
pub(crate) mod redis;
#[cfg(test)]
mod rounding;
pub(crate) mod window;

use std::{
    fmt::Debug,
    future::Future,
    pin::Pin,
    sync::{Arc, OnceLock, atomic::AtomicBool},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use self::guard::fallback::OfRule;
pub(crate) use self::{
    answer::{Answer, Changed, Verdict, at_least_zero},
    claims::{Holder, RuleNames},
};
pub use self::{
    guard::fallback::{FailurePolicy, Local},
    memory::MemoryStore,
};
use crate::{
    decision::{Decision, Grant, LimitState, PermitId, Receipt, Refusal, RefusalKind, Source},
    error::Error,
    limit::{LimitSource, StoredLimit},
    list::List,
    name::Name,
    response::ToldPolicy,
    settle::ChargeIf,
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
    fn last_known(&self, _: &Acquire) -> Option<Refusal> {
        None
    }
}

/// What is asked for: a list of charges, never empty, granted together or not at all.
#[derive(Clone, Debug)]
pub(crate) struct Acquire {
    pub(crate) first: Charge,
    /// The others, each of another limiter.
    pub(crate) rest: Vec<Charge>,
    /// What to answer when the store cannot; `None` hands the error to the caller.
    pub(crate) on_failure: Option<FailurePolicy>,
    /// Whether somebody reads how much is left.
    pub(crate) remaining: bool,
    /// How long it waits in line for permits; `None` takes a refusal for an answer.
    pub(crate) patience: Option<Patience>,
    /// Since when its caller waits for the store; `None` until that is asked.
    #[cfg_attr(
        not(feature = "redis"),
        allow(dead_code, reason = "a store in memory answers at once")
    )]
    pub(crate) asked: Option<Instant>,
}

/// How long a caller waits for permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    For(Duration),
    Endless,
    /// So long, if fewer than so many wait already.
    Queue(Duration, usize),
}

impl Acquire {
    pub(crate) fn charges(&self) -> impl Iterator<Item = &Charge> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    /// Checks that its limits, as far as the caller has them, can be counted by.
    pub(crate) fn check(&self) -> Result<(), Error> {
        for charge in self.charges() {
            if let Some(limit) = charge.limit.given() {
                charge.name.check(&limit.stored())?;
            }
        }
        Ok(())
    }

    pub(crate) fn receipts(&self) -> List<Receipt> {
        self.charges().map(Charge::receipt).collect()
    }

    /// Gives it an id that no other acquire has: one for all, as each limiter has a log of its own.
    pub(crate) fn identify(&mut self, id: PermitId) {
        for charge in std::iter::once(&mut self.first).chain(&mut self.rest) {
            charge.id = id;
        }
    }

    /// Whether nothing in it can refuse.
    pub(crate) fn is_trial(&self) -> bool {
        self.charges().all(|charge| charge.shadow)
    }

    /// The same without what is only tried out, where that makes a difference and leaves something.
    pub(crate) fn without_trials(&self) -> Option<Self> {
        if self.is_trial() || self.charges().all(|charge| !charge.shadow) {
            return None;
        }
        let mut enforced = self.charges().filter(|charge| !charge.shadow).cloned();
        Some(Self {
            first: enforced.next()?,
            rest: enforced.collect(),
            ..self.clone()
        })
    }

    /// What the answers to its charges, one for each, come to.
    pub(crate) fn decision(&self, answers: &[Answer]) -> Decision {
        let answered = || self.charges().zip(answers);
        let (mut above_rate, mut refused, mut wait) = (false, false, Duration::ZERO);
        for (_, answer) in answered().filter(|(charge, _)| !charge.shadow) {
            above_rate |= answer.verdict == Verdict::AboveRate;
            refused |= answer.verdict == Verdict::Refused;
            wait = answer.now.until(answer.wait).max(wait);
        }
        let mut limits = List::EMPTY;
        for (charge, answer) in answered() {
            let counted = self.remaining || answer.verdict == Verdict::Refused;
            limits.push(answer.state(charge, counted && !above_rate));
        }
        if limits.len() > 1 {
            limits.sort_by(LimitState::by_tightness);
        }
        let source = Source::of_store(answers.iter().any(|answer| answer.estimated));
        if !above_rate && !refused {
            let taken = answered().filter(|(_, answer)| answer.verdict == Verdict::Granted);
            let receipts = taken.map(|(charge, answer)| answer.receipt(charge));
            return Decision::Allow(Grant::new(limits, receipts.collect(), source));
        }
        Decision::Deny(Refusal {
            kind: if above_rate {
                RefusalKind::AboveRate
            } else {
                RefusalKind::OverLimit
            },
            limits,
            retry_after: (!above_rate).then_some(wait),
            source,
            missing: None,
            error: None,
            behind: false,
        })
    }
}

/// Permits of one limiter.
#[derive(Clone, Debug)]
pub(crate) struct Charge {
    pub(crate) name: Name,
    pub(crate) rule: Arc<RuleTag>,
    pub(crate) limit: LimitSource,
    pub(crate) permits: u32,
    /// Of no meaning until the store has given it one.
    pub(crate) id: PermitId,
    /// Whether it is taken if there is room, and no reason to refuse if there is none.
    pub(crate) shadow: bool,
    /// By how many milliseconds it is scored ahead: taken for callers that are still to come, see `guard/lease.rs`.
    pub(crate) lead: i64,
}

/// A rule as its charges and its limits know it: its name, which answers it charges, and what was already said of it.
pub(crate) struct RuleTag {
    /// What answers call it; of a `RateLimiter`, its own name.
    pub(crate) name: Arc<str>,
    /// Whether there is a rule: the name of a `RateLimiter` may be somebody's.
    is_rule: bool,
    /// Whether answers do not tell of its limit.
    hidden: bool,
    /// Which answers are charged; all without it.
    charge_if: OnceLock<ChargeIf>,
    /// Set where callers cannot make up keys of it.
    bounded: OnceLock<()>,
    /// What is done with its requests while the store fails.
    pub(crate) fallback: OfRule,
    /// For how long permits are taken ahead; not at all without it.
    lease: OnceLock<Duration>,
    /// What each request costs, where it is the same for all.
    pub(crate) fixed_cost: OnceLock<u32>,
    /// What answers say of its limit.
    pub(crate) told_policy: ToldPolicy,
    /// That nobody has set its limit.
    pub(crate) told_unset: AtomicBool,
    /// That another process has stored another limit.
    #[cfg(feature = "redis")]
    pub(crate) told_rewritten: AtomicBool,
    /// That a wrong clock takes part.
    #[cfg(feature = "redis")]
    pub(crate) told_repaired: AtomicBool,
}

impl RuleTag {
    pub(crate) fn new(name: &str, hidden: bool) -> Arc<Self> {
        Self::tag(name, true, hidden)
    }

    /// Of a limiter without a rule.
    pub(crate) fn unnamed(name: &str) -> Arc<Self> {
        Self::tag(name, false, false)
    }

    fn tag(name: &str, is_rule: bool, hidden: bool) -> Arc<Self> {
        Arc::new(Self {
            name: name.into(),
            is_rule,
            hidden,
            charge_if: OnceLock::new(),
            bounded: OnceLock::new(),
            fallback: OfRule::default(),
            lease: OnceLock::new(),
            fixed_cost: OnceLock::new(),
            told_policy: ToldPolicy::default(),
            told_unset: AtomicBool::new(false),
            #[cfg(feature = "redis")]
            told_rewritten: AtomicBool::new(false),
            #[cfg(feature = "redis")]
            told_repaired: AtomicBool::new(false),
        })
    }

    /// Whether answers name and show the one as the other.
    #[cfg(feature = "redis")]
    pub(crate) fn answers_like(&self, other: &Self) -> bool {
        self.name == other.name && self.hidden == other.hidden
    }

    pub(crate) fn charge_if(&self) -> Option<&ChargeIf> {
        self.charge_if.get()
    }

    /// Says which answers are charged, once.
    pub(crate) fn charges_if(&self, charge_if: &ChargeIf) {
        let _ = self.charge_if.set(Arc::clone(charge_if));
    }

    #[cfg(feature = "redis")]
    pub(crate) fn is_bounded(&self) -> bool {
        self.bounded.get().is_some()
    }

    /// Says that callers cannot make up keys of it.
    pub(crate) fn bounds(&self) {
        let _ = self.bounded.set(());
    }

    pub(crate) fn lease(&self) -> Option<Duration> {
        self.lease.get().copied()
    }

    /// Says for how long permits are taken ahead, once. Zero: not at all.
    pub(crate) fn leases(&self, lease: Duration) {
        if !lease.is_zero() {
            let _ = self.lease.set(lease);
        }
    }

    /// The name as logs may know it.
    pub(crate) fn for_logs(&self) -> &str {
        if self.is_rule {
            &self.name
        } else {
            "a RateLimiter"
        }
    }
}

// By what they are called: a limit that is told again is the same, whoever's tag it has.
impl PartialEq for RuleTag {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for RuleTag {}

impl Debug for RuleTag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "RuleTag({})",
            if self.is_rule { &self.name } else { ".." }
        )
    }
}

impl Charge {
    /// The receipt of a call that is still to be sent.
    #[cfg(feature = "redis")]
    pub(crate) fn receipt(&self) -> Receipt {
        self.receipt_made(Some(crate::clock::moment()))
    }

    #[cfg(not(feature = "redis"))]
    pub(crate) fn receipt(&self) -> Receipt {
        self.receipt_made(None)
    }

    #[cfg_attr(
        not(feature = "redis"),
        allow(unused_variables, reason = "only what is sent can be under way")
    )]
    pub(crate) fn receipt_made(&self, made: Option<Instant>) -> Receipt {
        Receipt {
            name: self.name.clone(),
            id: self.id,
            permits: self.permits,
            rule: Arc::clone(&self.rule),
            limit: self.limit,
            #[cfg(feature = "redis")]
            interval: Duration::ZERO,
            #[cfg(feature = "redis")]
            made,
            once: None,
            #[cfg(feature = "redis")]
            lease: None,
            #[cfg(feature = "redis")]
            place: crate::decision::Place::Store,
        }
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
