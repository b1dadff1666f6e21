//! The answer of a store to a request: a [`Decision`] is a [`Grant`] or a [`Refusal`].

pub(crate) mod source;

use std::{cmp, sync::Arc, time::Duration};

pub use self::source::Source;

use crate::{
    clock::Millis,
    error::Error,
    labels::Labels,
    list::List,
    receipt::{CorrectedBy, Correction, Ledger, Receipt},
};

/// The answer to a request for permits.
///
/// Handlers find it in the request's extensions, outer layers in the response's. If several layers
/// decided, the extensions also have [`Decisions`].
///
/// A refusal is no error, so `?` does not return on one. The compiler warns if a decision is
/// ignored:
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
/// ```compile_fail
/// #![deny(unused_must_use)]
/// # use tower_ratelimit::{Error, RateLimiter};
/// # async fn mails(limiter: &RateLimiter) -> Result<(), Error> {
/// limiter.try_acquire().await?.is_allowed();
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
    /// Returns whether permits were granted.
    #[must_use = "a refusal is no error: what ignores the decision lets everything pass"]
    pub fn is_allowed(&self) -> bool {
        matches!(self, Self::Allow(_))
    }

    /// Returns the limits that applied, the one closest to exhaustion first.
    ///
    /// Empty if no store answered: see [`source`](Self::source).
    pub fn limits(&self) -> impl ExactSizeIterator<Item = LimitState> {
        self.states().iter().cloned()
    }

    pub(crate) fn states(&self) -> &[LimitState] {
        match self {
            Self::Allow(grant) => grant.states(),
            Self::Deny(refusal) => refusal.states(),
        }
    }

    /// Returns where the decision was made.
    pub fn source(&self) -> Source {
        match self {
            Self::Allow(grant) => grant.source(),
            Self::Deny(refusal) => refusal.source,
        }
    }
}

/// The state of one limit after a decision.
#[derive(Clone, Debug)]
pub struct LimitState {
    pub(crate) labels: Arc<Labels>,
    pub(crate) permits: u64,
    pub(crate) interval: Millis,
    pub(crate) remaining: Option<u64>,
    /// If it refused, the time until it has room; else until at least one more permit is free.
    pub(crate) wait: Option<Duration>,
    pub(crate) reset_after: Duration,
    pub(crate) refused: bool,
    pub(crate) shadow: bool,
    pub(crate) banned: bool,
}

impl LimitState {
    /// Returns whether it is the limit of these labels.
    #[inline]
    pub(crate) fn is_of(&self, labels: &Arc<Labels>) -> bool {
        Arc::ptr_eq(&self.labels, labels) || self.labels.name == labels.name
    }

    /// Returns the rule's name; for a [`RateLimiter`](crate::RateLimiter) its own.
    pub fn name(&self) -> &str {
        &self.labels.name
    }

    /// Returns the permits of one interval, as stored: another process may have changed them.
    pub fn permits(&self) -> u64 {
        self.permits
    }

    /// Returns the length of the interval, as stored.
    pub fn interval(&self) -> Duration {
        Duration::from_millis(self.interval)
    }

    /// Returns the permits left after the decision, if they were counted.
    ///
    /// Exact, except that it is a lower bound right after very many permits expired at once, and
    /// with [`Source::Estimate`]. A repeated refusal, of [`Source::Cache`], has the number of the
    /// original. With [`Source::Lease`] it is the number at the time of the lease, less what was
    /// granted since. Callers that share one call all get the number after that call.
    pub fn remaining(&self) -> Option<u64> {
        self.remaining
    }

    /// Returns how long it takes until at least one more permit is free, if none is taken
    /// meanwhile: exact to the millisecond.
    ///
    /// The sliding log frees permits as its oldest entry expires, with slots as the oldest slot
    /// does; GCRA one after the other, the fixed window all at its end. `None` if this limit
    /// refused, see [`retry_after`](Self::retry_after), if all permits are free, and if it is
    /// unknown: the permits left were not counted, or the grant is from a [`Source::Lease`].
    pub fn next_after(&self) -> Option<Duration> {
        self.wait.filter(|_| !self.refused)
    }

    /// Returns how long it takes until all permits are free again, if none is taken meanwhile.
    ///
    /// Exact if the permits left were counted, as they are by default. Otherwise the whole
    /// interval while any permit is in use: after a grant that is the same, after a refusal it may
    /// be too long.
    pub fn reset_after(&self) -> Duration {
        self.reset_after
    }

    /// Returns whether this limit had no room. Of several limits of a refusal, some may have had.
    pub fn is_refused(&self) -> bool {
        self.refused
    }

