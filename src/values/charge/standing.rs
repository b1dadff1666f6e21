//! How a limit stands after a decision: [`Standing`].

use std::time::Duration;

use crate::values::clock::Millis;

/// How a limit stands after a decision; all zero before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// The permits of one interval, as stored.
    pub(crate) permits: u64,
    pub(crate) interval: Millis,
    /// The permits left, if they were counted.
    pub(crate) remaining: Option<u64>,
    /// If it refused, the time until it has room; else until at least one more permit is free.
    pub(crate) wait: Option<Duration>,
    pub(crate) reset_after: Duration,
    pub(crate) refused: bool,
    /// Set if its rule bans the caller.
    pub(crate) banned: bool,
    /// Set if it was granted: a shadow limit may have granted what its ban would refuse.
    pub(crate) granted: bool,
}

impl Standing {
    pub(crate) fn interval(&self) -> Duration {
        Duration::from_millis(self.interval)
    }

    /// Returns how long it takes until at least one more permit is free, of a limit with room.
    pub(crate) fn next_after(&self) -> Option<Duration> {
        self.wait.filter(|_| !self.refused)
    }

    /// Returns how long it takes until there is room, of a limit that had none.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        self.wait.filter(|_| self.refused)
    }
}
