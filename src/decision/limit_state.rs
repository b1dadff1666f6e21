//! The state of one limit after a decision: [`LimitState`].

use std::{cmp, sync::Arc, time::Duration};

use crate::{
    clock::Millis,
    compiled_limit::{CompiledLimit, Limiter},
};

/// The state of one limit after a decision.
#[derive(Clone, Debug)]
pub struct LimitState {
    pub(crate) of: Arc<CompiledLimit>,
    /// The hash of the limiter's name, as several limiters of a list may have one limit; 0 where
    /// there is no limiter, as in a decision made by hand.
    pub(crate) limiter: u64,
    pub(crate) permits: u64,
    pub(crate) interval: Millis,
    pub(crate) remaining: Option<u64>,
    /// If it refused, the time until it has room; else until at least one more permit is free.
    pub(crate) wait: Option<Duration>,
    pub(crate) reset_after: Duration,
    pub(crate) refused: bool,
    pub(crate) shadow: bool,
    pub(crate) banned: bool,
}

impl LimitState {
    /// Returns whether it is the state of this limiter.
    #[inline]
    pub(crate) fn is_of(&self, limiter: &Limiter) -> bool {
        let same_limit = Arc::ptr_eq(&self.of, &limiter.of) || self.of.name == limiter.of.name;
        same_limit && (self.limiter == limiter.name.text().seeded_hash() || self.limiter == 0)
    }

    /// Returns the rule's name; that of a [`Limit::named`](crate::Limit::named), whatever the key;
    /// for another [`RateLimiter`](crate::RateLimiter) its own.
    pub fn name(&self) -> &str {
        &self.of.name
    }

    /// Returns the permits of one interval, as stored: another process may have changed them.
    pub fn permits(&self) -> u64 {
        self.permits
    }

    /// Returns the length of the interval, as stored.
    pub fn interval(&self) -> Duration {
        Duration::from_millis(self.interval)
    }

    /// Returns the permits left after the decision, if they were counted.
    ///
    /// Exact, except that it is a lower bound right after very many permits expired at once, and
    /// with [`Source::Estimate`](crate::Source::Estimate). A repeated refusal, of
    /// [`Source::Cache`](crate::Source::Cache), has the number of the original. With
    /// [`Source::Lease`](crate::Source::Lease) it is the number at the time of the lease, less what
    /// was granted since. Callers that share one call all get the number after that call.
    pub fn remaining(&self) -> Option<u64> {
        self.remaining
    }

    /// Returns how long it takes until at least one more permit is free, if none is taken
    /// meanwhile: exact to the millisecond.
    ///
    /// The sliding log frees permits as its oldest entry expires, with slots as the oldest slot
    /// does; GCRA one after the other, the fixed window all at its end. `None` if this limit
    /// refused, see [`retry_after`](Self::retry_after), if all permits are free, and if it is
    /// unknown: the permits left were not counted, or the grant is from a
    /// [`Source::Lease`](crate::Source::Lease).
    pub fn next_after(&self) -> Option<Duration> {
        self.wait.filter(|_| !self.refused)
    }

    /// Returns how long it takes until all permits are free again, if none is taken meanwhile.
    ///
    /// Exact if the permits left were counted, as they are by default. Otherwise the whole
    /// interval while any permit is in use: after a grant that is the same, after a refusal it may
    /// be too long.
    pub fn reset_after(&self) -> Duration {
        self.reset_after
    }

    /// Returns whether this limit had no room. Of several limits of a refusal, some may have had.
    pub fn is_refused(&self) -> bool {
        self.refused
    }

    /// Returns how long it takes until this limit has room, if it had none: exact, in Redis to the
    /// millisecond. `None` if it had room, or if more was requested than it ever allows.
    pub fn retry_after(&self) -> Option<Duration> {
        self.wait.filter(|_| self.refused)
    }

    /// Returns whether the caller is banned by the rule of this limit, which then counts nothing:
    /// see [`Rule::ban`](crate::Rule::ban). Set for a shadow rule that would ban it, too.
    pub fn is_banned(&self) -> bool {
        self.banned
    }

    /// Returns whether this limit is only a shadow: it is counted, but refuses no request. See
    /// [`Rule::shadow`](crate::Rule::shadow).
    pub fn is_shadow(&self) -> bool {
        self.shadow
    }

    /// Returns whether responses leave it out. A shadow limit is shown to its owner alone.
    pub(crate) fn is_hidden(&self) -> bool {
        self.of.hidden || self.shadow
    }

    /// Orders limits: first those that refuse, the longest wait first, then the others, the
    /// smallest remaining part first. Shadow limits come last.
    pub(crate) fn by_tightness(&self, other: &Self) -> cmp::Ordering {
        let refusal = |limit: &Self| {
            let wait = limit.wait.unwrap_or(Duration::MAX);
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
