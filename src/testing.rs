//! What users write tests with: a clock that is moved by hand, decisions made by hand, and
//! assertions whose failures show the decision.
//!
//! - [`MemoryStoreBuilder::build_manual`] makes a store and its [`ManualClock`]: no test sleeps.
//! - [`MemoryStoreBuilder::failing`] makes a store that fails, for tests of outages.
//! - [`Decision::of`] is the decision that a response has, and [`Decision::assert_allowed`] and
//!   its like assert what it is.
//! - [`Grant::for_test`] and [`Refusal::for_test`] make decisions for code that reads them.
//!
//! [`MemoryStoreBuilder::build_manual`]: crate::MemoryStoreBuilder::build_manual
//! [`MemoryStoreBuilder::failing`]: crate::MemoryStoreBuilder::failing
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//! use tower_ratelimit::{Limit, MemoryStore, RateLimiter, testing::ManualClock};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (store, clock): (_, ManualClock) = MemoryStore::builder().build_manual();
//! let mails = RateLimiter::new(&store, "mails")?;
//! mails.try_set_rate(Limit::per_minute(1)).await?;
//! mails.try_acquire().await?.assert_allowed();
//! mails.try_acquire().await?.assert_refused();
//! clock.advance(Duration::from_secs(60));
//! mails.try_acquire().await?.assert_allowed();
//! # Ok(())
//! # }
//! ```

use std::{fmt, sync::Arc, time::Duration};

use http::Response;

pub use crate::values::clock::ManualClock;
use crate::values::{
    charge::{Charge, Standing},
    compiled_limit::{CompiledLimit, Limiter},
    decision::{Charges, Decision, Fault, Grant, Missing, Refusal, RefusalKind, Source},
    error::ErrorKind,
    limit::Limit,
    name::Name,
};

/// Makes decisions for tests of code that reads them. They come from no store, and took nothing.
impl Grant {
    /// Returns a grant that took nothing.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Decision, Grant, Limit};
    ///
    /// let grant = Grant::for_test().with_limit("login", Limit::per_minute(5), 4);
    /// Decision::Allow(grant).assert_allowed().assert_remaining(4);
    /// ```
    #[must_use]
    pub fn for_test() -> Self {
        Self::new(Charges::default(), Source::Store)
    }

    /// Adds a limit that applied, and its permits left.
    #[must_use]
    pub fn with_limit(self, name: &str, limit: Limit, remaining: u64) -> Self {
        // Those of no layer.
        let mut charges: Charges = self.charges().iter().cloned().collect();
        charges.push(charge(name, limit, remaining, None));
        charges.sort_by(Charge::by_tightness);
        Self::new(charges, Source::Store)
    }
}

/// Makes decisions for tests of code that reads them.
impl Refusal {
    /// Returns a refusal of this kind, with what a real one has: one for a missing key lacks
    /// `x-api-key`, and the error of one that is unavailable is [`ErrorKind::Unavailable`].
    ///
    /// # Example
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{Limit, Refusal, RefusalKind};
    ///
    /// /// The text that a page shows; it is what is tested here.
    /// fn text(refusal: &Refusal) -> String {
    ///     match refusal.retry_after() {
    ///         Some(wait) => format!("Try again in {} seconds.", wait.as_secs()),
    ///         None => "Try again later.".to_owned(),
    ///     }
    /// }
    ///
    /// let wait = Duration::from_secs(40);
    /// let refusal = Refusal::for_test(RefusalKind::OverLimit);
    /// let refusal = refusal.with_limit("login", Limit::per_minute(5), wait);
    /// assert_eq!(text(&refusal), "Try again in 40 seconds.");
    /// let refusal = Refusal::for_test(RefusalKind::Unavailable);
    /// assert_eq!(text(&refusal), "Try again later.");
    /// ```
    #[must_use]
    pub fn for_test(kind: RefusalKind) -> Self {
        let lacks = |fault| {
            let what = "x-api-key";
            Self::missing_key(Missing { what, fault })
        };
        match kind {
            RefusalKind::MissingKey => lacks(Fault::Caller),
            RefusalKind::KeyTooLong => lacks(Fault::TooLong { most: 64 }),
            RefusalKind::Blocked => Self::blocked(),
            RefusalKind::Unavailable => Self::unavailable(ErrorKind::Unavailable.into()),
            kind => Self {
                kind,
                ..Self::by_limits(Charges::default(), None, Source::Store)
            },
        }
    }

    /// Adds a limit that had no room, and the wait until it has; the refusal's is the longest.
    #[must_use]
    pub fn with_limit(mut self, name: &str, limit: Limit, wait: Duration) -> Self {
        self.charges.push(charge(name, limit, 0, Some(wait)));
        self.charges.sort_by(Charge::by_tightness);
        self.retry_after = self.retry_after.max(Some(wait));
        self
    }
}

fn charge(name: &str, limit: Limit, remaining: u64, wait: Option<Duration>) -> Charge {
    let standing = Standing {
        permits: limit.permits(),
        interval: limit.stored().interval.cast_unsigned(),
        remaining: Some(remaining),
        wait,
        reset_after: limit.interval(),
        refused: wait.is_some(),
        banned: false,
        granted: false,
    };
    Charge::by_hand(CompiledLimit::new(name, false), standing)
}

