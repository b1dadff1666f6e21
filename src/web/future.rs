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
    answer::{Fields, Noted, RateLimitBody},
    charge::{Judges, Settling},
    layer::Shared,
};
use crate::{
    decision::{Decision, Decisions, Grant, Refusal},
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
        state: State<S, ReqBody, S::Future>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, ReqBody, F> {
        Deciding {
            deciding: Deciding,
            // The service, polled ready unless the decision comes first, and its request. Taken
            // with the decision.
            call: Option<(S, Request<ReqBody>)>,
            judges: Judges,
            shared: Arc<Shared>,
            fields: Fields,
        },
        // Admitted; the inner service is not yet ready.
        Readying {
            call: Option<(S, Request<ReqBody>)>,
            granted: Option<Granted>,
        },
        Calling {
            #[pin]
            future: F,
            // Held until the response body takes it over.
            granted: Option<Granted>,
        },
        // The first poll builds the response.
        Refusing { refused: Option<Refused> },
    }
}

/// A request that is refused.
struct Refused {
    refusal: Refusal,
    parts: Parts,
    shared: Arc<Shared>,
    fields: Fields,
}

impl Refused {
    /// Builds the response, with the decision in its extensions.
    fn answer<B>(self) -> Response<RateLimitBody<B>> {
        let answers = &self.shared.answers;
        let mut answer = answers.refuse(&self.refusal, &self.parts, self.fields);
        insert_decision(answer.extensions_mut(), Decision::Deny(self.refusal));
        answer.map(RateLimitBody::refusal)
    }
}

/// A grant, until the inner service has responded.
pub(crate) struct Granted {
    settling: Settling,
    /// The fields of the response and the instant of the decision; `None` if the response has none.
    fields: Option<Noted>,
}

impl Granted {
    /// Puts the grant where handlers look for it.
    pub(crate) fn record<B>(
        grant: Grant,
        judges: Judges,
        request: &mut Request<B>,
        shared: &Shared,
        fields: Fields,
    ) -> Self {
        log_shadow_refusals(&grant);
        let fields = Noted::of(request, fields);
        let extensions = request.extensions_mut();
        insert_decision(extensions, Decision::Allow(grant.clone()));
        let settling = Settling::new(shared.id, &shared.store, grant, judges, extensions);
        Self { settling, fields }
    }

    /// Adds the grant to the response, and applies what the response says about the charge.
    fn add_to_response<B>(self, response: Response<B>) -> Response<RateLimitBody<B>>
    where
        B: Body<Data = Bytes>,
    {
        let Self {
            mut settling,
            fields,
        } = self;
        let (mut head, body) = response.into_parts();
        settling.head(&mut head);
        let grant = settling.grant();
        if let Some(fields) = fields {
            fields.granted(grant, &mut head.headers, &mut head.extensions);
        }
        insert_outer_decision(&mut head.extensions, Decision::Allow(grant.clone()));
        Response::from_parts(head, RateLimitBody::inner(body, Some(settling)))
    }
}

