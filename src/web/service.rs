//! Request in, future out: [`RateLimit`].

use std::{
    fmt, mem,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response, request::Parts};
use tower_layer::Layer;
use tower_service::Service;

use super::{
    answer::RateLimitBody,
    charge::{Judges, has_met},
    future::{Granted, ResponseFuture},
    layer::{RateLimitLayer, Shared},
    rule::Plan,
};
use crate::{
    decision::{Decision, Refusal},
    demand::Acquire,
};

/// A service whose requests are limited. Made by [`RateLimitLayer`].
///
/// # Readiness
///
/// It is ready when the inner service is, and holds that readiness, a permit of a `ConcurrencyLimit` for example, while it
/// asks the store, and while the request waits for permits. A refusal lets it go; the inner service is then never called.
///
/// With [`decide_first`](crate::RateLimitLayerBuilder::decide_first) it is always ready, and waits for the inner service when a
/// request has been let pass.
#[derive(Clone)]
pub struct RateLimit<S> {
    inner: S,
    shared: Arc<Shared>,
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        RateLimit {
            inner,
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<S> RateLimit<S> {
    /// The inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The inner service, to change it.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The inner service alone.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for RateLimit<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone,
    ResBody: http_body::Body<Data = Bytes>,
{
    type Response = Response<RateLimitBody<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, ReqBody>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        if self.shared.decide_first {
            return Poll::Ready(Ok(()));
        }
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        // One layer may be met twice: of a nested router, and of the one around it.
        let again = || !self.shared.always && has_met(request.extensions(), self.shared.id);
        if !self.shared.enabled || again() {
            return self.forward(request, None);
        }
        let (parts, body) = request.into_parts();
        let once = (!self.shared.always).then_some(&self.shared.store);
        let plan = self.shared.planner.load().plan(&parts, once);
        match plan {
            Plan::Pass => self.forward(Request::from_parts(parts, body), None),
            Plan::Refuse(refusal) => self.refuse(refusal, parts),
            Plan::Ask(acquire, judges) => self.ask(acquire, judges, parts, body),
        }
    }
}

impl<S> RateLimit<S> {
    /// Asks the store about a request that meets limits.
    fn ask<ReqBody>(
        &mut self,
        mut acquire: Acquire,
        judges: Judges,
        parts: Parts,
        body: ReqBody,
    ) -> ResponseFuture<S, ReqBody>
    where
        S: Service<Request<ReqBody>> + Clone,
    {
        let shared = &self.shared;
        match shared.store.decide_at_once(&mut acquire) {
            Some(Ok(Decision::Allow(grant))) => {
                let mut request = Request::from_parts(parts, body);
                let granted = Granted::tell(grant, judges, &mut request, shared);
                self.forward(request, Some(granted))
            }
            Some(Ok(Decision::Deny(refusal))) => self.refuse(refusal, parts),
            Some(Err(error)) => self.refuse(Refusal::unavailable(error), parts),
            None => {
                let deciding = Arc::clone(&shared.store).acquire(acquire);
                let ready = take_ready(&mut self.inner);
                let request = Request::from_parts(parts, body);
                ResponseFuture::decide(deciding, ready, request, judges, Arc::clone(shared))
            }
        }
    }

    /// Refuses a request before anything is waited for.
    fn refuse<ReqBody>(&mut self, refusal: Refusal, parts: Parts) -> ResponseFuture<S, ReqBody>
    where
        S: Service<Request<ReqBody>> + Clone,
    {
        // Whoever keeps this service for later must not keep a permit that is not used.
        drop(take_ready(&mut self.inner));
        ResponseFuture::refuse(refusal, parts, Arc::clone(&self.shared))
    }

    /// Passes on a request, with what it was granted unless no rule concerns it.
    fn forward<ReqBody>(
        &mut self,
        request: Request<ReqBody>,
        granted: Option<Granted>,
    ) -> ResponseFuture<S, ReqBody>
    where
        S: Service<Request<ReqBody>> + Clone,
    {
        if self.shared.decide_first {
            let inner = take_ready(&mut self.inner);
            return ResponseFuture::call_when_ready(inner, request, granted);
        }
        ResponseFuture::call(&mut self.inner, request, granted)
    }
}

/// Takes the service that was polled ready: the one to call, as its clone has made no such promise.
fn take_ready<S: Clone>(inner: &mut S) -> S {
    let clone = inner.clone();
    mem::replace(inner, clone)
}

/// Lets tonic's `add_service` take one wrapped service.
#[cfg(feature = "tonic")]
impl<S: tonic::server::NamedService> tonic::server::NamedService for RateLimit<S> {
    const NAME: &'static str = S::NAME;
}

impl<S: fmt::Debug> fmt::Debug for RateLimit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}
