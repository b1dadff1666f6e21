//! Who stands in a line, and who is woken.

use std::{task::Waker, time::Duration};

use super::{lines::Gone, lock};
use crate::{
    decision::{Decision, Refusal},
    demand::Acquire,
    error::Error,
    list::List,
    receipt::Receipt,
};

/// How many callers of each kind one call decides for: those who wait, and those who do not. The others wait for the next
/// call. Counted apart, so that neither keeps out the other.
pub(crate) const LONGEST_RUN: usize = 64;

pub(crate) struct Member {
    pub(crate) ticket: u64,
    pub(crate) acquire: Acquire,
    /// Made before the first call. Of one that waits: what the others took, whoever drops them gives back or not.
    pub(crate) receipts: List<Receipt>,
    pub(crate) deadline: Option<Duration>,
    /// When it can be served, as far as the last call told.
    pub(crate) due: Option<Duration>,
    /// Whether a call for it is in flight.
    pub(crate) asking: bool,
    pub(crate) outcome: Option<Result<Decision, Error>>,
    pub(crate) waker: Option<Waker>,
}

pub(crate) struct Alone {
    pub(crate) ticket: u64,
    /// Whether the reply is there, or something else for its caller to do: then nobody need wait for that one.
    pub(crate) answered: bool,
    pub(crate) waker: Option<Waker>,
}

/// Callers that one call decides for.
#[derive(Default)]
pub(crate) struct Run {
    pub(crate) tickets: Vec<u64>,
    pub(crate) callers: Vec<Acquire>,
}

/// Who is woken, once the lock is free.
#[derive(Default)]
pub(crate) struct Wakes(List<Waker>);

impl Wakes {
    pub(crate) fn add(&mut self, waker: Option<Waker>) {
        if let Some(waker) = waker {
            self.0.push(waker);
        }
    }

    pub(crate) fn wake(self) {
        self.0.into_iter().for_each(Waker::wake);
    }
}

impl Member {
    pub(crate) fn new(
        ticket: u64,
        acquire: &Acquire,
        deadline: Option<Duration>,
        refusal: Option<Refusal>,
    ) -> Self {
        let receipts = match acquire.patience {
            Some(_) => acquire.receipts(),
            None => List::new(),
        };
        Self {
            ticket,
            acquire: acquire.clone(),
            receipts,
            deadline,
            due: None,
            asking: false,
            outcome: refusal.map(|refusal| Ok(Decision::Deny(refusal))),
            waker: None,
        }
    }

    pub(crate) fn waits(&self) -> bool {
        self.acquire.patience.is_some()
    }

    pub(crate) fn is_idle(&self) -> bool {
        !self.waits() && !self.asking && self.outcome.is_none()
    }

    pub(crate) fn tell(&mut self, outcome: Result<Decision, Error>, wakes: &mut Wakes) {
        self.outcome = Some(outcome);
        wakes.add(self.waker.take());
    }
}

impl Alone {
    pub(crate) fn new(ticket: u64) -> Self {
        Self {
            ticket,
            answered: false,
            waker: None,
        }
    }
}

/// Whether a caller of a call has left and given back what it may get. It is looked out for no longer.
pub(crate) fn gave_back(acquire: &Acquire, gone: &Gone) -> bool {
    let mut gone = lock(gone);
    !gone.is_empty() && gone.remove(&acquire.first.id) == Some(true)
}

pub(crate) fn reach(place: &mut Option<Waker>, waker: &Waker) {
    if !place.as_ref().is_some_and(|known| known.will_wake(waker)) {
        *place = Some(waker.clone());
    }
}