    /// Returns how long it takes until this limit has room, if it had none: exact, in Redis to the
    /// millisecond. `None` if it had room, or if more was requested than it ever allows.
    pub fn retry_after(&self) -> Option<Duration> {
        self.wait.filter(|_| self.refused)
    }

    /// Returns whether the caller is banned by the rule of this limit, which then counts nothing:
    /// see [`Rule::ban`](crate::Rule::ban). Set for a shadow rule that would ban it, too.
    pub fn is_banned(&self) -> bool {
        self.banned
    }

    /// Returns whether this limit is only a shadow: it is counted, but refuses no request. See
    /// [`Rule::shadow`](crate::Rule::shadow).
    pub fn is_shadow(&self) -> bool {
        self.shadow
    }

    /// Returns whether responses leave it out. A shadow limit is shown to its owner alone.
    pub(crate) fn is_hidden(&self) -> bool {
        self.labels.hidden || self.shadow
    }

    /// Orders limits: first those that refuse, the longest wait first, then the others, the
    /// smallest remaining part first. Shadow limits come last.
    pub(crate) fn by_tightness(&self, other: &Self) -> cmp::Ordering {
        let refusal = |limit: &Self| {
            let wait = limit.wait.unwrap_or(Duration::MAX);
            limit.refused.then_some(wait)
        };
        let part = |limit: &Self, of: &Self| {
            let remaining = limit.remaining.unwrap_or(limit.permits);
            u128::from(remaining) * u128::from(of.permits)
        };
        self.shadow
            .cmp(&other.shadow)
            .then_with(|| refusal(other).cmp(&refusal(self)))
            .then_with(|| part(self, other).cmp(&part(other, self)))
    }
}

/// The grant of a request: the permits that it took, and the state of their limits.
///
/// Cloning is cheap: a request, its charge and its response share one.
#[derive(Clone, Debug)]
pub struct Grant(Arc<Given>);

/// The content of a grant. A copy has no corrections yet.
#[derive(Clone, Debug)]
struct Given {
    limits: List<LimitState>,
    receipts: List<Receipt>,
    source: Source,
    /// The corrections of the charge, if a layer lets a request pass by this grant.
    ledger: Ledger,
}

impl Grant {
    /// Returns the limits that applied, the one closest to exhaustion first.
    pub fn limits(&self) -> impl ExactSizeIterator<Item = LimitState> {
        self.states().iter().cloned()
    }

    pub(crate) fn states(&self) -> &[LimitState] {
        &self.0.limits
    }

    /// Returns what was taken, one receipt per limiter.
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

    /// Returns a grant that took nothing.
    pub(crate) fn by_policy() -> Self {
        Self::new(List::new(), List::new(), Source::FailurePolicy)
    }

    pub(crate) fn source(&self) -> Source {
        self.0.source
    }

    /// Returns the corrections of the charge.
    pub(crate) fn ledger(&self) -> &Ledger {
        &self.0.ledger
    }

    /// Corrects the charge of those receipts for which `permits` returns a number. See
    /// [`Ledger::correct`].
    pub(crate) fn correct(
        &self,
        by: CorrectedBy,
        permits: impl Fn(&Receipt, Correction) -> Option<u32>,
    ) -> bool {
        self.ledger().correct(self.receipts(), by, permits)
    }

    /// Returns the limits, to change them. The grant is copied if it is shared already.
    pub(crate) fn limits_mut(&mut self) -> &mut [LimitState] {
        &mut Arc::make_mut(&mut self.0).limits
    }

    /// Returns the receipts, to record where else permits were taken. The grant is copied if it is
    /// shared already.
    pub(crate) fn receipts_mut(&mut self) -> &mut [Receipt] {
        &mut Arc::make_mut(&mut self.0).receipts
    }

    /// Returns the receipts alone, to give them back.
    pub(crate) fn into_receipts(self) -> List<Receipt> {
        Arc::unwrap_or_clone(self.0).receipts
    }
}

/// The refusal of a request: why, and when to retry. Nothing was charged.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub(crate) kind: RefusalKind,
    pub(crate) limits: List<LimitState>,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) source: Source,
    pub(crate) cause: Cause,
    /// Set if the wait counts callers that wait before this one.
    pub(crate) behind: bool,
}

/// What has led to a refusal beside its limits.
#[derive(Clone, Debug)]
pub(crate) enum Cause {
    Nothing,
    /// Boxed, because most refusals are by limits
    Missing(Box<Missing>),
    Error(Error),
}

