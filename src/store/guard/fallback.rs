//! What to answer when the store cannot: the user's choice, and the few cases that are not.

use std::sync::atomic::Ordering;
#[cfg(feature = "redis")]
use std::{
    sync::{Mutex, MutexGuard, PoisonError, atomic::AtomicBool},
    time::{Duration, Instant},
};

#[cfg(feature = "redis")]
use crate::{
    clock::moment,
    decision::Receipt,
    macros::notice,
    name::Name,
    store::{Decide, Op, Outcome},
};
use crate::{
    decision::{Decision, Grant, Refusal},
    error::{Error, ErrorKind},
    macros::warning,
    store::Acquire,
};

/// What to do with a request while the store cannot decide.
///
/// It is a security decision: a login should not become unlimited because Redis is slow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailurePolicy {
    /// Let it pass. The default: the limiter is never the outage
    #[default]
    Allow,
    /// Refuse it as unavailable: 503, or UNAVAILABLE in gRPC
    Deny,
}

impl FailurePolicy {
    /// Of two, the one that lets less pass.
    pub(crate) fn stricter(self, other: Self) -> Self {
        match (self, other) {
            (Self::Allow, Self::Allow) => Self::Allow,
            (Self::Deny, _) | (_, Self::Deny) => Self::Deny,
        }
    }
}

/// Turns an error into the answer that the caller chose, if it chose one.
///
/// Whatever was chosen, three errors refuse: nobody has set a limit, it cannot be counted by, and no room for another
/// limiter. Letting pass would open the gate for as long as a configuration is wrong, or to whoever fills the store. What is only tried out passes.
#[inline]
pub(crate) fn settle(
    acquire: &Acquire,
    decision: Result<Decision, Error>,
) -> Result<Decision, Error> {
    match (decision, acquire.on_failure) {
        (Err(error), Some(policy)) => settled(acquire, error, policy),
        (decision, _) => decision,
    }
}

#[cold]
fn settled(acquire: &Acquire, error: Error, policy: FailurePolicy) -> Result<Decision, Error> {
    if acquire.is_trial() {
        note_uncounted(acquire, &error);
        return Ok(Decision::Allow(Grant::by_policy()));
    }
    if error.is_not_initialized() {
        for charge in acquire.charges() {
            if !charge.rule.told_unset.swap(true, Ordering::Relaxed) {
                warning!(
                    rule = charge.rule.for_logs(),
                    "requests are refused because nobody has set the limit: call `RateLimiter::try_set_rate`, or give the \
                     rule `or_init`"
                );
            }
        }
    }
    Ok(match (error.kind(), policy) {
        (ErrorKind::NotInitialized | ErrorKind::Full | ErrorKind::Limit, _)
        | (_, FailurePolicy::Deny) => Decision::Deny(Refusal::unavailable(error)),
        (_, FailurePolicy::Allow) => Decision::Allow(Grant::by_policy()),
    })
}

/// Whom to ask for instead, where what is only tried out may be why a store cannot decide: nothing was taken then, and what
/// is enforced must not suffer. The callers of a run try out the same.
pub(crate) fn without_trials(run: &[Acquire], error: &Error) -> Option<Vec<Acquire>> {
    let of_one_limiter = matches!(
        error.kind(),
        ErrorKind::NotInitialized
            | ErrorKind::RateTypeDiffers
            | ErrorKind::ForeignState
            | ErrorKind::Full
            | ErrorKind::Limit
    );
    if !of_one_limiter {
        return None;
    }
    let enforced = run.iter().map(Acquire::without_trials).collect();
    run.iter()
        .take(1)
        .for_each(|acquire| note_uncounted(acquire, error));
    enforced
}

/// Says once of a rule that is tried out that its limiter cannot be counted.
#[cfg_attr(
    not(feature = "tracing"),
    allow(unused_variables, reason = "only logs name the error")
)]
fn note_uncounted(acquire: &Acquire, error: &Error) {
    // Of the store's own faults it says itself.
    if matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unavailable) {
        return;
    }
    for charge in acquire.charges().filter(|charge| charge.shadow) {
        if !charge.rule.told_unset.swap(true, Ordering::Relaxed) {
            warning!(
                rule = charge.rule.for_logs(),
                error = %error,
                "requests are not counted by a rule that is tried out: once it is enforced, they will be refused"
            );
        }
    }
}

