//! The charge of a request, corrected until its response is over: [`Cost`], [`Outcome`]; and the
//! body of that response, [`RateLimitBody`].
//!
//! The permits taken before the request stay taken unless the charge is corrected in time: by
//! [`Cost`], by [`Rule::charge_if`](crate::Rule::charge_if) from the [`Outcome`], or by the
//! request's [`Grant`]. [`SettleOnDrop`] settles the correction: it is dropped with the response's
//! body, or with a future that got no response.

use std::{
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, response::Parts};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::{
    answer::{DecisionKind, Fields, grpc::GRPC_STATUS},
    request::has_trailers,
};
use crate::{
    macros::opaque,
    store::AnyStore,
    sync::OnDrop,
    values::{
        List,
        charge::Charge,
        compiled_limit::{ChargeIf, CompiledLimit},
        decision::{
            Decision, Grant,
            grant::{CorrectedBy, LayerId},
        },
    },
};

/// Sets the cost of a request, in permits: a handler puts it into the response's extensions.
///
/// The innermost layer that let the request pass takes it out. It takes precedence over
/// [`Rule::charge_if`](crate::Rule::charge_if), and applies to each of the layer's rules.
///
/// # Example
///
/// ```
/// use axum::Extension;
/// use tower_ratelimit::Cost;
///
/// async fn search() -> (Extension<Cost>, String) {
///     let found = vec!["one", "two"];
///     (Extension(Cost(found.len() as u32)), found.join("\n"))
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cost(pub u32);

/// The outcome of a request, in HTTP or gRPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    status: StatusCode,
    grpc_status: Option<u32>,
}

impl Outcome {
    /// Returns the HTTP status; for gRPC it is nearly always 200.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns the gRPC status code, 0 for success; `None` if the response is not gRPC.
    pub fn grpc_status(&self) -> Option<u32> {
        self.grpc_status
    }

    /// Returns whether both protocols report success: no 4xx or 5xx, and no gRPC error.
    pub fn is_success(&self) -> bool {
        let error = self.status.is_client_error() || self.status.is_server_error();
        !error && self.grpc_status.is_none_or(|status| status == 0)
    }
}

/// Returns what a limit keeps of a closure that decides by the response whether a rule charges the
/// request.
pub(crate) fn charge_if(counts: impl Fn(&Outcome) -> bool + Send + Sync + 'static) -> ChargeIf {
    Arc::new(move |status, grpc_status| {
        // The status of a response is always valid.
        let status = StatusCode::from_u16(status).unwrap_or_default();
        counts(&Outcome {
            status,
            grpc_status,
        })
    })
}

/// The charges of a request before it came to a layer, until its response is over.
#[derive(Clone, Copy)]
pub(crate) struct Earlier<'a> {
    pub(super) innermost: &'a Grant,
    pub(super) layer: LayerId,
    /// The address of the store.
    pub(super) store: usize,
}

/// The layer that has let a request pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PassedBy {
    SameLayer,
    OtherLayer,
}

impl<'a> Earlier<'a> {
    fn open(self) -> impl Iterator<Item = (PassedBy, &'a Grant)> {
        self.innermost.layers().filter_map(move |grant| {
            let (layer, store) = grant.given_by()?;
            let pass = if layer == self.layer {
                PassedBy::SameLayer
            } else {
                PassedBy::OtherLayer
            };
            (store == self.store).then_some((pass, grant))
        })
    }

    fn of_this_layer(&self) -> impl Iterator<Item = &'a Grant> {
        let open = self.open();
        open.filter_map(|(pass, grant)| (pass == PassedBy::SameLayer).then_some(grant))
    }

    /// Returns whether the layer has let the request pass.
    pub(crate) fn is_of_this_layer(&self) -> bool {
        self.of_this_layer().next().is_some()
    }

    /// Returns whether the rule of the layer that `has` a limit has applied to the request, by
    /// whatever key.
    pub(crate) fn has_met(&self, has: impl Fn(&CompiledLimit) -> bool) -> bool {
        self.of_this_layer().any(|grant| {
            let mut charges = grant.charges().iter();
            charges.any(|charge| has(charge.compiled()) || charge.is_of(|of, _| has(of)))
        })
    }

    /// Returns which layer has made the same charge, if one has.
    pub(crate) fn charged_by(&self, again: &Charge) -> Option<PassedBy> {
        let rule = again.compiled();
        let has_charged = |pass: PassedBy, grant: &Grant| {
            // The cost must be the same here. That of another layer must not depend on the request.
            let is_same = |of: &CompiledLimit, permits: u32| {
                let fixed = of.fixed_cost.and(rule.fixed_cost).is_some();
                // What the response of that pass gives back was not charged by this rule.
                let stays = match (&of.charge_if, &rule.charge_if) {
                    (Some(other), Some(this)) => Arc::ptr_eq(other, this),
                    (other, _) => other.is_none(),
                };
                of.name == rule.name
                    && permits == again.permits
                    && match pass {
                        PassedBy::SameLayer => stays,
                        PassedBy::OtherLayer => fixed && stays,
                    }
            };
            // A shadow rule without room has taken nothing.
            let is_tried = |it: &Charge| it.shadow && !it.took() && it.compiled().name == rule.name;
            let same_layer = pass == PassedBy::SameLayer && again.shadow;
            grant.charges().iter().any(|it| {
                if it.took() {
                    it.limiter.is_same(&again.limiter) && it.is_of(is_same)
                } else {
                    same_layer && is_tried(it)
                }
            })
        };
        let mut open = self.open();
        let found = open.find(|(pass, grant)| has_charged(*pass, grant));
        found.map(|(pass, _)| pass)
    }
}

