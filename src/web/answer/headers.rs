//! The header fields with the state of a caller's limits, both on refusals and on the inner
//! service's responses.
//!
//! Written by hand in the canonical form of RFC 9651; `tests/pure/headers.rs` reads them with an
//! independent parser.

use std::{borrow::Cow, ptr, time::Duration};

use http::{Extensions, HeaderMap, HeaderName, HeaderValue, header, response::Parts};

use super::copies::{self, Copies};
use crate::values::{
    charge::{Charge, Standing},
    clock::{Clock, Millis, SystemClock},
    decision::{Decision, Grant},
    error::{ConfigError, bail},
    limit::name_of_part,
    name::Short,
};

/// The largest Integer of RFC 9651, section 3.3.1: fifteen digits.
pub(super) const LARGEST: u64 = 999_999_999_999_999;

/// The unit of places in flight, as the drafts name it.
const CONCURRENT: &str = "concurrent-requests";

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// Three fields with one number each: the limit, what is left, and the reset.
static DRAFT6: [HeaderName; 3] = [
    HeaderName::from_static("ratelimit-limit"),
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
];
static LEGACY: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
];

/// Header fields with the permits that are left: see
/// [`RateLimitLayerBuilder::headers`](crate::RateLimitLayerBuilder::headers).
///
/// They are on every HTTP response to which a limit applied, also on the inner service's. They show
/// the state at the decision, not when the response is sent. Numbers have at most fifteen digits
/// (RFC 9651, section 3.3.1), and larger ones are shown as the largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HeaderStyle {
    /// `RateLimit: "api";r=9;t=60` and `RateLimit-Policy: "api";q=10;w=60`, in the syntax of
    /// draft-ietf-httpapi-ratelimit-headers-11, unchanged since draft 08
    ///
    /// The string is the rule's name, to which the longer ones of [several
    /// limits](crate::Limit::and) add their interval: `"api.1h"`; `q` its permits; `qu` their
    /// [unit](crate::Rule::unit), omitted if it is requests, and `concurrent-requests` for [places
    /// in flight](crate::Limit::in_flight); `w` its interval in seconds, omitted for those, and if
    /// it is not a whole number; `r` the permits left, without which there is no `RateLimit` field.
    /// `t` is in seconds, rounded up: on a refusal the same number as `Retry-After`, on a grant the
    /// time until at least one more permit is free,
    /// [`LimitState::next_after`](crate::LimitState::next_after). It is omitted if it is unknown,
    /// or if it would exceed the `Retry-After` of the same response. The limit closest to
    /// exhaustion comes first. Items of other limiters stay; a layer outside adds to them.
    ///
    /// Draft 11 expired on 24 November 2026. A later one may rename `r` and `t`, and would be
    /// another style.
    Draft11,
    /// `RateLimit-Limit: 10`, `RateLimit-Remaining: 9`, `RateLimit-Reset: 60` and
    /// `RateLimit-Policy: 10;w=60`, of draft-ietf-httpapi-ratelimit-headers-06
    ///
    /// The first three are of the limit closest to exhaustion. `Reset` is in seconds, rounded up:
    /// on a refusal the same number as `Retry-After`, on a grant the time until *all* permits are
    /// free. [Places in flight](crate::Limit::in_flight) have no policy, and no `Reset` on a grant.
    /// Without the permits left there is only the policy, and without whole seconds no
    /// policy. Cannot be combined with `Draft11`, which gives `RateLimit-Policy` another syntax.
    Draft6,
    /// `X-RateLimit-Limit: 10`, `X-RateLimit-Remaining: 9` and `X-RateLimit-Reset`, of no standard
    ///
    /// They are of the limit closest to exhaustion, with `Reset` as in [`Draft6`](Self::Draft6).
    /// Without the permits left there is only the first. Those of another limiter stay as they are.
    /// `Reset` is in seconds from now; clients that expect an epoch misread it.
    Legacy,
    /// The same, with `Reset` in seconds since 1970 by this machine's clock, as in GitHub's API
    LegacyEpoch,
}

/// The styles of a layer. A decision has a copy with its time: rules reloaded before the response
/// may have others.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Fields {
    /// The style that writes `RateLimit-Policy`.
    policy: Option<HeaderStyle>,
    /// The style that writes `X-RateLimit-Reset`.
    legacy: Option<HeaderStyle>,
    /// The time of the decision, since 1970; zero where no field needs it.
    at: u64,
}

/// The kind of a decision, which the fields report with its limits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DecisionKind {
    Granted,
    /// Refused, with the seconds of its `Retry-After`
    Refused(Option<u64>),
}

