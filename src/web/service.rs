//! The service that limits requests, [`RateLimit`], and its future, which decides, then calls or
//! refuses: [`ResponseFuture`].

use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Extensions, Method, Request, Response, request::Parts};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::{
    answer::Fields,
    charge::{Earlier, RateLimitBody, SettleOnDrop},
    layer::{LayerState, RateLimitLayer},
    request::is_grpc,
    rule::Plan,
};
use crate::{
    macros::detail,
    store::Deciding,
    values::{
        decision::{Decision, Grant, Refusal},
        error::Error,
    },
};

/// Limits the requests to the inner service. Made by [`RateLimitLayer`].
///
/// # Readiness
///
/// It is ready when the inner service is. It holds that readiness (for example a permit of a
/// `ConcurrencyLimit`) while the store decides and while the request waits for permits. A refusal
/// releases the readiness without calling the inner service.
///
/// With [`decide_first`](crate::RateLimitLayerBuilder::decide_first) it is always ready, and waits
/// for the inner service after a request has been admitted.
#[derive(Clone, Debug)]
pub struct RateLimit<S> {
    inner: S,
    shared: Arc<LayerState>,
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
    /// Returns the inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns the inner service, mutably.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Returns the inner service and drops the layer's part.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for RateLimit<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone,
    ResBody: Body<Data = Bytes>,
{
    type Response = Response<RateLimitBody<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, ReqBody>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        if self.shared.settings.decide_first {
            return Poll::Ready(Ok(()));
        }
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        if self.shared.settings.is_disabled {
            return self.forward(request, None);
        }
        let (mut parts, body) = request.into_parts();
        let shared = &self.shared;
        // A router inside or its own fallback may have the same layer.
        let earlier = parts.extensions.get().filter(|_| !shared.settings.always);
        let earlier = earlier.map(|innermost| Earlier {
            innermost,
            layer: shared.id,
            store: Arc::as_ptr(&shared.store).addr(),
        });
        let (plan, fields) = {
            let rules = shared.rules.load();
            // The response gets the fields of these rules, even if a reload replaces them.
            (rules.plan(&parts, earlier), rules.fields)
        };
        let decision = match plan {
            Plan::Pass => return self.forward(Request::from_parts(parts, body), None),
            Plan::Refuse(refusal) => Ok(Decision::Deny(refusal)),
            Plan::Demand(mut demand) => match shared.store.decide_at_once(&mut demand) {
                Some(decision) => decision,
                None => {
                    let state = State::Deciding {
                        deciding: Arc::clone(&shared.store).acquire(demand),
                        shared: Arc::clone(shared),
                        fields,
                        call: Some((
                            take_ready(&mut self.inner),
                            Request::from_parts(parts, body),
                        )),
                    };
                    return ResponseFuture { state };
                }
            },
        };
        // A refusal does not use the readiness of the inner service: others may need it.
        let release = || {
            if !shared.settings.decide_first {
                drop(take_ready(&mut self.inner));
            }
        };
        match shared.admit_or_refuse(decision, &mut parts, fields, release) {
            Ok(settling) => self.forward(Request::from_parts(parts, body), Some(settling)),
            Err(answer) => {
                let answer = Some(answer);
                let state = State::Refused { answer };
                ResponseFuture { state }
            }
        }
    }
}

impl<S> RateLimit<S> {
    /// Passes on a request with its grant, if a rule applies to it.
    fn forward<ReqBody>(
        &mut self,
        request: Request<ReqBody>,
        settling: Option<SettleOnDrop>,
    ) -> ResponseFuture<S, ReqBody>
    where
        S: Service<Request<ReqBody>> + Clone,
    {
        if self.shared.settings.decide_first {
            let call = Some((take_ready(&mut self.inner), request));
            let state = State::Readying { call, settling };
            return ResponseFuture { state };
        }
        ResponseFuture {
            state: State::Calling {
                future: self.inner.call(request),
                settling,
            },
        }
    }
}

/// Takes the service that was polled ready and leaves its clone, which is not ready.
fn take_ready<S: Clone>(inner: &mut S) -> S {
    let clone = inner.clone();
    mem::replace(inner, clone)
}

