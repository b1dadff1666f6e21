//! Observes the silence of a server: when bytes last came from it, and since when it owes a reply.
//!
//! A call that was given up at its deadline proves nothing by itself: a burst of calls on a healthy
//! server has many of these, and so has a process that is short of processor time. But a server
//! that hangs is silent. So any bytes from the server count, even the reply to a call that all
//! callers have left. The server owes nothing for a request that this process has not sent yet, or
//! a reply that it has received but not read.

use std::{
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use crate::{clock::Clock, demand::Demand, name::Name, sync::lock};

/// Bytes in the first tenth of the wait do not end a silence: they may answer earlier calls.
const GRACE_PART: u32 = 10;

/// The bytes that come in from the nodes of a store, and those sent there.
pub(crate) struct NodeTraffic {
    nodes: Box<[Mutex<Node>]>,
    place: fn(&Name) -> usize,
    pub(crate) clock: Arc<dyn Clock>,
    /// The connection to the only node, where its bytes are seen.
    watched: Mutex<Weak<HasUnread>>,
    /// Set if a task is about to read from it, and has not recorded yet that bytes came in.
    is_reading: AtomicBool,
}

#[derive(Clone, Copy, Default)]
struct Node {
    /// When bytes last came in.
    came_in: Option<Duration>,
    /// The first that was sent since bytes came in. What was sent right before these may be owed as
    /// well, but nothing shows it, and a process that is short of processor time sends nothing else
    /// for long after them.
    owed_since: Option<Duration>,
}

/// Returns whether bytes have come in that were not read yet.
pub(crate) type HasUnread = dyn Fn() -> bool + Send + Sync;

impl NodeTraffic {
    /// `place` is the index of a name's node.
    pub(crate) fn new(nodes: usize, place: fn(&Name) -> usize, clock: Arc<dyn Clock>) -> Self {
        let watched: Weak<HasUnread> = Weak::<fn() -> bool>::new();
        Self {
            nodes: (0..nodes.max(1)).map(|_| Mutex::default()).collect(),
            place,
            clock,
            watched: Mutex::new(watched),
            is_reading: AtomicBool::new(false),
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
        if let Some(node) = self.nodes.get(index) {
            *lock(node) = Node {
                came_in,
                owed_since: None,
            };
        }
    }

    /// Records that a call is sent to a node, unless its bytes are seen.
    pub(crate) fn sends(&self, index: usize) {
        if !self.is_watched() {
            self.sent(index);
        }
    }

    /// Records that bytes were sent to a node.
    pub(crate) fn sent(&self, index: usize) {
        if let Some(node) = self.nodes.get(index) {
            let mut node = lock(node);
            node.owed_since.get_or_insert_with(|| self.clock.now());
        }
    }

    /// Sees the bytes of a connection to the only node from now on, for as long as the connection
    /// keeps what this returns.
    pub(crate) fn watch(
        &self,
        has_unread: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Arc<HasUnread> {
        let has_unread: Arc<HasUnread> = Arc::new(has_unread);
        *lock(&self.watched) = Arc::downgrade(&has_unread);
        has_unread
    }

    /// Reads from the watched connection, and records whether bytes came in.
    pub(crate) fn read<T>(&self, read: impl FnOnce() -> (T, usize)) -> T {
        // A thread that is interrupted in the midst of it has bytes in hand that no other sees.
        self.is_reading.store(true, SeqCst);
        let (done, bytes) = read();
        if bytes > 0 {
            self.came_in(0);
        }
        self.is_reading.store(false, SeqCst);
        done
    }

    /// Records that all that was sent to a node is answered.
    pub(crate) fn owes_nothing(&self, index: usize) {
        if let Some(node) = self.nodes.get(index) {
            lock(node).owed_since = None;
        }
    }

    /// Returns whether callers who asked at `asked` and left after `max_wait` were let down by a
    /// silent node: one that has owed an answer for (nearly) as long, and sent nothing meanwhile.
    /// Their own call may be younger.
    pub(crate) fn was_silent(&self, index: usize, asked: Duration, max_wait: Duration) -> bool {
        let grace = max_wait / GRACE_PART;
        let is_silent = || {
            let Some(node) = self.nodes.get(index).map(|node| *lock(node)) else {
                return false;
            };
            let owes = |since| self.clock.now().saturating_sub(since) >= max_wait - grace;
            let came_in = |at| at > asked.saturating_add(grace);
            node.owed_since.is_some_and(owes) && !node.came_in.is_some_and(came_in)
        };
        if !is_silent() {
            return false;
        }
        let watched = lock(&self.watched).upgrade();
        if index == 0 && watched.is_some_and(|has_unread| has_unread()) {
            self.came_in(0);
        }
        // A thread that is reading may have bytes in hand, or find none: nothing is recorded. Once
        // more, as it may just be done.
        !(index == 0 && self.is_reading.load(SeqCst)) && is_silent()
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
        let came_in = self.nodes.first().and_then(|node| lock(node).came_in);
        came_in.is_none_or(|at| now.saturating_sub(at) >= time)
    }

    /// Returns how many nodes there are.
    pub(crate) fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the index of the node of a name.
    pub(crate) fn index(&self, name: &Name) -> usize {
        match &*self.nodes {
            // Nothing to find out.
            [_] => 0,
            _ => (self.place)(name),
        }
    }

    fn is_watched(&self) -> bool {
        lock(&self.watched).strong_count() > 0
    }
}
