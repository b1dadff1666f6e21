//! Whether there was room, and how much is left.

mod limit_state;

use std::{fmt, sync::Arc, time::Duration};

pub use self::limit_state::LimitState;

use crate::{
    error::Error,
    list::List,
    receipt::{Ledger, Receipt},
};

/// The answer to a request for permits.
///
/// Handlers find it in the request's extensions, outer layers in the response's. Where several layers decided, the
/// extensions hold [`Decisions`].
///
/// A refusal is no error, so `?` lets it pass. The compiler warns where a decision is ignored:
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// # use tower_ratelimit::{Error, RateLimiter};
/// # async fn mails(limiter: &RateLimiter) -> Result<(), Error> {
/// limiter.try_acquire().await?;
/// # Ok(())
/// # }
/// ```
///
/// ```
/// #![deny(unused_must_use)]
/// # use tower_ratelimit::{Error, RateLimiter};
/// # async fn mails(limiter: &RateLimiter) -> Result<(), Error> {
/// if limiter.try_acquire().await?.is_allowed() {
///     // Send it.
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a refusal is no error: what ignores the decision lets everything pass"]
#[allow(
    clippy::large_enum_variant,
    reason = "a refusal is not to cost an allocation"
)]
pub enum Decision {
    /// Go ahead
    Allow(Grant),
    /// Not now
    Deny(Refusal),
}

impl Decision {
    /// Whether it says to go ahead.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        matches!(self, Self::Allow(_))
    }

    /// The limits that were met, the one closest to exhaustion first.
    ///
    /// Empty where no store answered: see [`source`](Self::source).
    pub fn limits(&self) -> impl ExactSizeIterator<Item = LimitState> {
        self.states().iter().cloned()
    }

    pub(crate) fn states(&self) -> &[LimitState] {
        match self {
            Self::Allow(grant) => grant.states(),
            Self::Deny(refusal) => refusal.states(),
        }
    }

    /// Who decided.
    #[must_use]
    pub fn source(&self) -> Source {
        match self {
            Self::Allow(grant) => grant.source(),
            Self::Deny(refusal) => refusal.source,
        }
    }
}

/// Who made a [`Decision`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// The store
    Store,
    /// The store, by what a key took at most: it is full, and has no place for that key. The
    /// permits left are a lower bound then, and waits may be longer by an eighth of the interval.
    /// See [`MemoryStore`](crate::MemoryStore#bounds)
    Estimate,
    /// The store, a moment ago: a refusal that still stands is told again. See
    /// [`deny_cache`](crate::RedisStoreBuilder::deny_cache)
    Cache,
    /// This process, out of permits that it took ahead: see [`Rule::lease`](crate::Rule::lease)
    Lease,
    /// This process, by a share of the limit, because the store could not: see
    /// [`FailurePolicy::local`](crate::FailurePolicy::local)
    Local,
    /// The rule's [`FailurePolicy`](crate::FailurePolicy), because the store could not
    FailurePolicy,
    /// The layer, without asking the store: a request without the key that a rule wants, or one that a list denies
    Layer,
}

impl Source {
    /// Returns the store, which decided by an estimate or not.
    pub(crate) fn of_store(by_estimate: bool) -> Self {
        if by_estimate {
            Self::Estimate
        } else {
            Self::Store
        }
    }
}

/// Permits that were taken.
///
/// Cloning is cheap: a request, its charge and its answer share one.
#[derive(Clone)]
pub struct Grant(Arc<Given>);

/// What was granted.
struct Given {
    limits: List<LimitState>,
    receipts: List<Receipt>,
    source: Source,
    /// What is to be charged in the end, where a layer lets a request pass by it.
    ledger: Ledger,
}

impl Clone for Given {
    /// Of what no layer has yet.
    fn clone(&self) -> Self {
        Self {
            limits: self.limits.clone(),
            receipts: self.receipts.clone(),
            source: self.source,
            ledger: Ledger::default(),
        }
    }
}

impl Grant {
    /// The limits that were met, the one closest to exhaustion first.
    pub fn limits(&self) -> impl ExactSizeIterator<Item = LimitState> {
        self.states().iter().cloned()
    }

    pub(crate) fn states(&self) -> &[LimitState] {
        &self.0.limits
    }

    /// What was taken, one receipt for each limiter.
    #[must_use]
    pub fn receipts(&self) -> &[Receipt] {
        &self.0.receipts
    }

    pub(crate) fn new(limits: List<LimitState>, receipts: List<Receipt>, source: Source) -> Self {
        Self(Arc::new(Given {
            limits,
            receipts,
            source,
            ledger: Ledger::default(),
        }))
    }

    /// A grant that took nothing.
    pub(crate) fn by_policy() -> Self {
        Self::new(List::EMPTY, List::EMPTY, Source::FailurePolicy)
    }

    pub(crate) fn source(&self) -> Source {
        self.0.source
    }

    /// Where is kept what is to be charged in the end.
    pub(crate) fn ledger(&self) -> &Ledger {
        &self.0.ledger
    }

    /// The limits, to tell otherwise of them. To be done before anybody else has it, as it is copied then.
    #[cfg(feature = "redis")]
    pub(crate) fn limits_mut(&mut self) -> &mut [LimitState] {
        &mut Arc::make_mut(&mut self.0).limits
    }

    /// The receipts, to note where else permits were taken. To be done before anybody else has it,
    /// as it is copied then.
    #[cfg(feature = "redis")]
    pub(crate) fn receipts_mut(&mut self) -> &mut [Receipt] {
        &mut Arc::make_mut(&mut self.0).receipts
    }

