//! The limiters of one call, read from a backend: [`Opened`].

use std::sync::Arc;

use super::{Backend, Swap};
use crate::{
    store::memory::shared::Shared,
    values::{List, clock::Clock, error::Error, name::Name},
};

/// A store in memory that has the limiters of one call, and the values that they were made of.
pub(super) struct Opened {
    pub(super) store: Shared,
    /// The names in their order, each with its value.
    values: List<(Name, Option<Vec<u8>>)>,
}

/// What has become of the changes of a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Written {
    All,
    /// Another process has changed a value meanwhile. Those of these names are changed, and could
    /// not be changed back.
    NotAll(List<Name>),
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
        clock: &Arc<dyn Clock>,
        names: impl Iterator<Item = &Name>,
    ) -> Result<Self, Error> {
        let mut names: List<_> = names.cloned().collect();
        names.sort_unstable_by(|one, other| one.as_str().cmp(other.as_str()));
        names.dedup();
        let mut opened = Self {
            store: Shared::for_call(Arc::clone(clock)),
            values: List::new(),
        };
        for name in names {
            let value = backend.get(name.as_str()).await?;
            if let Some(bytes) = &value {
                opened.store.put_bytes(&name, bytes)?;
            }
            opened.values.push((name, value));
        }
        Ok(opened)
    }

    /// Writes the values that have changed.
    ///
    /// # Errors
    ///
    /// Those of the backend: some may be written then.
    ///
    /// # Cancel safety
    ///
    /// Dropping it may leave some values written.
    pub(super) async fn write(&self, backend: &impl Backend) -> Result<Written, Error> {
        let new: List<_> = self
            .values
            .iter()
            .map(|(name, _)| self.store.bytes_of(name))
            .collect();
        let changes = self
            .values
            .iter()
            .zip(&new)
            .filter_map(|((name, old), new)| {
                let (old, new) = (old.as_deref(), new.as_deref());
                let key = name.as_str();
                (old != new).then_some((name, Swap { key, old, new }))
            });
        let (names, swaps): (List<&Name>, List<Swap<'_>>) = changes.unzip();
        if swaps.len() > 1
            && let Some(is_done) = backend.swap_all(&swaps).await?
        {
            return Ok(if is_done {
                Written::All
            } else {
                Written::NotAll(List::new())
            });
        }
        for (number, swap) in swaps.iter().enumerate() {
            if backend.swap(*swap).await? {
                continue;
            }
            let mut kept = List::new();
            for (name, done) in names.iter().zip(&swaps).take(number) {
                let (old, new) = (done.new, done.old);
                if !backend.swap(Swap { old, new, ..*done }).await? {
                    kept.push((*name).clone());
                }
            }
            return Ok(Written::NotAll(kept));
        }
        Ok(Written::All)
    }
}