/// The numbers that layers of this crate have written to a response, for the layers around them: a
/// number does not show which limiter it is from.
#[derive(Clone, Debug, Default)]
struct Wrote(Vec<(HeaderName, HeaderValue)>);

impl Wrote {
    /// Returns whether all lines of a field are as they were written, also if there are none.
    fn has_all_of(&self, headers: &HeaderMap, name: &HeaderName) -> bool {
        let is_ours = |line| {
            let mut written = self.0.iter();
            written.any(|(field, value)| field == name && value == line)
        };
        headers.get_all(name).iter().all(is_ours)
    }
}

/// One limit of a decision that is not hidden.
#[derive(Clone, Copy)]
pub(super) struct ShownLimit<'a> {
    /// Set for the first of the decision.
    is_first: bool,
    charge: &'a Charge,
    pub(super) standing: &'a Standing,
}

impl ShownLimit<'_> {
    /// Returns the name that it has in responses.
    #[inline]
    pub(super) fn name(&self) -> Cow<'_, str> {
        if self.charge.each.is_none() {
            return Cow::Borrowed(&self.charge.compiled().name);
        }
        let interval = self.standing.interval;
        let mut each = self.charge.standings().iter();
        let is_shortest = !each.any(|other| other.interval < interval);
        name_of_part(&self.charge.compiled().name, is_shortest, interval)
    }
}

/// The parts of a decision that the fields report.
struct ReportedLimits<'a> {
    limits: &'a [Charge],
    /// The first that is shown.
    tightest: ShownLimit<'a>,
    kind: DecisionKind,
    /// True if the inner service sends a `Retry-After` itself.
    retries_elsewhere: bool,
    /// True if it is closer to exhaustion than all decisions of inner layers of this crate.
    is_tighter: bool,
}

impl Fields {
    /// Checks and combines the styles of a layer.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`Rule`](crate::ConfigErrorKind::Rule) if two of them write one
    /// field differently.
    pub(crate) fn new(styles: &[HeaderStyle]) -> Result<Self, ConfigError> {
        let mut fields = Self::default();
        for style in styles.iter().copied() {
            // A style with a point in time needs `at` of `as_of_now`. Numbers that do not say which
            // limit they are of are written by `write_numbers`, for the layers around.
            let (chosen, field) = match style {
                HeaderStyle::Draft11 | HeaderStyle::Draft6 => {
                    (&mut fields.policy, "RateLimit-Policy")
                }
                HeaderStyle::Legacy | HeaderStyle::LegacyEpoch => {
                    (&mut fields.legacy, "X-RateLimit-Reset")
                }
            };
            if *chosen.get_or_insert(style) != style {
                bail!(Rule: "two header styles write {field} differently: choose one of them");
            }
        }
        Ok(fields)
    }

    /// Returns the fields of a decision that is made now.
    pub(crate) fn as_of_now(mut self) -> Self {
        if self.legacy == Some(HeaderStyle::LegacyEpoch) {
            self.at = ceil(SystemClock.now());
        }
        self
    }

    /// Returns whether they depend on the time of the decision.
    pub(super) fn have_a_time(&self) -> bool {
        self.at > 0
    }

    /// Writes the fields of a decision. The extensions have the decisions and numbers of inner
    /// layers.
    pub(crate) fn write(&self, limits: &[Charge], kind: DecisionKind, head: &mut Parts) {
        let Some(tightest) = shown(limits).next() else {
            return;
        };
        let report = ReportedLimits {
            limits,
            tightest,
            kind,
            retries_elsewhere: head.headers.contains_key(header::RETRY_AFTER),
            is_tighter: is_tighter(limits, kind, &head.extensions),
        };
        let (headers, first) = (&mut head.headers, report.is_tighter);
        match self.policy {
            Some(HeaderStyle::Draft11) => {
                add(headers, RATE_LIMIT, report.limits_left(), first);
                add(headers, POLICY, report.policies(), first);
            }
            Some(_) => {
                add(headers, POLICY, report.nameless_policies(), first);
                if report.tightest.standing.remaining.is_some() {
                    report.write_numbers(head, &DRAFT6, 0);
                }
            }
            None => {}
        }
        if self.legacy.is_some() {
            // Counted from the decision. Both times are rounded up, so that the sum suffices.
            report.write_numbers(head, &LEGACY, self.at);
        }
    }
}

