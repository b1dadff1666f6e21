//! When bytes last came from a node, and since when it owes a reply: [`Traffic`]. What that says of
//! it: [`silence`](super::silence).

use std::{
    sync::{Mutex, Weak, atomic::AtomicBool},
    time::Duration,
};

/// The bytes that come in from a node, and those sent there.
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
pub(crate) type HasUnread = dyn Fn() -> bool + Send + Sync;

/// The connection to the only node, where its bytes are seen.
pub(super) struct Watched {
    pub(super) has_unread: Mutex<Weak<HasUnread>>,
    /// Set if a task is about to read from it, and has not recorded yet that bytes came in.
    pub(super) is_reading: AtomicBool,
}

impl Default for Watched {
    fn default() -> Self {
        let has_unread: Weak<HasUnread> = Weak::<fn() -> bool>::new();
        Self {
            has_unread: Mutex::new(has_unread),
            is_reading: AtomicBool::new(false),
        }
    }
}
