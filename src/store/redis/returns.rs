//! The queue of what is to be given back: nobody waits for it.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::{
    connection::Connection,
    script::{Arguments, GIVE_BACK, is_unknown_script},
};
use crate::{clock::moment, decision::Receipt, name::Name, store::guard::line::Lines};

/// How many receipts wait at most. What finds no place is lost: it costs its permits for one interval.
const PLACES: usize = 1024;
/// How many go in one write.
const BATCH: usize = 64;
/// When a receipt whose call may still be under way elsewhere is sent again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Gives back in the background: one task drains the queue while a runtime lasts.
#[derive(Debug)]
pub(crate) struct Returns {
    connection: Arc<Connection>,
    /// Where somebody may wait for what was given back.
    lines: Lines,
    queue: Mutex<Option<Sender<Return>>>,
    lost: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Return {
    name: Name,
    arguments: Arguments,
    again: bool,
}

impl Returns {
    pub(crate) fn new(connection: Arc<Connection>, lines: Lines) -> Self {
        Self {
            connection,
            lines,
            queue: Mutex::new(None),
            lost: Arc::default(),
        }
    }

    /// Queues a receipt. `arguments` are those of the script.
    ///
    /// On the connection that carried the call, Redis executes both in the order in which they were sent. If the call
    /// may have gone down another one, it can arrive after the receipt: so that goes at once and once more later.
    /// Removing twice is harmless.
    pub(crate) fn push(&self, receipt: &Receipt, arguments: Arguments) {
        let again = !self.connection.carried(receipt.made);
        let name = receipt.name.clone();
        let queued = self.sender().is_some_and(|queue| {
            queue
                .try_send(Return {
                    name,
                    arguments,
                    again,
                })
                .is_ok()
        });
        if !queued {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many receipts found no place, no runtime, or no Redis.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
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

/// Ends when the store is dropped.
async fn drain(
    mut queue: Receiver<Return>,
    connection: Arc<Connection>,
    lines: Lines,
    lost: Arc<AtomicU64>,
) {
    let mut later: Vec<(std::time::Instant, Return)> = Vec::new();
    let mut batch = Vec::with_capacity(BATCH);
    loop {
        let due = later.first().map(|(due, _)| *due);
        let open = match due {
            None => queue.recv_many(&mut batch, BATCH).await > 0,
            Some(due) => {
                let waiting = queue.recv_many(&mut batch, BATCH);
                match tokio::time::timeout_at(due.into(), waiting).await {
                    Ok(received) => received > 0,
                    Err(_) => true,
                }
            }
        };
        let now = moment();
        let still_early = later
            .iter()
            .position(|(due, _)| *due > now)
            .unwrap_or(later.len());
        batch.extend(later.drain(..still_early).map(|(_, item)| item));
        if !batch.is_empty() {
            if send(&batch, &connection).await.is_err() {
                let given_up = batch.iter().filter(|item| !item.again).count();
                lost.fetch_add(given_up as u64, Ordering::Relaxed);
            }
            batch.iter().for_each(|item| lines.nudge(&item.name));
        }
        for mut item in batch.drain(..).filter(|item| item.again) {
            item.again = false;
            later.push((now + AGAIN_AFTER, item));
        }
        later.truncate(PLACES);
        if !open && later.is_empty() {
            return;
        }
        if !open {
            // The store is gone; what is due again is awaited, then the task ends.
            if let Some((due, _)) = later.first() {
                tokio::time::sleep_until((*due).into()).await;
            }
        }
    }
}

async fn send(batch: &[Return], connection: &Connection) -> redis::RedisResult<()> {
    let pipeline = |first_whole: bool| {
        let mut pipeline = redis::Pipeline::with_capacity(batch.len());
        for (index, item) in batch.iter().enumerate() {
            // One whole text loads the script for those behind it.
            pipeline.add_command(GIVE_BACK.command(&item.arguments, first_whole && index == 0));
        }
        pipeline
    };
    match connection.send_all(&pipeline(false), batch.len()).await {
        Err(error) if is_unknown_script(&error) => connection
            .send_all(&pipeline(true), batch.len())
            .await
            .map(drop),
        // Lost on the way: once more over a new connection.
        Err(error) if !error.is_timeout() => connection
            .send_all(&pipeline(false), batch.len())
            .await
            .map(drop),
        replies => replies.map(drop),
    }
}
