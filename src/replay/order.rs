//! Puts requests into the order of their times: [`Reorder`].

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

/// The requests of the last while, which later lines may still precede.
///
/// Requests of one time and alike may change places.
pub(super) struct Reorder<T> {
    /// Those that came in order, as nearly all do, and the others.
    ordered: VecDeque<(i64, T)>,
    others: BinaryHeap<Reverse<(i64, T)>>,
    /// For how long each is held, in microseconds of the log.
    span: i64,
    newest: i64,
}

impl<T: Ord> Reorder<T> {
    pub(super) fn new(span: i64) -> Self {
        Self {
            ordered: VecDeque::new(),
            others: BinaryHeap::new(),
            span,
            newest: i64::MIN,
        }
    }

    /// Returns whether requests after this time may have been decided already.
    pub(super) fn is_late(&self, time: i64) -> bool {
        time < self.newest.saturating_sub(self.span)
    }

    pub(super) fn push(&mut self, time: i64, request: T) {
        self.newest = self.newest.max(time);
        if self.ordered.back().is_none_or(|(last, _)| *last <= time) {
            self.ordered.push_back((time, request));
        } else {
            self.others.push(Reverse((time, request)));
        }
    }

    pub(super) fn count(&self) -> usize {
        self.ordered.len() + self.others.len()
    }

    /// Returns the next request, if no later line can precede it, or if there are no more.
    pub(super) fn next(&mut self, at_end: bool) -> Option<(i64, T)> {
        let ordered = self.ordered.front().map_or(i64::MAX, |(time, _)| *time);
        let other = self.others.peek().map_or(i64::MAX, |it| it.0.0);
        if !at_end && ordered.min(other) > self.newest.saturating_sub(self.span) {
            return None;
        }
        if other < ordered {
            return self.others.pop().map(|Reverse(request)| request);
        }
        self.ordered.pop_front()
    }
}
