//! Which scripts servers lack.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::clock::moment;

/// A script that is lacked twice within this time is loaded for good.
const LACKED_FOR: Duration = Duration::from_secs(60);

/// The scripts that servers lacked within the last minute, by their texts.
#[derive(Debug, Default)]
pub(crate) struct Lacked(Mutex<Vec<Lack>>);

#[derive(Debug)]
struct Lack {
    text: &'static str,
    since: Instant,
    /// Whether the user may load it, as far as is known
    may_load: bool,
}

impl Lacked {
    /// Whether a script is lacked for the second time, and may be loaded.
    pub(crate) fn again(&self, text: &'static str) -> bool {
        self.with(|lacks| lacks.iter().any(|lack| lack.text == text && lack.may_load))
    }

    /// Begins the minute of a script, unless it has begun.
    pub(crate) fn note_first(&self, text: &'static str) {
        if !self.with(|lacks| lacks.iter().any(|lack| lack.text == text)) {
            self.note(text, true);
        }
    }

    /// Begins the minute of a script anew.
    pub(crate) fn note(&self, text: &'static str, may_load: bool) {
        self.with(|lacks| {
            lacks.retain(|lack| lack.text != text);
            lacks.push(Lack {
                text,
                since: moment(),
                may_load,
            });
        });
    }

    /// Looks at those of the last minute.
    fn with<T>(&self, look: impl FnOnce(&mut Vec<Lack>) -> T) -> T {
        let now = moment();
        let mut lacks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lacks.retain(|lack| now.duration_since(lack.since) < LACKED_FOR);
        look(&mut lacks)
    }
}
