//! How limiters without HTTP ask their store, and what becomes of an answer that nobody hears.

use std::sync::Arc;

use crate::{
    decision::Decision,
    demand::{Acquire, Charge, MaxWait},
    error::Error,
    list::List,
    receipt::Receipt,
    store::AnyStore,
};

/// What limiters without HTTP ask their store.
pub(crate) fn ask(first: Charge, rest: Vec<Charge>, max_wait: Option<MaxWait>) -> Acquire {
    Acquire {
        first,
        rest,
        on_failure: None,
        remaining: true,
        patience: max_wait,
        asked: None,
    }
}

/// Asks, the guards that answer at once first, and gives back what was taken if nobody hears the answer.
///
/// # Cancel safety
///
/// That is what it is for.
pub(crate) async fn heard(
    store: &Arc<dyn AnyStore>,
    mut acquire: Acquire,
) -> Result<Decision, Error> {
    if let Some(decision) = store.decide_at_once(&mut acquire) {
        return decision;
    }
    // Not before: by the id that it has now.
    let mut unheard = Unheard {
        store,
        receipts: acquire.receipts(),
    };
    let decision = Arc::clone(store).acquire(acquire).await;
    unheard.receipts = List::EMPTY;
    decision
}

struct Unheard<'a> {
    store: &'a Arc<dyn AnyStore>,
    receipts: List<Receipt>,
}

impl Drop for Unheard<'_> {
    fn drop(&mut self) {
        for receipt in self.receipts.iter() {
            self.store.settle(receipt.clone(), 0);
        }
    }
}
