//! The limiters of one call, read from a backend: [`Opened`].

use std::{future::poll_fn, sync::Arc, task::Poll, time::Duration};

use super::{Backend, Swap};
use crate::{
    store::memory::shared::Shared,
    values::{List, clock::Clock, error::Error, limit::StoredLimit, name::Name},
};

/// A store in memory that has the limiters of one call, and the values that they were made of. Its
/// time stands still: a grant is written as of the instant at which it was made.
pub(super) struct Opened {
    pub(super) store: Shared,
    values: List<Value>,
}

/// What a name has in the backend.
struct Value {
    name: Name,
    bytes: Option<Vec<u8>>,
    limit: Option<StoredLimit>,
}

/// A clock that stands still.
#[derive(Debug)]
struct Instant(Duration);

impl Clock for Instant {
    fn now(&self) -> Duration {
        self.0
    }
}

/// Why the changes of a call are not all written. Those that were are undone, except for some.
#[derive(Debug, Default)]
pub(super) struct Unwritten {
    /// Those that are written, and could not be undone.
    pub(super) written: List<Name>,
    /// Those that may be written.
    pub(super) unknown: List<Name>,
    /// The first error; without one, another process has changed a value meanwhile.
    pub(super) error: Option<Error>,
}

impl Opened {
    /// Reads the values of these names.
    ///
    /// # Errors
    ///
    /// Those of the backend, and of kind [`ForeignState`](crate::ErrorKind::ForeignState) if a
    /// value is none of a limiter.
    ///
    /// # Cancel safety
    ///
    /// Dropping it has no effect.
    pub(super) async fn read(
        backend: &impl Backend,
        clock: &dyn Clock,
        names: &[Name],
    ) -> Result<Self, Error> {
        let read = all(names.iter().map(|name| backend.get(name.as_str()))).await;
        let store = Shared::for_call(Arc::new(Instant(clock.now())));
        let mut values = List::new();
        for (name, bytes) in names.iter().zip(read) {
            let (name, bytes) = (name.clone(), bytes?);
            if let Some(bytes) = &bytes {
                store.put_bytes(&name, bytes)?;
            }
            let limit = store.limit_of(&name);
            values.push(Value { name, bytes, limit });
        }
        Ok(Self { store, values })
    }

    /// Returns the names whose limit was stored or changed.
    pub(super) fn changed(&self) -> impl Iterator<Item = &Name> {
        let has_changed = |value: &&Value| self.store.limit_of(&value.name) != value.limit;
        let changed = self.values.iter().filter(has_changed);
        changed.map(|value| &value.name)
    }

    /// Returns whether a limiter is kept for as long as it is used, also by refusals.
    pub(super) fn keeps_alive(&self) -> bool {
        let limits = self.values.iter().filter_map(|value| value.limit);
        limits.into_iter().any(|limit| limit.keep_alive > 0)
    }

    /// Writes the values that have changed: new ones first, so that a limiter that is renamed is
    /// there by one of its names.
    ///
    /// # Errors
    ///
    /// Returns what is written nevertheless.
    ///
    /// # Cancel safety
    ///
    /// Dropping it may leave some values written.
    pub(super) async fn write(&self, backend: &impl Backend) -> Result<(), Unwritten> {
        let new = self.values.iter().map(|it| self.store.bytes_of(&it.name));
        let new: List<_> = new.collect();
        let changes = self.values.iter().zip(&new).filter_map(|(value, new)| {
            let (old, new) = (value.bytes.as_deref(), new.as_deref());
            let key = value.name.as_str();
            (old != new).then_some((&value.name, Swap { key, old, new }))
        });
        let changes: List<_> = changes.collect();
        if changes.len() > 1 {
            let swaps: List<_> = changes.iter().map(|(_, swap)| *swap).collect();
            match backend.swap_all(&swaps).await {
                Ok(Some(true)) => return Ok(()),
                Ok(Some(false)) => return Err(Unwritten::default()),
                Ok(None) => {}
                Err(error) => {
                    return Err(Unwritten {
                        unknown: changes.iter().map(|(name, _)| (*name).clone()).collect(),
                        error: Some(error),
                        ..Unwritten::default()
                    });
                }
            }
        }
        let (new, gone): (List<_>, List<_>) = changes
            .into_iter()
            .partition(|(_, swap)| swap.new.is_some());
        let mut done = List::new();
        for changes in [new, gone] {
            let swaps = changes.iter().map(|(_, swap)| backend.swap(*swap));
            let swapped = all(swaps).await;
            let mut failed: Option<Unwritten> = None;
            for (change, swapped) in changes.into_iter().zip(swapped) {
                match swapped {
                    Ok(true) => done.push(change),
                    Ok(false) => drop(failed.get_or_insert_default()),
                    Err(error) => {
                        let failed = failed.get_or_insert_default();
                        failed.unknown.push(change.0.clone());
                        failed.error.get_or_insert(error);
                    }
                }
            }
            if let Some(mut failed) = failed {
                undo(backend, &done, &mut failed).await;
                return Err(failed);
            }
        }
        Ok(())
    }
}

/// Undoes changes, and notes those that are, or may be, left.
async fn undo(backend: &impl Backend, done: &[(&Name, Swap<'_>)], failed: &mut Unwritten) {
    let back = done.iter().map(|(_, done)| {
        let (old, new) = (done.new, done.old);
        backend.swap(Swap { old, new, ..*done })
    });
    for ((name, _), undone) in done.iter().zip(all(back).await) {
        match undone {
            Ok(true) => {}
            Ok(false) => failed.written.push((*name).clone()),
            Err(_) => failed.unknown.push((*name).clone()),
        }
    }
}

/// Waits for all of these, which go at the same time.
///
/// # Cancel safety
///
/// Dropping it drops those that are not ready.
pub(super) async fn all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.map(|it| (Box::pin(it), None)).collect();
    poll_fn(|cx| {
        for (future, output) in futures.iter_mut().filter(|(_, output)| output.is_none()) {
            if let Poll::Ready(ready) = future.as_mut().poll(cx) {
                *output = Some(ready);
            }
        }
        let is_ready = futures.iter().all(|(_, output)| output.is_some());
        if is_ready {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    let outputs = futures.into_iter().filter_map(|(_, output)| output);
    outputs.collect()
}
