//! Takes permits without HTTP, as the layer does with it.

use std::sync::Arc;

use crate::{
    store::AnyStore,
    values::{decision::Decision, demand::Demand, error::Error},
};

/// Takes permits, first from the guards that decide at once.
///
/// # Cancel safety
///
/// Dropping it gives back what it may have taken: see [`AnyStore::acquire`].
pub(crate) async fn take(store: &Arc<dyn AnyStore>, mut demand: Demand) -> Result<Decision, Error> {
    match store.decide_at_once(&mut demand) {
        Some(decision) => decision,
        None => Arc::clone(store).acquire(demand).await,
    }
}
