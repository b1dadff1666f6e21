//! The body of a response, the inner service's or that of a refusal: [`RateLimitBody`].

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::charge::SettleOnDrop;

pin_project! {
    /// The body of the inner service's response, or the short body of a refusal.
    ///
    /// The request's [`Charge`](crate::Charge) can be corrected until this body has ended or is
    /// dropped.
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
        Inner {
            #[pin]
            body: B,
            settling: Option<SettleOnDrop>,
        },
        Refusal { rest: Bytes },
    }
}

impl<B: Body<Data = Bytes>> RateLimitBody<B> {
    pub(crate) fn inner(body: B, settling: Option<SettleOnDrop>) -> Self {
        // A body that is already at its end is never polled.
        let settling = settling.filter(|_| !body.is_end_stream());
        Self {
            state: State::Inner { body, settling },
        }
    }
}

impl<B> RateLimitBody<B> {
    pub(crate) fn refusal(rest: Bytes) -> Self {
        Self {
            state: State::Refusal { rest },
        }
    }
}

/// Uses the default of the inner body, because outer layers take it for their own refusals.
impl<B: Default> Default for RateLimitBody<B> {
    fn default() -> Self {
        Self {
            state: State::Inner {
                body: B::default(),
                settling: None,
            },
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
            StateProj::Inner { mut body, settling } => {
                let polled = body.as_mut().poll_frame(cx);
                if let Some(open) = settling {
                    let is_over = match &polled {
                        Poll::Ready(Some(Ok(frame))) => match frame.trailers_ref() {
                            Some(trailers) => {
                                open.trailers(trailers);
                                true
                            }
                            // The reader may drop the body now without polling it again.
                            None => body.is_end_stream(),
                        },
                        Poll::Ready(None) => true,
                        Poll::Pending | Poll::Ready(Some(Err(_))) => false,
                    };
                    if is_over {
                        *settling = None;
                    }
                }
                polled
            }
            StateProj::Refusal { rest } if rest.is_empty() => Poll::Ready(None),
            StateProj::Refusal { rest } => Poll::Ready(Some(Ok(Frame::data(std::mem::take(rest))))),
        }
    }

    // With an empty body that reports its end, HTTP/2 sends a single frame: gRPC's Trailers-Only.
    fn is_end_stream(&self) -> bool {
        match &self.state {
            State::Inner { body, .. } => body.is_end_stream(),
            State::Refusal { rest } => rest.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.state {
            State::Inner { body, .. } => body.size_hint(),
            State::Refusal { rest } => SizeHint::with_exact(rest.len() as u64),
        }
    }
}
