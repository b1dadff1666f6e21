//! Answers an error by the failure policy of a request, except for errors that refuse under any.

use crate::{
    macros::warning,
    values::{
        charge::Charge,
        compiled_limit::Warning,
        decision::{Decision, Grant, Refusal},
        demand::Demand,
        error::{Error, ErrorKind},
        failure_policy::FailurePolicy,
    },
};

/// Answers an error by the failure policy of the request, if it has one.
///
/// Four errors refuse the request under any policy: the limit was never set, the algorithm cannot
/// count by it, something else is stored under the name, and the store has no room for another
/// limiter. Otherwise there would be no limit
/// while a configuration is wrong, or for a caller that fills the store. Shadow rules let requests
/// pass.
#[inline]
pub(crate) fn answer_error(demand: &Demand, error: Error) -> Result<Decision, Error> {
    match demand.on_failure {
        Some(policy) => answer_by(demand, error, policy),
        None => Err(error),
    }
}

#[cold]
pub(crate) fn answer_by(
    demand: &Demand,
    error: Error,
    policy: FailurePolicy,
) -> Result<Decision, Error> {
    if demand.is_all_shadow() {
        warn_uncounted(demand, &error);
        return Ok(Decision::Allow(Grant::by_policy()));
    }
    warn_refused(demand, &error);
    Ok(match policy {
        FailurePolicy::Allow if !refuses_anyway(&error) => Decision::Allow(Grant::by_policy()),
        // A store in this process has no share to fall back to.
        FailurePolicy::Allow | FailurePolicy::Local(_) | FailurePolicy::Deny => {
            Decision::Deny(Refusal::unavailable(error))
        }
    })
}

/// Logs once for each rule of a mistake by which requests are refused whatever its policy is.
fn warn_refused(demand: &Demand, error: &Error) {
    for limit in demand.charges().map(Charge::compiled) {
        match error.kind() {
            ErrorKind::NotInitialized if limit.claim_warning(Warning::Unset) => warning!(
                rule = limit.for_logs(),
                "requests are refused because the limit was never set: call \
                 `RateLimiter::try_set_rate`, or give the rule `or_init`"
            ),
            ErrorKind::ForeignState if limit.claim_warning(Warning::Foreign) => warning!(
                rule = limit.for_logs(),
                "requests are refused because something else is stored under a limiter's name: \
                 look at it with `ratelimit diagnose`, and `delete` it"
            ),
            _ => {}
        }
    }
}

pub(crate) fn refuses_anyway(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotInitialized | ErrorKind::Full | ErrorKind::Limit | ErrorKind::ForeignState
    )
}

/// Returns the same callers without their shadow rules, if one of these [may be why](is_of_shadow)
/// the store cannot decide. All callers of a run have the same shadow rules.
pub(crate) fn without_shadows(run: &[Demand], error: &Error) -> Option<Vec<Demand>> {
    let first = run.first().filter(|first| is_of_shadow(first, error))?;
    warn_uncounted(first, error);
    run.iter().map(Demand::without_shadows).collect()
}

/// Returns whether a shadow rule next to enforced ones may be why the store cannot decide: nothing
/// was taken then, and the enforced rules must not suffer.
pub(crate) fn is_of_shadow(demand: &Demand, error: &Error) -> bool {
    let of_one_limiter = matches!(
        error.kind(),
        ErrorKind::NotInitialized
            | ErrorKind::RateTypeDiffers
            | ErrorKind::ForeignState
            | ErrorKind::Full
            | ErrorKind::Limit
    );
    of_one_limiter && demand.is_partly_shadow()
}

/// Logs once for a shadow rule that its limiter cannot be counted.
fn warn_uncounted(demand: &Demand, error: &Error) {
    // The store logs its own failures.
    if matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unavailable) {
        return;
    }
    for charge in demand.charges().filter(|charge| charge.shadow) {
        if charge.compiled().claim_warning(Warning::Uncounted) {
            warning!(
                rule = charge.compiled().for_logs(),
                error = %error,
                "requests are not counted by a shadow rule: once it is enforced, they will be refused"
            );
        }
    }
}
