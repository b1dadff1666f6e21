//! The request to a store: a [`Demand`] of [`Charge`]s.

use std::{
    sync::OnceLock,
    time::{Duration, Instant},
};

use crate::values::{
    charge::{Charge, PermitId},
    clock,
    decision::Charges,
    error::Error,
    failure_policy::FailurePolicy,
};

/// A list of charges, granted together or not at all.
#[derive(Clone, Debug)]
pub(crate) struct Demand {
    /// Each of another limiter. Empty only once they are in the decision.
    pub(crate) charges: Charges,
    /// The answer if the store cannot decide; `None` hands the error to the caller.
    pub(crate) on_failure: Option<FailurePolicy>,
    /// Set if the caller wants the number of permits left.
    pub(crate) wants_remaining: bool,
    /// The longest wait in a queue for permits; `None` waits for none.
    pub(crate) max_wait: Option<MaxWait>,
    /// The time since which its caller waits for the store; `None` until the store is called.
    pub(crate) asked_at: Option<Instant>,
    /// Set when its caller leaves before any call was sent for it, so that it took nothing.
    pub(crate) unsent: OnceLock<()>,
}

/// The longest time that a caller waits for permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MaxWait {
    /// `None` waits without end.
    pub(crate) longest: Option<Duration>,
    /// The number of callers that may wait already; more turn it away.
    pub(crate) queue: Option<usize>,
    /// Set if every other time slice is left to other processes: see `own_turn`.
    pub(crate) yields: bool,
}

impl MaxWait {
    pub(crate) const ENDLESS: Self = Self {
        longest: None,
        queue: None,
        yields: false,
    };

    /// Returns the shorter time and the shorter queue of two.
    pub(crate) fn shorter(self, other: Self) -> Self {
        fn lesser<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
            one.into_iter().chain(other).min()
        }
        Self {
            longest: lesser(self.longest, other.longest),
            queue: lesser(self.queue, other.queue),
            ..self
        }
    }

    pub(crate) const fn at_most(longest: Duration) -> Self {
        Self {
            longest: Some(longest),
            ..Self::ENDLESS
        }
    }
}

impl Demand {
    /// Returns a demand that wants the permits left, and hands errors to its caller.
    pub(crate) fn new(charges: Charges, max_wait: Option<MaxWait>) -> Self {
        Self {
            charges,
            on_failure: None,
            wants_remaining: true,
            max_wait,
            asked_at: None,
            unsent: OnceLock::new(),
        }
    }

    /// Returns the first of its charges: before it is decided, there is one.
    pub(crate) fn first(&self) -> &Charge {
        &self.charges[0]
    }

    /// Returns whether it takes permits from several limiters.
    pub(crate) fn is_list(&self) -> bool {
        self.charges.len() > 1
    }

    /// Returns its charges, each of another limiter.
    pub(crate) fn charges(&self) -> impl Iterator<Item = &Charge> {
        self.charges.iter()
    }

    /// Checks that the limits that come from the caller can be counted.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.charges().try_for_each(Charge::check)
    }

    /// Returns its charges as those of calls that are still to be sent, or may be under way.
    pub(crate) fn to_settle(&self) -> Vec<Charge> {
        let made = Some(self.asked_at.unwrap_or_else(clock::moment));
        self.charges().map(|charge| charge.made(made)).collect()
    }

    /// Gives it an id that no other acquire has: one for all limiters, as each has its own state.
    pub(crate) fn identify(&mut self, id: PermitId) {
        self.charges.iter_mut().for_each(|charge| charge.id = id);
    }

    /// Returns whether all of it is shadow, so that nothing can refuse.
    pub(crate) fn is_all_shadow(&self) -> bool {
        self.charges().all(|charge| charge.shadow)
    }

    /// Returns whether one of its limits may ban the caller.
    pub(crate) fn has_ban(&self) -> bool {
        self.charges().any(|charge| charge.compiled().ban.is_some())
    }

    /// Returns whether some of it is shadow, and some is not.
    pub(crate) fn is_partly_shadow(&self) -> bool {
        !self.is_all_shadow() && self.charges().any(|charge| charge.shadow)
    }

    /// Returns the same without shadow charges, if that makes a difference and leaves something.
    pub(crate) fn without_shadows(&self) -> Option<Self> {
        if !self.is_partly_shadow() {
            return None;
        }
        let enforced = self.charges().filter(|charge| !charge.shadow).cloned();
        Some(Self {
            charges: enforced.collect(),
            ..self.clone()
        })
    }
}

#[cfg(test)]
impl Demand {
    /// Returns one caller of a call, which waits in a queue or not.
    pub(crate) fn caller(charges: impl IntoIterator<Item = Charge>, waits: bool) -> Self {
        Self {
            charges: charges.into_iter().collect(),
            on_failure: None,
            wants_remaining: false,
            max_wait: waits.then_some(MaxWait::ENDLESS),
            asked_at: None,
            unsent: OnceLock::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without a bound is longer than any.
    #[test]
    fn the_shorter_wait_of_two_has_the_bounds_of_both() {
        let wait = |longest: Option<u64>, queue| MaxWait {
            longest: longest.map(Duration::from_secs),
            queue,
            yields: false,
        };
        for (one, other, both) in [
            ((None, None), (Some(5), Some(7)), (Some(5), Some(7))),
            ((Some(9), None), (Some(5), Some(7)), (Some(5), Some(7))),
            ((Some(5), Some(8)), (Some(9), Some(7)), (Some(5), Some(7))),
            ((None, None), (None, None), (None, None)),
        ] {
            let [one, other, both] = [one, other, both].map(|it| wait(it.0, it.1));
            assert_eq!((one.shorter(other), other.shorter(one)), (both, both));
        }
    }
}
