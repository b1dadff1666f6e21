//! A refusal over HTTP: problem details (RFC 9457), or plain text for callers that prefer it.

use std::borrow::Cow;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};

use super::meaning::meaning;
use crate::decision::{LimitState, Refusal, RefusalKind};

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");
/// RFC 6585, section 4: a cache must not store a 429.
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// Problem type of draft-ietf-httpapi-ratelimit-headers-11, which is to register it.
const QUOTA_EXCEEDED: (&str, &str) = (
    "https://iana.org/assignments/http-problem-types#quota-exceeded",
    "Quota Exceeded",
);

/// Builds the answer; `retry_after` is in seconds.
pub(crate) fn answer(
    refusal: &Refusal,
    retry_after: Option<u64>,
    as_text: bool,
) -> Response<Bytes> {
    let (status, _, text) = meaning(refusal);
    let (content_type, body) = if as_text {
        let mut body = text.into_owned();
        push_wait(&mut body, refusal.kind, retry_after);
        body.push('\n');
        (TEXT, body)
    } else {
        (PROBLEM, problem(refusal, status, text, retry_after))
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

/// Adds the seconds to wait.
fn push_wait(text: &mut String, kind: RefusalKind, retry_after: Option<u64>) {
    let (RefusalKind::OverLimit | RefusalKind::Banned) = kind else {
        return;
    };
    if let Some(seconds) = retry_after {
        text.push_str(": retry after ");
        text.push_str(itoa::Buffer::new().format(seconds));
        text.push_str(if seconds == 1 { " second" } else { " seconds" });
    }
}

/// RFC 9457, section 3. Nothing of it comes from the caller.
fn problem(
    refusal: &Refusal,
    status: StatusCode,
    text: Cow<'static, str>,
    retry_after: Option<u64>,
) -> String {
    let quota = matches!(
        refusal.kind,
        RefusalKind::OverLimit | RefusalKind::QueueFull
    );
    let (kind, title) = if quota {
        QUOTA_EXCEEDED
    } else {
        // Section 4.2.1: the status is enough, and its phrase is the title.
        ("about:blank", status.canonical_reason().unwrap_or_default())
    };
    let mut json = String::with_capacity(256);
    json.push_str("{\"type\":\"");
    json.push_str(kind);
    json.push_str("\",\"title\":\"");
    json.push_str(title);
    json.push_str("\",\"status\":");
    json.push_str(status.as_str());
    json.push_str(",\"detail\":\"");
    match text {
        Cow::Borrowed(text) => json.push_str(text),
        Cow::Owned(text) => push_escaped(&mut json, &text),
    }
    push_wait(&mut json, refusal.kind, retry_after);
    json.push('"');
    if quota {
        let violated = |limit: &&LimitState| limit.refused && !limit.is_hidden();
        let mut before = ",\"violated-policies\":[\"";
        for limit in refusal.states().iter().filter(violated) {
            json.push_str(before);
            // Names of rules contain nothing to escape.
            json.push_str(limit.name());
            before = "\",\"";
        }
        if before == "\",\"" {
            json.push_str("\"]");
        }
    }
    json.push_str("}\n");
    json
}

/// Adds the characters of a string: RFC 8259, section 7.
fn push_escaped(json: &mut String, text: &str) {
    for letter in text.chars() {
        match letter {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            '\0'..='\u{1f}' => json.push_str(&format!("\\u{:04x}", u32::from(letter))),
            _ => json.push(letter),
        }
    }
}
