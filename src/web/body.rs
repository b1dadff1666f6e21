//! The body of a response, the inner service's or that of a refusal: [`RateLimitBody`].

use std::{
    mem,
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
    /// The request's charge can be corrected by its [`Grant`](crate::Grant) until this body has
    /// ended or is dropped.
    #[derive(Debug)]
    pub struct RateLimitBody<B> {
        // `None` in a refusal.
        #[pin]
        inner: Option<B>,
        settling: Option<SettleOnDrop>,
        // What is left of a refusal; empty in any other response.
        refusal: Bytes,
    }
}

impl<B: Body<Data = Bytes>> RateLimitBody<B> {
    pub(crate) fn inner(body: B, mut settling: Option<SettleOnDrop>) -> Self {
        // A body that has ended may never be polled.
        if body.is_end_stream()
            && let Some(mut settling) = settling.take()
        {
            settling.read_trailers(None);
        }
        Self {
            settling,
            inner: Some(body),
            refusal: Bytes::new(),
        }
    }
}

impl<B> RateLimitBody<B> {
    pub(crate) fn refusal(refusal: Bytes) -> Self {
        Self {
            inner: None,
            settling: None,
            refusal,
        }
    }
}

/// Uses the default of the inner body, because outer layers take it for their own refusals.
impl<B: Default> Default for RateLimitBody<B> {
    fn default() -> Self {
        Self {
            inner: Some(B::default()),
            ..Self::refusal(Bytes::new())
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
        let this = self.project();
        let Some(mut body) = this.inner.as_pin_mut() else {
            let rest = mem::take(this.refusal);
            return Poll::Ready((!rest.is_empty()).then(|| Ok(Frame::data(rest))));
        };
        let polled = body.as_mut().poll_frame(cx);
        if let Some(settling) = this.settling {
            let (trailers, is_over) = match &polled {
                Poll::Ready(Some(Ok(frame))) => match frame.trailers_ref() {
                    Some(trailers) => (Some(trailers), true),
                    // The reader may drop the body now without polling it again.
                    None => (None, body.is_end_stream()),
                },
                Poll::Ready(None) => (None, true),
                Poll::Pending | Poll::Ready(Some(Err(_))) => (None, false),
            };
            if is_over {
                settling.read_trailers(trailers);
                *this.settling = None;
            }
        }
        polled
    }

    // With an empty body that reports its end, HTTP/2 sends a single frame: gRPC's Trailers-Only.
    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Some(body) => body.is_end_stream(),
            None => self.refusal.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Some(body) => body.size_hint(),
            None => SizeHint::with_exact(self.refusal.len() as u64),
        }
    }
}
