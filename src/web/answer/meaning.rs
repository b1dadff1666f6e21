//! The one table of refusals: the HTTP status, the gRPC code and the text of each.

use std::borrow::Cow;

use http::StatusCode;

use super::headers::shown;
use crate::values::decision::{Fault, Refusal, RefusalKind};

// The numbers of `google.rpc.Code`.
const INVALID_ARGUMENT: u8 = 3;
const PERMISSION_DENIED: u8 = 7;
pub(super) const RESOURCE_EXHAUSTED: u8 = 8;
const INTERNAL: u8 = 13;
const UNAVAILABLE: u8 = 14;
const UNAUTHENTICATED: u8 = 16;

const TOO_MANY: (StatusCode, u8) = (StatusCode::TOO_MANY_REQUESTS, RESOURCE_EXHAUSTED);
const FORBIDDEN: (StatusCode, u8) = (StatusCode::FORBIDDEN, PERMISSION_DENIED);
/// Not 429 and RESOURCE_EXHAUSTED, which callers and alerts take for the limit: the caller has done
/// nothing wrong, and alerts for 5xx must see an outage.
const UNABLE: (StatusCode, u8) = (StatusCode::SERVICE_UNAVAILABLE, UNAVAILABLE);
const NO_KEY: (StatusCode, u8) = (StatusCode::UNAUTHORIZED, UNAUTHENTICATED);
const KEY_TOO_LONG: (StatusCode, u8) = (
    StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
    INVALID_ARGUMENT,
);
const NO_PEER: (StatusCode, u8) = (StatusCode::INTERNAL_SERVER_ERROR, INTERNAL);

/// Returns the HTTP status, the gRPC code and the text of a refusal. Only a text that is owned can
/// hold characters beyond the letters, digits and spaces of a sentence.
pub(super) fn meaning(refusal: &Refusal) -> (StatusCode, u8, Cow<'static, str>) {
    let ((status, code), text) = match refusal.kind {
        RefusalKind::OverLimit => (TOO_MANY, "too many requests"),
        // A queue belongs to the limit, and its callers have filled it: no outage.
        RefusalKind::QueueFull => (TOO_MANY, "too many requests wait already"),
        RefusalKind::AboveRate => (TOO_MANY, "the request costs more than its limit allows"),
        RefusalKind::Banned => (banned(refusal), "too many requests were refused"),
        RefusalKind::Blocked => (FORBIDDEN, "the request is blocked"),
        RefusalKind::Unavailable => (UNABLE, "the rate limiter is unavailable"),
        RefusalKind::MissingKey | RefusalKind::KeyTooLong => return lack(refusal),
    };
    (status, code, text.into())
}

/// Returns the names of the limits that refuse. They contain nothing to escape.
pub(super) fn violated(refusal: &Refusal) -> impl Iterator<Item = String> {
    let violated = shown(&refusal.charges).filter(|limit| limit.standing.refused);
    violated.map(|limit| limit.name().into_owned())
}

/// Returns the status that the rule has chosen, of the longest ban.
fn banned(refusal: &Refusal) -> (StatusCode, u8) {
    let mut charges = refusal.charges.iter();
    let by = charges.find(|charge| charge.standing.banned && !charge.shadow);
    let status = by.and_then(|charge| StatusCode::from_u16(charge.compiled().ban?.status).ok());
    (status.unwrap_or(TOO_MANY.0), RESOURCE_EXHAUSTED)
}

/// Returns the meaning of a key that is missing, repeated or too long.
fn lack(refusal: &Refusal) -> (StatusCode, u8, Cow<'static, str>) {
    let what = refusal.missing().unwrap_or_default();
    let ((status, code), lacks) = match refusal.lack().map(|missing| missing.fault) {
        Some(Fault::TooLong { most }) => (KEY_TOO_LONG, &*format!("has more than {most} bytes of")),
        Some(Fault::Server) => (NO_PEER, "lacks"),
        Some(Fault::Ambiguous) => (NO_KEY, "says more than once"),
        Some(Fault::Caller) | None => (NO_KEY, "lacks"),
    };
    let text = format!("the request {lacks} what it is limited by: {what}");
    (status, code, text.into())
}
