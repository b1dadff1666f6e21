//! The answer of a store to a request: a [`Decision`] is a [`Grant`] or a [`Refusal`].

pub(crate) mod grant;
pub(crate) mod limit_state;
pub(crate) mod source;

use std::{iter, time::Duration};

pub(crate) use self::grant::Charges;
pub use self::{grant::Grant, limit_state::LimitState, source::Source};
use crate::values::{charge::Charge, compiled_limit::Limiter, error::Error};

/// The answer to a request for permits.
///
/// Handlers find the [`Grant`] in the request's extensions. The response has a refusal in its
/// extensions, as a `Decision`. A grant is there if an outer layer of this crate had let the
/// request pass, or if
/// [`decision_in_response`](crate::RateLimitLayerBuilder::decision_in_response) asks for it. If
/// several layers decided, the response has the decision of the innermost, and
/// [`layers`](Self::layers) has the grants of those around it.
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
    pub fn limits(&self) -> impl Iterator<Item = LimitState<'_>> {
        LimitState::each(self.charges(), self.is_allowed())
    }

    /// Returns its charges, that of the limit closest to exhaustion first.
    pub(crate) fn charges(&self) -> &[Charge] {
        match self {
            Self::Allow(grant) => grant.charges(),
            Self::Deny(refusal) => &refusal.charges,
        }
    }

    /// Returns the answer to a charge of its request, if its store gave one.
    pub(crate) fn answer_to(&self, charge: &Charge) -> Option<&Charge> {
        let mut charges = self.charges().iter();
        charges.find(|answered| answered.limiter.is_same(&charge.limiter))
    }

    /// Returns the grants of the layers that let the request pass, the innermost first.
    pub fn layers(&self) -> impl Iterator<Item = &Grant> {
        let first = match self {
            Self::Allow(grant) => Some(grant),
            Self::Deny(refusal) => refusal.outer.as_ref(),
        };
        iter::successors(first, |grant| grant.outer())
    }

    /// Returns where the decision was made.
    pub fn source(&self) -> Source {
        match self {
            Self::Allow(grant) => grant.source(),
            Self::Deny(refusal) => refusal.source,
        }
    }
}

/// The refusal of a request: why, and when to retry. Nothing was charged.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub(crate) kind: RefusalKind,
    /// That of the limit closest to exhaustion first.
    pub(crate) charges: Charges,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) source: Source,
    pub(crate) cause: Cause,
    /// Set if the wait counts callers that wait before this one.
    pub(crate) behind: bool,
    /// The grant of the layer around the one that refused.
    pub(crate) outer: Option<Grant>,
}

/// What, other than its limits, has led to a refusal.
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
    /// Redis to the millisecond. A lack of places [in flight](crate::Limit::in_flight) counts for a
    /// second at most: as they come back when requests end, it is when to ask again.
    ///
    /// `None` if waiting does not help, or if it is unknown.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Returns the limits that applied, the one closest to exhaustion first.
    pub fn limits(&self) -> impl Iterator<Item = LimitState<'_>> {
        LimitState::each(&self.charges, false)
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

    /// Returns the charge of this limiter, if it had no room and has not banned the caller.
    pub(crate) fn without_room(&mut self, limiter: &Limiter) -> Option<&mut Charge> {
        let mut charges = self.charges.iter_mut();
        let charge = charges.find(|charge| charge.limiter.is_same(limiter))?;
        let standing = &charge.standing;
        (standing.retry_after().is_some() && !standing.banned).then_some(charge)
    }

    /// Returns whether there may be room before its wait is over: places in flight come back when
    /// requests end.
    pub(crate) fn may_end_sooner(&self) -> bool {
        let refusing = || {
            let charges = self.charges.iter();
            charges.filter(|charge| charge.standing.refused && !charge.shadow)
        };
        let lasts = |charge: &Charge| charge.standing.wait >= self.retry_after;
        refusing().any(|charge| charge.compiled().is_in_flight())
            && !refusing().any(|charge| !charge.compiled().is_in_flight() && lasts(charge))
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
            charges: Charges::default(),
            retry_after: None,
            source,
            cause: Cause::Nothing,
            behind: false,
            outer: None,
        }
    }

    /// Returns the refusal by limits that have no room for so long; without a wait, for more than
    /// they ever allow.
    pub(crate) fn by_limits(
        charges: Charges,
        retry_after: Option<Duration>,
        source: Source,
    ) -> Self {
        let kind = match retry_after {
            Some(_) => RefusalKind::OverLimit,
            None => RefusalKind::AboveRate,
        };
        Self {
            charges,
            retry_after,
            ..Self::new(kind, source)
        }
    }

    /// Returns the refusal of a caller that these limits ban for so long.
    pub(crate) fn banned(charges: Charges, wait: Duration, source: Source) -> Self {
        Self {
            kind: RefusalKind::Banned,
            ..Self::by_limits(charges, Some(wait), source)
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
    pub(crate) fn what(&self) -> &'static str {
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
