//! The settle queue: receipts to release or to charge, sent in the background.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{runtime::Handle, sync::watch};

use super::{classify::Class, script::ScriptCall, transport::connection::Connection};
use crate::{
    store::Listeners,
    sync::lock,
    values::{
        charge::Charge,
        clock::{self, moment},
        name::Name,
        observe::{Observers, StateChange},
    },
};

/// The maximum number of receipts on their way. Those beyond it are lost.
pub(super) const PLACES: usize = 1024;
/// The same where places in flight come back: all requests of a process may end at once.
const PLACES_IN_FLIGHT: usize = 1 << 16;
/// The delay before a receipt is sent again that did not arrive, or whose call may still be under
/// way; the first one where the server refused it.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// The longest delay where the server refuses it again and again.
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// The time for which an unsent receipt is kept.
const KEPT_FOR: Duration = Duration::from_secs(60);

/// Settles in the background, each receipt in a task of its own: all of them share the connection,
/// which writes what is waiting at once.
pub(super) struct SettleQueue {
    connection: Arc<Connection>,
    listeners: Listeners,
    pub(super) counts: Arc<SettleCounts>,
    /// The runtime of the last receipt, for those that are dropped outside of any.
    runtime: Mutex<Option<Handle>>,
}

#[derive(Default)]
pub(super) struct SettleCounts {
    /// The receipts that are not settled yet.
    on_their_way: watch::Sender<usize>,
    /// The receipts that were dropped: the queue was full, there was no runtime, or no Redis for
    /// too long.
    pub(super) lost_receipts: AtomicU64,
    pub(super) lost_charges: AtomicU64,
    observers: Observers,
}

/// A receipt on its way until this is dropped, and then lost if it has not arrived.
struct Settlement {
    name: Name,
    /// Taken for a list of several calls that a later call refused.
    undone: bool,
    call: ScriptCall,
    /// Set if it may be sent more than once.
    repeatable: bool,
    /// The latest instant at which the call began; that of queueing, if the call was answered.
    made: Instant,
    queued: Instant,
    /// The last instant at which a charge may be sent again. Later its entry may have existed and
    /// expired.
    charges_until: Option<Instant>,
    counts: Arc<SettleCounts>,
    arrived: bool,
}

impl Drop for Settlement {
    fn drop(&mut self) {
        if !self.arrived {
            let receipt = self.charges_until.is_none();
            let lost = if receipt {
                &self.counts.lost_receipts
            } else {
                &self.counts.lost_charges
            };
            lost.fetch_add(1, Ordering::Relaxed);
            let observers = &self.counts.observers;
            observers.changed(&StateChange::Lost { receipt });
        }
        self.counts.on_their_way.send_modify(|count| *count -= 1);
    }
}

impl SettleQueue {
    pub(super) fn new(
        connection: Arc<Connection>,
        listeners: Listeners,
        observers: Observers,
    ) -> Self {
        Self {
            connection,
            listeners,
            counts: Arc::new(SettleCounts {
                observers,
                ..SettleCounts::default()
            }),
            runtime: Mutex::default(),
        }
    }

