//! The settle queue: receipts to give back or to charge, sent in the background.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use redis::RetryMethod;
use tokio::sync::{
    mpsc::{Receiver, Sender, channel},
    watch,
};

use super::{
    transport::connection::Connection,
    wire::script::{Call, is_unknown_script},
};
use crate::{clock::moment, name::Name, receipt::Receipt, store::Listeners};

/// The maximum number of queued receipts. Beyond it they are lost: see [`Lost`].
pub(crate) const PLACES: usize = 1024;
/// The maximum number in one write.
const BATCH: usize = 64;
/// The delay before a receipt is sent again that did not arrive, or whose call may still be under
/// way.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// The time for which an unsent receipt is kept.
const KEPT_FOR: Duration = Duration::from_secs(60);

/// Settles in the background. One task drains the queue while a runtime lasts.
#[derive(Debug)]
pub(crate) struct Returns {
    connection: Arc<Connection>,
    listeners: Listeners,
    queue: Mutex<Option<Sender<Return>>>,
    /// The number of receipts that are queued, or taken from the queue and not yet settled.
    on_their_way: Arc<watch::Sender<usize>>,
    lost: Arc<Lost>,
}

/// Counts receipts that found no place, no runtime, or no Redis for too long.
#[derive(Debug, Default)]
pub(crate) struct Lost {
    receipts: AtomicU64,
    charges: AtomicU64,
}

impl Lost {
    /// Returns how many releases were lost. Each costs its permits for one interval.
    pub(crate) fn receipts(&self) -> u64 {
        self.receipts.load(Ordering::Relaxed)
    }

    /// Returns how many charges were lost. Each lets its permits be used twice.
    pub(crate) fn charges(&self) -> u64 {
        self.charges.load(Ordering::Relaxed)
    }

