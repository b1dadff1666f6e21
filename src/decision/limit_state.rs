//! One limit of a decision: [`LimitState`].

use std::{cmp, fmt, sync::Arc, time::Duration};

use crate::demand::Labels;

/// One limit as a decision left it.
#[derive(Clone)]
pub struct LimitState {
    pub(crate) labels: Arc<Labels>,
    pub(crate) permits: u64,
    pub(crate) interval: Duration,
    pub(crate) remaining: Option<u64>,
    pub(crate) next_after: Option<Duration>,
    pub(crate) reset_after: Duration,
    pub(crate) refused: bool,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) shadow: bool,
}

impl LimitState {
    /// The rule's name; for a [`RateLimiter`](crate::RateLimiter) its own.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.labels.name
    }

    /// The permits of one interval, as stored: another process may have changed them.
    #[must_use]
    pub fn permits(&self) -> u64 {
        self.permits
    }

    /// The length of the interval, as stored.
    #[must_use]
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// Permits left after the decision, if they were counted.
    ///
    /// Exact, except right after very many permits expired at once, and of a
    /// [`Source::Estimate`](crate::Source::Estimate): a lower bound there. A refusal that is told
    /// again has it as it was when the store was asked, see
    /// [`Source::Cache`](crate::Source::Cache). Out of a [`Source::Lease`](crate::Source::Lease) it
    /// is as it was when that was taken, less what was granted since. Callers that one call decided
    /// for are all told how it is after that call.
    #[must_use]
    pub fn remaining(&self) -> Option<u64> {
        self.remaining
    }

    /// Returns how long it takes until at least one more permit is free, if none is taken
    /// meanwhile: exact to the millisecond.
    ///
    /// The sliding log frees permits as its oldest entry expires, with slots as the oldest slot
    /// does; GCRA one after the other, the fixed window all at its end. `None` where this limit
    /// refused, as [`retry_after`](Self::retry_after) says it, where all permits are free, and
    /// where it is not known: the permits left were not counted, or the grant came out of a
    /// [`Source::Lease`](crate::Source::Lease).
    #[must_use]
    pub fn next_after(&self) -> Option<Duration> {
        self.next_after
    }

    /// How long until all permits are free again, if none is taken meanwhile.
    ///
    /// Exact where the permits left were counted, as they are by default. Otherwise the whole
    /// interval while any permit is in use: after a grant that is the same, after a refusal it may
    /// be too long.
    #[must_use]
    pub fn reset_after(&self) -> Duration {
        self.reset_after
    }

    /// Whether this limit had no room. Where a request met several, those of a refusal that had are
    /// told apart by it.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.refused
    }

    /// How long until this limit has room, where it had none: exact, in Redis to the millisecond.
    /// `None` where it had, or where more was asked for than it ever allows.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Whether this limit is only tried out: it is counted, but refuses nobody. See
    /// [`Rule::shadow`](crate::Rule::shadow).
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.shadow
    }

    /// Whether answers do not show it. A limit that is only tried out is for its owner to see.
    pub(crate) fn is_hidden(&self) -> bool {
        self.labels.hidden || self.shadow
    }

    /// Those that refuse come first, the longest wait before others; then those of which the
    /// smallest part is left. Limits that are only tried out come last.
    pub(crate) fn by_tightness(&self, other: &Self) -> cmp::Ordering {
        let refusal = |limit: &Self| {
            let wait = limit.retry_after.unwrap_or(Duration::MAX);
            limit.refused.then_some(wait)
        };
        let part = |limit: &Self, of: &Self| {
            let remaining = limit.remaining.unwrap_or(limit.permits);
            u128::from(remaining) * u128::from(of.permits)
        };
        self.shadow
            .cmp(&other.shadow)
            .then_with(|| refusal(other).cmp(&refusal(self)))
            .then_with(|| part(self, other).cmp(&part(other, self)))
    }
}

impl fmt::Debug for LimitState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitState")
            .field("name", &self.labels.for_logs())
            .field("permits", &self.permits)
            .field("interval", &self.interval)
            .field("remaining", &self.remaining)
            .field("next_after", &self.next_after)
            .field("reset_after", &self.reset_after)
            .field("refused", &self.refused)
            .field("retry_after", &self.retry_after)
            .field("shadow", &self.shadow)
            .field("hidden", &self.is_hidden())
            .finish()
    }
}
