//! Reports each decision of a store to the observers of its caller, and to the caller's span if
//! that declares the fields: [`CallerSpan`].

use std::{
    ptr, slice,
    time::{Duration, Instant},
};

use tracing::{Span, level_filters::LevelFilter};

use crate::values::{
    charge::{Charge, Standing},
    clock,
    decision::{Decision, Refusal, RefusalKind, Source},
    demand::Demand,
    error::{Error, ErrorKind},
    limit::Limit,
    observe::{Decided, DecidedRule, Observers, RequestResult, RuleResult, StateChange},
};

/// An acquire that is being decided. Dropping it undecided reports that its caller has left.
pub(super) struct Undecided {
    pub(super) demand: Demand,
    /// Since when it may wait for permits; `None` for one that does not wait.
    since: Option<Instant>,
    /// Kept, as another span may be current where the caller is dropped.
    span: Option<CallerSpan>,
    is_decided: bool,
}

impl Undecided {
    pub(super) fn new(demand: Demand) -> Self {
        let waits = demand.max_wait.is_some() && !demand.first().compiled().observers.is_empty();
        if waits {
            report_wait(&demand, None);
        }
        Self {
            since: waits.then(clock::moment),
            demand,
            span: CallerSpan::current(),
            is_decided: false,
        }
    }

    /// Reports to the observers and the caller's span how it has ended; `None` if the caller left.
    pub(super) fn ends(&mut self, decision: Option<&Result<Decision, Error>>) {
        self.is_decided = true;
        let waited = self.since.map(|since| clock::moment() - since);
        if waited.is_some() {
            report_wait(&self.demand, waited);
        }
        report(&self.demand.charges, decision, waited, self.span.as_ref());
    }
}

impl Drop for Undecided {
    fn drop(&mut self) {
        if !self.is_decided {
            self.ends(None);
        }
    }
}

/// Reports a request that was decided at once, to its observers and the caller's span.
#[inline(always)]
pub(super) fn at_once(demand: &Demand, decision: &Result<Decision, Error>) {
    // A decision that was made in place has taken the charges out of the demand.
    let charges = match decision {
        Ok(decision) if demand.charges.is_empty() => decision.charges(),
        _ => &demand.charges[..],
    };
    report(
        charges,
        Some(decision),
        None,
        CallerSpan::current().as_ref(),
    );
}

fn report_wait(demand: &Demand, ended: Option<Duration>) {
    let compiled = demand.first().compiled();
    let rule = compiled.rule();
    compiled
        .observers
        .changed(&StateChange::Waiting { rule, ended });
}

/// The parts of a decision that are reported.
struct ReportedDecision<'a> {
    result: RequestResult,
    source: Source,
    error: Option<ErrorKind>,
    charges: &'a [Charge],
}

impl<'a> ReportedDecision<'a> {
    const CANCELLED: Self = Self {
        result: RequestResult::Cancelled,
        source: Source::None,
        error: None,
        charges: &[],
    };

    fn of(decision: &'a Result<Decision, Error>) -> Self {
        let (result, error) = match decision {
            Ok(Decision::Allow(_)) => (RequestResult::Allow, None),
            Ok(Decision::Deny(refusal)) => (refusal.result(), refusal.error().map(Error::kind)),
            Err(error) if error.kind() == ErrorKind::AboveRate => (RequestResult::AboveRate, None),
            Err(error) => (RequestResult::Unavailable, Some(error.kind())),
        };
        let decision = decision.as_ref().ok();
        Self {
            result,
            source: decision.map_or(Source::None, Decision::source),
            error,
            charges: decision.map_or(&[], Decision::charges),
        }
    }

    #[inline(always)]
    fn decided<'c>(&self, charge: &'c Charge) -> DecidedRule<'c> {
        let compiled = charge.compiled();
        // Mostly it is that itself, answered in place.
        let answered = |it: &&Charge| ptr::eq(*it, charge) || it.limiter.is_same(&charge.limiter);
        let answered = self.charges.iter().find(answered);
        let limit = answered.map(|it| &it.standing);
        DecidedRule {
            rule: compiled.rule(),
            result: self.result(charge, limit),
            shadow: charge.shadow,
            permits: charge.permits,
            limit: answered.and_then(limit_of),
            remaining: limit.and_then(|limit| limit.remaining),
            key: compiled
                .observed
                .shown
                .and_then(|around| charge.name().identity(around)),
            key_hash: charge.name().seeded_hash(),
            observed: &compiled.observed,
        }
    }

    #[inline(always)]
    fn result(&self, charge: &Charge, limit: Option<&Standing>) -> RuleResult {
        let is_refused = limit.is_some_and(|limit| limit.refused);
        match self.result {
            RequestResult::Cancelled => RuleResult::Cancelled,
            RequestResult::Unavailable => RuleResult::Unavailable,
            // The failure policy let it pass, or left a shadow rule out.
            RequestResult::Allow if limit.is_none() => RuleResult::Unavailable,
            _ if charge.shadow && is_refused => {
                if limit.is_some_and(|limit| limit.banned) {
                    RuleResult::ShadowBanned
                } else {
                    RuleResult::ShadowDeny
                }
            }
            RequestResult::Allow => RuleResult::Taken,
            RequestResult::QueueFull if !charge.shadow => RuleResult::QueueFull,
            _ if !is_refused => RuleResult::NotTaken,
            _ if limit.is_some_and(|limit| limit.banned) => RuleResult::Banned,
            _ if limit.is_some_and(|limit| limit.wait.is_none()) => RuleResult::AboveRate,
            _ => RuleResult::Deny,
        }
    }
}

