//! A refusal over HTTP: problem details (RFC 9457), or plain text for callers that prefer it. Many
//! in a short time have the same answer, so only the first is rendered, and the others are copies
//! of it.

use std::borrow::Cow;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};

use super::{
    DecisionKind, Fields,
    copies::{self, Copies},
    meaning::{meaning, violated},
};
use crate::values::{
    clock::Millis,
    decision::{Refusal, RefusalKind},
};

thread_local! {
    static ANSWERS: Copies<Shown, Response<Bytes>> = const { copies::none() };
}

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");
/// RFC 6585, section 4: a cache must not store a 429.
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// The problem types of draft-ietf-httpapi-ratelimit-headers-11, section 5, which is to register
/// them.
const QUOTA_EXCEEDED: (&str, &str) = (
    "https://iana.org/assignments/http-problem-types#quota-exceeded",
    "Quota Exceeded",
);
const REDUCED_CAPACITY: (&str, &str) = (
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
    "Temporary Reduced Capacity",
);
const ABNORMAL_USAGE: (&str, &str) = (
    "https://iana.org/assignments/http-problem-types#abnormal-usage-detected",
    "Abnormal Usage Detected",
);

/// The part of a refusal by one limit that its answer shows, apart from what its rule says.
#[derive(Clone, Copy, PartialEq)]
struct Shown {
    permits: u64,
    interval: Millis,
    remaining: Option<u64>,
    retry_after: Option<u64>,
    fields: Fields,
    as_text: bool,
}

/// Returns the answer over HTTP, or a copy of an earlier one that is the same.
///
/// Only refusals by one limit that is exceeded are kept: they come in floods. `retry_after` is in
/// seconds.
pub(super) fn answer(
    refusal: &Refusal,
    retry_after: Option<u64>,
    fields: Fields,
    as_text: bool,
) -> Response<Bytes> {
    let render = || render(refusal, retry_after, fields, as_text);
    let [limit] = &refusal.charges[..] else {
        return render();
    };
    let is_plain =
        refusal.kind == RefusalKind::OverLimit && limit.standing.refused && !limit.shadow;
    let is_plain = is_plain && limit.each.is_none() && !limit.compiled().is_in_flight();
    if !is_plain || fields.have_a_time() {
        return render();
    }
    let shown = Shown {
        permits: limit.standing.permits,
        interval: limit.standing.interval,
        remaining: limit.standing.remaining,
        retry_after,
        fields,
        as_text,
    };
    let number = retry_after.unwrap_or(0);
    copies::copy_of(&ANSWERS, limit.compiled(), number, shown, render)
}

/// Builds the answer, with its header fields.
fn render(
    refusal: &Refusal,
    retry_after: Option<u64>,
    fields: Fields,
    as_text: bool,
) -> Response<Bytes> {
    let (status, _, mut text) = meaning(refusal);
    let says_when = matches!(refusal.kind, RefusalKind::OverLimit | RefusalKind::Banned);
    if let Some(seconds) = retry_after.filter(|_| says_when) {
        let unit = if seconds == 1 { "second" } else { "seconds" };
        text = format!("{text}: retry after {seconds} {unit}").into();
    }
    let (content_type, body) = if as_text {
        (TEXT, format!("{text}\n"))
    } else {
        (PROBLEM, problem(refusal, status, &text))
    };
    let (mut head, ()) = Response::new(()).into_parts();
    head.status = status;
    head.headers.insert(header::CONTENT_TYPE, content_type);
    head.headers.insert(header::CACHE_CONTROL, NO_STORE);
    if let Some(seconds) = retry_after {
        let seconds = HeaderValue::from(seconds);
        head.headers.insert(header::RETRY_AFTER, seconds);
    }
    let kind = DecisionKind::Refused(retry_after);
    fields.write(&refusal.charges, kind, &mut head);
    Response::from_parts(head, Bytes::from(body))
}

/// RFC 9457, section 3. Nothing of it comes from the caller.
fn problem(refusal: &Refusal, status: StatusCode, detail: &str) -> String {
    let of_draft = match refusal.kind {
        RefusalKind::OverLimit | RefusalKind::QueueFull => Some(QUOTA_EXCEEDED),
        RefusalKind::Banned => Some(ABNORMAL_USAGE),
        RefusalKind::Unavailable => Some(REDUCED_CAPACITY),
        RefusalKind::AboveRate
        | RefusalKind::MissingKey
        | RefusalKind::KeyTooLong
        | RefusalKind::Blocked => None,
    };
    // Section 4.2.1: without a type the status is enough, and its phrase is the title.
    let of_status = ("about:blank", status.canonical_reason().unwrap_or_default());
    let (kind, title) = of_draft.unwrap_or(of_status);
    let (status, detail) = (status.as_str(), escaped(detail));
    let violated: Vec<_> = violated(refusal).collect();
    let policies = if of_draft.is_none() || violated.is_empty() {
        String::new()
    } else {
        format!(",\"violated-policies\":[\"{}\"]", violated.join("\",\""))
    };
    // Joined at once, which allocates once.
    let parts = [
        "{\"type\":\"",
        kind,
        "\",\"title\":\"",
        title,
        "\",\"status\":",
        status,
        ",\"detail\":\"",
        &detail,
        "\"",
        &policies,
        "}\n",
    ];
    parts.concat()
}

