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
use http::{Extensions, Request, Response, request::Parts};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_service::Service;

use super::{
    answer::{DecisionKind, Fields},
    body::RateLimitBody,
    charge::{Charge, SettleOnDrop},
    layer::LayerState,
    request::is_grpc,
};
use crate::{
    decision::{Decision, Decisions, Grant, Refusal},
    error::Error,
    macros::detail,
    store::Deciding,
};

pin_project! {
    /// Resolves to the response: the inner service's, or a refusal.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the request. Its permits stay charged, so that disconnecting is
    /// never free, except when the call was still queued and not yet sent, or the permits came from
    /// a local lease and this future had not yet received them. Corrections that a handler has made
    /// to its [`Charge`](crate::Charge) by then apply. A request that waits for permits leaves the
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
        // The first poll builds the response.
        Refusing {
            refusal: Option<Refusal>,
            request: Parts,
            shared: Arc<LayerState>,
            fields: Fields,
        },
    }
}

impl LayerState {
    /// Puts a grant and its charge where handlers look for them, and logs which shadow rules would
    /// have refused the request.
    pub(super) fn admit(&self, grant: Grant, request: &mut Parts, fields: Fields) -> SettleOnDrop {
        let limits = grant.states().iter();
        for limit in limits.filter(|limit| limit.shadow && limit.refused) {
            detail!(
                rule = limit.name(),
                "a request passes that this rule would refuse if it were enforced"
            );
        }
        if self.extensions {
            let decision = Decision::Allow(grant.clone());
            insert_decision(&mut request.extensions, decision, false);
        }
        SettleOnDrop {
            earlier: Charge::insert(&mut request.extensions, &grant, self.id, &self.store),
            grant,
            store: Arc::clone(&self.store),
            // Clients of gRPC read trailers.
            fields: (!is_grpc(&request.method, &request.headers)).then(|| fields.as_of_now()),
            extensions: self.extensions,
            awaits_trailers: None,
        }
    }

    /// Returns the response to a refused request.
    fn refuse(&self, refusal: Refusal, request: &mut Parts, fields: Fields) -> Response<Bytes> {
        let mut response = self.answers.refuse(&refusal, request, fields);
        // The request's map is allocated already.
        let mut extensions = mem::take(&mut request.extensions);
        extensions.clear();
        extensions.extend(mem::take(response.extensions_mut()));
        if self.extensions {
            insert_decision(&mut extensions, Decision::Deny(refusal), false);
        }
        *response.extensions_mut() = extensions;
        response
    }
}

/// Adds the grant to a response, which may correct the charge.
fn add_grant<B>(mut settling: SettleOnDrop, response: Response<B>) -> Response<RateLimitBody<B>>
where
    B: Body<Data = Bytes>,
{
    let (mut head, body) = response.into_parts();
    settling.read_head(&mut head);
    let grant = &settling.grant;
    if let Some(fields) = &settling.fields {
        fields.write(grant.states(), DecisionKind::Granted, &mut head);
    }
    if settling.extensions {
        insert_decision(&mut head.extensions, Decision::Allow(grant.clone()), true);
    }
    Response::from_parts(head, RateLimitBody::inner(body, Some(settling)))
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
                    let settling = settling.take();
                    let response = response?;
                    return Poll::Ready(Ok(match settling {
                        Some(settling) => add_grant(settling, response),
                        None => response.map(|body| RateLimitBody::inner(body, None)),
                    }));
                }
                StateProj::Refusing {
                    refusal,
                    request,
                    shared,
                    fields,
                } => {
                    let Some(refusal) = refusal.take() else {
                        return Poll::Pending;
                    };
                    let response = shared.refuse(refusal, request, *fields);
                    return Poll::Ready(Ok(response.map(RateLimitBody::refusal)));
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
    shared: &Arc<LayerState>,
    fields: Fields,
) -> State<S, B, F> {
    let (mut parts, body) = request.into_parts();
    match decision.map_err(Refusal::unavailable) {
        Ok(Decision::Allow(grant)) => {
            let settling = Some(shared.admit(grant, &mut parts, fields));
            let call = Some((inner, Request::from_parts(parts, body)));
            State::Readying { call, settling }
        }
        Ok(Decision::Deny(refusal)) | Err(refusal) => State::Refusing {
            refusal: Some(refusal),
            request: parts,
            shared: Arc::clone(shared),
            fields,
        },
    }
}

/// Inserts a decision where handlers and other layers look for it, beside those of other layers.
///
/// In a request, these were made earlier. In a response, they were made later, by inner layers, and
/// the `outermost` decision comes before them.
fn insert_decision(extensions: &mut Extensions, decision: Decision, outermost: bool) {
    let Some(other) = extensions.insert(decision) else {
        return;
    };
    let Some(decision) = extensions.get::<Decision>().cloned() else {
        return;
    };
    let Decisions(decisions) = extensions.get_or_insert_default();
    if decisions.is_empty() {
        decisions.push(other.clone());
    }
    if outermost {
        decisions.insert(0, decision);
        extensions.insert(other);
    } else {
        decisions.push(decision);
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
