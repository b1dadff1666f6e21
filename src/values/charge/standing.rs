//! How a limit stands after a decision: [`Standing`].

use std::{cmp, time::Duration};

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
    /// Orders limits: first those that refuse, the longest wait first, then the others, the
    /// smallest remaining part first.
    pub(crate) fn by_tightness(&self, other: &Self) -> cmp::Ordering {
        let refusal = |limit: &Self| {
            let wait = limit.wait.unwrap_or(Duration::MAX);
            limit.refused.then_some(wait)
        };
        let part = |limit: &Self, of: &Self| {
            let remaining = limit.remaining.unwrap_or(limit.permits);
            u128::from(remaining) * u128::from(of.permits)
        };
        let refusals = refusal(other).cmp(&refusal(self));
        refusals.then_with(|| part(self, other).cmp(&part(other, self)))
    }

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
