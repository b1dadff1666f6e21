//! A refusal over gRPC: HTTP 200 with the status in the head and no body ("Trailers-Only",
//! PROTOCOL-HTTP2.md).
//!
//! A bare 429 would reach the caller as UNAVAILABLE, which generic clients retry at once. gRPC-Web
//! accepts the same answer: "trailers may be sent together with response headers, with no message
//! in the body" (PROTOCOL-WEB.md), which also avoids the frames and the base64 of its text form.
//!
//! The wait is sent twice, because clients read one or the other: the retry policies of gRPC
//! clients use `grpc-retry-pushback-ms` (gRFC A6), and applications and OpenTelemetry's exporters
//! use `google.rpc.RetryInfo`. Next to it is a `google.rpc.ErrorInfo`: RESOURCE_EXHAUSTED alone may
//! also be a message that is too large. Nothing here grows with what the caller sent.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, header, request::Parts};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use super::meaning::{RESOURCE_EXHAUSTED, meaning, violated};
use crate::values::decision::{Refusal, RefusalKind};

pub(crate) const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_STATUS_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// PROTOCOL-HTTP2.md, `Percent-Byte-Unencoded`: all of printable ASCII except `%`. Bytes above it
/// are always encoded.
const UNSAFE_IN_MESSAGE: &AsciiSet = &CONTROLS.add(b'%');
/// The content types of both protocols, with the codecs that these name. A caller's own one of
/// these is answered, which its codec expects; of a made-up one, only what is before its `+`.
const CONTENT_TYPES: [&str; 12] = [
    "application/grpc-web-text",
    "application/grpc-web-text+proto",
    "application/grpc-web-text+json",
    "application/grpc-web-text+thrift",
    "application/grpc-web",
    "application/grpc-web+proto",
    "application/grpc-web+json",
    "application/grpc-web+thrift",
    "application/grpc",
    "application/grpc+proto",
    "application/grpc+json",
    "application/grpc+thrift",
];

/// Builds the answer; `wait` is that of the refusal, with jitter.
pub(crate) fn answer(
    refusal: &Refusal,
    request: &Parts,
    wait: Option<Duration>,
) -> Response<Bytes> {
    let (_, code, message) = meaning(refusal);
    let worth_it = matches!(
        refusal.kind,
        RefusalKind::OverLimit | RefusalKind::QueueFull
    );
    let wait = wait.filter(|_| worth_it);
    let mut answer = Response::new(Bytes::new());
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, content_type(&request.headers));
    // To a cache it is a 200 like any other.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(GRPC_STATUS, HeaderValue::from(u16::from(code)));
    let encoded = utf8_percent_encode(&message, UNSAFE_IN_MESSAGE).to_string();
    insert(headers, GRPC_MESSAGE, encoded);
    if let Some(pushback) = pushback(refusal.kind, wait, &request.headers) {
        headers.insert(PUSHBACK, HeaderValue::from(pushback));
    }
    if code == RESOURCE_EXHAUSTED {
        let limits = violated(refusal).collect::<Vec<_>>().join(",");
        let details = base64(&with_details(code, &message, wait, &limits));
        insert(headers, GRPC_STATUS_DETAILS, details);
    }
    answer
}

/// Returns the pushback for a client's retry policy (gRFC A6): milliseconds, -1 for never, or
/// `None` to leave it to its own backoff.
fn pushback(kind: RefusalKind, wait: Option<Duration>, request: &HeaderMap) -> Option<i32> {
    const NEVER: i32 = -1;
    match (kind, wait) {
        // The client would sleep until the call's deadline, and then report that instead of the
        // limit.
        (_, Some(wait)) if timeout(request).is_some_and(|timeout| timeout <= wait) => Some(NEVER),
        (_, Some(wait)) => Some(signed_millis(wait)),
        // A retry is the same call: it costs as much, lacks the same, and is on the same list. A
        // ban is longer than a call.
        (
            RefusalKind::AboveRate
            | RefusalKind::Banned
            | RefusalKind::MissingKey
            | RefusalKind::KeyTooLong
            | RefusalKind::Blocked,
            None,
        ) => Some(NEVER),
        // It is unknown when the store will be back. A pushback replaces the client's backoff and
        // its jitter, so that all callers would reach a store that has just recovered at the same
        // instant.
        (RefusalKind::OverLimit | RefusalKind::QueueFull | RefusalKind::Unavailable, None) => None,
    }
}

