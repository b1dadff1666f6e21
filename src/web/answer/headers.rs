//! The fields that tell a caller about its limits, on refusals and on the inner service's answers alike.
//!
//! Written by hand in the canonical form of RFC 9651; `tests/headers.rs` reads them with a parser that is not ours.

use std::time::Duration;

use bytes::Bytes;
use http::{Extensions, HeaderMap, HeaderName, HeaderValue, header};

use crate::{
    clock::{Clock, SystemClock},
    decision::{Decision, Decisions, LimitState},
    draft::Draft,
    error::{ConfigError, ConfigErrorKind},
};

/// The largest Integer of RFC 9651, section 3.3.1: fifteen digits.
const LARGEST: u64 = 999_999_999_999_999;

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const DRAFT6: Trio = Trio {
    limit: HeaderName::from_static("ratelimit-limit"),
    remaining: HeaderName::from_static("ratelimit-remaining"),
    reset: HeaderName::from_static("ratelimit-reset"),
};
const LEGACY: Trio = Trio {
    limit: HeaderName::from_static("x-ratelimit-limit"),
    remaining: HeaderName::from_static("x-ratelimit-remaining"),
    reset: HeaderName::from_static("x-ratelimit-reset"),
};

/// Fields that tell a caller how much is left: see
/// [`RateLimitLayerBuilder::headers`](crate::RateLimitLayerBuilder::headers).
///
/// They are on every response over HTTP for which a limit was met, also on the inner service's. They tell what the decision
/// found: a handler that takes long does not make them newer. Numbers have at most fifteen digits (RFC 9651, section
/// 3.3.1): a rule with more permits is a [`ConfigError`] unless it is hidden, and larger ones of
/// [`limit_by`](crate::limit_by) or the store are clamped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HeaderStyle {
    /// `RateLimit: "api";r=9;t=60` and `RateLimit-Policy: "api";q=10;w=60`, in the syntax of
    /// draft-ietf-httpapi-ratelimit-headers-11, which is that of all since 08
    ///
    /// The string is the rule's name; `q` its permits; `w` its interval in seconds, left out where
    /// that is not a whole number; `r` the permits left, and without them there is no `RateLimit`
    /// field. `t` is in seconds, rounded up: on a refusal the same number as `Retry-After`, on a
    /// grant the time until at least one more permit is free, [`LimitState::next_after`]. It is
    /// left out where that is not known, and where it would lie beyond the `Retry-After` of the
    /// same response. The limit closest to exhaustion comes first. What other limiters have said
    /// stays; a layer outside adds to it.
    Draft11,
    /// `RateLimit-Limit: 10`, `RateLimit-Remaining: 9`, `RateLimit-Reset: 60` and `RateLimit-Policy: 10;w=60`, of
    /// draft-ietf-httpapi-ratelimit-headers-06
    ///
    /// The first three tell the limit closest to exhaustion. `Reset` is in seconds, rounded up: on
    /// a refusal the same number as `Retry-After`, on a grant the time until *all* permits are
    /// free. Without the permits left there is the policy alone, and without whole seconds no
    /// policy. Does not go together with `Draft11`, which gives `RateLimit-Policy` another syntax.
    Draft6,
    /// `X-RateLimit-Limit: 10`, `X-RateLimit-Remaining: 9` and `X-RateLimit-Reset`, of no standard
    ///
    /// They tell the limit closest to exhaustion, `Reset` as [`Draft6`](Self::Draft6). Without the
    /// permits left there is the first alone. Those of another limiter stay as they are.
    Legacy {
        /// What `X-RateLimit-Reset` is counted in: clients of one kind take the other for nonsense
        reset: ResetUnit,
    },
}

/// What `X-RateLimit-Reset` is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ResetUnit {
    /// Seconds since 1970, by this machine's clock, as GitHub's API says it
    EpochSeconds,
    /// Seconds from now
    DeltaSeconds,
}

/// The styles of a layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields {
    policy: Option<Policy>,
    legacy: Option<ResetUnit>,
}

/// What `RateLimit-Policy` looks like, and what comes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    Draft11,
    Draft6,
}

