//! The state of one limit after a decision: [`LimitState`].

use std::time::Duration;

use crate::values::charge::{Charge, Standing};

/// The state of one limit after a decision.
#[derive(Clone, Copy, Debug)]
pub struct LimitState<'a> {
    charge: &'a Charge,
    standing: &'a Standing,
    granted: bool,
}

impl<'a> LimitState<'a> {
    /// Returns the states of the limits of a decision's charges.
    pub(super) fn each(charges: &'a [Charge], granted: bool) -> impl Iterator<Item = Self> {
        charges.iter().flat_map(move |charge| {
            let of = move |standing| Self {
                charge,
                standing,
                granted,
            };
            charge.standings().iter().map(of)
        })
    }

    /// Returns the rule's name, for each of its [several limits](crate::Limit::and) the same; that
    /// of a [`Limit::named`](crate::Limit::named), whatever the key; for another
    /// [`RateLimiter`](crate::RateLimiter) its own.
    pub fn name(&self) -> &'a str {
        &self.charge.compiled().name
    }

    /// Returns the permits of one interval, as stored: another process may have changed them.
    pub fn permits(&self) -> u64 {
        self.standing.permits
    }

    /// Returns the length of the interval, as stored.
    pub fn interval(&self) -> Duration {
        self.standing.interval()
    }

    /// Returns the permits that the request took from it: none if it was refused, or if this is a
    /// shadow limit that had no room.
    pub fn taken(&self) -> u32 {
        if self.granted && self.charge.took() {
            self.charge.permits
        } else {
            0
        }
    }

    /// Returns the permits left after the decision, if they were counted.
    ///
    /// Exact, except that it is a lower bound right after very many permits expired at once, and
    /// with [`Source::Estimate`](crate::Source::Estimate). A repeated refusal, of
    /// [`Source::Cache`](crate::Source::Cache), has the number of the original. With
    /// [`Source::Lease`](crate::Source::Lease) it is the number at the time of the lease, less what
    /// was granted since. Callers that share one call all get the number after that call.
    pub fn remaining(&self) -> Option<u64> {
        self.standing.remaining
    }

    /// Returns how long it takes until at least one more permit is free, if none is taken
    /// meanwhile: exact to the millisecond.
    ///
    /// The sliding log frees permits as its oldest entry expires, with slots as the oldest slot
    /// does; GCRA one after the other, the fixed window all at its end. `None` if this limit
    /// refused, see [`retry_after`](Self::retry_after), if all permits are free, and if it is
    /// unknown: the permits left were not counted, they are places [in
    /// flight](crate::Limit::in_flight), or the grant is from a
    /// [`Source::Lease`](crate::Source::Lease).
    pub fn next_after(&self) -> Option<Duration> {
        self.standing.next_after()
    }

    /// Returns how long it takes until all permits are free again, if none is taken meanwhile.
    ///
    /// Exact if the permits left were counted, as they are by default. Otherwise the whole
    /// interval while any permit is in use: after a grant that is the same, after a refusal it may
    /// be too long. Places [in flight](crate::Limit::in_flight) are all free by then, or before.
    pub fn reset_after(&self) -> Duration {
        self.standing.reset_after
    }

    /// Returns whether this limit had no room. Of several limits of a refusal, some may have had.
    pub fn is_refused(&self) -> bool {
        self.standing.refused
    }

    /// Returns how long it takes until this limit has room, if it had none: exact, in Redis to the
    /// millisecond; of places [in flight](crate::Limit::in_flight) a second at most, after which to
    /// ask again. `None` if it had room, or if more was requested than it ever allows.
    pub fn retry_after(&self) -> Option<Duration> {
        self.standing.retry_after()
    }

    /// Returns whether the caller is banned by the rule of this limit, which then counts nothing:
    /// see [`Rule::ban`](crate::Rule::ban). Set for a shadow rule that would ban it, too.
    pub fn is_banned(&self) -> bool {
        self.standing.banned
    }

    /// Returns whether this limit is only a shadow: it is counted, but refuses no request. See
    /// [`Rule::shadow`](crate::Rule::shadow).
    pub fn is_shadow(&self) -> bool {
        self.charge.shadow
    }
}
