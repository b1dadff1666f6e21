//! Whether a server is silent: when bytes last came in from it, and since when it owes some.
//!
//! A call that was given up at its deadline tells nothing by itself: a burst of calls on a healthy
//! server has many of these, and so has a process that is short of processor time. A server that
//! hangs is told apart by its silence. Replies count whichever call they belong to, also those of
//! calls whose callers have left.

use std::{
    fmt,
    sync::{
        Arc,
        // Hints: no other memory depends on their order, so loom need not try it.
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::{clock::Clock, name::Name, store::Acquire};

/// What comes in within this part of the time that callers wait is not held against silence.
const FORGIVEN: u32 = 10;

/// What comes in from the nodes of a store, and what is sent there.
pub(crate) struct Traffic {
    nodes: Box<[Node]>,
    place: fn(&Name) -> usize,
    clock: Arc<dyn Clock>,
    made: Duration,
}

/// Times are in microseconds since the beginning, and one more. Zero: never.
#[derive(Default)]
struct Node {
    came_in: AtomicU64,
    /// The first call that was sent since bytes came in.
    first_sent: AtomicU64,
}

impl Traffic {
    /// `place` is the index of a name's node.
    pub(super) fn new(nodes: usize, place: fn(&Name) -> usize, clock: Arc<dyn Clock>) -> Self {
        Self {
            nodes: (0..nodes.max(1)).map(|_| Node::default()).collect(),
            place,
            made: clock.now(),
            clock,
        }
    }

    /// Records that bytes came in from the only node.
    pub(crate) fn came_in(&self) {
        self.came_in_at(0);
    }

    /// Records that bytes came in from the node of this name.
    pub(crate) fn came_in_for(&self, name: &Name) {
        self.came_in_at(self.index(name));
    }

    fn came_in_at(&self, index: usize) {
        if let Some(node) = self.nodes.get(index) {
            node.came_in.store(self.stamp(), Relaxed);
            node.first_sent.store(0, Relaxed);
        }
    }

    /// Records that a call is sent to a node.
    pub(super) fn sends(&self, index: usize) {
        let node = self.nodes.get(index);
        if let Some(node) = node.filter(|node| node.first_sent.load(Relaxed) == 0) {
            let first = &node.first_sent;
            let _ = first.compare_exchange(0, self.stamp(), Relaxed, Relaxed);
        }
    }

    /// Whether nothing came in from a node since `time`, for callers that wait for `patience`: the
    /// first tenth of that is forgiven.
    pub(super) fn is_silent_since(&self, index: usize, time: Duration, patience: Duration) -> bool {
        let forgiven = time.saturating_add(patience / FORGIVEN);
        let came_in = self.nodes.get(index).map(|node| &node.came_in);
        let came_in = came_in.and_then(|stamp| self.unstamped(stamp));
        came_in.is_none_or(|at| at <= forgiven)
    }

    /// Whether a caller that asked at `asked` and left after `patience` was let down by a silent
    /// node, which has owed an answer for (nearly) as long: the caller's own call may be younger.
    pub(super) fn lets_down(&self, index: usize, asked: Duration, patience: Duration) -> bool {
        let first = self.nodes.get(index).map(|node| &node.first_sent);
        let first = first.and_then(|stamp| self.unstamped(stamp));
        let nearly = patience - patience / FORGIVEN;
        let owes = first.is_some_and(|first| self.now().saturating_sub(first) >= nearly);
        owes && self.is_silent_since(index, asked, patience)
    }

    /// The same of a list of limiters: whether any of their nodes did.
    pub(crate) fn let_down(&self, acquire: &Acquire, asked: Duration, patience: Duration) -> bool {
        let mut charges = acquire.charges();
        charges.any(|charge| self.lets_down(self.index(&charge.name), asked, patience))
    }

    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// The node of a name.
    pub(super) fn index(&self, name: &Name) -> usize {
        match &*self.nodes {
            // Nothing to find out.
            [_] => 0,
            _ => (self.place)(name),
        }
    }

    fn stamp(&self) -> u64 {
        let since = self.clock.now().saturating_sub(self.made);
        u64::try_from(since.as_micros()).map_or(u64::MAX, |micros| micros.saturating_add(1))
    }

    fn unstamped(&self, stamp: &AtomicU64) -> Option<Duration> {
        let micros = stamp.load(Relaxed).checked_sub(1)?;
        Some(self.made + Duration::from_micros(micros))
    }
}

impl fmt::Debug for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Traffic")
            .field("nodes", &self.nodes.len())
            .finish_non_exhaustive()
    }
}