impl ReportedLimits<'_> {
    /// Returns the seconds until all permits of `limit` are free or, if it refused, until it has
    /// room.
    fn reset(&self, limit: ShownLimit<'_>) -> Option<u64> {
        match self.kind {
            // When requests end, nothing knows.
            DecisionKind::Granted if limit.charge.compiled().is_in_flight() => None,
            DecisionKind::Granted => Some(ceil(limit.standing.reset_after)),
            // The wait of the first is the longest; the others have their own, or room.
            DecisionKind::Refused(retry_after) if limit.is_first => retry_after,
            DecisionKind::Refused(_) => limit.standing.retry_after().map(ceil),
        }
    }

    /// Returns `"api";r=9;t=60`.
    fn limits_left(&self) -> Option<HeaderValue> {
        let mut text = Short::default();
        shown(self.limits).for_each(|limit| {
            let Some(remaining) = limit.standing.remaining else {
                return;
            };
            push_name(&mut text, &limit.name());
            push_number(&mut text, ";r=", remaining);
            let more_after = match self.kind {
                // Section 6 of the draft: Retry-After must not be earlier than `t`.
                DecisionKind::Granted if self.retries_elsewhere => None,
                DecisionKind::Granted => limit.standing.next_after().map(ceil),
                DecisionKind::Refused(_) => self.reset(limit),
            };
            if let Some(more_after) = more_after {
                push_number(&mut text, ";t=", more_after);
            }
        });
        value(&text)
    }

    /// Returns `"api";q=10;w=60`.
    fn policies(&self) -> Option<HeaderValue> {
        // It is the one that is shown.
        if let [Charge { each: None, .. }] = self.limits {
            return policy(self.tightest);
        }
        let mut text = Short::default();
        for limit in shown(self.limits) {
            if !text.is_empty() {
                text.push(b", ");
            }
            text.push(policy(limit)?.as_bytes());
        }
        value(&text)
    }

    /// Returns `10;w=60`; without a window it would not be a policy.
    fn nameless_policies(&self) -> Option<HeaderValue> {
        let mut text = Short::default();
        for limit in shown(self.limits) {
            if let Some(window) = window(limit) {
                let begin = if text.is_empty() { "" } else { ", " };
                push_number(&mut text, begin, limit.standing.permits);
                push_number(&mut text, ";w=", window);
            }
        }
        value(&text)
    }

    /// Writes three numbers, unless another limiter has written its own or a limit within is closer
    /// to exhaustion. The time of the reset is counted from `start`.
    fn write_numbers(&self, head: &mut Parts, names: &[HeaderName; 3], start: u64) {
        let limit = self.tightest;
        let (headers, extensions) = (&mut head.headers, &mut head.extensions);
        if names.iter().any(|name| headers.contains_key(name)) {
            // A number that was changed on its way belongs to whatever changed it.
            let ours = extensions.get::<Wrote>().is_some_and(|wrote| {
                let mut names = names.iter();
                names.all(|name| wrote.has_all_of(headers, name))
            });
            if !ours || !self.is_tighter {
                return;
            }
            for name in names {
                headers.remove(name);
            }
        }
        let wrote = extensions.get_or_insert_default::<Wrote>();
        wrote.0.retain(|(name, _)| !names.contains(name));
        let mut insert = |name: &HeaderName, number: u64| {
            let value = HeaderValue::from(number.min(LARGEST));
            wrote.0.push((name.clone(), value.clone()));
            // Fails only if there are more fields than a map can hold.
            let _ = headers.try_insert(name.clone(), value);
        };
        let [limit_name, remaining_name, reset_name] = names;
        insert(limit_name, limit.standing.permits);
        let Some(remaining) = limit.standing.remaining else {
            return;
        };
        let reset = self.reset(limit);
        if reset.is_some() || limit.charge.compiled().is_in_flight() {
            insert(remaining_name, remaining);
        }
        if let Some(reset) = reset {
            insert(reset_name, start.saturating_add(reset));
        }
    }
}

/// Returns the limits that are not hidden, the one closest to exhaustion first.
pub(super) fn shown(limits: &[Charge]) -> impl Iterator<Item = ShownLimit<'_>> {
    let charges = limits.iter().enumerate();
    let charges = charges.filter(|(_, charge)| !charge.is_hidden());
    charges.flat_map(|(index, charge)| {
        let standings = charge.standings().iter().enumerate();
        standings.map(move |(number, standing)| ShownLimit {
            is_first: index + number == 0,
            charge,
            standing,
        })
    })
}