/// Escapes the characters of a string: RFC 8259, section 7.
fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(|letter| matches!(letter, '\0'..='\u{1f}' | '"' | '\\')) {
        return text.into();
    }
    let escape = |letter| match letter {
        '"' | '\\' => format!("\\{letter}"),
        '\0'..='\u{1f}' => format!("\\u{:04x}", u32::from(letter)),
        _ => letter.to_string(),
    };
    text.chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use std::{fmt, sync::Arc, time::Duration};

    use http::HeaderMap;
    use proptest::{prelude::*, sample::select};

    use super::*;
    use crate::{
        values::{
            charge::{Charge, Standing},
            compiled_limit::CompiledLimit,
            decision::Source,
            limit::{Limit, LimitSource},
        },
        web::answer::{HeaderStyle, copies::CELLS, headers},
    };

    fn looks(answer: &Response<Bytes>) -> (StatusCode, HeaderMap, Bytes, String) {
        let (status, headers) = (answer.status(), answer.headers().clone());
        let wrote = format!("{:?}", answer.extensions().len());
        (status, headers, answer.body().clone(), wrote)
    }

    fn styles() -> impl Strategy<Value = Fields> {
        let styles = vec![
            vec![],
            vec![HeaderStyle::Draft11],
            vec![HeaderStyle::Draft6, HeaderStyle::Legacy],
            vec![HeaderStyle::Draft11, HeaderStyle::LegacyEpoch],
        ];
        select(styles).prop_map(|styles| Fields::new(&styles).unwrap())
    }

    #[derive(Clone)]
    struct Case(Refusal, Option<u64>, Fields, bool);

    impl fmt::Debug for Case {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let Self(refusal, retry_after, fields, as_text) = self;
            write!(f, "{refusal:?} {retry_after:?} {fields:?} {as_text}")
        }
    }

    /// Two rules whose answers have the same cell, if all else that is shown is the same, and one
    /// that hides its limit; the limit of a request is a rate, or places in flight.
    fn rules() -> Vec<Arc<CompiledLimit>> {
        let cell = |name: &String| CompiledLimit::new(name, false).answer_hash as usize % CELLS;
        let mut names = (0..).map(|number| format!("rule-{number}"));
        let one = names.next().unwrap();
        let other = names.find(|name| cell(name) == cell(&one)).unwrap();
        let rules = [(&one, false), (&other, false), (&one, true)];
        let places = LimitSource::Code(Limit::in_flight(9, Duration::from_secs(60)));
        let both = |(name, hidden): (&String, bool)| {
            let rule = CompiledLimit::new(name, hidden);
            [rule.with_limit(places), rule]
        };
        rules.map(both).concat()
    }

    fn mostly() -> impl Strategy<Value = bool> + Clone {
        prop::bool::weighted(0.8)
    }

    /// Refusals that differ in little, so that many share a cell, and some are the same.
    fn cases() -> impl Strategy<Value = Case> {
        let rules = rules();
        let shown = (0..rules.len(), 8u64..10);
        let state = (
            select(vec![1, 60]),
            prop::option::of(0u64..1),
            mostly(),
            mostly(),
        );
        let limit = (shown, state).prop_map(move |(shown, state)| {
            let ((rule, permits), (seconds, left, refused, enforced)) = (shown, state);
            let standing = Standing {
                permits,
                interval: seconds * 1000,
                remaining: left,
                wait: Some(Duration::from_secs(1)),
                reset_after: Duration::from_secs(seconds),
                refused,
                banned: false,
                granted: false,
            };
            Charge {
                shadow: !enforced,
                ..Charge::by_hand(Arc::clone(&rules[rule]), standing)
            }
        });
        let limits = prop_oneof![4 => prop::collection::vec(limit.clone(), 1), 1 => prop::collection::vec(limit, 2)];
        let wait = prop::option::weighted(0.8, select(vec![1u64, 2, 65]));
        (limits, wait, styles(), any::<bool>()).prop_map(|(limits, wait, fields, as_text)| {
            let limits = limits.into_iter().collect();
            let refusal = Refusal::by_limits(limits, wait.map(Duration::from_secs), Source::Store);
            Case(refusal, wait, fields, as_text)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// A copy of an answer or a policy equals the same rendered again.
        #[test]
        fn a_copy_equals_a_new_rendering(cases in prop::collection::vec(cases(), 1..200)) {
            for Case(refusal, retry_after, fields, as_text) in cases {
                let fields = fields.as_of_now();
                let found = answer(&refusal, retry_after, fields, as_text);
                let rendered = render(&refusal, retry_after, fields, as_text);
                prop_assert_eq!(looks(&found), looks(&rendered));
                for limit in headers::shown(&refusal.charges) {
                    prop_assert_eq!(headers::policy(limit), headers::render_policy(limit));
                }
            }
        }
    }

    #[test]
    fn copies_keep_nothing_of_a_rule_that_is_gone() {
        let wait = Duration::from_secs(1);
        let refusal = Refusal::for_test(RefusalKind::OverLimit);
        let refusal = refusal.with_limit("gone", Limit::per_minute(10), wait);
        let of = Arc::downgrade(refusal.charges[0].compiled());
        let fields = Fields::new(&[HeaderStyle::Draft11]).unwrap();
        let answer = answer(&refusal, Some(1), fields, false);
        drop(refusal);
        assert!(of.upgrade().is_none(), "{answer:?}");
    }

    #[test]
    fn the_same_refusal_is_rendered_once() {
        let wait = Duration::from_secs(1);
        let limit = |refusal: Refusal| refusal.with_limit("api", Limit::per_minute(10), wait);
        let refusal = limit(Refusal::for_test(RefusalKind::OverLimit));
        let fields = Fields::new(&[HeaderStyle::Draft11]).unwrap();
        let bodies = [0; 2].map(|_| answer(&refusal, Some(1), fields, false).into_body());
        assert_eq!(bodies[0].as_ptr(), bodies[1].as_ptr(), "one text for both");
    }
}
