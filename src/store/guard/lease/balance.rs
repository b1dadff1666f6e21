//! The permits of one lease: handed out, given back, and settled when it ends.

use std::{
    collections::VecDeque,
    mem,
    sync::{Arc, Mutex, MutexGuard},
};

use crate::{
    name::Limiter,
    receipt::{PermitId, Receipt, TakenAhead},
    sync::lock,
};

/// The permits of one lease, which have one entry in the store between them.
///
/// What a grant out of it took has no entry of its own. So the balance corrects the entry: once
/// when the lease ends, and once more for each grant that is given back after that. The permits of
/// the entry only ever become fewer, so each correction is of an entry that no other one is of, and
/// safe to send again.
pub(crate) struct Balance {
    /// The receipt of the call that took them.
    receipt: Receipt,
    settle: Settle,
    state: Mutex<State>,
}

/// Settles with the store. It does not wait.
pub(crate) type Settle = Arc<dyn Fn(Receipt, u32) + Send + Sync>;

struct State {
    /// Set if permits that come back may be handed out again.
    open: bool,
    /// Permits that no grant has; none once the lease has ended.
    unused: u32,
    /// Permits of the entry in the store.
    entry: u32,
    /// How many grants were made out of it.
    grants: u64,
    /// Corrections of the entry that are still to be sent.
    corrections: VecDeque<(Receipt, u32)>,
    /// Set while a caller sends them.
    sending: bool,
}

impl Balance {
    pub(crate) fn new(receipt: Receipt, settle: Settle) -> Self {
        let permits = receipt.permits;
        Self {
            receipt,
            settle,
            state: Mutex::new(State {
                open: true,
                unused: permits,
                entry: permits,
                grants: 0,
                corrections: VecDeque::new(),
                sending: false,
            }),
        }
    }

    /// Hands out `permits`, if there are as many. Returns how many are left, and an id for the
    /// grant: its caller need not have one.
    pub(crate) fn take(&self, permits: u32) -> Option<(u32, PermitId)> {
        let mut state = lock(&self.state);
        let left = state.unused.checked_sub(permits)?;
        state.unused = left;
        state.grants += 1;
        Some((left, self.receipt.id.for_grant(state.grants)))
    }

    /// Returns the limiter that the permits are of.
    pub(crate) fn limiter(&self) -> &Arc<Limiter> {
        &self.receipt.limiter
    }

    /// Ends the lease: nothing is handed out any more, and what no grant has is given back.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.state);
        state.open = false;
        self.correct(state);
    }

    /// Returns whether it is to be followed by another: it has ended, or less than half of it is
    /// left, which others can still use.
    pub(crate) fn is_low(&self) -> bool {
        lock(&self.state).unused < self.taken() / 2
    }

    /// Returns the permits that a grant has, or had.
    pub(crate) fn used(&self) -> u32 {
        let state = lock(&self.state);
        state.entry - state.unused
    }

    /// Returns all permits that were taken.
    pub(crate) fn taken(&self) -> u32 {
        self.receipt.permits
    }

    /// Takes what is unused out of the entry. Corrections are sent in their order, and unlocked:
    /// `settle` may report a loss to an observer, which may ask for this lease again. So one caller
    /// at a time sends, also what comes meanwhile.
    fn correct<'a>(&'a self, mut state: MutexGuard<'a, State>) {
        if state.unused > 0 {
            let permits = state.entry;
            state.entry -= mem::take(&mut state.unused);
            let entry = Receipt {
                permits,
                ..self.receipt.clone()
            };
            let keep = state.entry;
            state.corrections.push_back((entry, keep));
        }
        if mem::replace(&mut state.sending, true) {
            return;
        }
        while let Some((entry, keep)) = state.corrections.pop_front() {
            drop(state);
            (self.settle)(entry, keep);
            state = lock(&self.state);
        }
        state.sending = false;
    }
}

impl TakenAhead for Balance {
    fn give_back(&self, permits: u32) {
        let mut state = lock(&self.state);
        state.unused += permits;
        if !state.open {
            self.correct(state);
        }
    }
}
