//! The settlement of a request's charge, when its response is over: [`SettleOnDrop`] is dropped
//! with the response's body, or with a future that got no response.

use std::sync::Arc;

use http::{HeaderMap, StatusCode, response::Parts};

use super::{
    answer::{Fields, grpc::GRPC_STATUS},
    charge::{Cost, UNKNOWN, code},
    layer::LayerState,
    request::has_trailers,
};
use crate::{
    macros::opaque,
    store::AnyStore,
    sync::OnDrop,
    values::{
        List,
        charge::Charge,
        decision::{Grant, ledger::CorrectedBy},
    },
};

/// Settles a grant when it is dropped, by the corrections of its charge.
pub(crate) struct SettleOnDrop {
    pub(crate) grant: Grant,
    /// Has the store. Services write to its count anyway, and one more would cost all threads.
    pub(crate) shared: Arc<LayerState>,
    /// The header fields of the response; `None` if it has none.
    pub(crate) fields: Option<Fields>,
    /// The status of a response whose gRPC status comes in the trailers.
    pub(crate) awaits_trailers: Option<StatusCode>,
    /// Set if the request asked for a tunnel by CONNECT.
    pub(crate) is_connect: bool,
    /// Set if its places in flight belong to what the connection was upgraded to.
    pub(crate) is_upgraded: bool,
}

impl SettleOnDrop {
    /// Reads the head of the response.
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
        if !taken.any(|charge| charge.compiled().charge_if.is_some()) {
            return;
        }
        let grpc_status = head.headers.get(GRPC_STATUS).map(code);
        if grpc_status.is_none() && has_trailers(&head.headers) {
            self.awaits_trailers = Some(head.status);
        } else {
            self.apply_charge_if(head.status, grpc_status);
        }
    }

    /// Leaves the places in flight to the clones of the grant: the task that serves an upgraded
    /// connection, which nothing here sees the end of, may hold one.
    fn leave_places(&self) {
        let places = self.grant.taken().filter(|it| it.compiled().is_in_flight());
        let places: List<_> = places.cloned().collect();
        if !places.is_empty() {
            let store = Arc::clone(&self.shared.store);
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
        let Self { grant, shared, .. } = self;
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
                settle(charge, permits, &shared.store);
            }
        }
    }
}

fn settle(charge: &Charge, permits: u32, store: &Arc<dyn AnyStore>) {
    charge.report(permits);
    store.settle(charge.clone(), permits);
}

opaque!(SettleOnDrop);