    fn note(&self, charges: bool) {
        let count = if charges {
            &self.charges
        } else {
            &self.receipts
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Return {
    name: Name,
    /// Taken for a list of several calls that a later call refused.
    undone: bool,
    call: Call,
    /// The latest instant at which the call began; that of queueing, if the call was answered.
    made: Instant,
    /// The instant of queueing.
    queued: Instant,
    /// The last instant at which a charge may be sent again. Later its entry may have existed and
    /// expired.
    charges_until: Option<Instant>,
    /// The instant at which it is sent again, if it was sent before.
    due: Instant,
    /// Set if the next sending is the last one.
    last: bool,
    /// Set if this process has sent it.
    tried: bool,
    _counted: Counted,
}

impl Return {
    /// Returns whether it must no longer be sent.
    fn is_late(&self, now: Instant) -> bool {
        self.charges_until.is_some_and(|until| until <= now)
    }
}

/// Counts a receipt as on its way until it is dropped, wherever that is.
#[derive(Debug)]
struct Counted(Arc<watch::Sender<usize>>);

impl Counted {
    fn new(count: &Arc<watch::Sender<usize>>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl Returns {
    pub(crate) fn new(connection: Arc<Connection>, listeners: Listeners) -> Self {
        Self {
            connection,
            listeners,
            queue: Mutex::new(None),
            on_their_way: Arc::default(),
            lost: Arc::default(),
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
    /// such lists are not woken by it: they would take and give back without end, and make each
    /// other do so.
    pub(crate) fn push(&self, receipt: &Receipt, keep: u32, call: Call, undone: bool) {
        let queued = moment();
        let charges = keep > receipt.permits;
        // A tenth less than the lifetime of its entry, because the way to the server takes time
        // too.
        let charges_until = charges.then(|| queued + (receipt.interval / 10 * 9).min(KEPT_FOR));
        let item = Return {
            name: receipt.name().clone(),
            undone,
            call,
            made: receipt.made.unwrap_or(queued),
            due: queued,
            queued,
            charges_until,
            last: false,
            tried: false,
            _counted: Counted::new(&self.on_their_way),
        };
        let queued = self
            .sender()
            .is_some_and(|queue| queue.try_send(item).is_ok());
        if !queued {
            self.lost.note(charges);
        }
    }

    pub(crate) fn lost(&self) -> &Lost {
        &self.lost
    }

    /// Waits until no receipt is on its way: each was settled, or kept for its full time.
    ///
    /// # Cancel safety
    ///
    /// Dropping it has no effect: the queue is drained all the same.
    pub(crate) async fn flush(&self) {
        let mut on_their_way = self.on_their_way.subscribe();
        // Cannot fail: `self` holds the sender.
        let _ = on_their_way.wait_for(|count| *count == 0).await;
    }

    /// Returns the sender of the queue, of a new one if there is none or its runtime was shut down.
    fn sender(&self) -> Option<Sender<Return>> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = queue.as_ref().filter(|open| !open.is_closed()) {
            return Some(open.clone());
        }
        let runtime = crate::clock::runtime()?;
        let (sender, receiver) = channel(PLACES);
        let task = drain(
            receiver,
            Arc::clone(&self.connection),
            self.listeners.clone(),
            Arc::clone(&self.lost),
        );
        drop(runtime.spawn(task));
        *queue = Some(sender.clone());
        Some(sender)
    }
}

/// Ends when the store is dropped and all receipts that are due again have been sent.
async fn drain(
    mut queue: Receiver<Return>,
    connection: Arc<Connection>,
    listeners: Listeners,
    lost: Arc<Lost>,
) {
    // In the order of their due times, because all have the same delay.
    let mut later: VecDeque<Return> = VecDeque::new();
    let mut batch = Vec::with_capacity(BATCH);
    let mut open = true;
    while open || !later.is_empty() {
        match later.front().map(|item| item.due) {
            None => open = queue.recv_many(&mut batch, BATCH).await > 0,
            Some(due) if open => {
                let waiting = queue.recv_many(&mut batch, BATCH);
                if let Ok(received) = tokio::time::timeout_at(due.into(), waiting).await {
                    open = received > 0;
                }
            }
            Some(due) => tokio::time::sleep_until(due.into()).await,
        }
        let once: Vec<_> = batch.extract_if(.., |item| item.call.once).collect();
        for (item, arrived) in once.iter().zip(send_once(&once, &connection).await) {
            if arrived {
                listeners.room(&item.name, item.undone);
            } else {
                // It may have been carried out all the same.
                listeners.changed(&item.name);
                lost.note(item.charges_until.is_some());
            }
        }
        drop(once);
        let now = moment();
        while batch.len() < BATCH && later.front().is_some_and(|item| item.due <= now) {
            batch.extend(later.pop_front());
        }
        batch.retain(|item| {
            let late = item.tried && item.is_late(now);
            if late {
                lost.note(true);
            }
            !late
        });
        let arrived = send(&batch, &connection).await;
        let now = moment();
        for (mut item, arrived) in batch.drain(..).zip(arrived) {
            let charges = item.charges_until.is_some();
            if arrived {
                listeners.room(&item.name, item.undone);
            }
            if arrived && (charges || item.last || connection.carried(item.made)) {
                continue;
            }
            // If it did not arrive, the call may have used an older connection. So it is sent until
            // it arrives, and once more.
            item.last = arrived;
            item.tried = true;
            item.due = now + AGAIN_AFTER;
            let kept = now.duration_since(item.queued) < KEPT_FOR && !item.is_late(item.due);
            if later.len() < PLACES && (arrived || kept) {
                later.push_back(item);
            } else if !arrived {
                lost.note(charges);
            }
        }
    }
}

/// Sends receipts. Returns for each whether Redis has carried it out.
async fn send(batch: &[Return], connection: &Connection) -> Vec<bool> {
    let mut arrived = vec![false; batch.len()];
    let mut left: Vec<_> = batch.iter().zip(&mut arrived).collect();
    let mut resent = false;
    while !left.is_empty() {
        let mut pipeline = redis::Pipeline::with_capacity(left.len());
        for (item, _) in &left {
            pipeline.add_command(item.call.command.clone());
        }
        match connection.send_all(&pipeline, left.len()).await {
            Ok(replies) => {
                for ((item, arrived), reply) in left.drain(..).zip(replies) {
                    *arrived = match reply {
                        // A call loads the script for the receipts after it.
                        Err(error) if is_unknown_script(&error) => {
                            item.call.send(connection).await.is_ok()
                        }
                        _ => true,
                    };
                }
            }
            // Lost on the way: sent once more over a new connection.
            Err(error) if !resent && !error.is_timeout() => {
                resent = true;
                let now = moment();
                left.retain(|(item, _)| !item.is_late(now));
            }
            Err(_) => break,
        }
    }
    arrived
}

/// Sends receipts that must not be sent twice. Returns for each whether Redis is known to have
/// carried it out.
async fn send_once(batch: &[Return], connection: &Connection) -> Vec<bool> {
    if batch.is_empty() {
        return Vec::new();
    }
    let mut pipeline = redis::Pipeline::with_capacity(batch.len());
    for item in batch {
        pipeline.add_command(item.call.command.clone());
    }
    let Ok(replies) = connection.send_all_once(&pipeline, batch.len()).await else {
        return vec![false; batch.len()];
    };
    let mut arrived = Vec::with_capacity(batch.len());
    for (item, reply) in batch.iter().zip(replies) {
        arrived.push(match reply {
            Ok(_) => true,
            // It certainly did not run: the script is unknown there, or the hash slot is another
            // node's.
            Err(error)
                if is_unknown_script(&error)
                    || matches!(error.retry_method(), RetryMethod::MovedRedirect) =>
            {
                item.call.send(connection).await.is_ok()
            }
            Err(_) => false,
        });
    }
    arrived
}
