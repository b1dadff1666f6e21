//! A refusal over HTTP: problem details (RFC 9457), or plain text for callers that prefer it.

use std::borrow::Cow;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};

use super::meaning::{meaning, violated};
use crate::values::decision::{Refusal, RefusalKind};

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

/// Builds the answer; `retry_after` is in seconds.
pub(crate) fn answer(
    refusal: &Refusal,
    retry_after: Option<u64>,
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
    let mut answer = Response::new(Bytes::from(body));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, content_type);
    headers.insert(header::CACHE_CONTROL, NO_STORE);
    if let Some(seconds) = retry_after {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    answer
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
