//! A refusal over HTTP.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};

use crate::decision::{Fault, Refusal, RefusalKind};

pub(super) fn answer(refusal: &Refusal) -> Response<Bytes> {
    let status = match (refusal.kind, refusal.missing) {
        (RefusalKind::OverLimit | RefusalKind::AboveRate, _) => StatusCode::TOO_MANY_REQUESTS,
        (RefusalKind::MissingKey, Some(missing)) if missing.fault == Fault::Server => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
        (RefusalKind::MissingKey, _) => StatusCode::UNAUTHORIZED,
        // Not 429: the caller has done nothing wrong, and 5xx alerts must see an outage.
        (RefusalKind::Unavailable, _) => StatusCode::SERVICE_UNAVAILABLE,
    };
    let retry_after = refusal.retry_after().map(whole_seconds);
    let text = match (refusal.kind, retry_after) {
        (RefusalKind::OverLimit, Some(1)) => "too many requests: retry after 1 second\n".to_owned(),
        (RefusalKind::OverLimit, Some(seconds)) => {
            format!("too many requests: retry after {seconds} seconds\n")
        }
        (RefusalKind::OverLimit, None) => "too many requests\n".to_owned(),
        (RefusalKind::AboveRate, _) => "the request costs more than its limit allows\n".to_owned(),
        (RefusalKind::MissingKey, _) => {
            format!(
                "the request lacks what it is limited by: {}\n",
                refusal.missing().unwrap_or("")
            )
        }
        (RefusalKind::Unavailable, _) => "the rate limiter is unavailable\n".to_owned(),
    };
    let mut answer = Response::new(Bytes::from(text));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    // RFC 6585, section 4: a cache must not store a 429.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(seconds) = retry_after {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    answer
}

/// RFC 9110, section 10.2.3: whole seconds. Rounded up, because a caller that comes early is refused again, and at least
/// one, because zero invites a hot loop.
fn whole_seconds(wait: Duration) -> u64 {
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    seconds.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_rounded_up_and_never_zero() {
        for (millis, seconds) in [
            (0, 1),
            (1, 1),
            (1000, 1),
            (1001, 2),
            (59_999, 60),
            (60_000, 60),
        ] {
            assert_eq!(
                whole_seconds(Duration::from_millis(millis)),
                seconds,
                "{millis} ms"
            );
        }
    }
}