    /// The receipts alone, for whoever gives back.
    pub(crate) fn into_receipts(self) -> List<Receipt> {
        Arc::unwrap_or_clone(self.0).receipts
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grant")
            .field("limits", &self.0.limits)
            .field("receipts", &self.0.receipts)
            .field("source", &self.0.source)
            .finish()
    }
}

/// Permits that were not taken, and when to come back. Nothing was charged.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub(crate) kind: RefusalKind,
    pub(crate) limits: List<LimitState>,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) source: Source,
    /// Boxed, because most refusals are by limits.
    pub(crate) missing: Option<Box<Missing>>,
    pub(crate) error: Option<Error>,
    /// Whether the wait counts callers that wait before this one.
    #[cfg_attr(
        not(feature = "redis"),
        allow(dead_code, reason = "a store in memory keeps no refusals")
    )]
    pub(crate) behind: bool,
}

/// Why permits were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefusalKind {
    /// Too many were taken within the interval
    OverLimit,
    /// More were asked for than the limit ever allows: waiting does not help
    AboveRate,
    /// The request does not say who it is from
    MissingKey,
    /// A header is longer than the rule's key takes: see
    /// [`FromHeader::max_len`](crate::key::FromHeader::max_len)
    KeyTooLong,
    /// A list denies it: see [`Rules::deny`](crate::Rules::deny)
    Blocked,
    /// Too many wait for permits already: see [`Rule::queue`](crate::Rule::queue)
    QueueFull,
    /// The limiter itself cannot tell
    Unavailable,
}

impl Refusal {
    /// Why it was refused.
    #[must_use]
    pub fn kind(&self) -> RefusalKind {
        self.kind
    }

    /// How long until the same request finds room, if nobody else takes it: exact, in Redis to the
    /// millisecond.
    ///
    /// `None` where waiting does not help or nobody knows.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// The limits that were met, the one closest to exhaustion first.
    pub fn limits(&self) -> impl ExactSizeIterator<Item = LimitState> {
        self.states().iter().cloned()
    }

    pub(crate) fn states(&self) -> &[LimitState] {
        &self.limits
    }

    /// What the request lacks, where the kind is [`MissingKey`](RefusalKind::MissingKey), or what
    /// is too long, where it is [`KeyTooLong`](RefusalKind::KeyTooLong).
    #[must_use]
    pub fn missing(&self) -> Option<&'static str> {
        self.missing.as_ref().map(|missing| missing.what)
    }

    /// What went wrong, where the kind is [`Unavailable`](RefusalKind::Unavailable).
    #[must_use]
    pub fn error(&self) -> Option<&Error> {
        self.error.as_ref()
    }

    /// The same refusal with another wait, for a caller that others wait before.
    pub(crate) fn later(&self, wait: Duration) -> Self {
        Self {
            retry_after: Some(wait),
            behind: true,
            ..self.clone()
        }
    }

    fn new(kind: RefusalKind, source: Source) -> Self {
        Self {
            kind,
            limits: List::EMPTY,
            retry_after: None,
            source,
            missing: None,
            error: None,
            behind: false,
        }
    }

    /// Returns the refusal by limits that have no room for so long; without a wait, for more than
    /// they ever allow.
    pub(crate) fn by_limits(
        limits: List<LimitState>,
        retry_after: Option<Duration>,
        source: Source,
    ) -> Self {
        let kind = match retry_after {
            Some(_) => RefusalKind::OverLimit,
            None => RefusalKind::AboveRate,
        };
        Self {
            limits,
            retry_after,
            ..Self::new(kind, source)
        }
    }

    pub(crate) fn unavailable(error: Error) -> Self {
        Self {
            error: Some(error),
            ..Self::new(RefusalKind::Unavailable, Source::FailurePolicy)
        }
    }

    pub(crate) fn blocked() -> Self {
        Self::new(RefusalKind::Blocked, Source::Layer)
    }

    pub(crate) fn missing_key(missing: Missing) -> Self {
        let kind = match missing.fault {
            Fault::TooLong { .. } => RefusalKind::KeyTooLong,
            Fault::Caller | Fault::Ambiguous | Fault::Server => RefusalKind::MissingKey,
        };
        Self {
            missing: Some(Box::new(missing)),
            ..Self::new(kind, Source::Layer)
        }
    }
}

/// What a request lacks, or has too much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    pub(crate) what: &'static str,
    pub(crate) fault: Fault,
}

impl Missing {
    /// What it is, as the caller is told.
    #[must_use]
    pub fn what(&self) -> &'static str {
        self.what
    }
}

/// Whose fault it is that something is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Caller,
    /// The caller's, who says it twice: not excused, as it would else choose to be nobody
    Ambiguous,
    /// The caller's, who sends more than so many bytes: not excused either
    TooLong {
        most: usize,
    },
    /// The server's: it was set up without what notes the peer's address
    Server,
}

/// All decisions made on one request, in the order they were made. In the extensions beside the last [`Decision`].
#[derive(Clone, Debug, Default)]
pub struct Decisions(Vec<Decision>);

impl Decisions {
    pub(crate) fn push(&mut self, decision: Decision) {
        self.0.push(decision);
    }

    pub(crate) fn push_first(&mut self, decision: Decision) {
        self.0.insert(0, decision);
    }

    /// The decisions, the outermost layer's first.
    pub fn as_slice(&self) -> &[Decision] {
        &self.0
    }
}
