//! One who waits in line.

use std::{task::Waker, time::Duration};

use crate::{
    decision::{Decision, Receipt},
    error::Error,
    list::List,
    store::Acquire,
};

pub(super) struct Waiter {
    pub(super) ticket: u64,
    pub(super) acquire: Acquire,
    /// Made before the first call.
    pub(super) receipts: List<Receipt>,
    pub(super) deadline: Option<Duration>,
    /// When it can be served, as far as the last call told.
    pub(super) due: Option<Duration>,
    /// Whether a call for it is in flight.
    pub(super) asking: bool,
    pub(super) outcome: Option<Result<Decision, Error>>,
    pub(super) waker: Option<Waker>,
}

impl Waiter {
    pub(super) fn tell(&mut self, outcome: Result<Decision, Error>) {
        self.outcome = Some(outcome);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Whether it waits without knowing that its turn comes in time.
    pub(super) fn is_doubtful(&self) -> bool {
        let in_time = match (self.due, self.deadline) {
            (Some(due), Some(deadline)) => due <= deadline,
            _ => false,
        };
        self.outcome.is_none() && !in_time
    }
}