impl Charge {
    /// Returns the charge of a rule's limit that stands like this, which took nothing.
    pub(crate) fn by_hand(compiled: Arc<CompiledLimit>, standing: Standing) -> Self {
        let name = Name::known(&compiled.name);
        Self {
            standing,
            ..Self::new(Limiter { name, compiled }, 0)
        }
    }
}

/// Asserts a decision in tests. Each method returns the decision, so that another can follow.
impl Decision {
    /// Returns the decision on the request that a response answers; if several layers decided, the
    /// innermost one's.
    ///
    /// It is in the extensions of the response, which do not travel over a socket: call the service
    /// itself, with `tower::ServiceExt::oneshot` for example. A refusal is always there, a grant
    /// with [`decision_in_response`](crate::RateLimitLayerBuilder::decision_in_response).
    ///
    /// # Panics
    ///
    /// If there is no decision: the layer leaves no grants in responses, no rule applies to the
    /// request, or an outer layer made a response of its own.
    ///
    /// # Example
    ///
    /// ```
    /// # use http::{Request, Response};
    /// # use http_body_util::Full;
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// use tower_ratelimit::{Decision, Limit, MemoryStore, RateLimitLayer, key::Constant};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let handler = service_fn(async |_: Request<()>| {
    /// #     Ok::<_, std::convert::Infallible>(Response::new(Full::new(bytes::Bytes::new())))
    /// # });
    /// let (store, _clock) = MemoryStore::builder().build_manual();
    /// let layer = RateLimitLayer::builder(&store)
    ///     .otherwise(Limit::per_minute(2).by(Constant("all")))
    ///     .decision_in_response()
    ///     .build()?;
    /// let response = layer.layer(handler).oneshot(Request::new(())).await?;
    /// Decision::of(&response).assert_allowed().assert_remaining(1);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    #[allow(clippy::panic, reason = "a test fails by panicking")]
    pub fn of<B>(response: &Response<B>) -> &Self {
        match response.extensions().get() {
            Some(decision) => decision,
            None => panic!(
                "no decision: no rule applies to the request, another layer made the response, or \
                 it was admitted without `decision_in_response` ({})",
                response.status()
            ),
        }
    }

    /// Asserts that the decision allows the request.
    ///
    /// # Panics
    ///
    /// If it does not, with the decision.
    #[track_caller]
    pub fn assert_allowed(&self) -> &Self {
        self.assert(self.is_allowed(), "allowed")
    }

    /// Asserts that the decision refuses the request.
    ///
    /// # Panics
    ///
    /// If it does not, with the decision.
    #[track_caller]
    pub fn assert_refused(&self) -> &Self {
        self.assert(!self.is_allowed(), "refused")
    }

    /// Asserts that it is a refusal of this kind.
    ///
    /// # Panics
    ///
    /// If it is not, with the decision.
    ///
    /// # Example
    ///
    /// ```
    /// # use tower_ratelimit::{Limit, MemoryStore, RateLimiter, RefusalKind};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (store, _clock) = MemoryStore::builder().build_manual();
    /// let mails = RateLimiter::new(&store, "mails")?;
    /// mails.try_set_rate(Limit::per_minute(10)).await?;
    /// let decision = mails.try_acquire_many(11).await?;
    /// decision.assert_refused_as(RefusalKind::AboveRate);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn assert_refused_as(&self, kind: RefusalKind) -> &Self {
        let is_that = matches!(self, Self::Deny(refusal) if refusal.kind() == kind);
        self.assert(is_that, format_args!("refused as {kind:?}"))
    }

    /// Asserts that it is a refusal with exactly this wait.
    ///
    /// A store in memory measures it to the nanosecond: by a [`ManualClock`] that stands at a whole
    /// millisecond it is in whole milliseconds, except by
    /// [`Algorithm::Gcra`](crate::Algorithm::Gcra), which counts in microseconds.
    ///
    /// # Panics
    ///
    /// If it is not, with the decision.
    #[track_caller]
    pub fn assert_retry_after(&self, wait: Duration) -> &Self {
        let is_that = matches!(self, Self::Deny(refusal) if refusal.retry_after() == Some(wait));
        self.assert(is_that, format_args!("refused for {wait:?}"))
    }

    /// Asserts how many permits are left of the limit that is closest to exhaustion.
    ///
    /// # Panics
    ///
    /// If another number is left, or it was not counted, with the decision.
    #[track_caller]
    pub fn assert_remaining(&self, permits: u64) -> &Self {
        let left = self.limits().next().and_then(|limit| limit.remaining());
        self.assert(
            left == Some(permits),
            format_args!("{permits} permits left"),
        )
    }

    #[track_caller]
    fn assert(&self, is_so: bool, expected: impl fmt::Display) -> &Self {
        assert!(is_so, "not {expected}, but {}", Described(self));
        self
    }
}

/// Formats a decision as text. It names rules and missing keys, and no values of keys.
struct Described<'a>(&'a Decision);

