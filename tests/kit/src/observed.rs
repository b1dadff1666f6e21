//! What observers are told.

use std::sync::{Arc, Mutex};

use tower_ratelimit::observe::{Decided, Observer};

/// Keeps what a function makes of each decision.
#[derive(Debug)]
pub struct Observed<T> {
    of: fn(&Decided<'_>) -> T,
    seen: Mutex<Vec<T>>,
}

impl<T> Observed<T> {
    pub fn by(of: fn(&Decided<'_>) -> T) -> Arc<Self> {
        let seen = Mutex::default();
        Arc::new(Self { of, seen })
    }

    /// Returns what was seen since the last time.
    pub fn take(&self) -> Vec<T> {
        std::mem::take(&mut *self.seen.lock().unwrap())
    }
}

impl<T: Send + std::fmt::Debug + 'static> Observer for Observed<T> {
    fn decided(&self, event: &Decided<'_>) {
        self.seen.lock().unwrap().push((self.of)(event));
    }
}
