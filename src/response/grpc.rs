//! A refusal over gRPC: HTTP 200 with the status in the head and no body ("Trailers-Only", PROTOCOL-HTTP2.md).
//!
//! A bare 429 would reach the caller as UNAVAILABLE, which generic clients retry at once.

use bytes::Bytes;
use http::{HeaderValue, Response, header, request::Parts};

use crate::decision::{Fault, Refusal, RefusalKind};

const INTERNAL: &str = "13";
const UNAVAILABLE: &str = "14";
const UNAUTHENTICATED: &str = "16";
const RESOURCE_EXHAUSTED: &str = "8";

pub(super) fn answer(refusal: &Refusal, request: &Parts) -> Response<Bytes> {
    // Constant, printable ASCII without `%`: needs no percent-encoding.
    let (status, message) = match (refusal.kind, refusal.missing) {
        (RefusalKind::OverLimit, _) => (RESOURCE_EXHAUSTED, "too many requests"),
        (RefusalKind::AboveRate, _) => (
            RESOURCE_EXHAUSTED,
            "the request costs more than its limit allows",
        ),
        (RefusalKind::MissingKey, Some(missing)) if missing.fault == Fault::Server => {
            (INTERNAL, "the peer address is missing")
        }
        (RefusalKind::MissingKey, _) => {
            (UNAUTHENTICATED, "the request lacks what it is limited by")
        }
        (RefusalKind::Unavailable, _) => (UNAVAILABLE, "the rate limiter is unavailable"),
    };
    let mut answer = Response::new(Bytes::new());
    let headers = answer.headers_mut();
    let asked = request.headers.get(header::CONTENT_TYPE).cloned();
    let content_type = asked.unwrap_or(HeaderValue::from_static("application/grpc"));
    headers.insert(header::CONTENT_TYPE, content_type);
    headers.insert("grpc-status", HeaderValue::from_static(status));
    headers.insert("grpc-message", HeaderValue::from_static(message));
    answer
}
