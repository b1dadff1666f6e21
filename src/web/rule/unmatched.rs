//! Warns about entries that match no request: nothing else shows that their pattern is wrong.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::rules::Entry;
use crate::macros::warning;

/// After this many requests, an entry without a match is more likely a mistake than rare.
const ENOUGH: u32 = 1_000;
/// The number of entries that the warning names: a table may have thousands.
const NAMED: usize = 10;

/// Records which entries have matched a request, until enough requests were seen.
pub(super) struct Unmatched {
    /// The requests so far, up to [`ENOUGH`].
    requests: AtomicU32,
    /// The entries, each with whether it has matched.
    entries: Box<[(String, AtomicBool)]>,
}

impl Unmatched {
    /// Creates the record. Entries without rules count as matched, because they limit nothing
    /// anyway.
    pub(super) fn new(entries: &[Entry]) -> Self {
        let entry = |it: &Entry| (it.text.clone(), AtomicBool::new(it.rules.is_empty()));
        let entries: Box<[_]> = entries.iter().map(entry).collect();
        Self {
            requests: AtomicU32::new(if entries.is_empty() { ENOUGH } else { 0 }),
            entries,
        }
    }

    /// Records a request, and the entry that it met.
    pub(super) fn record(&self, met: Option<usize>) {
        // After that, requests write nothing that other threads read.
        if self.requests.load(Ordering::Relaxed) >= ENOUGH {
            return;
        }
        if let Some((_, matched)) = met.and_then(|place| self.entries.get(place)) {
            matched.store(true, Ordering::Relaxed);
        }
        if self.requests.fetch_add(1, Ordering::Relaxed) + 1 == ENOUGH {
            self.warn();
        }
    }

    #[cold]
    fn warn(&self) {
        let unmatched = self.entries.iter();
        let unmatched = unmatched.filter(|(_, matched)| !matched.load(Ordering::Relaxed));
        let mut patterns: Vec<_> = unmatched.map(|(text, _)| text.as_str()).collect();
        if patterns.len() > NAMED {
            patterns.truncate(NAMED);
            patterns.push("..");
        }
        if !patterns.is_empty() {
            warning!(
                ?patterns,
                requests = ENOUGH,
                hint = "a pattern is the whole path as the client requests it: with axum's \
                        `nest`, it includes the prefix. If such requests are rare, nothing is \
                        wrong",
                "entries of the table have matched no request so far: their rules limit nothing"
            );
        }
    }
}