/// Returns the caller's timeout for the whole call, retries included. PROTOCOL-HTTP2.md: at most
/// eight digits and a unit.
fn timeout(request: &HeaderMap) -> Option<Duration> {
    let timeout = request.get(GRPC_TIMEOUT)?.to_str().ok()?;
    let (digits, unit) = timeout.split_at_checked(timeout.len().checked_sub(1)?)?;
    if digits.len() > 8 || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let number = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(number * 3600)),
        "M" => Some(Duration::from_secs(number * 60)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

/// Rounds up, because a call that comes early is refused again, and to at least one, because zero
/// invites a hot loop, and clients on gRPC's C core (1.85) hang until the call's deadline with
/// zero. More than 24 days become the most that a signed 32-bit number holds.
fn signed_millis(wait: Duration) -> i32 {
    i32::try_from(whole_millis(wait)).unwrap_or(i32::MAX)
}

fn whole_millis(wait: Duration) -> u128 {
    wait.as_nanos().div_ceil(1_000_000).max(1)
}

/// Returns the content type of the answer. It is one of [`CONTENT_TYPES`] for any request: no byte
/// of the request is repeated.
fn content_type(request: &HeaderMap) -> HeaderValue {
    let asked = request.get(header::CONTENT_TYPE);
    let asked = asked.map(HeaderValue::as_bytes).unwrap_or_default();
    let media = asked.split(|byte| *byte == b';').next().unwrap_or_default();
    let media = media.trim_ascii();
    let protocol = media.split(|byte| *byte == b'+').next().unwrap_or_default();
    let one_of = |media: &[u8]| {
        let mut known = CONTENT_TYPES.into_iter();
        known.find(|known| known.as_bytes().eq_ignore_ascii_case(media))
    };
    let known = one_of(media).or_else(|| one_of(protocol));
    HeaderValue::from_static(known.unwrap_or("application/grpc"))
}

/// Inserts printable ASCII.
fn insert(headers: &mut HeaderMap, name: HeaderName, value: String) {
    if let Ok(value) = HeaderValue::try_from(value) {
        headers.insert(name, value);
    }
}

/// Encodes a `google.rpc.Status` with its details, in protobuf: the wait, if there is one, and
/// which limits refuse.
///
/// By hand, because five numbers and some texts do not justify a protobuf library in every user's
/// tree. The numbers are those of the fields in google/rpc/status.proto,
/// google/rpc/error_details.proto, google/protobuf/any.proto and duration.proto.
fn with_details(code: u8, message: &str, wait: Option<Duration>, limits: &str) -> Vec<u8> {
    let mut status = Vec::new();
    put_number(&mut status, 1, code.into());
    put_bytes(&mut status, 2, message.as_bytes());
    if let Some(wait) = wait {
        put_detail(&mut status, "RetryInfo", &retry_info(wait));
    }
    put_detail(&mut status, "ErrorInfo", &error_info(limits));
    status
}

fn retry_info(wait: Duration) -> Vec<u8> {
    /// The most seconds of a `google.protobuf.Duration`.
    const MOST_SECONDS: u64 = 315_576_000_000;
    let millis = u64::try_from(whole_millis(wait)).unwrap_or(u64::MAX);
    let mut delay = Vec::new();
    put_number(&mut delay, 1, (millis / 1000).min(MOST_SECONDS));
    put_number(&mut delay, 2, millis % 1000 * 1_000_000);
    let mut info = Vec::new();
    put_bytes(&mut info, 1, &delay);
    info
}

fn error_info(limits: &str) -> Vec<u8> {
    let mut info = Vec::new();
    put_bytes(&mut info, 1, b"RATE_LIMIT_EXCEEDED");
    put_bytes(&mut info, 2, b"tower-ratelimit");
    if !limits.is_empty() {
        // An entry of a map is a message of its key and its value.
        let mut entry = Vec::new();
        put_bytes(&mut entry, 1, b"limits");
        put_bytes(&mut entry, 2, limits.as_bytes());
        put_bytes(&mut info, 3, &entry);
    }
    info
}

fn put_detail(status: &mut Vec<u8>, kind: &str, detail: &[u8]) {
    let mut any = Vec::new();
    let kind = format!("type.googleapis.com/google.rpc.{kind}");
    put_bytes(&mut any, 1, kind.as_bytes());
    put_bytes(&mut any, 2, detail);
    put_bytes(status, 3, &any);
}

fn put_number(message: &mut Vec<u8>, field: u8, number: u64) {
    // Protobuf leaves out what is zero.
    if number > 0 {
        message.push(field << 3);
        put_varint(message, number);
    }
}

fn put_bytes(message: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    message.push(field << 3 | 2);
    put_varint(message, bytes.len() as u64);
    message.extend_from_slice(bytes);
}

fn put_varint(message: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        message.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    message.push(number as u8);
}

/// Encodes base64. PROTOCOL-HTTP2.md: values of `-bin` fields are base64, and should have no
/// padding.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().enumerate().fold(0_u32, |bits, (at, byte)| {
            bits | u32::from(*byte) << (16 - 8 * at)
        });
        // One byte needs two characters, two bytes three.
        for at in 0..=chunk.len() {
            let index = bits >> (18 - 6 * at) & 0x3f;
            text.push(char::from(ALPHABET[index as usize]));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::values::decision::{Fault, Missing};

    #[test]
    fn base64_is_that_of_the_rfc_without_padding() {
        // RFC 4648, section 10.
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg"),
            ("fo", "Zm8"),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg"),
            ("fooba", "Zm9vYmE"),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xfb, 0xff, 0xfe]), "+//+");
    }

    #[test]
    fn a_pushback_is_never_too_early_and_fits() {
        for (wait, millis) in [
            (Duration::ZERO, 1),
            (Duration::from_nanos(1), 1),
            (Duration::from_millis(1), 1),
            (Duration::from_micros(1001), 2),
            (Duration::from_secs(3600), 3_600_000),
            (Duration::from_millis(2_147_483_647), i32::MAX),
            (Duration::from_millis(2_147_483_648), i32::MAX),
            (Duration::MAX, i32::MAX),
        ] {
            assert_eq!(signed_millis(wait), millis, "{wait:?}");
        }
    }

    #[test]
    fn a_call_that_ends_before_its_wait_is_not_to_be_retried() {
        const MAX: Option<i32> = Some(i32::MAX);
        let (minute, century) = (60, 36_525 * 86_400);
        for (timeout, wait, expected) in [
            ("1M", minute, Some(-1)),
            ("60S", minute, Some(-1)),
            ("60001m", minute, Some(60_000)),
            ("60000001u", minute, Some(60_000)),
            ("99999999n", minute, Some(-1)),
            ("1H", minute, Some(60_000)),
            ("0n", minute, Some(-1)),
            ("99999999H", century, MAX),
            // None of these is a timeout, which the property below has more of.
            ("", minute, Some(60_000)),
            ("18446744073709551616S", minute, Some(60_000)),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(GRPC_TIMEOUT, HeaderValue::from_static(timeout));
            let wait = Some(Duration::from_secs(wait));
            let pushback = pushback(RefusalKind::OverLimit, wait, &headers);
            assert_eq!(pushback, expected, "{timeout:?}");
        }
    }

    /// Another encoder's bytes: the same status, by prost.
    #[test]
    fn the_details_are_protobuf() {
        use std::collections::HashMap;

        use prost::Message;
        use tonic_types::{ErrorDetails, StatusExt, pb};

        let waits = [
            Duration::from_millis(1),
            Duration::from_secs(1),
            Duration::from_millis(59_999),
            Duration::from_millis(86_400_001),
            Duration::from_secs(315_576_000_000),
        ];
        // The longest is beyond one byte of length.
        let long = ["api", "a-name-of-sixty-four-characters-at-most.paid"]
            .join(",")
            .repeat(4);
        for wait in waits.map(Some).into_iter().chain([None]) {
            for limits in ["", "login", "api,api-burst", &long] {
                let mut details = ErrorDetails::with_retry_info(wait);
                if wait.is_none() {
                    details = ErrorDetails::new();
                }
                let named = (!limits.is_empty()).then(|| ("limits".to_owned(), limits.to_owned()));
                let named: HashMap<_, _> = named.into_iter().collect();
                details.set_error_info("RATE_LIMIT_EXCEEDED", "tower-ratelimit", named);
                let status = tonic::Status::with_error_details(
                    tonic::Code::ResourceExhausted,
                    "too many requests",
                    details,
                );
                let ours = with_details(RESOURCE_EXHAUSTED, "too many requests", wait, limits);
                assert_eq!(ours, status.details(), "{wait:?} {limits}");
                let read = pb::Status::decode(&*ours).unwrap();
                assert_eq!((read.code, read.message.as_str()), (8, "too many requests"));
            }
        }
        // A wait beyond the maximum of a `google.protobuf.Duration` is cut, not wrapped.
        let longest = pb::RetryInfo::decode(&*retry_info(Duration::MAX)).unwrap();
        assert_eq!(longest.retry_delay.unwrap().seconds, 315_576_000_000);
    }

    #[test]
    fn only_known_content_types_are_answered() {
        for (asked, said) in [
            ("application/grpc", "application/grpc"),
            ("application/grpc+json", "application/grpc+json"),
            (
                "application/grpc+proto; q=\"<x>\"",
                "application/grpc+proto",
            ),
            ("application/grpc ;x", "application/grpc"),
            ("application/grpc+<b>", "application/grpc"),
            (
                "application/grpc-web-text+proto",
                "application/grpc-web-text+proto",
            ),
            ("application/grpc-web+<b>", "application/grpc-web"),
            ("application/grpc+\u{e9}", "application/grpc"),
            ("application/grpc+made-up", "application/grpc"),
            (
                "application/grpc-web-text+made-up",
                "application/grpc-web-text",
            ),
            ("application/grpc+Proto", "application/grpc+proto"),
            ("", "application/grpc"),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(
                header::CONTENT_TYPE,
                HeaderValue::from_bytes(asked.as_bytes()).unwrap(),
            );
            assert_eq!(content_type(&headers), said, "{asked}");
        }
        assert_eq!(content_type(&HeaderMap::new()), "application/grpc");
    }

    #[test]
    fn a_message_is_percent_encoded() {
        let missing = Missing {
            what: "100 % schlüssel\r\ngrpc-status: 0",
            fault: Fault::Caller,
        };
        let (request, ()) = Request::new(()).into_parts();
        let answer = answer(&Refusal::missing_key(missing), &request, None);
        let expected = "the request lacks what it is limited by: \
                        100 %25 schl%C3%BCssel%0D%0Agrpc-status: 0";
        assert_eq!(answer.headers()["grpc-message"], expected);
        assert_eq!(answer.headers()["grpc-status"], "16");
    }

    proptest::proptest! {
        /// Nothing of the answer is the request's.
        #[test]
        fn no_byte_of_a_request_is_in_its_answer(
            codec in "[+]?[!-~]{0,80}",
            web in proptest::sample::select(vec!["", "-web", "-web-text"]),
            other in "[!-~]{0,20}",
        ) {
            let refusal = Refusal::unavailable(crate::values::error::ErrorKind::Unavailable.into());
            let mut request = Request::builder().method("POST").uri("/shop.v1.Orders/Create");
            request = request.header("content-type", format!("application/grpc{web}{codec}"));
            request = request.header("grpc-timeout", &other).header("te", &other);
            let (request, ()) = request.body(()).unwrap().into_parts();
            let found = answer(&refusal, &request, None);
            let (plain, ()) = Request::new(()).into_parts();
            let mut expected = answer(&refusal, &plain, None);
            let said = found.headers()[header::CONTENT_TYPE].clone();
            proptest::prop_assert!(CONTENT_TYPES.iter().any(|known| said == known));
            expected.headers_mut().insert(header::CONTENT_TYPE, said);
            proptest::prop_assert_eq!(found.headers(), expected.headers());
            proptest::prop_assert!(found.body().is_empty());
        }

        /// Any field is accepted, and only a timeout of the protocol is parsed as one.
        #[test]
        fn any_timeout_is_read(
            bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..12),
            text in "[0-9]{0,10}[HMSmun]?",
        ) {
            for bytes in [&bytes[..], text.as_bytes()] {
                let Ok(value) = HeaderValue::from_bytes(bytes) else { continue };
                let mut headers = HeaderMap::new();
                headers.insert(GRPC_TIMEOUT, value);
                let is_one = bytes.split_last().is_some_and(|(unit, digits)| {
                    b"HMSmun".contains(unit)
                        && (1..=8).contains(&digits.len())
                        && digits.iter().all(u8::is_ascii_digit)
                });
                let read = timeout(&headers);
                proptest::prop_assert_eq!(read.is_some(), is_one, "{:?}", bytes);
            }
        }
    }
}
