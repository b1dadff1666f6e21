//! The settle queue: receipts to release or to charge, sent in the background.

use std::{
    collections::HashMap,
    mem,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{
    runtime::{Handle, Id},
    sync::watch,
};

use super::{
    classify::{self, Class},
    packed::verbs::{self, GrantToSettle},
    script::ScriptCall,
    transport::connection::{Connection, Failed},
};
use crate::{
    store::Listeners,
    sync::lock,
    values::{
        charge::Charge,
        clock::{self, moment},
        error::ErrorKind,
        name::Name,
        observe::{Observers, StateChange},
    },
};

/// The maximum number of receipts in a command.
const TOGETHER: usize = 64;
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

/// Settles in the background.
///
/// Receipts in our own format that come while a command of their company is under way go together
/// in the next, which follows the reply, or as soon as it is full. All others go at once, each
/// alone, and so does one that is sent again: its time and its neighbours may no longer fit.
pub(super) struct SettleQueue {
    settler: Arc<Settler>,
    pub(super) counts: Arc<SettleCounts>,
    /// The runtime of the last receipt, for those that are dropped outside of any.
    runtime: Mutex<Option<Handle>>,
}

struct Settler {
    connection: Arc<Connection>,
    listeners: Listeners,
    /// Set once the server has refused keys of several hash slots in one command.
    no_cross_slot: Arc<AtomicBool>,
    gathered: Mutex<HashMap<Company, Gathered>>,
}

/// Who shares commands: receipts of one runtime, so that none waits for another's; and either those
/// that are sent once, or those that may be sent again.
type Company = (Id, bool);

/// The receipts of a company that wait for a command that they share.
#[derive(Default)]
struct Gathered {
    waiting: Vec<Settlement>,
    /// How many tasks send such commands.
    senders: usize,
}

/// What settles a receipt.
pub(super) enum SettleCall {
    /// In Redisson's format
    Redisson(ScriptCall),
    /// In our own format; it `joins` others if they have one server and one clock.
    Own { grant: GrantToSettle, joins: bool },
}

#[derive(Default)]
pub(super) struct SettleCounts {
    /// The receipts that are not settled yet: those of permits, and those of places in flight,
    /// which crowd none of the others out.
    on_their_way: watch::Sender<[usize; 2]>,
    /// The receipts that were dropped: the queue was full, there was no runtime, or no Redis for
    /// too long.
    pub(super) lost_receipts: AtomicU64,
    pub(super) lost_charges: AtomicU64,
    observers: Observers,
}

/// A receipt on its way until this is dropped, and then lost if it has not arrived.
struct Settlement {
    name: Name,
    /// Set if a place in flight comes back.
    in_flight: bool,
    /// Taken for a list of several calls that a later call refused.
    undone: bool,
    call: SettleCall,
    /// Set if it may be sent more than once.
    repeatable: bool,
    /// The latest instant at which the call began; that of queueing, if the call was answered.
    made: Instant,
    queued: Instant,
    /// The last instant at which a charge may be sent again. Later its entry may have existed and
    /// expired.
    charges_until: Option<Instant>,
    /// The delay before it is sent again.
    pause: Duration,
    /// The runtime on which it is sent: with that it ends.
    runtime: Handle,
    counts: Arc<SettleCounts>,
    arrived: bool,
    /// Set if the attempt before has arrived.
    last: bool,
}

impl Drop for Settlement {
    fn drop(&mut self) {
        let releases = self.charges_until.is_none();
        self.counts.end(self.in_flight, releases, self.arrived);
    }
}

impl SettleQueue {
    /// Sets `no_cross_slot` if the server refuses keys of several hash slots in one command.
    pub(super) fn new(
        connection: Arc<Connection>,
        listeners: Listeners,
        observers: Observers,
        no_cross_slot: Arc<AtomicBool>,
    ) -> Self {
        Self {
            settler: Arc::new(Settler {
                connection,
                listeners,
                no_cross_slot,
                gathered: Mutex::default(),
            }),
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
    pub(super) fn push(&self, receipt: &Charge, keep: u32, mut call: SettleCall, undone: bool) {
        let queued = moment();
        let charges = keep > receipt.permits;
        let in_flight = receipt.compiled().is_in_flight();
        let has_room = self.counts.begin(in_flight);
        let Some(runtime) = self.runtime().filter(|_| has_room) else {
            return self.counts.end(in_flight, !charges, false);
        };
        let repeatable = match &mut call {
            SettleCall::Redisson(call) => {
                let repeatable = !call.once;
                // Before a charge is sent again, check how late it is.
                call.once |= charges;
                repeatable
            }
            SettleCall::Own { grant, .. } => grant.is_repeatable(),
        };
        self.settler.start(Settlement {
            name: receipt.name().clone(),
            in_flight,
            undone,
            call,
            repeatable,
            made: receipt.made.unwrap_or(queued),
            queued,
            // A tenth less than the lifetime of its entry, because the way to the server takes time
            // too.
            charges_until: charges.then(|| queued + (receipt.interval() / 10 * 9).min(KEPT_FOR)),
            // The first attempt of a charge is a single one.
            pause: if charges { Duration::ZERO } else { AGAIN_AFTER },
            runtime,
            counts: Arc::clone(&self.counts),
            arrived: false,
            last: false,
        });
    }

    /// Waits until no receipt is on its way: each was settled, or kept for its full time.
    ///
    /// # Cancel safety
    ///
    /// Dropping it has no effect: the receipts are sent all the same.
    pub(super) async fn flush(&self) {
        let mut on_their_way = self.counts.on_their_way.subscribe();
        // Cannot fail: `self` holds the sender.
        let _ = on_their_way.wait_for(|counts| *counts == [0, 0]).await;
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

impl SettleCounts {
    /// Counts one more on its way. Returns whether it has room.
    fn begin(&self, in_flight: bool) -> bool {
        let mut before = 0;
        self.on_their_way.send_modify(|counts| {
            let count = &mut counts[usize::from(in_flight)];
            (before, *count) = (*count, *count + 1);
        });
        before < most(in_flight)
    }

    /// Counts one that releases or charges and is no longer on its way. It is lost if it has not
    /// arrived.
    fn end(&self, in_flight: bool, releases: bool, arrived: bool) {
        if !arrived {
            let lost = if releases {
                &self.lost_receipts
            } else {
                &self.lost_charges
            };
            lost.fetch_add(1, Ordering::Relaxed);
            self.observers
                .changed(&StateChange::Lost { receipt: releases });
        }
        self.on_their_way
            .send_modify(|counts| counts[usize::from(in_flight)] -= 1);
    }
}

/// Returns how many may be on their way.
fn most(in_flight: bool) -> usize {
    if in_flight { PLACES_IN_FLIGHT } else { PLACES }
}

impl Settler {
    /// Sends a receipt: at once, or with those that wait for the next command.
    fn start(self: &Arc<Self>, settlement: Settlement) {
        let runtime = settlement.runtime.clone();
        let mut batch = vec![settlement];
        if !batch[0].joins() {
            let settler = Arc::clone(self);
            drop(runtime.spawn(async move { settler.send(batch).await }));
            return;
        }
        let company = (runtime.id(), batch[0].is_once());
        {
            let mut companies = lock(&self.gathered);
            let gathered = companies.entry(company).or_default();
            gathered.waiting.append(&mut batch);
            if gathered.senders > 0 && gathered.waiting.len() < TOGETHER {
                return;
            }
            gathered.senders += 1;
            batch = mem::take(&mut gathered.waiting);
        }
        let settler = Arc::clone(self);
        let sender = Sender { settler, company };
        drop(runtime.spawn(sender.run(batch)));
    }

    /// Sends receipts in one command, and each of them again when that is due.
    ///
    /// # Cancel safety
    ///
    /// Dropping it counts them as lost.
    async fn send(self: &Arc<Self>, batch: Vec<Settlement>) {
        let own = together(&batch);
        let redisson = batch.first().and_then(|it| match &it.call {
            SettleCall::Redisson(call) => Some(call),
            SettleCall::Own { .. } => None,
        });
        let Some(call) = own.as_ref().or(redisson) else {
            return;
        };
        let failed = call.send(&self.connection).await.err();
        if let Some(own) = own {
            own.recycle();
        }
        let in_company = batch.len() > 1;
        let kind = failed.as_ref().map(|it| classify::meaning(&it.error).kind);
        if in_company && kind == Some(ErrorKind::OtherSlot) {
            self.no_cross_slot.store(true, Ordering::Relaxed);
        }
        for mut settlement in batch {
            let Some(due) = settlement.ended(self, failed.as_ref(), in_company) else {
                continue;
            };
            let (settler, runtime) = (Arc::clone(self), settlement.runtime.clone());
            drop(runtime.spawn(async move {
                tokio::time::sleep_until(due.into()).await;
                if !settlement.is_late(moment()) {
                    settler.start(settlement);
                }
            }));
        }
    }
}

/// Returns the command of receipts in our own format; `None` of one in Redisson's.
fn together(batch: &[Settlement]) -> Option<ScriptCall> {
    let grants = batch.iter().filter_map(|it| match &it.call {
        SettleCall::Own { grant, .. } => Some((&it.name, grant)),
        SettleCall::Redisson(_) => None,
    });
    let mut grants = grants.peekable();
    grants.peek()?;
    Some(ScriptCall {
        once: batch.iter().any(Settlement::is_once),
        ..verbs::settle(grants)
    })
}

/// A task that sends the receipts of a company as long as some wait.
struct Sender {
    settler: Arc<Settler>,
    company: Company,
}

impl Sender {
    /// # Cancel safety
    ///
    /// Dropping it counts the receipts of the command that is under way as lost. It is dropped
    /// with its runtime, as are those that wait.
    async fn run(self, mut batch: Vec<Settlement>) {
        while !batch.is_empty() {
            self.settler.send(batch).await;
            batch = self.waiting(&mut lock(&self.settler.gathered));
        }
    }

    /// Takes the receipts that wait.
    fn waiting(&self, companies: &mut HashMap<Company, Gathered>) -> Vec<Settlement> {
        let gathered = companies.get_mut(&self.company);
        gathered.map_or_else(Vec::new, |it| mem::take(&mut it.waiting))
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let waiting = {
            let mut companies = lock(&self.settler.gathered);
            let waiting = self.waiting(&mut companies);
            if let Some(gathered) = companies.get_mut(&self.company) {
                gathered.senders -= 1;
                if gathered.senders == 0 {
                    companies.remove(&self.company);
                }
            }
            waiting
        };
        // They came after the last look; or the runtime has ended, and they end with it.
        waiting.into_iter().for_each(|it| self.settler.start(it));
    }
}

impl Settlement {
    /// Returns whether it goes in a command with others.
    fn joins(&self) -> bool {
        matches!(self.call, SettleCall::Own { joins: true, .. })
    }

    /// Returns whether a command with it is sent once: it may not be sent twice, or only after a
    /// look at how late a charge is.
    fn is_once(&self) -> bool {
        !self.repeatable || self.charges_until.is_some()
    }

    /// Ends an attempt, which may have failed. Returns when it is sent again: until it has arrived
    /// and, if its call may still be under way, once more; `None` if it is not.
    fn ended(
        &mut self,
        settler: &Settler,
        failed: Option<&Failed>,
        in_company: bool,
    ) -> Option<Instant> {
        let failure = failed.map(|failed| Class::of(&failed.error));
        let may_pass = failure.is_none_or(Class::may_pass);
        let may_have_run = failed.is_some_and(|failed| failed.unacknowledged);
        if let SettleCall::Own { joins, .. } = &mut self.call {
            *joins = false;
        }
        // One forbidden key, or keys of different hash slots, makes the server refuse all, and
        // run nothing.
        let is_refused = failure == Some(Class::Refused) && !may_have_run;
        if in_company && !may_pass && (self.repeatable || is_refused) {
            return Some(moment());
        }
        // Else it is refused for good, or may have been carried out, which it must be once.
        let goes_on = self.repeatable && may_pass;
        let arrived = failure.is_none();
        if arrived {
            self.arrived = true;
            settler.listeners.room(&self.name, self.undone);
            if self.last || !self.is_sent_again(&settler.connection) {
                return None;
            }
        } else if !goes_on {
            settler.listeners.changed(&self.name);
            return None;
        }
        // If it did not arrive, the call may have used an older connection.
        self.last = arrived;
        let due = moment() + self.pause;
        if !arrived && (due - self.queued >= KEPT_FOR || self.is_late(due)) {
            return None;
        }
        self.pause = match failure {
            // All of them are not to ask a busy server each second.
            Some(class) if !class.ends_connection() => {
                (self.pause * 2).clamp(AGAIN_AFTER, LONGEST_PAUSE)
            }
            _ => AGAIN_AFTER,
        };
        Some(due)
    }

    /// Returns whether one that has arrived is sent once more, because its call may follow it. That
    /// leaves half of the room to those that have not arrived.
    fn is_sent_again(&self, connection: &Connection) -> bool {
        self.repeatable
            && self.charges_until.is_none()
            && !connection.carried(self.made)
            && self.counts.on_their_way.borrow()[usize::from(self.in_flight)]
                <= most(self.in_flight) / 2
    }

    /// Returns whether it must no longer be sent.
    fn is_late(&self, now: Instant) -> bool {
        self.charges_until.is_some_and(|until| until <= now)
    }
}
