//! Puts requests into the order of their times: [`Reorder`].

use std::{cmp::Reverse, collections::BinaryHeap};

/// The requests of the last while, which later lines may still precede.
///
/// Requests of one time and caller are alike, so their order makes no difference.
pub(super) struct Reorder {
    held: BinaryHeap<Reverse<(i64, u32)>>,
    /// For how long each is held, in microseconds of the log.
    span: i64,
    newest: i64,
}

impl Reorder {
    pub(super) fn new(span: i64) -> Self {
        Self {
            held: BinaryHeap::new(),
            span,
            newest: i64::MIN,
        }
    }

    /// Returns whether requests after this time may have been decided already.
    pub(super) fn is_late(&self, time: i64) -> bool {
        time < self.newest.saturating_sub(self.span)
    }

    pub(super) fn push(&mut self, time: i64, caller: u32) {
        self.newest = self.newest.max(time);
        self.held.push(Reverse((time, caller)));
    }

    pub(super) fn count(&self) -> usize {
        self.held.len()
    }

    /// Returns the next request, if no later line can precede it, or if there are no more.
    pub(super) fn next(&mut self, at_end: bool) -> Option<(i64, u32)> {
        let Reverse((time, _)) = *self.held.peek()?;
        if !at_end && time > self.newest.saturating_sub(self.span) {
            return None;
        }
        self.held.pop().map(|Reverse(request)| request)
    }
}
