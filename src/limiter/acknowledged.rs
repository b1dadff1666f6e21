//! Taking permits without HTTP: a decision that its caller does not receive is undone.

use std::sync::Arc;

use crate::{
    decision::Decision, demand::Acquire, error::Error, list::List, receipt::Receipt,
    store::AnyStore,
};

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
    let mut unacknowledged = Unacknowledged {
        store,
        receipts: acquire.receipts(),
    };
    let decision = Arc::clone(store).acquire(acquire).await;
    unacknowledged.receipts = List::new();
    decision
}

struct Unacknowledged<'a> {
    store: &'a Arc<dyn AnyStore>,
    receipts: List<Receipt>,
}

impl Drop for Unacknowledged<'_> {
    fn drop(&mut self) {
        for receipt in self.receipts.iter() {
            self.store.settle(receipt.clone(), 0);
        }
    }
}
