//! What lets the calls of one process not come between each other: [`NameLanes`], and
//! [`Corrections`] that are made together.

use std::{
    mem,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::sync::{Mutex as Lane, OwnedMutexGuard};

use crate::{
    macros::detail,
    sync::lock,
    values::{
        List,
        charge::{Charge, Taken},
        clock::within,
        name::Name,
        observe::StateChange,
    },
};

/// Of names that share one, one call waits for the other.
const LANES: usize = 1024;
/// The most corrections of one call, and those that wait for theirs. Beyond that they are lost.
const MOST_TOGETHER: usize = 64;
const MOST_WAITING: usize = 10_000;

/// Lets one call at a time through, by name.
#[derive(Debug)]
pub(super) struct NameLanes(Box<[Arc<Lane<()>>]>);

impl Default for NameLanes {
    fn default() -> Self {
        Self((0..LANES).map(|_| Arc::default()).collect())
    }
}

impl NameLanes {
    /// Waits for the lanes of these names, always in one order, so that no two wait for each other,
    /// and no longer than `longest`: those that are held by a call that hangs are passed by. They
    /// are left when what this returns is dropped.
    ///
    /// # Cancel safety
    ///
    /// Dropping it leaves the lanes.
    pub(super) async fn enter(
        &self,
        names: &[Name],
        longest: Duration,
    ) -> List<OwnedMutexGuard<()>> {
        let lane_of = |name: &Name| name.seeded_hash() as usize % LANES;
        let mut lanes: List<_> = names.iter().map(lane_of).collect();
        lanes.sort_unstable();
        lanes.dedup();
        let mut entered = List::new();
        let enter = async {
            for lane in lanes {
                entered.push(Arc::clone(&self.0[lane]).lock_owned().await);
            }
        };
        // Without them a call is as right, and may have to begin again.
        let _ = within(longest, enter).await;
        entered
    }
}

/// A receipt that is to be settled at so many permits.
pub(super) struct Correction {
    pub(super) receipt: Charge,
    pub(super) keep: u32,
    /// Of all copies of a receipt without an entry, the first has it.
    pub(super) mark: Option<Taken>,
}

impl Correction {
    pub(super) fn new(receipt: Charge, keep: u32) -> Self {
        let mark = receipt.claim_mark();
        Self {
            receipt,
            keep,
            mark,
        }
    }
}

/// The corrections that wait for their call.
#[derive(Default)]
pub(super) struct Corrections(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    all: Vec<Correction>,
    /// Set while a task makes them.
    is_running: bool,
}

impl Corrections {
    /// Adds one. Returns whether a task is to be started, if there can be one.
    pub(super) fn push(&self, correction: Correction, can_start: bool) -> bool {
        let mut waiting = lock(&self.0);
        if waiting.all.len() < MOST_WAITING {
            waiting.all.push(correction);
        } else {
            Self::lost(&[correction]);
        }
        can_start && !mem::replace(&mut waiting.is_running, true)
    }

    /// Takes the next ones; `None`, and the task has ended, if there are none.
    pub(super) fn take(&self) -> Option<Vec<Correction>> {
        let mut waiting = lock(&self.0);
        if waiting.all.is_empty() {
            waiting.is_running = false;
            return None;
        }
        let together = waiting.all.len().min(MOST_TOGETHER);
        Some(waiting.all.drain(..together).collect())
    }

    /// Notes that the task is gone with its runtime. What waits goes with the next correction.
    pub(super) fn end(&self) {
        lock(&self.0).is_running = false;
    }

    /// Reports those that could not be made.
    pub(super) fn lost(corrections: &[Correction]) {
        detail!(
            number = corrections.len(),
            "corrections of charges are lost"
        );
        for Correction { receipt, keep, .. } in corrections {
            let is_receipt = *keep <= receipt.permits;
            let observers = &receipt.compiled().observers;
            observers.changed(&StateChange::Lost {
                receipt: is_receipt,
            });
        }
    }
}
