//! Where a grant's permits are, so that they can be given back: [`Taken`], [`TakenFrom`].

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use super::Charge;

/// The theoretical arrival time after one grant: when all permits taken until then are free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tat {
    /// In us since the epoch
    pub(crate) at: i64,
    /// The sum of all moves back so far, in us: a receipt finds by it what was given back since
    pub(crate) given: i64,
}

/// Permits that were fetched ahead, from which others are granted.
pub(crate) trait TakenAhead: Send + Sync {
    /// Takes back `permits` of one grant, and settles with the store what they change there.
    fn give_back(&self, permits: u32);
}

/// The lease that a grant is settled with.
#[derive(Clone)]
pub(crate) struct OfLease(Arc<dyn TakenAhead>, Settled);

impl OfLease {
    pub(crate) fn new(taken_ahead: Arc<dyn TakenAhead>) -> Self {
        Self(taken_ahead, Settled::default())
    }

    /// Gives `permits` back, for the first of all copies of a charge that does.
    pub(crate) fn give_back(&self, permits: u32) {
        if permits > 0 && self.1.claim() {
            self.0.give_back(permits);
        }
    }
}

/// The origin of permits, by the names of [`Source`](crate::Source).
#[derive(Clone)]
pub(crate) enum TakenFrom {
    Store,
    /// A lease of this process. The grant has no entry of its own
    Lease(OfLease),
    /// A share of the limit in this process, while the store failed. The store knows nothing of
    /// them
    Local,
    /// The same, and perhaps also the store, by a call that was given up: the charge that it sent
    LocalAndStore(Arc<Charge>),
}

/// Records whether a grant without an entry was settled. The copies of a charge share it. It is
/// allocated with the first copy, because most grants are never settled.
#[derive(Default)]
pub(crate) struct Settled(OnceLock<Arc<AtomicBool>>);

impl Settled {
    pub(super) fn claim(&self) -> bool {
        !self.shared().swap(true, Ordering::Relaxed)
    }

    fn shared(&self) -> &Arc<AtomicBool> {
        self.0.get_or_init(Arc::default)
    }
}

impl Clone for Settled {
    fn clone(&self) -> Self {
        Self(Arc::clone(self.shared()).into())
    }
}

/// The mark by which an algorithm finds a grant that has no entry of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// The window's last tick, by the store's clock
    Window(i64),
    /// The theoretical arrival time
    Tat(Tat),
    /// The end of the slot, in ticks since the epoch
    Slot(i64),
    /// The calendar's window, and its end in ms
    Date { label: i64, end: i64 },
    /// An estimate: what it took cannot be distinguished from what others took, and is not given
    /// back
    Estimate,
}
