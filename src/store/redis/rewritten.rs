//! Which stored limits this process has rewritten lately.
//!
//! While two versions of a service run side by side, each would write its own limit over the other's with every request.
//! Each leaves what it has written alone for a while, so that a limit flips at most twice a minute.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{clock::moment, name::Name};

const LEFT_ALONE_FOR: Duration = Duration::from_secs(60);
/// A name that finds no place is merely rewritten once more.
const PLACES: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct Rewritten {
    /// Saves the lock while nothing was ever rewritten, which is nearly always.
    any: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    names: HashMap<Name, Instant>,
    warned: HashSet<Arc<str>>,
}

impl Rewritten {
    /// Whether the name was rewritten within the last minute.
    pub(crate) fn lately(&self, name: &Name) -> bool {
        self.any.load(Ordering::Relaxed)
            && self
                .lock()
                .names
                .get(name)
                .is_some_and(|at| at.elapsed() < LEFT_ALONE_FOR)
    }

    /// Notes that a name was rewritten; whether this is the rule's first.
    pub(crate) fn note(&self, name: &Name, rule: &Arc<str>) -> bool {
        let now = moment();
        let mut inner = self.lock();
        if inner.names.len() >= PLACES {
            inner
                .names
                .retain(|_, at| now.duration_since(*at) < LEFT_ALONE_FOR);
        }
        if inner.names.len() < PLACES {
            inner.names.insert(name.clone(), now);
        }
        self.any.store(true, Ordering::Relaxed);
        inner.warned.insert(Arc::clone(rule))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