/// Three fields with one number each.
struct Trio {
    limit: HeaderName,
    remaining: HeaderName,
    reset: HeaderName,
}

/// How a decision came out.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outcome {
    Granted,
    /// With the seconds of its `Retry-After`
    Refused(Option<u64>),
}

/// The numbers that our layers have written, left in a response for the layers around them: a number does not tell whose it
/// is.
#[derive(Clone, Debug, Default)]
struct Wrote(Vec<(HeaderName, HeaderValue)>);

impl Wrote {
    /// Whether all lines of a field are as they were written; so if there are none.
    fn has_all_of(&self, headers: &HeaderMap, name: &HeaderName) -> bool {
        let is_ours = |line| {
            let mut written = self.0.iter();
            written.any(|(field, value)| field == name && value == line)
        };
        headers.get_all(name).iter().all(is_ours)
    }
}

/// What is told of a decision.
struct Told<'a> {
    limits: &'a [LimitState],
    outcome: Outcome,
    /// Whether the inner service says itself when to come back.
    retries_elsewhere: bool,
    /// When it was decided, since 1970.
    at: Duration,
    /// What a layer of ours within has decided: permits left and permits of its limit closest to exhaustion.
    earlier: Option<(u64, u64)>,
}

impl Fields {
    /// # Errors
    ///
    /// Of kind [`Rule`](ConfigErrorKind::Rule) if two of them write one field differently.
    pub(crate) fn new(styles: &[HeaderStyle]) -> Result<Self, ConfigError> {
        let mut fields = Self {
            policy: None,
            legacy: None,
        };
        let refuse = |field| {
            Err(ConfigErrorKind::Rule.error(format!(
                "two header styles write {field} differently: choose one of them"
            )))
        };
        for style in styles {
            match *style {
                HeaderStyle::Draft11 if fields.policy == Some(Policy::Draft6) => {
                    return refuse("RateLimit-Policy");
                }
                HeaderStyle::Draft6 if fields.policy == Some(Policy::Draft11) => {
                    return refuse("RateLimit-Policy");
                }
                HeaderStyle::Legacy { reset } if fields.legacy.is_some_and(|it| it != reset) => {
                    return refuse("X-RateLimit-Reset");
                }
                HeaderStyle::Draft11 => fields.policy = Some(Policy::Draft11),
                HeaderStyle::Draft6 => fields.policy = Some(Policy::Draft6),
                HeaderStyle::Legacy { reset } => fields.legacy = Some(reset),
            }
        }
        Ok(fields)
    }

    /// The most permits that can be told; `None` if none are.
    pub(crate) fn most_permits(&self) -> Option<u64> {
        (self.policy.is_some() || self.legacy.is_some()).then_some(LARGEST)
    }

    /// The time, if it is told.
    pub(crate) fn now(&self) -> Duration {
        match self.legacy {
            Some(ResetUnit::EpochSeconds) => SystemClock.now(),
            _ => Duration::ZERO,
        }
    }

    /// Tells what was decided at the time `at`. The extensions are the response's, with what layers within have decided and
    /// written.
    pub(crate) fn tell(
        &self,
        limits: &[LimitState],
        outcome: Outcome,
        at: Duration,
        headers: &mut HeaderMap,
        extensions: &mut Extensions,
    ) {
        let Some((_, tightest)) = shown(limits).next() else {
            return;
        };
        let told = Told {
            limits,
            outcome,
            retries_elsewhere: headers.contains_key(header::RETRY_AFTER),
            at,
            earlier: earlier(extensions),
        };
        let mut text = Draft::default();
        let first = told.is_tighter();
        match self.policy {
            Some(Policy::Draft11) => {
                told.write_limits(&mut text);
                add(headers, &RATE_LIMIT, value(&mut text), first);
                let policies = told.policies(&mut text);
                add(headers, &POLICY, policies, first);
            }
            Some(Policy::Draft6) => {
                told.write_nameless_policies(&mut text);
                add(headers, &POLICY, value(&mut text), first);
                if tightest.remaining.is_some() {
                    let unit = ResetUnit::DeltaSeconds;
                    told.write_trio(headers, extensions, &DRAFT6, unit, &mut text);
                }
            }
            None => {}
        }
        if let Some(reset) = self.legacy {
            told.write_trio(headers, extensions, &LEGACY, reset, &mut text);
        }
    }
}

