//! The answer by a failure policy, and the few cases in which none is asked.

use crate::{
    decision::{Decision, Grant, Refusal},
    demand::{Acquire, Warning},
    error::{Error, ErrorKind},
    failure_policy::FailurePolicy,
    macros::warning,
};

/// Turns an error into the answer that the caller chose, if it chose one.
///
/// Whatever was chosen, three errors refuse: nobody has set a limit, it cannot be counted by, and no room for another
/// limiter. Letting pass would open the gate for as long as a configuration is wrong, or to whoever fills the store. What is only tried out passes.
#[inline]
pub(crate) fn settle(acquire: &Acquire, error: Error) -> Result<Decision, Error> {
    match acquire.on_failure {
        Some(policy) => settled(acquire, error, policy),
        None => Err(error),
    }
}

#[cold]
pub(crate) fn settled(
    acquire: &Acquire,
    error: Error,
    policy: FailurePolicy,
) -> Result<Decision, Error> {
    if acquire.is_trial() {
        note_uncounted(acquire, &error);
        return Ok(Decision::Allow(Grant::by_policy()));
    }
    if error.is_not_initialized() {
        for charge in acquire.charges() {
            if charge.labels.is_to_warn(Warning::Unset) {
                warning!(
                    rule = charge.labels.for_logs(),
                    "requests are refused because nobody has set the limit: call `RateLimiter::try_set_rate`, or give the \
                     rule `or_init`"
                );
            }
        }
    }
    Ok(match policy {
        FailurePolicy::Allow if !refuses_anyway(&error) => Decision::Allow(Grant::by_policy()),
        // A share is of what somebody else decides by: of a store in this process there is none.
        FailurePolicy::Allow | FailurePolicy::Local(_) | FailurePolicy::Deny => {
            Decision::Deny(Refusal::unavailable(error))
        }
    })
}

pub(crate) fn refuses_anyway(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotInitialized | ErrorKind::Full | ErrorKind::Limit
    )
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
fn note_uncounted(acquire: &Acquire, error: &Error) {
    // Of the store's own faults it says itself.
    if matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unavailable) {
        return;
    }
    for charge in acquire.charges().filter(|charge| charge.shadow) {
        if charge.labels.is_to_warn(Warning::Unset) {
            warning!(
                rule = charge.labels.for_logs(),
                error = %error,
                "requests are not counted by a rule that is tried out: once it is enforced, they will be refused"
            );
        }
    }
}
