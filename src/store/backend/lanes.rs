//! What lets the calls of one process not come between each other: [`Lanes`], and [`Corrections`]
//! that are made together.

use std::{
    mem,
    sync::{Arc, Mutex},
};

use tokio::sync::{Mutex as Lane, OwnedMutexGuard};

use crate::{
    macros::detail,
    sync::lock,
    values::{List, charge::Charge, name::Name, observe::StateChange},
};

/// Of names that share one, one call waits for the other.
const LANES: usize = 1024;
/// The most corrections of one call, and those that wait for theirs. Beyond that they are lost.
const MOST_TOGETHER: usize = 64;
const MOST_WAITING: usize = 10_000;

/// A place for one call at a time, by name.
#[derive(Debug)]
pub(super) struct Lanes(Box<[Arc<Lane<()>>]>);

impl Default for Lanes {
    fn default() -> Self {
        Self((0..LANES).map(|_| Arc::default()).collect())
    }
}

impl Lanes {
    /// Waits for the lanes of these names, always in one order, so that no two wait for each other.
    /// They are left when this is dropped.
    ///
    /// # Cancel safety
    ///
    /// Dropping it leaves the lanes.
    pub(super) async fn enter(&self, names: &[Name]) -> List<OwnedMutexGuard<()>> {
        let lane_of = |name: &Name| name.text().seeded_hash() as usize % LANES;
        let mut lanes: List<_> = names.iter().map(lane_of).collect();
        lanes.sort_unstable();
        lanes.dedup();
        let mut entered = List::new();
        for lane in lanes {
            entered.push(Arc::clone(&self.0[lane]).lock_owned().await);
        }
        entered
    }
}

/// Receipts that wait to be settled, each at so many permits.
#[derive(Default)]
pub(super) struct Corrections(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    receipts: Vec<(Charge, u32)>,
    /// Set while a task settles.
    is_settling: bool,
}

impl Corrections {
    /// Adds a receipt. Returns whether a task is to be started for it and others.
    pub(super) fn push(&self, receipt: Charge, keep: u32) -> bool {
        let mut waiting = lock(&self.0);
        if waiting.receipts.len() == MOST_WAITING {
            drop(waiting);
            Self::lost(&[(receipt, keep)]);
            return false;
        }
        waiting.receipts.push((receipt, keep));
        !mem::replace(&mut waiting.is_settling, true)
    }

    /// Takes the next receipts; `None`, and the task has ended, if there are none.
    pub(super) fn take(&self) -> Option<Vec<(Charge, u32)>> {
        let mut waiting = lock(&self.0);
        if waiting.receipts.is_empty() {
            waiting.is_settling = false;
            return None;
        }
        let together = waiting.receipts.len().min(MOST_TOGETHER);
        Some(waiting.receipts.drain(..together).collect())
    }

    /// Notes that no task settles any more: its runtime is gone, or there is none. What waits goes
    /// with the next receipt.
    pub(super) fn end(&self) {
        lock(&self.0).is_settling = false;
    }

    /// Reports receipts that could not be settled.
    pub(super) fn lost(receipts: &[(Charge, u32)]) {
        detail!(receipts = receipts.len(), "corrections of charges are lost");
        for (charge, keep) in receipts {
            let receipt = *keep <= charge.permits;
            let observers = &charge.of().observers;
            observers.changed(&StateChange::Lost { receipt });
        }
    }
}
