//! Remembers the stored limits that this process has rewritten lately.
//!
//! While two versions of a service run side by side, each would overwrite the other's limit with
//! every request. Each leaves a limit alone for a while after writing it, so that it changes at
//! most twice a minute.

use std::time::{Duration, Instant};

use crate::{
    clock::moment,
    name::{Name, Text},
    store::guard::{Cache, cache},
};

const LEFT_ALONE_FOR: Duration = Duration::from_secs(60);
/// The maximum number of names. One that is forgotten is only rewritten once more.
const PLACES: usize = 1024;

pub(super) struct Rewritten(Cache<Text, Instant>);

impl Rewritten {
    pub(super) fn new() -> Self {
        // Rewriting is rare: it grows when needed.
        Self(cache(1, PLACES))
    }

    /// Returns whether the name was rewritten within the last minute.
    pub(super) fn lately(&self, name: &Name) -> bool {
        let at = self.0.get(name.text());
        at.is_some_and(|at| moment().duration_since(at) < LEFT_ALONE_FOR)
    }

    /// Records that a name was rewritten.
    pub(super) fn record(&self, name: &Name) {
        self.0.insert(name.text().clone(), moment());
    }
}
