//! What one lease holds: handed out, given back, and settled when it ends.

use std::{
    collections::HashSet,
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::receipt::{PermitId, Receipt, TakenAhead};

/// How many grants can give back before a lease is followed by another: each has to be remembered while there are receipts.
const MOST_SETTLED: usize = 1024;

/// The permits of one lease, which have one entry in the store between them.
///
/// What a grant out of it took has no entry of its own. So the account remembers who has given back, and corrects the
/// entry: once when the lease ends, and once more for each grant that is given back after that. The permits of the entry
/// only ever become fewer, so each correction is of an entry that no other one is of, and safe to send again.
pub(crate) struct Account {
    /// Of the call that took them.
    receipt: Receipt,
    state: Mutex<State>,
}

struct State {
    /// Whether what comes back may be handed out again.
    open: bool,
    /// Permits that nobody has; none once it has ended.
    unused: u32,
    /// Permits of the entry in the store.
    entry: u32,
    /// How many grants were made out of it.
    grants: u64,
    /// The grants that have given back, which they do once.
    settled: HashSet<PermitId>,
}

impl Account {
    pub(crate) fn new(receipt: Receipt) -> Self {
        let permits = receipt.permits;
        Self {
            receipt,
            state: Mutex::new(State {
                open: true,
                unused: permits,
                entry: permits,
                grants: 0,
                settled: HashSet::new(),
            }),
        }
    }

    /// Hands out `permits`, if there are as many: how many are left, and an id for the grant. Its caller need not have one.
    pub(crate) fn take(&self, permits: u32) -> Option<(u32, PermitId)> {
        let mut state = self.state();
        if state.is_full() {
            return None;
        }
        let left = state.unused.checked_sub(permits)?;
        state.unused = left;
        state.grants += 1;
        Some((left, self.receipt.id.for_grant(state.grants)))
    }

    /// Ends the lease: nothing is handed out any more, and what nobody has is given back.
    pub(crate) fn close(&self, settle: impl FnOnce(Receipt, u32)) {
        let mut state = self.state();
        state.open = false;
        self.correct(&mut state, settle);
    }

    /// Whether it is to be followed by another: it has ended, or less than half of it is left, which others can still use, or
    /// as many have given back as it can remember.
    pub(crate) fn is_worn(&self) -> bool {
        let state = self.state();
        state.unused < self.taken() / 2 || state.is_full()
    }

    /// Permits that are, or were, somebody's.
    pub(crate) fn used(&self) -> u32 {
        let state = self.state();
        state.entry - state.unused
    }

    /// All permits that were taken.
    pub(crate) fn taken(&self) -> u32 {
        self.receipt.permits
    }

    fn correct(&self, state: &mut State, settle: impl FnOnce(Receipt, u32)) {
        if state.unused == 0 {
            return;
        }
        let entry = Receipt {
            permits: state.entry,
            ..self.receipt.clone()
        };
        state.entry -= state.unused;
        state.unused = 0;
        settle(entry, state.entry);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // What is behind the lock is whole between any two statements, so a panic elsewhere does not spoil it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TakenAhead for Account {
    // Under the lock, so that corrections are sent in their order.
    fn give_back(&self, grant: PermitId, permits: u32, settle: &mut dyn FnMut(Receipt, u32)) {
        let mut state = self.state();
        if permits == 0 || !state.settled.insert(grant) {
            return;
        }
        state.unused += permits;
        if !state.open {
            self.correct(&mut state, settle);
        }
    }
}

impl State {
    /// Whether nothing is handed out any more, as it may come back.
    fn is_full(&self) -> bool {
        self.settled.len() >= MOST_SETTLED
    }
}

// Receipts hold names, and names identities.
impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Account")
            .field("taken", &self.taken())
            .finish_non_exhaustive()
    }
}