impl fmt::Display for Described<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Decision::Allow(_) => f.write_str("allowed")?,
            Decision::Deny(refusal) => {
                write!(f, "refused as {:?}", refusal.kind())?;
                if let Some(wait) = refusal.retry_after() {
                    write!(f, ", retry after {wait:?}")?;
                }
                if let Some(missing) = refusal.missing() {
                    let fault = match refusal.kind() {
                        RefusalKind::KeyTooLong => "for the length of",
                        _ => "for lack of",
                    };
                    write!(f, ", {fault}: {missing}")?;
                }
                if let Some(error) = refusal.error() {
                    write!(f, ", because of: {error}")?;
                }
            }
        }
        match self.0.source() {
            Source::Store => {}
            Source::Estimate => f.write_str(", by an estimate")?,
            Source::Cache => f.write_str(", as before")?,
            Source::Lease => f.write_str(", out of a lease")?,
            Source::Local => f.write_str(", by this process's share")?,
            Source::FailurePolicy => f.write_str(", by the failure policy")?,
            Source::None => f.write_str(", without asking the store")?,
        }
        for limit in self.0.limits() {
            write!(f, "; {}: ", limit.name())?;
            match limit.remaining() {
                Some(left) => write!(f, "{left}")?,
                None => f.write_str("an unknown number")?,
            }
            let (permits, interval) = (limit.permits(), limit.interval());
            write!(f, " of {permits} permits per {interval:?} left")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::values::error::Error;

    const MINUTE: Duration = Duration::from_secs(60);

    fn limit(remaining: Option<u64>) -> Charges {
        let mut charge = charge("login", Limit::per_minute(5), 0, None);
        charge.standing.remaining = remaining;
        Charges::one(charge)
    }

    fn allowed(remaining: Option<u64>) -> Decision {
        Decision::Allow(Grant::new(limit(remaining), Source::Store))
    }

    fn refused() -> Decision {
        let limits = limit(Some(0));
        Decision::Deny(Refusal::by_limits(limits, Some(MINUTE), Source::Store))
    }

    /// Asserts that an assertion fails with this message.
    #[track_caller]
    fn fails(assertion: impl FnOnce(), said: &str) {
        let panic = catch_unwind(AssertUnwindSafe(assertion)).expect_err("it fails");
        let message = panic.downcast::<String>().expect("a formatted message");
        assert_eq!(*message, said);
    }

    #[test]
    fn what_is_so_passes() {
        allowed(Some(4)).assert_allowed().assert_remaining(4);
        refused()
            .assert_refused()
            .assert_refused_as(RefusalKind::OverLimit)
            .assert_retry_after(MINUTE)
            .assert_remaining(0);
        let mut response = Response::new(());
        response.extensions_mut().insert(allowed(None));
        Decision::of(&response).assert_allowed();
    }

    #[test]
    fn failed_assertions_describe_the_decision() {
        let (allowed, refused) = (allowed(Some(4)), refused());
        let above = RefusalKind::AboveRate;
        let later = Duration::from_millis(59_999);
        let left = "login: 4 of 5 permits per 60s left";
        let allows = |not| format!("{not}, but allowed; {left}");
        fails(|| _ = allowed.assert_refused(), &allows("not refused"));
        let not = allows("not refused as AboveRate");
        fails(|| _ = allowed.assert_refused_as(above), &not);
        let not = allows("not refused for 60s");
        fails(|| _ = allowed.assert_retry_after(MINUTE), &not);
        let not = allows("not 5 permits left");
        fails(|| _ = allowed.assert_remaining(5), &not);
        let left = "login: 0 of 5 permits per 60s left";
        let refuses = |not| format!("{not}, but refused as OverLimit, retry after 60s; {left}");
        fails(|| _ = refused.assert_allowed(), &refuses("not allowed"));
        let not = refuses("not refused as AboveRate");
        fails(|| _ = refused.assert_refused_as(above), &not);
        let not = refuses("not refused for 59.999s");
        fails(|| _ = refused.assert_retry_after(later), &not);
        let nothing = "no decision: no rule applies to the request, another layer made the \
                       response, or it was admitted without `decision_in_response` (200 OK)";
        fails(|| _ = Decision::of(&Response::new(())), nothing);
    }

    #[test]
    fn decisions_that_no_store_made_are_described() {
        let missing = Missing {
            what: "x-key",
            fault: Fault::Caller,
        };
        let error = Error::new(ErrorKind::Timeout);
        for (decision, described) in [
            (
                Decision::Deny(Refusal::missing_key(missing)),
                "refused as MissingKey, for lack of: x-key, without asking the store".to_owned(),
            ),
            (
                Decision::Allow(Grant::by_policy()),
                "allowed, by the failure policy".to_owned(),
            ),
            (
                Decision::Deny(Refusal::unavailable(error.clone())),
                format!("refused as Unavailable, because of: {error}, by the failure policy"),
            ),
            (
                allowed(None),
                "allowed; login: an unknown number of 5 permits per 60s left".to_owned(),
            ),
        ] {
            assert_eq!(Described(&decision).to_string(), described);
        }
    }
}