/// Returns the limit that an answered charge was counted by: another process may have changed it.
#[inline]
fn limit_of(answered: &Charge) -> Option<Limit> {
    let limit = Limit::of(answered.standing.permits, answered.standing.interval)?;
    let source = answered.limit();
    Some(match source.given() {
        Some(given) if given.is_several() || given.is_in_flight() || given.calendar().is_some() => {
            limit.like(given)
        }
        _ => limit,
    })
}

impl Refusal {
    /// Returns the result of the request that it refused.
    pub(crate) fn result(&self) -> RequestResult {
        match self.kind() {
            RefusalKind::OverLimit => RequestResult::Deny,
            RefusalKind::AboveRate => RequestResult::AboveRate,
            RefusalKind::Banned => RequestResult::Banned,
            RefusalKind::MissingKey | RefusalKind::KeyTooLong => RequestResult::MissingKey,
            RefusalKind::Blocked => RequestResult::DeniedByList,
            RefusalKind::QueueFull => RequestResult::QueueFull,
            RefusalKind::Unavailable => RequestResult::Unavailable,
        }
    }
}

/// Reports how a request has ended, if observers or the caller's span see it.
///
/// Inlined down to that question: nearly always nothing sees it.
#[inline(always)]
fn report(
    charges: &[Charge],
    decision: Option<&Result<Decision, Error>>,
    waited: Option<Duration>,
    span: Option<&CallerSpan>,
) {
    if let Some(first) = charges.first()
        && (span.is_some() || !first.compiled().observers.is_empty())
    {
        tell(&first.compiled().observers, charges, decision, waited, span);
    }
}

#[inline(never)]
fn tell(
    observers: &Observers,
    charges: &[Charge],
    decision: Option<&Result<Decision, Error>>,
    waited: Option<Duration>,
    span: Option<&CallerSpan>,
) {
    let seen = decision.map_or(ReportedDecision::CANCELLED, ReportedDecision::of);
    let send = |rules: &[DecidedRule<'_>]| {
        let decided = Decided {
            result: seen.result,
            source: seen.source,
            error: seen.error,
            waited,
            rules,
        };
        observers.decided(&decided);
        if let Some(span) = span {
            span.decided(&decided);
        }
    };
    // One rule is the usual case, and is not copied into a list.
    match charges {
        [only] => send(slice::from_ref(&seen.decided(only))),
        _ => send(
            &charges
                .iter()
                .map(|it| seen.decided(it))
                .collect::<Vec<_>>(),
        ),
    }
}

const RESULT: &str = "ratelimit.result";
const RULE: &str = "ratelimit.rule";
const SOURCE: &str = "ratelimit.source";
const REMAINING: &str = "ratelimit.remaining";

/// A span that declares at least one of the fields.
///
/// Boxed, because nearly every request has none, and those that wait for the store would move the
/// room for it along.
#[derive(Debug)]
pub(crate) struct CallerSpan(Box<Span>);

impl CallerSpan {
    /// Returns the current span, if it declares one of the fields.
    #[inline]
    pub(crate) fn current() -> Option<Self> {
        // A process without a subscriber pays for this comparison alone.
        if LevelFilter::current() == LevelFilter::OFF {
            return None;
        }
        Self::if_declared(Span::current())
    }

    #[inline(never)]
    fn if_declared(span: Span) -> Option<Self> {
        let has_field = |field: &&str| span.has_field(*field);
        let is_declared = [RESULT, RULE, SOURCE, REMAINING].iter().any(has_field);
        is_declared.then(|| Self(Box::new(span)))
    }

    /// Records what became of the request, in the words that metrics have.
    pub(crate) fn decided(&self, event: &Decided<'_>) {
        self.0.record(RESULT, event.result.as_str());
        self.0.record(SOURCE, event.source.as_str());
        let Some(rule) = deciding(event) else {
            return;
        };
        if let Some(name) = rule.rule {
            self.0.record(RULE, name);
        }
        if let Some(remaining) = rule.remaining {
            // Signed: the bridge to OpenTelemetry makes text of an unsigned number.
            let remaining = i64::try_from(remaining).unwrap_or(i64::MAX);
            self.0.record(REMAINING, remaining);
        }
    }
}

/// Returns the rule to record: the one that refused the request, or else the one with the fewest
/// permits left. A shadow rule is recorded only if there is no other.
fn deciding<'a>(event: &Decided<'a>) -> Option<&'a DecidedRule<'a>> {
    let passed = |rule: &DecidedRule<'_>| {
        event.result == RequestResult::Allow || rule.result == RuleResult::NotTaken
    };
    let rank = |rule: &&DecidedRule<'_>| {
        let remaining = rule.remaining.unwrap_or(u64::MAX);
        (rule.shadow, passed(rule), remaining)
    };
    event.rules.iter().min_by_key(rank)
}