impl<S, ReqBody> ResponseFuture<S, ReqBody>
where
    S: Service<Request<ReqBody>>,
{
    /// Calls the inner service, which has been polled ready.
    pub(crate) fn call(inner: &mut S, request: Request<ReqBody>, granted: Option<Granted>) -> Self {
        let future = inner.call(request);
        Self {
            state: State::Calling { future, granted },
        }
    }

    /// Calls the inner service as soon as it is ready.
    pub(crate) fn call_when_ready(
        inner: S,
        request: Request<ReqBody>,
        granted: Option<Granted>,
    ) -> Self {
        let call = Some((inner, request));
        Self {
            state: State::Readying { call, granted },
        }
    }

    /// Creates the future of a request that the store has yet to decide.
    pub(crate) fn decide(
        deciding: Deciding,
        inner: S,
        request: Request<ReqBody>,
        judges: Judges,
        shared: Arc<Shared>,
        fields: Fields,
    ) -> Self {
        Self {
            state: State::Deciding {
                deciding,
                call: Some((inner, request)),
                judges,
                shared,
                fields,
            },
        }
    }

    /// Creates the future of a request that is refused without the store.
    pub(crate) fn refuse(
        refusal: Refusal,
        parts: Parts,
        shared: Arc<Shared>,
        fields: Fields,
    ) -> Self {
        let refused = Refused {
            refusal,
            parts,
            shared,
            fields,
        };
        Self {
            state: State::Refusing {
                refused: Some(refused),
            },
        }
    }

    /// Goes on when the store has decided.
    fn decided(
        decision: Decision,
        (mut inner, mut request): (S, Request<ReqBody>),
        judges: Judges,
        shared: &Arc<Shared>,
        fields: Fields,
    ) -> Self {
        match decision {
            Decision::Deny(refusal) => {
                Self::refuse(refusal, request.into_parts().0, Arc::clone(shared), fields)
            }
            Decision::Allow(grant) => {
                let granted = Granted::record(grant, judges, &mut request, shared, fields);
                let granted = Some(granted);
                if shared.decide_first {
                    Self::call_when_ready(inner, request, granted)
                } else {
                    Self::call(&mut inner, request, granted)
                }
            }
        }
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
                    judges,
                    shared,
                    fields,
                } => {
                    let decision = ready!(Pin::new(deciding).poll(cx));
                    let Some(call) = call.take() else {
                        return Poll::Pending;
                    };
                    let decision = decision
                        .unwrap_or_else(|error| Decision::Deny(Refusal::unavailable(error)));
                    Self::decided(decision, call, mem::take(judges), shared, *fields).state
                }
                StateProj::Readying { call, granted } => {
                    let Some((inner, _)) = call else {
                        return Poll::Pending;
                    };
                    let ready = ready!(inner.poll_ready(cx));
                    let (call, granted) = (call.take(), granted.take());
                    ready?;
                    let Some((mut inner, request)) = call else {
                        return Poll::Pending;
                    };
                    State::Calling {
                        future: inner.call(request),
                        granted,
                    }
                }
                StateProj::Calling { future, granted } => {
                    let response = ready!(future.poll(cx));
                    // Taken before the `?`: if the inner service fails, the charge ends here.
                    let granted = granted.take();
                    let response = response?;
                    let response = match granted {
                        Some(granted) => granted.add_to_response(response),
                        None => response.map(|body| RateLimitBody::inner(body, None)),
                    };
                    return Poll::Ready(Ok(response));
                }
                StateProj::Refusing { refused } => {
                    let Some(refused) = refused.take() else {
                        return Poll::Pending;
                    };
                    return Poll::Ready(Ok(refused.answer()));
                }
            };
            this.state.set(next);
        }
    }
}

/// Logs which shadow rules would have refused the request.
fn log_shadow_refusals(grant: &Grant) {
    let limits = grant.limits().iter();
    for limit in limits.filter(|limit| limit.is_shadow() && limit.is_refused()) {
        detail!(
            rule = limit.name(),
            "a request passes that this rule would refuse if it were enforced"
        );
    }
}

/// Inserts a decision where handlers and other layers look for it, beside those of other layers.
fn insert_decision(extensions: &mut Extensions, decision: Decision) {
    if let Some(earlier) = extensions.insert(decision)
        && let Some(decision) = extensions.get::<Decision>().cloned()
    {
        let decisions = extensions.get_or_insert_default::<Decisions>();
        if decisions.as_slice().is_empty() {
            decisions.push(earlier);
        }
        decisions.push(decision);
    }
}

/// Inserts a decision into a response. Decisions already there were made later, by inner layers.
fn insert_outer_decision(extensions: &mut Extensions, decision: Decision) {
    if let Some(later) = extensions.get::<Decision>().cloned() {
        let decisions = extensions.get_or_insert_default::<Decisions>();
        if decisions.as_slice().is_empty() {
            decisions.push(later);
        }
        decisions.push_first(decision);
    } else {
        extensions.insert(decision);
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
