//! Answers: a decision as header fields, a refusal as a response, in the caller's protocol.

pub(crate) mod accept;
mod copies;
pub(crate) mod grpc;
pub(crate) mod headers;
mod meaning;
mod problem;

use std::{collections::hash_map::RandomState, hash::BuildHasher, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Method, Response, header, request::Parts};

use self::accept::prefers_text;
pub use self::headers::HeaderStyle;
pub(crate) use self::headers::{DecisionKind, Fields};
use super::request::is_grpc;
use crate::{macros::opaque, values::decision::Refusal};

/// Edits the answer to a refused request.
type OnRefusal = dyn Fn(&Refusal, &Parts, Response<Bytes>) -> Response<Bytes> + Send + Sync;

/// The answers of a layer.
#[derive(Clone, Default)]
pub(crate) struct Answers {
    pub(crate) jitter: Duration,
    pub(crate) on_refusal: Option<Arc<OnRefusal>>,
}

opaque!(Answers);

impl Answers {
    /// Builds the answer to a refused request, and passes it to the user's hook.
    ///
    /// A gRPC request gets a gRPC answer. Each request is looked at, as one port can serve both.
    pub(crate) fn refuse(
        &self,
        refusal: &Refusal,
        request: &Parts,
        fields: Fields,
    ) -> Response<Bytes> {
        let wait = refusal.retry_after().map(|wait| self.jittered(wait));
        let mut answer = if is_grpc(&request.method, &request.headers) {
            grpc::answer(refusal, request, wait)
        } else {
            let (retry_after, fields) = (wait.map(seconds_to_wait), fields.as_of_now());
            let as_text = prefers_text(&request.headers);
            problem::answer(refusal, retry_after, fields, as_text)
        };
        if let Some(hook) = &self.on_refusal {
            answer = hook(refusal, request, answer);
        }
        if request.method == Method::HEAD {
            // RFC 9110, section 9.3.2: an answer to HEAD has no content, and its length, if
            // present, is that of the answer to GET. Both are done here: a server would set the
            // length of an empty body, and hyper sends whatever body there is over HTTP/2.
            let length = HeaderValue::from(answer.body().len());
            answer.headers_mut().insert(header::CONTENT_LENGTH, length);
            *answer.body_mut() = Bytes::new();
        }
        answer
    }

    /// Returns the wait plus a random part of the jitter, so that callers refused together do not
    /// return together.
    fn jittered(&self, wait: Duration) -> Duration {
        let span = u64::try_from(self.jitter.as_millis()).unwrap_or(u64::MAX);
        if span == 0 {
            return wait;
        }
        // Each of std's hashers has its own seed. That is random enough for jitter, which need not
        // be secret.
        let random = RandomState::new().hash_one(());
        wait.saturating_add(Duration::from_millis(random % span.saturating_add(1)))
    }
}

/// Returns whole seconds (RFC 9110, section 10.2.3): rounded up, because a caller that comes early
/// is refused again, and at least one, because zero invites a hot loop.
fn seconds_to_wait(wait: Duration) -> u64 {
    headers::ceil(wait).clamp(1, headers::LARGEST)
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
            (u64::MAX, 999_999_999_999_999),
        ] {
            assert_eq!(
                seconds_to_wait(Duration::from_millis(millis)),
                seconds,
                "{millis} ms"
            );
        }
    }

    /// The range of the jitter that is added is tested in `tests/pure/headers/fields.rs`.
    #[test]
    fn no_jitter_adds_nothing_and_much_does_not_overflow() {
        let of = |jitter| Answers {
            jitter,
            on_refusal: None,
        };
        let wait = Duration::from_secs(1);
        assert_eq!(of(Duration::ZERO).jittered(wait), wait);
        assert!(of(Duration::MAX).jittered(Duration::MAX) >= wait);
    }
}
