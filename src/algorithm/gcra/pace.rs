//! The emission interval of a GCRA limit, and that of all its permits: [`Pace`].

use crate::{algorithm::limiter::CallContext, values::limit::emission};

/// As a script can count exactly. No TAT is later.
pub(super) const MOST: i64 = (1 << 53) - 1;
/// The greatest interval, in us: two of them and a time of today can be added exactly.
const LONGEST: i64 = 3_200_000_000_000_000;

/// A limit as it is counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    pub(crate) rate: i64,
    pub(crate) interval: i64,
    /// From permit to permit, in us, rounded up, so that the limit is never exceeded
    pub(super) emission: i64,
}

impl Pace {
    /// One that any limiter can be read by.
    pub(crate) const ANY: Self = Self {
        rate: 1,
        interval: 1000,
        emission: 1_000_000,
    };

    /// None for a limit that cannot be counted by: more than a permit in one microsecond, or an
    /// interval of centuries.
    pub(crate) fn of(rate: i64, interval: i64) -> Option<Self> {
        let emission = emission(rate, interval)?;
        (interval * 1000 <= LONGEST).then_some(Self {
            rate,
            interval,
            emission,
        })
    }

    /// Returns that of a call, which was prepared.
    pub(super) fn of_call(call: &CallContext) -> Self {
        Self {
            rate: call.limit.rate,
            interval: call.limit.interval,
            emission: call.emission,
        }
    }

    /// The time that this many permits take, in us.
    pub(crate) fn cost(&self, permits: i64) -> i64 {
        permits.saturating_mul(self.emission).min(MOST)
    }

    /// The time that all permits take: the interval, or up to a microsecond more for each.
    pub(crate) fn whole(&self) -> i64 {
        self.rate * self.emission
    }

    /// Whole permits in use while TAT lies this far ahead.
    pub(super) fn used(&self, backlog: i64) -> i64 {
        rounded_up(backlog, self.emission)
    }

    /// Permits left; below zero, by a caller's clock, where another's is ahead.
    pub(crate) fn left(&self, backlog: i64) -> i64 {
        self.rate.saturating_sub(self.used(backlog))
    }

    /// Microseconds until at least one more permit is free; 0 where all are, and in debt.
    pub(crate) fn next(&self, backlog: i64) -> i64 {
        self.next_of(backlog, self.used(backlog))
    }

    /// The same, if this many permits are in use.
    pub(super) fn next_of(&self, backlog: i64, used: i64) -> i64 {
        if backlog <= 0 || used > self.rate {
            return 0;
        }
        backlog - (used - 1) * self.emission
    }

    /// The microseconds until this many permits are free.
    pub(crate) fn wait(&self, backlog: i64, permits: i64) -> i64 {
        backlog
            .saturating_add(self.cost(permits) - self.whole())
            .min(MOST)
    }
}

/// The whole multiples of `unit` that `amount` takes.
fn rounded_up(amount: i64, unit: i64) -> i64 {
    // A quotient below zero is rounded up by itself.
    amount / unit + i64::from(amount % unit > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_cannot_be_counted_by_are_none() {
        // A permit in each microsecond, and no more.
        assert_eq!(Pace::of(3000, 3).map(|pace| pace.emission), Some(1));
        assert_eq!(Pace::of(3001, 3), None);
        assert_eq!(Pace::of(2999, 3).map(|pace| pace.emission), Some(2));
        assert!(Pace::of(1, LONGEST / 1000).is_some());
        assert_eq!(Pace::of(1, LONGEST / 1000 + 1), None);
        assert_eq!(Pace::of(0, 1000), None);
        assert_eq!(Pace::of(1, 0), None);
    }
}
