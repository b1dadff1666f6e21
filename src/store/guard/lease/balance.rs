//! The permits of one lease: handed out, given back, and settled when it ends.

use std::{
    collections::VecDeque,
    mem,
    sync::{Arc, Mutex, MutexGuard},
};

use crate::{
    sync::lock,
    values::{
        charge::{Charge, PermitId, Standing, TakenAhead},
        compiled_limit::CompiledLimit,
    },
};

/// The permits of one lease: all of them are one entry in the store.
///
/// A grant from the lease has no entry of its own. So unused permits are taken out of the lease's
/// entry: once when the lease ends, and once more for each grant that is given back after that.
/// Each such correction names the permits that the entry has before it. As these only ever become
/// fewer, no two corrections name the same number, and each can be sent again safely.
pub(crate) struct Balance {
    /// The receipt of the call that took them.
    receipt: Charge,
    settle: SettleFn,
    state: Mutex<State>,
}

/// Settles with the store. It does not wait.
pub(crate) type SettleFn = Arc<dyn Fn(Charge, u32) + Send + Sync>;

struct State {
    /// Set until the lease ends: permits that come back may be handed out again.
    open: bool,
    /// The permits that no grant has; 0 once the lease has ended.
    unused: u32,
    /// The permits of the entry in the store, as corrected so far.
    entry: u32,
    /// The number of grants made from the lease.
    grants: u64,
    /// The corrections of the entry that are not sent yet.
    corrections: VecDeque<(Charge, u32)>,
    /// Set while a caller sends them.
    sending: bool,
}

impl Balance {
    pub(crate) fn new(receipt: Charge, settle: SettleFn) -> Self {
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

    /// Hands out `permits`, if as many are unused. Returns how many are left, and an id for the
    /// grant, because its caller may have none.
    pub(crate) fn take(&self, permits: u32) -> Option<(u32, PermitId)> {
        let mut state = lock(&self.state);
        let left = state.unused.checked_sub(permits)?;
        state.unused = left;
        state.grants += 1;
        Some((left, self.receipt.id.for_grant(state.grants)))
    }

    /// Returns the limit that its permits are counted by.
    pub(crate) fn compiled(&self) -> &CompiledLimit {
        self.receipt.compiled()
    }

    /// Returns how the limit stood after the grant that took them.
    pub(crate) fn standing(&self) -> &Standing {
        &self.receipt.standing
    }

    /// Ends the lease: no more permits are handed out, and those that no grant has are given back.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.state);
        state.open = false;
        self.correct(state);
    }

    /// Returns whether another lease should replace this one: it has ended, or less than half of it
    /// is left.
    pub(crate) fn is_low(&self) -> bool {
        lock(&self.state).unused < self.taken() / 2
    }

    /// Returns how many permits grants hold or have used.
    pub(crate) fn used(&self) -> u32 {
        let state = lock(&self.state);
        state.entry - state.unused
    }

    /// Returns all permits that were taken.
    pub(crate) fn taken(&self) -> u32 {
        self.receipt.permits
    }

    /// Takes the unused permits out of the entry.
    ///
    /// Corrections are sent in order, without the lock: `settle` may call an observer, and that may
    /// use this lease again. So one caller at a time sends, and also sends what is added meanwhile.
    fn correct<'a>(&'a self, mut state: MutexGuard<'a, State>) {
        if state.unused > 0 {
            let permits = state.entry;
            state.entry -= mem::take(&mut state.unused);
            let entry = Charge {
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