/// Why permits were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefusalKind {
    /// Too many permits were taken within the interval
    OverLimit,
    /// More permits were requested than the limit ever allows: waiting does not help
    AboveRate,
    /// The caller was refused too often: see [`Rule::ban`](crate::Rule::ban)
    Banned,
    /// The request lacks the key of a rule
    MissingKey,
    /// A header is longer than the rule's key accepts: see
    /// [`FromHeader::max_len`](crate::key::FromHeader::max_len)
    KeyTooLong,
    /// A list denies the request: see [`Rules::deny`](crate::Rules::deny)
    Blocked,
    /// Too many requests wait for permits already: see [`Rule::queue`](crate::Rule::queue)
    QueueFull,
    /// The store could not decide
    Unavailable,
}

impl Refusal {
    /// Returns why permits were refused.
    pub fn kind(&self) -> RefusalKind {
        self.kind
    }

    /// Returns how long it takes until the same request finds room, if no other takes it: exact, in
    /// Redis to the millisecond.
    ///
    /// `None` if waiting does not help, or if it is unknown.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Returns the limits that applied, the one closest to exhaustion first.
    pub fn limits(&self) -> impl ExactSizeIterator<Item = LimitState> {
        self.states().iter().cloned()
    }

    pub(crate) fn states(&self) -> &[LimitState] {
        &self.limits
    }

    /// Returns what the request lacks, if the kind is [`MissingKey`](RefusalKind::MissingKey), or
    /// what is too long, if it is [`KeyTooLong`](RefusalKind::KeyTooLong).
    pub fn missing(&self) -> Option<&'static str> {
        self.lack().map(Missing::what)
    }

    /// Returns the same, with the side that is at fault.
    pub(crate) fn lack(&self) -> Option<&Missing> {
        match &self.cause {
            Cause::Missing(missing) => Some(missing),
            Cause::Nothing | Cause::Error(_) => None,
        }
    }

    /// Returns what went wrong, if the kind is [`Unavailable`](RefusalKind::Unavailable).
    pub fn error(&self) -> Option<&Error> {
        match &self.cause {
            Cause::Error(error) => Some(error),
            Cause::Nothing | Cause::Missing(_) => None,
        }
    }

    /// Returns the limit of these labels, if it had no room and has not banned the caller.
    pub(crate) fn without_room(&mut self, labels: &Arc<Labels>) -> Option<&mut LimitState> {
        let limit = self.limits.iter_mut().find(|limit| limit.is_of(labels))?;
        (limit.retry_after().is_some() && !limit.banned).then_some(limit)
    }

    /// Returns the same refusal with another wait, for a caller behind others.
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
            limits: List::new(),
            retry_after: None,
            source,
            cause: Cause::Nothing,
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

    /// Returns the refusal of a caller that these limits ban for so long.
    pub(crate) fn banned(limits: List<LimitState>, wait: Duration, source: Source) -> Self {
        Self {
            kind: RefusalKind::Banned,
            ..Self::by_limits(limits, Some(wait), source)
        }
    }

    pub(crate) fn unavailable(error: Error) -> Self {
        Self {
            cause: Cause::Error(error),
            ..Self::new(RefusalKind::Unavailable, Source::FailurePolicy)
        }
    }

    pub(crate) fn blocked() -> Self {
        Self::new(RefusalKind::Blocked, Source::None)
    }

    pub(crate) fn missing_key(missing: Missing) -> Self {
        let kind = match missing.fault {
            Fault::TooLong { .. } => RefusalKind::KeyTooLong,
            Fault::Caller | Fault::Ambiguous | Fault::Server => RefusalKind::MissingKey,
        };
        Self {
            cause: Cause::Missing(Box::new(missing)),
            ..Self::new(kind, Source::None)
        }
    }
}

/// A key that a request lacks, repeats, or makes too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    pub(crate) what: &'static str,
    pub(crate) fault: Fault,
}

impl Missing {
    /// Returns its name, as shown to the caller.
    pub fn what(&self) -> &'static str {
        self.what
    }
}

/// The side that is at fault for a missing key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Caller,
    /// The caller sends it twice. Not excused, or callers could choose to have no key
    Ambiguous,
    /// The caller sends more than this many bytes: not excused either
    TooLong {
        most: usize,
    },
    /// The server was set up without the part that records the peer's address
    Server,
}

/// All decisions made on one request, in the order they were made. In the extensions beside the
/// last [`Decision`].
#[derive(Clone, Debug, Default)]
pub struct Decisions(pub(crate) Vec<Decision>);

impl Decisions {
    /// Returns the decisions, the outermost layer's first.
    pub fn iter(&self) -> std::slice::Iter<'_, Decision> {
        self.0.iter()
    }
}