/// Settles a grant when it is dropped, by the corrections of its charge.
pub(crate) struct SettleOnDrop {
    pub(crate) grant: Grant,
    pub(crate) store: Arc<dyn AnyStore>,
    /// The header fields of the response; `None` if it has none.
    pub(crate) fields: Option<Fields>,
    /// Set if the response gets the grant in its extensions.
    pub(crate) in_response: bool,
    /// The status of a response whose gRPC status comes in the trailers.
    pub(crate) awaits_trailers: Option<StatusCode>,
    /// Set if the request asked for a tunnel by CONNECT.
    pub(crate) is_connect: bool,
    /// Set if its places in flight belong to what the connection was upgraded to.
    pub(crate) is_upgraded: bool,
}

impl SettleOnDrop {
    /// Reads the head of the response, which may correct the charge, and adds the grant to it.
    pub(crate) fn read_head(&mut self, head: &mut Parts) {
        self.is_upgraded = head.status == StatusCode::SWITCHING_PROTOCOLS
            || self.is_connect && head.status.is_success();
        if self.is_upgraded {
            self.leave_places();
        }
        if let Some(Cost(permits)) = head.extensions.remove() {
            for grant in self.grant.passes() {
                grant.correct(CorrectedBy::Cost, |_, _| Some(permits));
            }
        }
        let mut taken = self.grant.taken();
        if taken.any(|charge| charge.compiled().charge_if.is_some()) {
            let grpc_status = head.headers.get(GRPC_STATUS).map(code);
            if grpc_status.is_none() && has_trailers(&head.headers) {
                self.awaits_trailers = Some(head.status);
            } else {
                self.apply_charge_if(head.status, grpc_status);
            }
        }
        if let Some(fields) = &self.fields {
            fields.write(self.grant.charges(), DecisionKind::Granted, head);
        }
        // The decision of an inner layer leads to this one.
        if self.in_response && head.extensions.get::<Decision>().is_none() {
            head.extensions.insert(Decision::Allow(self.grant.clone()));
        }
    }

    /// Leaves the places in flight to the clones of the grant: the task that serves an upgraded
    /// connection, which nothing here sees the end of, may hold one.
    fn leave_places(&self) {
        let places = self.grant.taken().filter(|it| it.compiled().is_in_flight());
        let places: List<_> = places.cloned().collect();
        if !places.is_empty() {
            let store = Arc::clone(&self.store);
            self.grant.hold(Arc::new(OnDrop::new(move || {
                places.iter().for_each(|place| settle(place, 0, &store));
            })));
        }
    }

    /// Reads the trailers of a response that is over, if it has any.
    pub(crate) fn read_trailers(&mut self, trailers: Option<&HeaderMap>) {
        if let Some(status) = self.awaits_trailers.take() {
            // PROTOCOL-HTTP2.md has a status in all trailers; clients read a missing one as
            // UNKNOWN.
            let grpc_status = trailers.and_then(|trailers| trailers.get(GRPC_STATUS));
            self.apply_charge_if(status, Some(grpc_status.map_or(UNKNOWN, code)));
        }
    }

    fn apply_charge_if(&self, status: StatusCode, grpc_status: Option<u32>) {
        for of in self.grant.taken().map(Charge::compiled) {
            // The user's code runs without the lock, and not while something is dropped.
            let charge_if = of.charge_if.as_ref();
            if charge_if.is_some_and(|counts| !counts(status.as_u16(), grpc_status)) {
                // A rule charges a request once, and its limit is in an `Arc` of its own.
                self.grant.correct(CorrectedBy::Rule, |charge, _| {
                    Arc::ptr_eq(charge.compiled(), of).then_some(0)
                });
            }
        }
    }
}

impl Drop for SettleOnDrop {
    fn drop(&mut self) {
        let Self { grant, store, .. } = self;
        let Some(corrections) = grant.close() else {
            return;
        };
        for (index, charge) in grant.charges().iter().enumerate() {
            let permits = match corrections.get(index) {
                // Its place comes back, whatever was corrected: the response is over.
                _ if charge.compiled().is_in_flight() && !self.is_upgraded => 0,
                Some((_, permits)) if !charge.compiled().is_in_flight() => *permits,
                _ => continue,
            };
            if charge.took() && permits != charge.permits {
                settle(charge, permits, store);
            }
        }
    }
}

fn settle(charge: &Charge, permits: u32, store: &Arc<dyn AnyStore>) {
    charge.report(permits);
    store.settle(charge.clone(), permits);
}

opaque!(SettleOnDrop);

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

const UNKNOWN: u32 = 2;

fn code(value: &HeaderValue) -> u32 {
    let code = value.to_str().ok().and_then(|text| text.parse().ok());
    code.unwrap_or(UNKNOWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_success_is_one_in_both_protocols() {
        for (status, grpc_status, expected) in [
            (200, None, true),
            (304, None, true),
            (404, None, false),
            (500, None, false),
            (200, Some("0"), true),
            (200, Some("16"), false),
            (503, Some("0"), false),
            // What is no number, clients read as UNKNOWN.
            (200, Some("ok"), false),
        ] {
            let outcome = Outcome {
                status: StatusCode::from_u16(status).unwrap(),
                grpc_status: grpc_status.map(|status| code(&HeaderValue::from_static(status))),
            };
            assert_eq!(outcome.is_success(), expected, "{outcome:?}");
        }
    }
}
