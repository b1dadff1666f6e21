//! Whether a server is silent: when bytes last came in from it, and since when it owes some.
//!
//! A call that was given up at its deadline tells nothing by itself: a burst of calls on a healthy
//! server has many of these, and so has a process that is short of processor time. A server that
//! hangs is told apart by its silence. Replies count whichever call they belong to, also those of
//! calls whose callers have left. What this process has not sent yet, or has received and not read,
//! is not held against the server.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
    time::Duration,
};

use crate::{clock::Clock, demand::Acquire, name::Name};

/// What comes in within this part of the time that callers wait is not held against silence: it may
/// be owed to calls before.
const FORGIVEN: u32 = 10;

/// What comes in from the nodes of a store, and what is sent there.
pub(crate) struct Traffic {
    nodes: Box<[Node]>,
    place: fn(&Name) -> usize,
    clock: Arc<dyn Clock>,
    made: Duration,
    /// The connection to the only node, where its bytes are seen.
    watched: Mutex<Option<Watched>>,
    is_watched: AtomicBool,
    /// Whether somebody is about to read from it, and has not said yet that bytes came in.
    is_reading: AtomicBool,
}

/// Times are in microseconds since the beginning, and one more. Zero: never.
#[derive(Default)]
struct Node {
    came_in: AtomicU64,
    /// The first that was sent since bytes came in. What was sent right before these may be owed as
    /// well, but nothing tells, and a process that is short of processor time sends nothing else
    /// for long after them.
    first_sent: AtomicU64,
}

/// Tells whether bytes have come in that were not read yet.
type Watched = Arc<dyn Fn() -> bool + Send + Sync>;

/// A connection whose bytes are seen, for as long as it lasts.
#[derive(Clone)]
pub(crate) struct Watch(Arc<Watching>);

struct Watching {
    has_unread: Watched,
    traffic: Arc<Traffic>,
}

impl Traffic {
    /// `place` is the index of a name's node.
    pub(crate) fn new(nodes: usize, place: fn(&Name) -> usize, clock: Arc<dyn Clock>) -> Self {
        Self {
            nodes: (0..nodes.max(1)).map(|_| Node::default()).collect(),
            place,
            made: clock.now(),
            clock,
            watched: Mutex::new(None),
            is_watched: AtomicBool::new(false),
            is_reading: AtomicBool::new(false),
        }
    }

    /// Records that bytes came in from the only node.
    pub(crate) fn came_in(&self) {
        self.came_in_at(0);
    }

    /// Records a reply of the only node, unless its bytes are seen.
    pub(crate) fn replied(&self) {
        if !self.is_watched.load(Relaxed) {
            self.came_in();
        }
    }

    /// Records a reply of the node of this name, unless its bytes are seen.
    pub(crate) fn replied_for(&self, name: &Name) {
        if !self.is_watched.load(Relaxed) {
            self.came_in_at(self.index(name));
        }
    }

    fn came_in_at(&self, index: usize) {
        if let Some(node) = self.nodes.get(index) {
            node.came_in.store(self.stamp(self.now()), SeqCst);
            node.first_sent.store(0, Relaxed);
        }
    }

    /// Records that a call is sent to a node, unless its bytes are seen.
    pub(crate) fn sends(&self, index: usize) {
        if !self.is_watched.load(Relaxed) {
            self.sent(index);
        }
    }

    fn sent(&self, index: usize) {
        if let Some(node) = self.nodes.get(index) {
            let first = &node.first_sent;
            if first.load(Relaxed) == 0 {
                let now = self.stamp(self.now());
                let _ = first.compare_exchange(0, now, Relaxed, Relaxed);
            }
        }
    }

