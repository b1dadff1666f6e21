//! Takes permits without HTTP, and gives them back if the caller drops the future before it
//! receives the decision.

use std::sync::Arc;

use crate::{decision::Decision, demand::Acquire, error::Error, store::AnyStore, sync::OnDrop};

/// Takes permits, first from the guards that decide at once.
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
