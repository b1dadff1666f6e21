//! The charge of a request, corrected until its response is over: [`Charge`], [`Cost`],
//! [`Outcome`].
//!
//! The permits taken before the request stay taken unless the charge is corrected in time.
//! [`SettleOnDrop`] settles the correction: it is dropped with the response's body, or with a
//! future that got no response.

use std::{
    fmt, iter,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use http::{Extensions, HeaderMap, HeaderValue, StatusCode, response::Parts};

use super::{
    answer::{Fields, grpc::GRPC_STATUS},
    request::has_trailers,
};
use crate::{
    decision::{Grant, LimitState},
    demand::LimiterCharge,
    labels::Labels,
    list::List,
    macros::opaque,
    receipt::{CorrectedBy, Correction, Receipt},
    store::AnyStore,
};

/// Corrects the charge of a request until its response is over.
///
/// It is in the extensions of each request that a layer let pass and that a rule applied to. It has
/// an effect until the response's body has ended or was dropped, so that a streamed response can be
/// charged by what it really used: tokens, rows, bytes. The last call counts, and takes precedence
/// over a [`Cost`] and over [`Rule::charge_if`](crate::Rule::charge_if). It also counts if the
/// caller disconnects, or the inner service fails.
///
/// If a request is charged less than it took, the rest is given back while it is still in use. If
/// it is charged more, the rest is debt: it counts from the end of the response, also beyond the
/// limit, is never refused, and no caller is admitted until enough of it has left the interval. A
/// limiter in Redis learns of it in the background. What cannot be sent within nine tenths of the
/// interval, or a minute, is lost, and [counted](crate::RedisStore::lost_charges).
///
/// If several rules applied to the request, a number is meant for each of them;
/// [`rule`](Self::rule) chooses one. If several layers let it pass, it is meant for the rules of
/// the innermost, from all passes through it.
///
/// # Example
///
/// ```
/// use axum::{Extension, Router, routing::get};
/// use tower_ratelimit::{Charge, Limit, MemoryStore, RateLimitLayer, key::PeerIp};
///
/// async fn export(Extension(charge): Extension<Charge>) -> String {
///     let rows = vec!["one", "two", "three"];
///     charge.set(rows.len() as u32);
///     rows.join("\n")
/// }
///
/// let layer = RateLimitLayer::new(&MemoryStore::new(), Limit::per_hour(1000).by(PeerIp).cost(10));
/// let app: Router = Router::new().route("/export", get(export)).layer(layer);
/// ```
#[derive(Clone)]
pub struct Charge {
    /// One for each layer, the innermost last.
    charged: List<Charged>,
    /// A rule of any layer; `None` stands for all rules of the innermost.
    rule: Option<Arc<str>>,
}

/// The charge of one layer.
#[derive(Clone)]
struct Charged {
    grant: Grant,
    layer: LayerId,
    /// The address of the store, which lives while the ledger is open.
    store: usize,
}

/// Identifies a layer and its clones in this process, also after they are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LayerId(u64);

impl LayerId {
    pub(crate) fn new() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed))
    }
}

impl Charge {
    /// Charges `permits` in all, whatever was taken or charged before. Returns false, and has no
    /// effect, if the response is over.
    pub fn set(&self, permits: u32) -> bool {
        self.correct(|_| permits)
    }

    /// Charges `permits` more than was taken or set before, up to 2^32 - 1 in all. Returns false,
    /// and has no effect, if the response is over.
    pub fn add(&self, permits: u32) -> bool {
        self.correct(|charged| charged.saturating_add(permits))
    }

    /// Charges nothing, so that all that was taken is given back. Returns false, and has no effect,
    /// if the response is over.
    pub fn refund(&self) -> bool {
        self.set(0)
    }

    /// Returns the charge of one rule, also of an outer layer's, by its
    /// [`LimitState::name`](crate::LimitState::name); with tiers that is `<rule>.<tier>`. `None` if
    /// no such rule applied to the request, or the response is over.
    ///
    /// # Example
    ///
    /// ```
    /// # use tower_ratelimit::Charge;
    /// fn answered(charge: &Charge, tokens: u32) {
    ///     if let Some(charge) = charge.rule("tokens") {
    ///         charge.set(tokens);
    ///     }
    /// }
    /// ```
    #[must_use]
    pub fn rule(&self, name: &str) -> Option<Self> {
        let has = |charged: &Charged| {
            let mut receipts = charged.grant.receipts().iter();
            receipts.any(|receipt| is_of(receipt, name)) && charged.grant.ledger().is_open()
        };
        self.charged.iter().any(has).then(|| Self {
            charged: self.charged.clone(),
            rule: Some(name.into()),
        })
    }