/// A store that answers by the caller's policy when it cannot decide, and says once that it started failing and once
/// that it recovered.
#[cfg(feature = "redis")]
#[derive(Debug)]
pub(crate) struct Fallback<S> {
    inner: S,
    failing: AtomicBool,
    failed_last: Mutex<Option<Instant>>,
}

/// How long a store must not have failed to count as well: one that fails now and then is told of once.
#[cfg(feature = "redis")]
const CALM: Duration = Duration::from_secs(1);

/// Whether it is the store that does not work, and not the limiter or the question.
#[cfg(feature = "redis")]
fn is_of_store(error: &Error) -> bool {
    !matches!(
        error.kind(),
        ErrorKind::NotInitialized
            | ErrorKind::RateTypeDiffers
            | ErrorKind::ForeignState
            | ErrorKind::Permits
            | ErrorKind::Limit
    )
}

#[cfg(feature = "redis")]
impl<S> Fallback<S> {
    pub(crate) fn new(inner: S) -> Self {
        Self {
            inner,
            failing: AtomicBool::new(false),
            failed_last: Mutex::default(),
        }
    }

    pub(crate) fn inner(&self) -> &S {
        &self.inner
    }

    /// The answer to one for whom the store is not asked, as it is known to fail: what it told last, or the policy.
    pub(crate) fn unasked(&self, acquire: &Acquire, error: Error) -> Result<Decision, Error>
    where
        S: Decide,
    {
        match self.stands(acquire) {
            Some(refusal) => Ok(Decision::Deny(refusal)),
            None => settle(acquire, Err(error)),
        }
    }

    /// The refusal that is told where the store fails, if there is a policy.
    fn stands(&self, acquire: &Acquire) -> Option<Refusal>
    where
        S: Decide,
    {
        acquire.on_failure?;
        self.inner.last_known(acquire)
    }

    fn failed_last(&self) -> MutexGuard<'_, Option<Instant>> {
        self.failed_last
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg_attr(
        not(feature = "tracing"),
        allow(unused_variables, reason = "only logs name the error")
    )]
    fn note(&self, decision: &Result<Decision, Error>) {
        let failing = match decision {
            Ok(_) => false,
            Err(error) if is_of_store(error) => true,
            Err(_) => return,
        };
        if failing {
            *self.failed_last() = Some(moment());
        } else {
            // The plain load keeps the cache line shared while nothing changes.
            let well = !self.failing.load(Ordering::Relaxed);
            if well
                || self
                    .failed_last()
                    .is_some_and(|last| moment().duration_since(last) < CALM)
            {
                return;
            }
        }
        if self.failing.swap(failing, Ordering::Relaxed) == failing {
            return;
        }
        match decision {
            Ok(_) => notice!("the store of the rate limits answers again"),
            Err(error) => {
                warning!(
                    error = %error,
                    cause = error.cause(),
                    "the store of the rate limits fails: requests meet their failure policy"
                );
            }
        }
    }
}

#[cfg(feature = "redis")]
impl<S: Decide> Decide for Fallback<S> {
    /// # Cancel safety
    ///
    /// As the store's within.
    async fn acquire(&self, acquire: &Acquire) -> Result<Decision, Error> {
        let decision = self.inner.acquire(acquire).await;
        self.note(&decision);
        let fails = decision.as_ref().is_err_and(is_of_store);
        match fails.then(|| self.stands(acquire)).flatten() {
            Some(refusal) => Ok(Decision::Deny(refusal)),
            None => settle(acquire, decision),
        }
    }

    async fn acquire_run(&self, run: &[Acquire]) -> Result<Vec<Decision>, Error> {
        self.inner.acquire_run(run).await
    }

    async fn manage(&self, name: &Name, op: &Op) -> Result<Outcome, Error> {
        self.inner.manage(name, op).await
    }

    fn give_back(&self, receipt: Receipt, keep: u32) {
        self.inner.give_back(receipt, keep);
    }

    fn decides_together(&self, acquire: &Acquire) -> bool {
        self.inner.decides_together(acquire)
    }
}
