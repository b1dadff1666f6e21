//! Takes permits without HTTP: for callers that wait for them ([`take`]), and for callers that do
//! not ([`acknowledged`]).

use std::sync::Arc;

use crate::{decision::Decision, demand::Acquire, error::Error, store::AnyStore, sync::OnDrop};

/// Takes permits, first from the guards that decide at once, for a caller that waits for permits.
///
/// # Cancel safety
///
/// Dropping it gives back what it may have taken: see [`AnyStore::acquire`].
pub(crate) async fn take(
    store: &Arc<dyn AnyStore>,
    mut acquire: Acquire,
) -> Result<Decision, Error> {
    match store.decide_at_once(&mut acquire) {
        Some(decision) => decision,
        None => Arc::clone(store).acquire(acquire).await,
    }
}

/// Takes permits as [`take`] does, for a caller that does not wait for permits.
///
/// # Cancel safety
///
/// Dropping it gives back what it may have taken.
pub(crate) async fn acknowledged(
    store: &Arc<dyn AnyStore>,
    mut acquire: Acquire,
) -> Result<Decision, Error> {
    if let Some(decision) = store.decide_at_once(&mut acquire) {
        return decision;
    }
    // Not earlier: the receipts carry the id that the demand has only now.
    let receipts = acquire.receipts();
    let unacknowledged = OnDrop::new(|| {
        for receipt in receipts {
            store.settle(receipt, 0);
        }
    });
    let decision = Arc::clone(store).acquire(acquire).await;
    unacknowledged.disarm();
    decision
}