    /// Sees the bytes of a connection to the only node from now on. `has_unread` tells whether
    /// bytes have come in that were not read yet.
    pub(crate) fn watch(
        self: &Arc<Self>,
        has_unread: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Watch {
        let has_unread: Watched = Arc::new(has_unread);
        *self.watched() = Some(Arc::clone(&has_unread));
        self.is_watched.store(true, Relaxed);
        Watch(Arc::new(Watching {
            has_unread,
            traffic: Arc::clone(self),
        }))
    }

    /// Whether callers who asked at `asked` and left after `patience` were let down by a silent
    /// node: one that has owed an answer for (nearly) as long, and sent nothing meanwhile. Their
    /// own call may be younger.
    pub(crate) fn lets_down(&self, index: usize, asked: Duration, patience: Duration) -> bool {
        let Some(node) = self.nodes.get(index) else {
            return false;
        };
        let forgiven = patience / FORGIVEN;
        let came_in = || {
            let came_in = self.unstamped(node.came_in.load(SeqCst));
            came_in.is_some_and(|at| at > asked.saturating_add(forgiven))
        };
        let owed = self.unstamped(node.first_sent.load(Relaxed));
        let owes = owed.is_some_and(|owed| self.now().saturating_sub(owed) >= patience - forgiven);
        if came_in() || !owes {
            return false;
        }
        if index == 0 && self.has_unread() {
            self.came_in();
        }
        // Once more: whoever reads may have been at it.
        !came_in()
    }

    /// Whether bytes have come in from the only node that were not read yet, or are just being
    /// read.
    fn has_unread(&self) -> bool {
        let watched = self.watched().clone();
        watched.is_some_and(|has_unread| has_unread()) || self.is_reading.load(SeqCst)
    }

    /// The same of a list of limiters: whether any of their nodes did.
    pub(crate) fn let_down(&self, acquire: &Acquire, asked: Duration, patience: Duration) -> bool {
        let mut charges = acquire.charges();
        charges.any(|charge| self.lets_down(self.index(charge.name()), asked, patience))
    }

    /// Whether the connection to the only node has been silent for so long, though an answer is
    /// owed.
    pub(crate) fn is_silent_for(&self, time: Duration) -> bool {
        if self.is_watched.load(Relaxed) {
            return self.lets_down(0, self.now().saturating_sub(time), time);
        }
        let came_in = self.nodes.first().map(|node| node.came_in.load(Relaxed));
        let came_in = came_in.and_then(|stamp| self.unstamped(stamp));
        came_in.is_none_or(|at| self.now().saturating_sub(at) >= time)
    }

    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// The node of a name.
    pub(crate) fn index(&self, name: &Name) -> usize {
        match &*self.nodes {
            // Nothing to find out.
            [_] => 0,
            _ => (self.place)(name),
        }
    }

    fn stamp(&self, time: Duration) -> u64 {
        let since = time.saturating_sub(self.made);
        u64::try_from(since.as_micros()).map_or(u64::MAX, |micros| micros.saturating_add(1))
    }

    fn unstamped(&self, stamp: u64) -> Option<Duration> {
        let micros = stamp.checked_sub(1)?;
        Some(self.made + Duration::from_micros(micros))
    }

    /// What is behind the lock is whole between any two statements, so a panic elsewhere does not
    /// spoil it.
    fn watched(&self) -> MutexGuard<'_, Option<Watched>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch {
    /// Reads, and records whether bytes came in.
    pub(crate) fn read<T>(&self, read: impl FnOnce() -> (T, usize)) -> T {
        // A thread that is interrupted in the midst of it has bytes in hand that no other sees.
        self.0.traffic.is_reading.store(true, SeqCst);
        let (done, bytes) = read();
        if bytes > 0 {
            self.0.traffic.came_in();
        }
        self.0.traffic.is_reading.store(false, SeqCst);
        done
    }

    /// Records that bytes were sent.
    pub(crate) fn sent(&self) {
        self.0.traffic.sent(0);
    }

    /// Records that all that was sent is answered.
    pub(crate) fn owes_nothing(&self) {
        if let Some(node) = self.0.traffic.nodes.first() {
            node.first_sent.store(0, Relaxed);
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let mut watched = self.traffic.watched();
        // Another connection may have taken its place.
        let is_it = |it: &Watched| Arc::ptr_eq(it, &self.has_unread);
        if watched.as_ref().is_some_and(is_it) {
            *watched = None;
            self.traffic.is_watched.store(false, Relaxed);
        }
    }
}

impl fmt::Debug for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Traffic")
            .field("nodes", &self.nodes.len())
            .finish_non_exhaustive()
    }
}
