//! How many requests a layer has lived for: a layer built for each request is a mistake that nothing else shows.
//!
//! Built on a store of its own, such a layer limits nobody; on a shared store it limits, slowly. No single layer can tell,
//! and no store, as there may be one for each. So the process counts how many layers in a row were dropped after exactly
//! one request. A program that reloads its layers, or tests that build one each, do not get far in that.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use crate::macros::warning;

/// How many in a row are no accident.
const IN_A_ROW: u32 = 100;

static PROCESS: Row = Row::new();

/// Of one layer and its clones.
#[derive(Debug)]
pub(crate) struct Lifetime {
    /// None, one, or more: it stops there
    requests: AtomicU8,
    row: &'static Row,
}

/// Layers that were dropped one after the other.
#[derive(Debug)]
struct Row {
    length: AtomicU32,
    warned: AtomicBool,
}

impl Lifetime {
    pub(crate) fn new() -> Self {
        Self::counted_in(&PROCESS)
    }

    pub(crate) fn note_request(&self) {
        // Once it is clear, requests write nothing that other threads read.
        let requests = self.requests.load(Ordering::Relaxed);
        if requests < 2 {
            // A race loses one at worst, and the next request makes up for it.
            self.requests.store(requests + 1, Ordering::Relaxed);
        }
    }

    const fn counted_in(row: &'static Row) -> Self {
        Self {
            requests: AtomicU8::new(0),
            row,
        }
    }
}

impl Drop for Lifetime {
    fn drop(&mut self) {
        if self.row.is_suspicious_after(*self.requests.get_mut()) {
            warning!(
                layers = IN_A_ROW,
                hint = "build the layer and its store once, when the service starts, and clone the layer",
                "layers live for one request each: they seem to be built for each request"
            );
        }
    }
}

impl Row {
    const fn new() -> Self {
        Self {
            length: AtomicU32::new(0),
            warned: AtomicBool::new(false),
        }
    }

    /// Whether this is the first time that the row is too long.
    fn is_suspicious_after(&self, requests: u8) -> bool {
        match requests {
            0 => false,
            1 => {
                let length = self.length.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
                length == IN_A_ROW && !self.warned.swap(true, Ordering::Relaxed)
            }
            _ => {
                self.length.store(0, Ordering::Relaxed);
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_single_requests_is_told_once() {
        let row = Row::new();
        for _ in 1..IN_A_ROW {
            assert!(!row.is_suspicious_after(1));
            assert!(!row.is_suspicious_after(0), "never used");
        }
        // One that was used again shows that layers are kept.
        assert!(!row.is_suspicious_after(2));
        for _ in 1..IN_A_ROW {
            assert!(!row.is_suspicious_after(1));
        }
        assert!(row.is_suspicious_after(1));
        for _ in 0..3 * IN_A_ROW {
            assert!(!row.is_suspicious_after(1));
        }
        assert!(!row.is_suspicious_after(2));
        for _ in 0..3 * IN_A_ROW {
            assert!(!row.is_suspicious_after(1), "told already");
        }
    }

    #[test]
    fn requests_are_counted_until_it_is_clear() {
        static ROW: Row = Row::new();
        for requests in 0..300 {
            let lifetime = Lifetime::counted_in(&ROW);
            for _ in 0..requests {
                lifetime.note_request();
            }
            let counted = lifetime.requests.load(Ordering::Relaxed);
            assert_eq!(counted, requests.min(2) as u8);
        }
    }
}