/// Returns the permits left of the limit closest to exhaustion, if they are known and not hidden.
/// After a refusal, none is left for this request.
fn left(limits: &[Charge], kind: DecisionKind) -> Option<u64> {
    let limit = shown(limits).next()?;
    match kind {
        DecisionKind::Granted => limit.standing.remaining,
        DecisionKind::Refused(_) => Some(0),
    }
}

/// Returns whether a decision leaves less than all those of inner layers.
fn is_tighter(limits: &[Charge], kind: DecisionKind, extensions: &Extensions) -> bool {
    let Some(decision) = extensions.get::<Decision>() else {
        return false;
    };
    let refused = match decision {
        Decision::Allow(_) => None,
        Decision::Deny(refusal) => left(&refusal.charges, DecisionKind::Refused(None)),
    };
    let inner = decision.layers().map(Grant::charges);
    let inner = inner.take_while(|inner| !ptr::eq(*inner, limits));
    let granted = inner.filter_map(|inner| left(inner, DecisionKind::Granted));
    let earlier = granted.chain(refused).min();
    earlier.is_some_and(|earlier| left(limits, kind).is_some_and(|left| left < earlier))
}

/// Adds a line to a field that is a list, before or after what is there.
fn add(headers: &mut HeaderMap, name: HeaderName, value: Option<HeaderValue>, first: bool) {
    let Some(value) = value else { return };
    // Fails only if there are more fields than a map can hold.
    if !first {
        let _ = headers.try_append(name, value);
        return;
    }
    let later: Vec<_> = headers.get_all(&name).iter().cloned().collect();
    let _ = headers.try_insert(&name, value);
    for value in later {
        let _ = headers.try_append(&name, value);
    }
}

/// Returns the text as a value; `None` if it is empty.
fn value(text: &Short) -> Option<HeaderValue> {
    // Names of rules were checked when they were built: always a value.
    let value = || HeaderValue::from_bytes(text).ok();
    (!text.is_empty()).then(value).flatten()
}

/// Begins an item of a list by a String of RFC 9651: names of rules contain nothing to escape.
fn push_name(text: &mut Short, name: &str) {
    text.push(if text.is_empty() { b"\"" } else { b", \"" });
    text.push(name.as_bytes());
    text.push(b"\"");
}

/// Adds a number, clamped, after its label.
fn push_number(text: &mut Short, label: &str, number: u64) {
    text.push(label.as_bytes());
    let mut digits = itoa::Buffer::new();
    text.push(digits.format(number.min(LARGEST)).as_bytes());
}

thread_local! {
    static POLICIES: Copies<(u64, Millis), Option<HeaderValue>> = const { copies::none() };
}

/// Returns `"api";q=10;qu="tokens";w=60`, which each response has, and which seldom changes.
pub(super) fn policy(limit: ShownLimit<'_>) -> Option<HeaderValue> {
    let (of, standing) = (limit.charge.compiled(), limit.standing);
    let permits = standing.permits;
    // What few limits have in their name and their unit, their interval and permits do not tell.
    let is_usual = limit.charge.each.is_none() && !of.is_in_flight();
    if !is_usual {
        return render_policy(limit);
    }
    let shown = (permits, standing.interval);
    let render = || render_policy(limit);
    copies::copy_of(&POLICIES, of, permits, shown, render)
}

pub(super) fn render_policy(limit: ShownLimit<'_>) -> Option<HeaderValue> {
    let mut text = Short::default();
    push_name(&mut text, &limit.name());
    push_number(&mut text, ";q=", limit.standing.permits);
    let of = limit.charge.compiled();
    let places = of.is_in_flight().then_some(CONCURRENT);
    if let Some(unit) = of.unit.as_deref().or(places) {
        // A word: it contains nothing to escape.
        text.push(b";qu=\"");
        text.push(unit.as_bytes());
        text.push(b"\"");
    }
    if let Some(window) = window(limit) {
        push_number(&mut text, ";w=", window);
    }
    value(&text)
}

/// Rounds up, so that the announced time suffices.
pub(crate) fn ceil(time: Duration) -> u64 {
    let part = u64::from(time.subsec_nanos() > 0);
    time.as_secs().saturating_add(part)
}

/// Returns the interval, if it is of whole seconds. Java may have stored one of zero. Places in
/// flight have none: they come back earlier.
fn window(limit: ShownLimit<'_>) -> Option<u64> {
    let interval = limit.standing.interval;
    let is_whole =
        interval > 0 && interval.is_multiple_of(1000) && !limit.charge.compiled().is_in_flight();
    is_whole.then_some(interval / 1000)
}
