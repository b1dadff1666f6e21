//! Gives up calls at the deadline, so that a slow store delays a request by no more than that; and
//! observes the silence of a server: when bytes last came from it, and since when it owes a reply.
//!
//! A call that was given up at its deadline proves nothing by itself: a burst of calls on a healthy
//! server has many of these, and so has a process that is short of processor time. But a server
//! that hangs is silent. So any bytes from the server count, even the reply to a call that all
//! callers have left. The server owes nothing for a request that this process has not sent yet, or
//! a reply that it has received but not read.

use std::{
    pin::pin,
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use super::nodes::{HasUnread, Nodes, Traffic};
use crate::{
    store::guard::late::Late,
    sync::lock,
    values::{
        clock::{check_timer, moment},
        decision::Decision,
        demand::Demand,
        error::Error,
    },
};

/// Bytes in the first tenth of the wait do not end a silence: they may answer earlier calls.
const GRACE_PART: u32 = 10;

impl Nodes {
    /// Waits for a call no longer than the deadline and the time that its caller is ready to wait
    /// for permits. `call` makes it.
    ///
    /// If it gives a call up, it does not give back what the call may have taken: only the fallback
    /// knows whether a share of the limit admits the caller, which then stays charged.
    ///
    /// # Errors
    ///
    /// Those of the call, [`Late`] at the deadline, and that there is no timer.
    ///
    /// # Cancel safety
    ///
    /// Dropping it leaves the outcome open: the code that drops it decides whether to give back.
    pub(crate) async fn within<F>(
        &self,
        demand: &Demand,
        call: impl FnOnce() -> F,
    ) -> Result<Decision, Error>
    where
        F: Future<Output = Result<Decision, Error>>,
    {
        check_timer()?;
        let wait = demand.max_wait.map(|wait| wait.longest);
        let Some(wait) = wait.unwrap_or(Some(Duration::ZERO)) else {
            return call().await;
        };
        let longest = self.bounds.deadline.saturating_add(wait);
        // Pinned here, as it is large, and would be moved twice.
        match tokio::time::timeout(longest, pin!(call())).await {
            Ok(decision) => decision,
            Err(_) => {
                // Its own wait says nothing about the server.
                let asked = demand.asked_at;
                let waited = asked.map_or(longest, |asked| moment().duration_since(asked));
                let asked = self.clock.now().saturating_sub(waited);
                let asked = asked.saturating_add(wait);
                let late = if self.any_was_silent(demand, asked, self.bounds.deadline) {
                    Late::Silence
                } else {
                    Late::Slow
                };
                Err(late.error())
            }
        }
    }

    /// Records a reply of a node, unless its bytes are seen.
    pub(crate) fn replied(&self, index: usize) {
        if !self.is_watched() {
            self.came_in(index);
        }
    }

    /// Records that bytes came in from a node.
    pub(crate) fn came_in(&self, index: usize) {
        let came_in = Some(self.clock.now());
        self.node(index).traffic = Traffic {
            came_in,
            owed_since: None,
        };
    }

    /// Records that bytes were sent to a node.
    pub(crate) fn sent(&self, index: usize) {
        let owed_since = &mut self.node(index).traffic.owed_since;
        owed_since.get_or_insert_with(|| self.clock.now());
    }

    /// Sees the bytes of a connection to the only node from now on, for as long as the connection
    /// keeps what this returns.
    pub(crate) fn watch(
        &self,
        has_unread: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Arc<HasUnread> {
        let watcher = Arc::clone(&self.watched.watchers);
        let has_unread: Arc<HasUnread> = Arc::new(move || {
            let _ = &watcher;
            has_unread()
        });
        *lock(&self.watched.has_unread) = Arc::downgrade(&has_unread);
        has_unread
    }

    /// Reads from the watched connection, and records whether bytes came in.
    pub(crate) fn read<T>(&self, read: impl FnOnce() -> (T, usize)) -> T {
        // A thread that is interrupted in the midst of it has bytes in hand that no other sees.
        self.watched.is_reading.store(true, SeqCst);
        let (done, bytes) = read();
        if bytes > 0 {
            self.came_in(0);
        }
        self.watched.is_reading.store(false, SeqCst);
        done
    }

    /// Records that all that was sent to a node is answered.
    pub(crate) fn owes_nothing(&self, index: usize) {
        self.node(index).traffic.owed_since = None;
    }

    /// Returns whether callers who asked at `asked` and left after `max_wait` were let down by a
    /// silent node: one that has owed an answer for (nearly) as long, and sent nothing meanwhile.
    /// Their own call may be younger.
    pub(crate) fn was_silent(&self, index: usize, asked: Duration, max_wait: Duration) -> bool {
        let grace = max_wait / GRACE_PART;
        let is_silent = || {
            let Traffic {
                came_in,
                owed_since,
            } = self.node(index).traffic;
            let owes = |since| self.clock.now().saturating_sub(since) >= max_wait - grace;
            let is_answer = |at| at > asked.saturating_add(grace);
            owed_since.is_some_and(owes) && !came_in.is_some_and(is_answer)
        };
        if !is_silent() {
            return false;
        }
        let watched = lock(&self.watched.has_unread).upgrade();
        if index == 0 && watched.is_some_and(|has_unread| has_unread()) {
            self.came_in(0);
        }
        // A thread that is reading may have bytes in hand, or find none: nothing is recorded. Once
        // more, as it may just be done.
        !(index == 0 && self.watched.is_reading.load(SeqCst)) && is_silent()
    }

    /// Returns whether any node of these limiters [was silent](Self::was_silent).
    pub(crate) fn any_was_silent(
        &self,
        demand: &Demand,
        asked: Duration,
        max_wait: Duration,
    ) -> bool {
        let mut charges = demand.charges();
        charges.any(|charge| self.was_silent(self.index(charge.name()), asked, max_wait))
    }

    /// Returns whether the connection to the only node has been silent for so long, though an
    /// answer is owed.
    pub(crate) fn is_silent_for(&self, time: Duration) -> bool {
        let now = self.clock.now();
        if self.is_watched() {
            return self.was_silent(0, now.saturating_sub(time), time);
        }
        let came_in = self.node(0).traffic.came_in;
        came_in.is_none_or(|at| now.saturating_sub(at) >= time)
    }

    /// Returns whether the bytes of the only node are seen.
    pub(super) fn is_watched(&self) -> bool {
        Arc::strong_count(&self.watched.watchers) > 1
    }
}
