//! A refusal over HTTP: problem details (RFC 9457), or plain text for callers that prefer it.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header, request::Parts};

use super::accept::prefers_text;
use crate::decision::{Fault, LimitState, Refusal, RefusalKind};

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
    request: &Parts,
    retry_after: Option<u64>,
) -> Response<Bytes> {
    let status = match (refusal.kind, refusal.missing) {
        // A queue belongs to the limit, and its callers have filled it: no outage.
        (RefusalKind::OverLimit | RefusalKind::AboveRate | RefusalKind::QueueFull, _) => {
            StatusCode::TOO_MANY_REQUESTS
        }
        (RefusalKind::Blocked, _) => StatusCode::FORBIDDEN,
        (RefusalKind::MissingKey, Some(missing)) if missing.fault == Fault::Server => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
        (RefusalKind::MissingKey, _) => StatusCode::UNAUTHORIZED,
        (RefusalKind::KeyTooLong, _) => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        // Not 429: the caller has done nothing wrong, and 5xx alerts must see an outage.
        (RefusalKind::Unavailable, _) => StatusCode::SERVICE_UNAVAILABLE,
    };
    let (content_type, body) = if prefers_text(&request.headers) {
        let mut text = String::with_capacity(64);
        push_detail(&mut text, refusal, retry_after);
        text.push('\n');
        (TEXT, text)
    } else {
        let body = problem(refusal, status, retry_after);
        (PROBLEM, body)
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

/// Adds the reason of the refusal as text, with the seconds to wait.
fn push_detail(text: &mut String, refusal: &Refusal, retry_after: Option<u64>) {
    let reason = match refusal.kind {
        RefusalKind::OverLimit => "too many requests",
        RefusalKind::QueueFull => "too many requests wait already",
        RefusalKind::Blocked => "the request is blocked",
        RefusalKind::AboveRate => "the request costs more than its limit allows",
        RefusalKind::MissingKey | RefusalKind::KeyTooLong => return text.push_str(&lack(refusal)),
        RefusalKind::Unavailable => "the rate limiter is unavailable",
    };
    text.push_str(reason);
    if let (RefusalKind::OverLimit, Some(seconds)) = (refusal.kind, retry_after) {
        text.push_str(": retry after ");
        text.push_str(itoa::Buffer::new().format(seconds));
        text.push_str(if seconds == 1 { " second" } else { " seconds" });
    }
}

/// Returns which key is missing, repeated or too long, in the text that all protocols share.
pub(crate) fn lack(refusal: &Refusal) -> String {
    let what = refusal.missing().unwrap_or_default();
    match refusal.missing.map(|missing| missing.fault) {
        Some(Fault::Ambiguous) => {
            format!("the request says more than once what it is limited by: {what}")
        }
        Some(Fault::TooLong { most }) => {
            format!("the request has more than {most} bytes of what it is limited by: {what}")
        }
        _ => format!("the request lacks what it is limited by: {what}"),
    }
}

/// RFC 9457, section 3. Nothing of it comes from the caller.
fn problem(refusal: &Refusal, status: StatusCode, retry_after: Option<u64>) -> String {
    let (kind, title) = match refusal.kind {
        RefusalKind::OverLimit | RefusalKind::QueueFull => QUOTA_EXCEEDED,
        // Section 4.2.1: the status is enough, and its phrase is the title.
        _ => ("about:blank", status.canonical_reason().unwrap_or_default()),
    };
    let mut json = String::with_capacity(256);
    // A constant with nothing to escape.
    json.push_str("{\"type\":\"");
    json.push_str(kind);
    json.push_str("\",\"title\":\"");
    json.push_str(title);
    json.push_str("\",\"status\":");
    json.push_str(status.as_str());
    json.push_str(",\"detail\":");
    push_string(&mut json, |json| push_detail(json, refusal, retry_after));
    let violated = |limit: &&LimitState| limit.refused && !limit.is_hidden();
    let mut violated = refusal.limits().iter().filter(violated);
    let quota = matches!(
        refusal.kind,
        RefusalKind::OverLimit | RefusalKind::QueueFull
    );
    if let Some(first) = violated.next().filter(|_| quota) {
        json.push_str(",\"violated-policies\":[");
        push_string(&mut json, |json| json.push_str(first.name()));
        for limit in violated {
            json.push(',');
            push_string(&mut json, |json| json.push_str(limit.name()));
        }
        json.push(']');
    }
    json.push_str("}\n");
    json
}

/// Adds what `write` adds as a string: RFC 8259, section 7.
fn push_string(json: &mut String, write: impl FnOnce(&mut String)) {
    json.push('"');
    let begin = json.len();
    write(json);
    let is_special = |byte: &u8| matches!(byte, ..b' ' | b'"' | b'\\');
    let text = json.as_bytes().get(begin..).unwrap_or_default();
    // Seldom true. A search over all bytes is fast.
    if text
        .iter()
        .fold(false, |found, byte| found | is_special(byte))
    {
        let text = json.split_off(begin);
        push_escaped(json, &text);
    }
    json.push('"');
}

fn push_escaped(json: &mut String, text: &str) {
    use std::fmt::Write;

    for letter in text.chars() {
        match letter {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            // Writing to a `String` never fails.
            '\0'..='\u{1f}' => {
                let _ = write!(json, "\\u{:04x}", u32::from(letter));
            }
            _ => json.push(letter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_escaped() {
        for (text, json) in [
            ("", r#""""#),
            ("x-api-key", r#""x-api-key""#),
            ("a \"b\" \\ c/", r#""a \"b\" \\ c/""#),
            (
                "1\n2\t3\0\u{1f}\u{7f}",
                "\"1\\u000a2\\u00093\\u0000\\u001f\u{7f}\"",
            ),
            ("Grüße 🚦", "\"Grüße 🚦\""),
        ] {
            let mut json_string = String::new();
            push_string(&mut json_string, |json_string| json_string.push_str(text));
            assert_eq!(json_string, json);
        }
    }
}
