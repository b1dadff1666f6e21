//! The service that limits requests: [`RateLimit`].

use std::{
    mem,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use tower_layer::Layer;
use tower_service::Service;

use super::{
    body::RateLimitBody,
    charge::{Earlier, SettleOnDrop},
    future::{ResponseFuture, State},
    layer::{LayerState, RateLimitLayer},
    rule::Plan,
};
use crate::values::decision::{Decision, Refusal};

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
    ResBody: http_body::Body<Data = Bytes>,
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
        let fields;
        let mut plan = {
            let rules = self.shared.rules.load();
            // The response gets the fields of these rules, even if a reload replaces them.
            fields = rules.fields;
            // A router inside or its own fallback may have the same layer.
            let LayerState { id, store, .. } = &*self.shared;
            let earlier = if self.shared.settings.always {
                None
            } else {
                Earlier::find(&parts.extensions, *id, store)
            };
            rules.plan(&parts, earlier)
        };
        let shared = &self.shared;
        let decided = match &mut plan {
            Plan::Demand(demand) => shared.store.decide_at_once(demand),
            Plan::Pass | Plan::Refuse(_) => None,
        };
        let refusal = match decided {
            Some(Ok(Decision::Allow(grant))) => {
                let settling = shared.admit(grant, &mut parts, fields);
                return self.forward(Request::from_parts(parts, body), Some(settling));
            }
            Some(Ok(Decision::Deny(refusal))) => refusal,
            Some(Err(error)) => Refusal::unavailable(error),
            None => match plan {
                Plan::Pass => return self.forward(Request::from_parts(parts, body), None),
                Plan::Refuse(refusal) => refusal,
                Plan::Demand(demand) => {
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
        drop(take_ready(&mut self.inner));
        let answer = self.shared.refuse(refusal, &mut parts, fields);
        let state = State::Refused {
            answer: Some(answer),
        };
        ResponseFuture { state }
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

/// Lets tonic's `add_service` take one wrapped service.
#[cfg(feature = "tonic")]
impl<S: tonic::server::NamedService> tonic::server::NamedService for RateLimit<S> {
    const NAME: &'static str = S::NAME;
}
