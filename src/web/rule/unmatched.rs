//! Entries that match nothing: a pattern that is wrong limits nothing, and nothing else shows it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use super::reach::Entry;
use crate::macros::warning;

/// After how many requests an entry that matched none of them is a mistake rather than rare.
const ENOUGH: u32 = 1_000;
/// How many entries the warning names: a table may have thousands.
const NAMED: usize = 10;

/// Which entries of a table have matched a request, until that is clear.
#[derive(Debug)]
pub(crate) struct Unmatched {
    /// It stops at [`ENOUGH`], by which it is clear, too.
    requests: AtomicU32,
    /// How many entries have matched nothing yet
    left: AtomicUsize,
    entries: Box<[(String, AtomicBool)]>,
}

impl Unmatched {
    /// Of these entries; those without rules limit nothing anyway.
    pub(crate) fn new(entries: &[Entry]) -> Self {
        let entry = |(text, _, rules): &Entry| (text.clone(), AtomicBool::new(rules.is_empty()));
        let entries: Box<[_]> = entries.iter().map(entry).collect();
        let left = entries.iter().filter(|(_, matched)| !is(matched)).count();
        Self {
            requests: AtomicU32::new(if left == 0 { ENOUGH } else { 0 }),
            left: AtomicUsize::new(left),
            entries,
        }
    }

    /// Counts a request, and the entry that it met.
    pub(crate) fn note(&self, met: Option<usize>) {
        // Once it is clear, requests write nothing that other threads read.
        if self.requests.load(Ordering::Relaxed) >= ENOUGH {
            return;
        }
        let entry = met.and_then(|place| self.entries.get(place));
        if let Some((_, matched)) = entry
            && !is(matched)
            && !matched.swap(true, Ordering::Relaxed)
            && self.left.fetch_sub(1, Ordering::Relaxed) == 1
        {
            self.requests.store(ENOUGH, Ordering::Relaxed);
            return;
        }
        if self.requests.fetch_add(1, Ordering::Relaxed) + 1 == ENOUGH {
            self.warn();
        }
    }

    #[cold]
    fn warn(&self) {
        let unmatched = || self.entries.iter().filter(|(_, matched)| !is(matched));
        let mut patterns: Vec<_> = unmatched()
            .map(|(text, _)| text.as_str())
            .take(NAMED)
            .collect();
        if unmatched().nth(NAMED).is_some() {
            patterns.push("..");
        }
        if !patterns.is_empty() {
            warning!(
                ?patterns,
                requests = ENOUGH,
                hint = "a pattern is the whole path as this server is asked for it: with axum's \
                        `nest`, the prefix is a part of it. Where such requests are rare, nothing \
                        is wrong",
                "entries of the table have matched no request so far: their rules limit nothing"
            );
        }
    }
}

fn is(matched: &AtomicBool) -> bool {
    matched.load(Ordering::Relaxed)
}