impl Told<'_> {
    /// Whether it is closer to exhaustion than all that layers within have decided.
    fn is_tighter(&self) -> bool {
        match (self.earlier, left(self.limits, self.outcome)) {
            (Some((earlier, _)), Some((left, _))) => left < earlier,
            _ => false,
        }
    }

    /// Seconds until `limit` has more room: of a grant until at least one more permit is free,
    /// where that is known.
    fn next(&self, place: usize, limit: &LimitState) -> Option<u64> {
        match self.outcome {
            Outcome::Granted => limit.next_after.map(ceil),
            Outcome::Refused(_) => self.reset(place, limit),
        }
    }

    /// Seconds until all permits of `limit` are free, or of one that refused until it has room.
    fn reset(&self, place: usize, limit: &LimitState) -> Option<u64> {
        match self.outcome {
            Outcome::Granted => Some(ceil(limit.reset_after)),
            // That of the first is the longest; the others have their own, or room.
            Outcome::Refused(retry_after) if place == 0 => retry_after,
            Outcome::Refused(_) => limit.retry_after.map(ceil),
        }
    }

    /// `"api";r=9;t=60`
    fn write_limits(&self, text: &mut Draft) {
        for (place, limit) in shown(self.limits) {
            let Some(remaining) = limit.remaining else {
                continue;
            };
            comma(text);
            push_name(text, limit.name());
            push_number(text, ";r=", remaining);
            // Section 6 of the draft: Retry-After is not to be earlier than `t`.
            let contradicts = matches!(self.outcome, Outcome::Granted) && self.retries_elsewhere;
            if let (Some(next), false) = (self.next(place, limit), contradicts) {
                push_number(text, ";t=", next);
            }
        }
    }

    /// `"api";q=10;w=60`
    fn policies(&self, text: &mut Draft) -> Option<HeaderValue> {
        let mut limits = shown(self.limits);
        if let (Some((_, only)), None) = (limits.next(), limits.next()) {
            let policy = only.rule.policy_text.of(only.permits, only.interval, || {
                push_policy(text, only);
                let policy = Bytes::copy_from_slice(text.as_bytes());
                text.truncate(0);
                policy
            });
            return HeaderValue::from_maybe_shared(policy).ok();
        }
        shown(self.limits).for_each(|(_, limit)| push_policy(text, limit));
        value(text)
    }

    /// `10;w=60`; without a window it would not be one.
    fn write_nameless_policies(&self, text: &mut Draft) {
        for (_, limit) in shown(self.limits) {
            if let Some(window) = whole_seconds(limit.interval) {
                comma(text);
                push_number(text, "", limit.permits);
                push_number(text, ";w=", window);
            }
        }
    }

    /// Three numbers, unless another limiter has said its own or a limit within is closer to exhaustion.
    fn write_trio(
        &self,
        headers: &mut HeaderMap,
        extensions: &mut Extensions,
        trio: &Trio,
        unit: ResetUnit,
        text: &mut Draft,
    ) {
        let Some((place, limit)) = shown(self.limits).next() else {
            return;
        };
        let names = [&trio.limit, &trio.remaining, &trio.reset];
        if names.iter().any(|name| headers.contains_key(*name)) {
            // One that was changed on its way is not ours any more.
            let ours = extensions.get::<Wrote>().is_some_and(|wrote| {
                let mut names = names.iter();
                names.all(|name| wrote.has_all_of(headers, name))
            });
            if !ours || !self.is_tighter() {
                return;
            }
            for name in names {
                headers.remove(name);
            }
        }
        let wrote = extensions.get_or_insert_default::<Wrote>();
        wrote.0.retain(|(name, _)| !names.contains(&name));
        let mut insert = |name: &HeaderName, number: u64| {
            push_number(text, "", number);
            if let Some(value) = value(text) {
                wrote.0.push((name.clone(), value.clone()));
                // An error only where there are more fields than a map can hold.
                let _ = headers.try_insert(name.clone(), value);
            }
        };
        insert(&trio.limit, limit.permits);
        let (Some(remaining), Some(reset)) = (limit.remaining, self.reset(place, limit)) else {
            return;
        };
        insert(&trio.remaining, remaining);
        insert(
            &trio.reset,
            match unit {
                ResetUnit::DeltaSeconds => reset,
                // From the moment of the decision, and rounded up once more.
                ResetUnit::EpochSeconds => ceil(self.at).saturating_add(reset),
            },
        );
    }
}

