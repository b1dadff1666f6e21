//! The queue of what is to be given back: nobody waits for it.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use redis::RedisResult;
use tokio::sync::{
    mpsc::{Receiver, Sender, channel},
    watch,
};

use super::{
    connection::Connection,
    saga::is_one_slot,
    script::{Arguments, GIVE_BACK, is_unknown_script},
};
use crate::{clock::moment, decision::Receipt, name::Name, store::guard::line::Lines};

/// How many receipts wait at most. What finds no place is lost: it costs its permits for one interval.
const PLACES: usize = 1024;
/// How many go in one write.
const BATCH: usize = 64;
/// When a receipt is sent again that did not arrive, or whose call may still be under way elsewhere.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How long a receipt is kept that cannot be sent.
const KEPT_FOR: Duration = Duration::from_secs(60);

/// Gives back in the background: one task drains the queue while a runtime lasts.
#[derive(Debug)]
pub(crate) struct Returns {
    connection: Arc<Connection>,
    /// Where somebody may wait for what was given back.
    lines: Lines,
    queue: Mutex<Option<Sender<Return>>>,
    /// How many receipts are in the queue, or were taken out of it and not settled.
    on_their_way: Arc<watch::Sender<usize>>,
    lost: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Return {
    name: Name,
    /// Whether it was taken for a list of several slots that another of them refused.
    undone: bool,
    arguments: Arguments,
    /// When the call's receipt was made.
    made: Instant,
    /// When it is sent again, if it was sent before.
    due: Instant,
    /// Whether this is the time after which it need not be sent again.
    last: bool,
    _counted: Counted,
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
    pub(crate) fn new(connection: Arc<Connection>, lines: Lines) -> Self {
        Self {
            connection,
            lines,
            queue: Mutex::new(None),
            on_their_way: Arc::default(),
            lost: Arc::default(),
        }
    }

    /// Queues a receipt. `arguments` are those of the script.
    ///
    /// On the connection that carried the call, Redis executes both in the order in which they were sent. If the call
    /// may have gone down another one, it can arrive after the receipt: so that goes at once and once more later.
    /// Removing twice is harmless.
    ///
    /// `undone` is what was taken for a list of several slots that another of them refused. Other such lists are not asked
    /// for again because of it: they would take and give back without end, and make each other do so.
    pub(crate) fn push(&self, receipt: &Receipt, arguments: Arguments, undone: bool) {
        let item = Return {
            name: receipt.name.clone(),
            undone,
            arguments,
            made: receipt.made,
            due: receipt.made,
            last: false,
            _counted: Counted::new(&self.on_their_way),
        };
        let queued = self
            .sender()
            .is_some_and(|queue| queue.try_send(item).is_ok());
        if !queued {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many receipts found no place, no runtime, or no Redis for too long.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Waits until nothing is on its way any more: given back, or kept for as long as receipts are kept.
    ///
    /// # Cancel safety
    ///
    /// Dropping it has no effect: the queue is drained all the same.
    pub(crate) async fn flush(&self) {
        let mut on_their_way = self.on_their_way.subscribe();
        // An error would say that the count is gone, and it is ours.
        let _ = on_their_way.wait_for(|count| *count == 0).await;
    }

    /// The queue's entrance; a new queue where there is none, or where its runtime was shut down.
    fn sender(&self) -> Option<Sender<Return>> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = queue.as_ref().filter(|open| !open.is_closed()) {
            return Some(open.clone());
        }
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        let (sender, receiver) = channel(PLACES);
        let task = drain(
            receiver,
            Arc::clone(&self.connection),
            self.lines.clone(),
            Arc::clone(&self.lost),
        );
        drop(runtime.spawn(task));
        *queue = Some(sender.clone());
        Some(sender)
    }
}

/// Ends when the store is dropped, and what is due again has been sent.
async fn drain(
    mut queue: Receiver<Return>,
    connection: Arc<Connection>,
    lines: Lines,
    lost: Arc<AtomicU64>,
) {
    // In the order in which they are due: each is put off for the same time.
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
        let now = moment();
        while batch.len() < BATCH && later.front().is_some_and(|item| item.due <= now) {
            batch.extend(later.pop_front());
        }
        let arrived = send(&batch, &connection).await;
        let now = moment();
        for (mut item, arrived) in batch.drain(..).zip(arrived) {
            if arrived {
                lines.nudge_some(&item.name, |key| {
                    !item.undone || is_one_slot(key.iter().map(|(name, _)| name))
                });
            }
            if arrived && (item.last || connection.carried(item.made)) {
                continue;
            }
            // While it did not arrive the call may have gone down an older connection than it will: so it is sent until
            // it arrives, and once more.
            item.last = arrived;
            item.due = now + AGAIN_AFTER;
            if later.len() < PLACES && (arrived || now.duration_since(item.made) < KEPT_FOR) {
                later.push_back(item);
            } else if !arrived {
                lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Sends receipts; which of them Redis has carried out.
async fn send(batch: &[Return], connection: &Connection) -> Vec<bool> {
    let (mut resent, mut whole) = (false, false);
    while !batch.is_empty() {
        let mut pipeline = redis::Pipeline::with_capacity(batch.len());
        for (index, item) in batch.iter().enumerate() {
            // One whole text loads the script for those behind it, if they go to the same node.
            let whole = whole && (index == 0 || connection.has_nodes());
            pipeline.add_command(GIVE_BACK.command(&item.arguments, whole));
        }
        match connection.send_all(&pipeline, batch.len()).await {
            Ok(replies) => {
                let unknown = |reply: &RedisResult<_>| reply.as_ref().is_err_and(is_unknown_script);
                if whole || !replies.iter().any(unknown) {
                    return replies.iter().map(Result::is_ok).collect();
                }
                whole = true;
            }
            // Lost on the way: once more over a new connection.
            Err(error) if !resent && !error.is_timeout() => resent = true,
            Err(_) => break,
        }
    }
    vec![false; batch.len()]
}
