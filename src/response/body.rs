//! One body type for both answers.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

pin_project! {
    /// The inner service's body, or the short one of a refusal.
    #[derive(Debug)]
    pub struct RateLimitBody<B> {
        #[pin]
        state: State<B>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = StateProj]
    enum State<B> {
        Inner { #[pin] body: B },
        Refusal { rest: Bytes },
    }
}

impl<B> RateLimitBody<B> {
    pub(crate) fn inner(body: B) -> Self {
        Self {
            state: State::Inner { body },
        }
    }

    pub(crate) fn refusal(rest: Bytes) -> Self {
        Self {
            state: State::Refusal { rest },
        }
    }
}

impl<B: Body<Data = Bytes>> Body for RateLimitBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().state.project() {
            StateProj::Inner { body } => body.poll_frame(cx),
            StateProj::Refusal { rest } if rest.is_empty() => Poll::Ready(None),
            StateProj::Refusal { rest } => Poll::Ready(Some(Ok(Frame::data(std::mem::take(rest))))),
        }
    }

    // Known at once to be at its end, an empty body makes HTTP/2 send one frame: gRPC's Trailers-Only.
    fn is_end_stream(&self) -> bool {
        match &self.state {
            State::Inner { body } => body.is_end_stream(),
            State::Refusal { rest } => rest.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.state {
            State::Inner { body } => body.size_hint(),
            State::Refusal { rest } => SizeHint::with_exact(rest.len() as u64),
        }
    }
}
