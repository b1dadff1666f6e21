//! Remembers the stored limits that this process has rewritten lately.
//!
//! While two versions of a service run side by side, each would overwrite the other's limit with
//! every request. Each leaves a limit alone for a while after writing it, so that it changes at
//! most twice a minute.

use std::{
    collections::HashMap,
    sync::PoisonError,
    time::{Duration, Instant},
};

use crate::{
    clock::moment,
    name::Name,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
};

const LEFT_ALONE_FOR: Duration = Duration::from_secs(60);
/// The maximum number of names. A name without a place is only rewritten once more.
const PLACES: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct Rewritten {
    /// Avoids the lock until something was rewritten, which is rare.
    any: AtomicBool,
    names: Mutex<HashMap<Name, Instant>>,
}

impl Rewritten {
    /// Returns whether the name was rewritten within the last minute.
    pub(crate) fn lately(&self, name: &Name) -> bool {
        self.any.load(Ordering::Relaxed)
            && self
                .lock()
                .get(name)
                .is_some_and(|at| is_recent(*at, moment()))
    }

    /// Records that a name was rewritten.
    pub(crate) fn note(&self, name: &Name) {
        let now = moment();
        let mut names = self.lock();
        if names.len() >= PLACES {
            names.retain(|_, at| is_recent(*at, now));
        }
        if names.len() < PLACES {
            names.insert(name.clone(), now);
        }
        self.any.store(true, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Name, Instant>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether `at` is recent enough.
fn is_recent(at: Instant, now: Instant) -> bool {
    now.duration_since(at) < LEFT_ALONE_FOR
}