    /// Puts the charge of a grant where handlers look for it, to correct it. Returns the grants of
    /// the request's earlier passes through the layer.
    pub(crate) fn insert(
        extensions: &mut Extensions,
        grant: &Grant,
        layer: LayerId,
        store: &Arc<dyn AnyStore>,
    ) -> Vec<Grant> {
        let charge = extensions.get_or_insert_with(|| Self {
            charged: List::new(),
            rule: None,
        });
        let earlier = charge.charged.iter().filter(|it| it.layer == layer);
        let earlier = earlier.map(|it| it.grant.clone()).collect();
        charge.charged.push(Charged {
            grant: grant.clone(),
            layer,
            store: Arc::as_ptr(store).addr(),
        });
        earlier
    }

    fn correct(&self, charge: impl Fn(u32) -> u32) -> bool {
        let correction = |receipt: &Receipt, (by, permits): Correction| {
            // The handler adds to what was taken or set by itself, whatever others have set.
            let before = match by {
                CorrectedBy::Handler => permits,
                _ => receipt.permits,
            };
            let rule = self.rule.as_deref();
            let is_meant = rule.is_none_or(|rule| is_of(receipt, rule));
            is_meant.then(|| charge(before))
        };
        let innermost = self.charged.last().map(|charged| charged.layer);
        let mut counts = false;
        for charged in &self.charged {
            // A request may have passed the innermost layer more than once.
            if self.rule.is_some() || Some(charged.layer) == innermost {
                counts |= charged.grant.correct(CorrectedBy::Handler, correction);
            }
        }
        counts
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Charge")
            .field("rule", &self.rule)
            .finish_non_exhaustive()
    }
}

/// Sets the cost of a request, in permits: a handler puts it into the response's extensions.
///
/// The innermost layer that let the request pass takes it out. It takes precedence over
/// [`Rule::charge_if`](crate::Rule::charge_if), and is meant for each of the layer's rules.
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

/// Decides by the response whether a rule charges the request.
pub(crate) type ChargeIf = Arc<dyn Fn(&Outcome) -> bool + Send + Sync>;

/// The charges of a request before it came to a layer, until its response is over.
#[derive(Clone, Copy)]
pub(crate) struct Earlier<'a> {
    charge: &'a Charge,
    layer: LayerId,
    store: &'a Arc<dyn AnyStore>,
}

/// The layer that has let a request pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    SameLayer,
    OtherLayer,
}

impl<'a> Earlier<'a> {
    pub(crate) fn of(
        extensions: &'a Extensions,
        layer: LayerId,
        store: &'a Arc<dyn AnyStore>,
    ) -> Option<Self> {
        extensions.get().map(|charge| Self {
            charge,
            layer,
            store,
        })
    }

    fn open(&self) -> impl Iterator<Item = (Pass, &'a Grant)> {
        let (layer, charged) = (self.layer, self.charge.charged.iter());
        let open = charged.filter(|charged| charged.grant.ledger().is_open());
        let store = Arc::as_ptr(self.store).addr();
        let here = open.filter(move |charged| charged.store == store);
        here.map(move |charged| match charged.layer == layer {
            true => (Pass::SameLayer, &charged.grant),
            false => (Pass::OtherLayer, &charged.grant),
        })
    }

