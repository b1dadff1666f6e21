//! The nodes of a store: what is in flight to each, its breaker, and when bytes last came from it.

#[cfg(feature = "_guards")]
use std::sync::{Mutex as StdMutex, Weak, atomic::AtomicBool};
use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

#[cfg(feature = "_guards")]
use super::breaker::{Breaker, Breakers};
use super::{bound::Bounds, flights::Flights};
use crate::{
    sync::{Mutex, MutexGuard},
    values::{clock::Clock, name::Name},
};

/// All that a process knows of the nodes of a store.
pub(crate) struct Nodes {
    nodes: Box<[Mutex<Node>]>,
    index_of: fn(&Name) -> usize,
    /// A monotonic clock.
    pub(crate) clock: Arc<dyn Clock>,
    pub(super) bounds: Bounds,
    #[cfg(feature = "_guards")]
    pub(super) breakers: Breakers,
    /// The connection to the only node.
    #[cfg(feature = "_guards")]
    pub(super) watched: Watched,
}

/// A node. Its lock is held for a few instructions: when a caller enters, when a shared command
/// takes its callers and when it ends, and when bytes go out or come in.
pub(super) struct Node {
    pub(super) flights: Flights,
    #[cfg(feature = "_guards")]
    pub(super) breaker: Breaker,
    #[cfg(feature = "_guards")]
    pub(super) traffic: Traffic,
}

/// The bytes that come in from a node, and those sent there.
#[cfg(feature = "_guards")]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Traffic {
    /// When bytes last came in.
    pub(super) came_in: Option<Duration>,
    /// The first that was sent since bytes came in. What was sent right before these may be owed as
    /// well, but nothing shows it, and a process that is short of processor time sends nothing else
    /// for long after them.
    pub(super) owed_since: Option<Duration>,
}

/// Returns whether bytes have come in that were not read yet.
#[cfg(feature = "_guards")]
pub(crate) type HasUnread = dyn Fn() -> bool + Send + Sync;

/// The connection to the only node, where its bytes are seen.
#[cfg(feature = "_guards")]
pub(super) struct Watched {
    pub(super) has_unread: StdMutex<Weak<HasUnread>>,
    /// A connection whose bytes are seen holds another of this.
    pub(super) watchers: Arc<()>,
    /// Set if a task is about to read from it, and has not recorded yet that bytes came in.
    pub(super) is_reading: AtomicBool,
}

#[cfg(feature = "_guards")]
impl Default for Watched {
    fn default() -> Self {
        let has_unread: Weak<HasUnread> = Weak::<fn() -> bool>::new();
        Self {
            has_unread: StdMutex::new(has_unread),
            watchers: Arc::new(()),
            is_reading: AtomicBool::new(false),
        }
    }
}

impl Nodes {
    /// Returns so many nodes, of which a name has that at its index. Callers wait for an answer no
    /// longer than the deadline, by a monotonic clock. There are no breakers.
    pub(crate) fn new(
        count: usize,
        index_of: fn(&Name) -> usize,
        deadline: Duration,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self::with_bounds(count, index_of, Bounds::for_deadline(deadline), clock)
    }

    pub(super) fn with_bounds(
        count: usize,
        index_of: fn(&Name) -> usize,
        bounds: Bounds,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let node = || Node {
            flights: Flights::new(bounds),
            #[cfg(feature = "_guards")]
            breaker: Breaker::new(clock.now()),
            #[cfg(feature = "_guards")]
            traffic: Traffic::default(),
        };
        Self {
            nodes: (0..count.max(1)).map(|_| Mutex::new(node())).collect(),
            index_of,
            bounds,
            #[cfg(feature = "_guards")]
            breakers: Breakers::default(),
            #[cfg(feature = "_guards")]
            watched: Watched::default(),
            clock,
        }
    }

    /// Returns how long a caller waits for an answer.
    pub(crate) fn deadline(&self) -> Duration {
        self.bounds.deadline
    }

    /// Returns the index of the node of a name.
    pub(super) fn index(&self, name: &Name) -> usize {
        match &*self.nodes {
            // Nothing to find out.
            [_] => 0,
            nodes => (self.index_of)(name).min(nodes.len() - 1),
        }
    }

    /// Locks a node. What is behind the lock is whole between any two statements, so a panic
    /// elsewhere does not spoil it.
    pub(super) fn node(&self, index: usize) -> MutexGuard<'_, Node> {
        self.nodes[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks each node in turn.
    #[cfg(feature = "_guards")]
    pub(super) fn each(&self) -> impl Iterator<Item = MutexGuard<'_, Node>> {
        (0..self.nodes.len()).map(|index| self.node(index))
    }
}