/// The limits that may be told, each with its place in the decision.
fn shown(limits: &[LimitState]) -> impl Iterator<Item = (usize, &LimitState)> {
    let limits = limits.iter().enumerate();
    limits.filter(|(_, limit)| !limit.hidden)
}

/// Permits left and permits of the limit closest to exhaustion, if they are known and told. Where it refused, none is
/// left for this request.
fn left(limits: &[LimitState], outcome: Outcome) -> Option<(u64, u64)> {
    let (_, limit) = shown(limits).next()?;
    match outcome {
        Outcome::Granted => Some((limit.remaining?, limit.permits)),
        Outcome::Refused(_) => Some((0, limit.permits)),
    }
}

/// What layers within have decided.
fn earlier(extensions: &Extensions) -> Option<(u64, u64)> {
    let left = |decision: &Decision| match decision {
        Decision::Allow(grant) => left(grant.limits(), Outcome::Granted),
        Decision::Deny(refusal) => left(refusal.limits(), Outcome::Refused(None)),
    };
    match (extensions.get::<Decisions>(), extensions.get::<Decision>()) {
        (Some(all), _) => all.as_slice().iter().filter_map(left).min(),
        (None, Some(one)) => left(one),
        (None, None) => None,
    }
}

/// Adds a line to a field that is a list, before or after what is there.
fn add(headers: &mut HeaderMap, name: &HeaderName, value: Option<HeaderValue>, first: bool) {
    let Some(value) = value else { return };
    let mut later = Vec::new();
    if first {
        later.extend(headers.get_all(name).iter().cloned());
        headers.remove(name);
    }
    for value in std::iter::once(value).chain(later) {
        // An error only where there are more fields than a map can hold.
        let _ = headers.try_append(name, value);
    }
}

/// Takes what was written; `None` if nothing was.
fn value(text: &mut Draft) -> Option<HeaderValue> {
    if text.is_empty() {
        return None;
    }
    // Names of rules were checked when they were built: always a value.
    let value = HeaderValue::from_bytes(text.as_bytes()).ok();
    text.truncate(0);
    value
}

fn comma(text: &mut Draft) {
    if !text.is_empty() {
        text.push(", ");
    }
}

/// A String of RFC 9651: the names of rules have nothing in them to escape.
fn push_name(text: &mut Draft, name: &str) {
    text.push("\"");
    text.push(name);
    text.push("\"");
}

/// Adds a number, clamped, behind what names it.
fn push_number(text: &mut Draft, label: &str, number: u64) {
    text.push(label);
    text.push_number(clamp(number));
}

/// Adds `"api";q=10;w=60`.
fn push_policy(text: &mut Draft, limit: &LimitState) {
    comma(text);
    push_name(text, limit.name());
    push_number(text, ";q=", limit.permits);
    if let Some(window) = whole_seconds(limit.interval) {
        push_number(text, ";w=", window);
    }
}

pub(crate) fn clamp(number: u64) -> u64 {
    number.min(LARGEST)
}

/// Rounded up: what is announced is then true.
pub(crate) fn ceil(time: Duration) -> u64 {
    let part = u64::from(time.subsec_nanos() > 0);
    time.as_secs().saturating_add(part)
}

/// The interval, if it is of whole seconds. Java may have stored one of none.
fn whole_seconds(interval: Duration) -> Option<u64> {
    (interval.subsec_nanos() == 0 && interval.as_secs() > 0).then_some(interval.as_secs())
}