    fn of_this_layer(&self) -> impl Iterator<Item = &'a Grant> {
        let open = self.open();
        open.filter_map(|(pass, grant)| (pass == Pass::SameLayer).then_some(grant))
    }

    /// Returns whether the layer has let the request pass.
    pub(crate) fn is_of_this_layer(&self) -> bool {
        self.of_this_layer().next().is_some()
    }

    /// Returns whether the rule of the layer that `has` these labels has applied to the request, by
    /// whatever key.
    pub(crate) fn has_met(&self, has: impl Fn(&Labels) -> bool) -> bool {
        self.of_this_layer().any(|grant| {
            let mut receipts = grant.receipts().iter();
            grant.states().iter().any(|limit| has(&limit.labels))
                || receipts.any(|receipt| receipt.is_of(|labels, _| has(labels)))
        })
    }

    /// Returns which layer has made the same charge, if one has.
    pub(crate) fn charged_by(&self, again: &LimiterCharge) -> Option<Pass> {
        let rule = &again.labels;
        let has_charged = |pass: Pass, grant: &Grant| {
            // The cost must be the same here. That of another layer must not depend on the request.
            let is_same = |labels: &Labels, permits: u32| {
                let fixed = labels.fixed_cost.and(rule.fixed_cost).is_some();
                labels.name == rule.name
                    && permits == again.permits
                    && (pass == Pass::SameLayer || fixed)
            };
            // A shadow rule without room has taken nothing.
            let is_tried = |limit: &LimitState| {
                limit.shadow && limit.refused && limit.labels.name == rule.name
            };
            let mut receipts = grant.receipts().iter();
            receipts.any(|it| it.name() == again.name() && it.is_of(is_same))
                || pass == Pass::SameLayer && again.shadow && grant.states().iter().any(is_tried)
        };
        let mut open = self.open();
        let found = open.find(|(pass, grant)| has_charged(*pass, grant));
        found.map(|(pass, _)| pass)
    }
}

/// Settles a grant when it is dropped, by the corrections of its charge.
pub(crate) struct SettleOnDrop {
    pub(crate) grant: Grant,
    /// The grants of the request's earlier passes through the layer.
    pub(crate) earlier: Vec<Grant>,
    pub(crate) store: Arc<dyn AnyStore>,
    /// The header fields of the response; `None` if it has none.
    pub(crate) fields: Option<Fields>,
    /// Set if the response has the grant in its extensions.
    pub(crate) extensions: bool,
    /// The status of a response whose gRPC status comes in the trailers.
    pub(crate) awaits_trailers: Option<StatusCode>,
}

impl SettleOnDrop {
    /// Reads the head of the response.
    pub(crate) fn read_head(&mut self, head: &mut Parts) {
        if let Some(Cost(permits)) = head.extensions.remove() {
            for grant in iter::once(&self.grant).chain(&self.earlier) {
                grant.correct(CorrectedBy::Cost, |_, _| Some(permits));
            }
        }
        let grpc_status = head.headers.get(GRPC_STATUS).map(code);
        if grpc_status.is_none() && has_trailers(&head.headers) {
            self.awaits_trailers = Some(head.status);
        } else {
            self.apply_charge_if(head.status, grpc_status);
        }
    }

    /// Reads the trailers of the response.
    pub(crate) fn read_trailers(&mut self, trailers: &HeaderMap) {
        if let Some(status) = self.awaits_trailers.take() {
            // PROTOCOL-HTTP2.md has a status in all trailers; clients read a missing one as
            // UNKNOWN.
            let grpc_status = trailers.get(GRPC_STATUS).map_or(UNKNOWN, code);
            self.apply_charge_if(status, Some(grpc_status));
        }
    }

    fn apply_charge_if(&self, status: StatusCode, grpc_status: Option<u32>) {
        let outcome = Outcome {
            status,
            grpc_status,
        };
        for Receipt { labels, .. } in self.grant.receipts() {
            // The user's code runs without the lock, and not while something is dropped.
            let charge_if = labels.charge_if.as_ref();
            let charge_if = charge_if.and_then(|it| it.downcast_ref::<ChargeIf>());
            if charge_if.is_some_and(|charge_if| !charge_if(&outcome)) {
                // No two rules of a request share their labels.
                self.grant.correct(CorrectedBy::Rule, |receipt, _| {
                    Arc::ptr_eq(&receipt.labels, labels).then_some(0)
                });
            }
        }
    }
}

impl Drop for SettleOnDrop {
    fn drop(&mut self) {
        let Self { grant, store, .. } = self;
        let Some(corrections) = grant.ledger().close() else {
            return;
        };
        for (receipt, (_, permits)) in grant.receipts().iter().zip(corrections) {
            if permits != receipt.permits {
                receipt.report(permits);
                store.settle(receipt.clone(), permits);
            }
        }
    }
}

opaque!(SettleOnDrop);

const UNKNOWN: u32 = 2;

fn code(value: &HeaderValue) -> u32 {
    let code = value.to_str().ok().and_then(|text| text.parse().ok());
    code.unwrap_or(UNKNOWN)
}

fn is_of(receipt: &Receipt, rule: &str) -> bool {
    &*receipt.labels.name == rule
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