pin_project! {
    /// Resolves to the response: the inner service's, or a refusal.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the request. Its places [in flight](crate::Limit::in_flight) come
    /// back. Its other permits stay charged, so that disconnecting is never free, except when the
    /// call was still queued and not yet sent, or the permits came from a local lease and this
    /// future had not yet received them. Corrections that a handler has made
    /// to its [`Grant`](crate::Grant) by then apply. A request that waits for permits leaves the
    /// queue and takes nothing. A request whose limits take several calls gets back the permits
    /// already taken.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, ReqBody>
    where
        S: Service<Request<ReqBody>>,
    {
        #[pin]
        state: State<S, ReqBody, S::Future>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, ReqBody, F> {
        Deciding {
            deciding: Deciding,
            // The service and its request, taken with the decision.
            call: Option<(S, Request<ReqBody>)>,
            shared: Arc<LayerState>,
            fields: Fields,
        },
        // Admitted. The inner service may not be ready yet.
        Readying {
            call: Option<(S, Request<ReqBody>)>,
            settling: Option<SettleOnDrop>,
        },
        Calling {
            #[pin]
            future: F,
            // Held until the response body takes it over.
            settling: Option<SettleOnDrop>,
        },
        // The answer is complete, also if it is never polled for.
        Refused {
            answer: Option<Response<Bytes>>,
        },
    }
}

impl LayerState {
    /// Of a grant: puts it where handlers and inner layers look for it, logs which shadow rules
    /// would have refused the request, and returns what settles it. Of a refusal: returns the
    /// response, and calls `release` before that is made, as a hook may take its time.
    #[allow(
        clippy::result_large_err,
        reason = "a refusal is not to cost an allocation"
    )]
    fn admit_or_refuse(
        &self,
        decision: Result<Decision, Error>,
        request: &mut Parts,
        fields: Fields,
        release: impl FnOnce(),
    ) -> Result<SettleOnDrop, Response<Bytes>> {
        let grant = match decision.map_err(Refusal::unavailable) {
            Ok(Decision::Allow(grant)) => grant,
            Ok(Decision::Deny(refusal)) | Err(refusal) => {
                release();
                return Err(self.refuse(refusal, request, fields));
            }
        };
        let charges = grant.charges().iter();
        for charge in charges.filter(|charge| charge.shadow && charge.standing.refused) {
            detail!(
                rule = &*charge.compiled().name,
                "a request passes that this rule would refuse if it were enforced"
            );
        }
        let outer = take_outer(&mut request.extensions);
        let in_response = self.settings.decision_in_response || outer.is_some();
        let grant = grant.admitted(self.id, Arc::as_ptr(&self.store).addr(), outer);
        request.extensions.insert(grant.clone());
        Ok(SettleOnDrop {
            grant,
            store: Arc::clone(&self.store),
            // Clients of gRPC read trailers.
            fields: (!is_grpc(&request.method, &request.headers)).then(|| fields.as_of_now()),
            in_response,
            awaits_trailers: None,
            is_connect: request.method == Method::CONNECT,
            is_upgraded: false,
        })
    }

    /// Returns the response to a refused request.
    fn refuse(&self, mut refusal: Refusal, request: &mut Parts, fields: Fields) -> Response<Bytes> {
        let mut response = self.settings.answers.refuse(&refusal, request, fields);
        // The request's map is allocated already.
        let mut extensions = mem::take(&mut request.extensions);
        refusal.outer = take_outer(&mut extensions);
        extensions.clear();
        extensions.extend(mem::take(response.extensions_mut()));
        extensions.insert(Decision::Deny(refusal));
        *response.extensions_mut() = extensions;
        response
    }
}

/// Takes the grant of the layer around out of a request, if its response is not over.
fn take_outer(extensions: &mut Extensions) -> Option<Grant> {
    extensions
        .remove()
        .filter(|grant: &Grant| grant.given_by().is_some())
}

impl<S, ReqBody, ResBody> Future for ResponseFuture<S, ReqBody>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
    ResBody: Body<Data = Bytes>,
{
    type Output = Result<Response<RateLimitBody<ResBody>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let next = match this.state.as_mut().project() {
                StateProj::Deciding {
                    deciding,
                    call,
                    shared,
                    fields,
                } => {
                    let decision = ready!(Pin::new(deciding).poll(cx));
                    let Some(call) = call.take() else {
                        return Poll::Pending;
                    };
                    decided(decision, call, shared, *fields)
                }
                StateProj::Readying { call, settling } => {
                    let Some((inner, _)) = call else {
                        return Poll::Pending;
                    };
                    let ready = ready!(inner.poll_ready(cx));
                    let (call, settling) = (call.take(), settling.take());
                    ready?;
                    let Some((mut inner, request)) = call else {
                        return Poll::Pending;
                    };
                    State::Calling {
                        future: inner.call(request),
                        settling,
                    }
                }
                StateProj::Calling { future, settling } => {
                    let response = ready!(future.poll(cx));
                    // Taken before the `?`: if the inner service fails, the charge ends here.
                    let mut settling = settling.take();
                    let (mut head, body) = response?.into_parts();
                    if let Some(settling) = &mut settling {
                        settling.read_head(&mut head);
                    }
                    let body = RateLimitBody::inner(body, settling);
                    return Poll::Ready(Ok(Response::from_parts(head, body)));
                }
                StateProj::Refused { answer } => {
                    let Some(answer) = answer.take() else {
                        return Poll::Pending;
                    };
                    return Poll::Ready(Ok(answer.map(RateLimitBody::refusal)));
                }
            };
            this.state.set(next);
        }
    }
}

/// Returns the state after the decision.
fn decided<S, B, F>(
    decision: Result<Decision, Error>,
    (inner, request): (S, Request<B>),
    shared: &LayerState,
    fields: Fields,
) -> State<S, B, F> {
    let (mut parts, body) = request.into_parts();
    let mut inner = Some(inner);
    match shared.admit_or_refuse(decision, &mut parts, fields, || inner = None) {
        Ok(settling) => State::Readying {
            call: inner.map(|inner| (inner, Request::from_parts(parts, body))),
            settling: Some(settling),
        },
        Err(answer) => State::Refused {
            answer: Some(answer),
        },
    }
}

impl<S, ReqBody> fmt::Debug for ResponseFuture<S, ReqBody>
where
    S: Service<Request<ReqBody>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

/// Lets tonic's `add_service` take one wrapped service.
#[cfg(feature = "tonic")]
impl<S: tonic::server::NamedService> tonic::server::NamedService for RateLimit<S> {
    const NAME: &'static str = S::NAME;
}
