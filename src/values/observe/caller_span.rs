//! Records a decision in the caller's span, if that declares the fields: [`CallerSpan`].

use tracing::{Span, level_filters::LevelFilter};

use super::{Decided, DecidedRule, RequestResult, RuleResult};

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