    /// Queues a receipt that is settled at `keep` permits by this call.
    ///
    /// On the connection that carried the call, Redis executes both in the order in which they were
    /// sent. If the call may have used another connection, it can arrive after the receipt. So the
    /// receipt is sent at once and again later; removing twice is harmless. A receipt that charges
    /// more belongs to a call that was answered. Permits taken without a log member are credited,
    /// not removed: such a receipt is sent once, and only after the call's reply has arrived.
    ///
    /// `undone` marks permits taken for a list of several calls that a later call refused. Other
    /// such lists are not woken by it: they would take and release without end, and make each other
    /// do so.
    pub(super) fn push(&self, receipt: &Charge, keep: u32, mut call: ScriptCall, undone: bool) {
        let queued = moment();
        let charges = keep > receipt.permits;
        let most = if receipt.compiled().is_in_flight() {
            PLACES_IN_FLIGHT
        } else {
            PLACES
        };
        let full = *self.counts.on_their_way.borrow() >= most;
        self.counts.on_their_way.send_modify(|count| *count += 1);
        let repeatable = !call.once;
        // Before a charge is sent again, check how late it is.
        call.once |= charges;
        let settlement = Settlement {
            name: receipt.name().clone(),
            undone,
            call,
            repeatable,
            made: receipt.made.unwrap_or(queued),
            queued,
            // A tenth less than the lifetime of its entry, because the way to the server takes time
            // too.
            charges_until: charges.then(|| queued + (receipt.interval() / 10 * 9).min(KEPT_FOR)),
            counts: Arc::clone(&self.counts),
            arrived: false,
        };
        let Some(runtime) = self.runtime().filter(|_| !full) else {
            return;
        };
        let (connection, listeners) = (Arc::clone(&self.connection), self.listeners.clone());
        drop(runtime.spawn(settlement.run(connection, listeners)));
    }

    /// Waits until no receipt is on its way: each was settled, or kept for its full time.
    ///
    /// # Cancel safety
    ///
    /// Dropping it has no effect: the receipts are sent all the same.
    pub(super) async fn flush(&self) {
        let mut on_their_way = self.counts.on_their_way.subscribe();
        // Cannot fail: `self` holds the sender.
        let _ = on_their_way.wait_for(|count| *count == 0).await;
    }

    /// Returns the runtime of the caller, or the last one that there was.
    fn runtime(&self) -> Option<Handle> {
        let last = || lock(&self.runtime);
        let Some(current) = clock::runtime() else {
            return last().clone();
        };
        // Dropped after the lock is released.
        let _replaced = last().replace(current.clone());
        Some(current)
    }
}

impl Settlement {
    /// Sends it until it has arrived and, if the call may still be under way, once more.
    ///
    /// # Cancel safety
    ///
    /// Dropping it counts the receipt as lost, unless it has arrived.
    async fn run(mut self, connection: Arc<Connection>, listeners: Listeners) {
        // The first attempt of a charge was a single one.
        let mut pause = match self.charges_until {
            Some(_) => Duration::ZERO,
            None => AGAIN_AFTER,
        };
        let mut last = false;
        loop {
            let sent = self.call.send(&connection).await;
            let failure = sent.map_err(|failed| Class::of(&failed.error)).err();
            let arrived = failure.is_none();
            // Else it is refused for good, or may have been carried out, which it must be once.
            let goes_on = self.repeatable && failure.is_none_or(Class::may_pass);
            if arrived {
                self.arrived = true;
                listeners.room(&self.name, self.undone);
                if last || !self.is_sent_again(&connection) {
                    return;
                }
            } else if !goes_on {
                return listeners.changed(&self.name);
            }
            let due = moment() + pause;
            if !arrived && (due - self.queued >= KEPT_FOR || self.is_late(due)) {
                return;
            }
            // If it did not arrive, the call may have used an older connection.
            last = arrived;
            tokio::time::sleep_until(due.into()).await;
            if self.is_late(moment()) {
                return;
            }
            pause = match failure {
                // All of them are not to ask a busy server each second.
                Some(class) if !class.ends_connection() => {
                    (pause * 2).clamp(AGAIN_AFTER, LONGEST_PAUSE)
                }
                _ => AGAIN_AFTER,
            };
        }
    }

    /// Returns whether one that has arrived is sent once more, because its call may follow it. That
    /// leaves half of the room to those that have not arrived.
    fn is_sent_again(&self, connection: &Connection) -> bool {
        self.repeatable
            && self.charges_until.is_none()
            && !connection.carried(self.made)
            && *self.counts.on_their_way.borrow() <= PLACES / 2
    }

    /// Returns whether it must no longer be sent.
    fn is_late(&self, now: Instant) -> bool {
        self.charges_until.is_some_and(|until| until <= now)
    }
}
