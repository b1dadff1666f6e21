//! What do we say? A refusal as an answer, in the caller's protocol.

mod body;
mod grpc;
mod http;

use std::fmt;

use ::http::{Response, request::Parts};
use bytes::Bytes;

pub use self::body::RateLimitBody;
use crate::{decision::Refusal, key::is_grpc};

/// Edits the answer to a refused request.
///
/// Implemented by closures. The answer is finished, for HTTP or gRPC: what is not changed stays right. For gRPC the answer
/// must stay without a body.
pub trait OnRefusal: Send + Sync + 'static {
    /// Returns the answer to send.
    fn on_refusal(
        &self,
        refusal: &Refusal,
        request: &Parts,
        answer: Response<Bytes>,
    ) -> Response<Bytes>;
}

impl<F> OnRefusal for F
where
    F: Fn(&Refusal, &Parts, Response<Bytes>) -> Response<Bytes> + Send + Sync + 'static,
{
    fn on_refusal(
        &self,
        refusal: &Refusal,
        request: &Parts,
        answer: Response<Bytes>,
    ) -> Response<Bytes> {
        self(refusal, request, answer)
    }
}

impl fmt::Debug for dyn OnRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnRefusal(..)")
    }
}

/// The answer to a refused request: gRPC if the request is, decided for each request, as one port can serve both.
pub(crate) fn answer(refusal: &Refusal, request: &Parts) -> Response<Bytes> {
    if is_grpc(&request.headers) {
        grpc::answer(refusal, request)
    } else {
        http::answer(refusal)
    }
}
