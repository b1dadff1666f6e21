//! Which stored limits this process has rewritten lately.
//!
//! While two versions of a service run side by side, each would write its own limit over the other's with every request.
//! Each leaves what it has written alone for a while, so that a limit flips at most twice a minute.

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
/// A name that finds no place is merely rewritten once more.
const PLACES: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct Rewritten {
    /// Saves the lock while nothing was ever rewritten, which is nearly always.
    any: AtomicBool,
    names: Mutex<HashMap<Name, Instant>>,
}

impl Rewritten {
    /// Whether the name was rewritten within the last minute.
    pub(crate) fn lately(&self, name: &Name) -> bool {
        self.any.load(Ordering::Relaxed)
            && self
                .lock()
                .get(name)
                .is_some_and(|at| is_recent(*at, moment()))
    }

    /// Notes that a name was rewritten.
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

/// Whether it is not long ago.
fn is_recent(at: Instant, now: Instant) -> bool {
    now.duration_since(at) < LEFT_ALONE_FOR
}
