//! Who stands in a line, and who is woken.

use std::{task::Waker, time::Duration};

use super::{lines::Gone, lock};
use crate::{
    decision::{Decision, Receipt, Refusal},
    error::Error,
    list::List,
    store::Acquire,
};

/// How many callers of each kind one call decides for: those who wait, and those who do not. The others wait for the next
/// call. Counted apart, so that neither keeps out the other.
pub(super) const LONGEST_RUN: usize = 64;

pub(super) struct Member {
    pub(super) ticket: u64,
    pub(super) acquire: Acquire,
    /// Made before the first call. Of one that waits: what the others took, whoever drops them gives back or not.
    pub(super) receipts: List<Receipt>,
    pub(super) deadline: Option<Duration>,
    /// When it can be served, as far as the last call told.
    pub(super) due: Option<Duration>,
    /// Whether a call for it is in flight.
    pub(super) asking: bool,
    pub(super) outcome: Option<Result<Decision, Error>>,
    pub(super) waker: Option<Waker>,
}

pub(super) struct Alone {
    pub(super) ticket: u64,
    /// Whether the reply is there, or something else for its caller to do: then nobody need wait for that one.
    pub(super) answered: bool,
    pub(super) waker: Option<Waker>,
}

/// Callers that one call decides for.
#[derive(Default)]
pub(super) struct Run {
    pub(super) tickets: Vec<u64>,
    pub(super) callers: Vec<Acquire>,
}

/// Who is woken, once the lock is free.
#[derive(Default)]
pub(super) struct Wakes(List<Waker>);

impl Wakes {
    pub(super) fn add(&mut self, waker: Option<Waker>) {
        if let Some(waker) = waker {
            self.0.push(waker);
        }
    }

    pub(super) fn wake(self) {
        self.0.into_iter().for_each(Waker::wake);
    }
}

impl Member {
    pub(super) fn new(
        ticket: u64,
        acquire: &Acquire,
        deadline: Option<Duration>,
        refusal: Option<Refusal>,
    ) -> Self {
        let waits = acquire.patience.is_some();
        Self {
            ticket,
            acquire: acquire.clone(),
            receipts: if waits {
                acquire.receipts()
            } else {
                List::EMPTY
            },
            deadline,
            due: None,
            asking: false,
            outcome: refusal.map(|refusal| Ok(Decision::Deny(refusal))),
            waker: None,
        }
    }

    pub(super) fn waits(&self) -> bool {
        self.acquire.patience.is_some()
    }

    pub(super) fn is_idle(&self) -> bool {
        !self.waits() && !self.asking && self.outcome.is_none()
    }

    pub(super) fn tell(&mut self, outcome: Result<Decision, Error>, wakes: &mut Wakes) {
        self.outcome = Some(outcome);
        wakes.add(self.waker.take());
    }
}

impl Alone {
    pub(super) fn new(ticket: u64) -> Self {
        Self {
            ticket,
            answered: false,
            waker: None,
        }
    }
}

/// Whether a caller of a call has left and given back what it may get. It is looked out for no longer.
pub(super) fn gave_back(acquire: &Acquire, gone: &Gone) -> bool {
    let mut gone = lock(gone);
    !gone.is_empty() && gone.remove(&acquire.first.id) == Some(true)
}

pub(super) fn reach(place: &mut Option<Waker>, waker: &Waker) {
    if !place.as_ref().is_some_and(|known| known.will_wake(waker)) {
        *place = Some(waker.clone());
    }
}
