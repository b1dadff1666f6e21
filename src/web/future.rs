//! The future that decides, then calls or refuses: [`ResponseFuture`].

use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Extensions, Method, Request, Response, request::Parts, response};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_service::Service;

use super::{
    answer::{DecisionKind, Fields},
    body::RateLimitBody,
    charge::SettleOnDrop,
    layer::LayerState,
    request::is_grpc,
};
use crate::{
    macros::detail,
    store::Deciding,
    values::{
        decision::{Decision, Grant, Refusal},
        error::Error,
    },
};

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
        pub(super) state: State<S, ReqBody, S::Future>,
    }
}

pin_project! {
    #[project = StateProj]
    pub(super) enum State<S, ReqBody, F> {
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
    /// Puts a grant where handlers and inner layers look for it, and logs which shadow rules would
    /// have refused the request.
    pub(super) fn admit(&self, grant: Grant, request: &mut Parts, fields: Fields) -> SettleOnDrop {
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
        SettleOnDrop {
            grant,
            store: Arc::clone(&self.store),
            // Clients of gRPC read trailers.
            fields: (!is_grpc(&request.method, &request.headers)).then(|| fields.as_of_now()),
            in_response,
            awaits_trailers: None,
            is_connect: request.method == Method::CONNECT,
            is_upgraded: false,
        }
    }

    /// Returns the response to a refused request.
    pub(super) fn refuse(
        &self,
        mut refusal: Refusal,
        request: &mut Parts,
        fields: Fields,
    ) -> Response<Bytes> {
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

/// Adds a grant to the head of a response, which may correct the charge.
fn add_grant(settling: &mut SettleOnDrop, head: &mut response::Parts) {
    settling.read_head(head);
    let grant = &settling.grant;
    if let Some(fields) = &settling.fields {
        fields.write(grant.charges(), DecisionKind::Granted, head);
    }
    // The decision of an inner layer leads to this one.
    if settling.in_response && head.extensions.get::<Decision>().is_none() {
        head.extensions.insert(Decision::Allow(grant.clone()));
    }
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
                        add_grant(settling, &mut head);
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
    match decision.map_err(Refusal::unavailable) {
        Ok(Decision::Allow(grant)) => {
            let settling = Some(shared.admit(grant, &mut parts, fields));
            let call = Some((inner, Request::from_parts(parts, body)));
            State::Readying { call, settling }
        }
        Ok(Decision::Deny(refusal)) | Err(refusal) => {
            // It has the readiness of the service, which others may need meanwhile.
            drop(inner);
            let answer = Some(shared.refuse(refusal, &mut parts, fields));
            State::Refused { answer }
        }
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
