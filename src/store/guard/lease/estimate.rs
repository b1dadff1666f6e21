//! Estimates how many permits of a limiter to fetch ahead.

use std::time::Duration;

/// The number of average callers that a lease must serve to pay: a server spends three times as
/// long on one as on a usual call, and as long again on what is given back. A first lease serves no
/// more. A later one may be larger: up to four times one that was used up, or twice the used part
/// of another.
const PAYS: u64 = 4;
/// At most one in this many of the permits left is fetched ahead: other processes fetch as many.
const SHARE: u64 = 8;

/// The recent demand for a limiter's permits, and how many were left.
#[derive(Debug, Default)]
pub(crate) struct DemandEstimate {
    calls: u64,
    permits: u64,
    /// How many permits the next lease has at most, by the use of the last.
    most: u32,
    /// How many permits were left lately.
    pub(super) left: u64,
}

impl DemandEstimate {
    /// Records a caller that asks for `permits`.
    pub(crate) fn record(&mut self, permits: u32) {
        self.calls = self.calls.saturating_add(1);
        self.permits = self.permits.saturating_add(u64::from(permits));
    }

    /// Forgets the demand that was counted so far.
    pub(crate) fn restart(&mut self) {
        (self.calls, self.permits) = (0, 0);
    }

    /// Records the end of a lease.
    pub(crate) fn ended(&mut self, taken: u32, used: u32) {
        self.most = if used >= taken {
            taken.saturating_mul(4)
        } else {
            used.saturating_mul(2)
        };
    }

    /// Records that a lease of this many permits was refused.
    pub(crate) fn refused(&mut self, permits: u32) {
        self.most = permits / 2;
    }

    /// Returns how many permits to fetch ahead for the time `lead`, or 0 if a lease does not pay.
    /// The demand recorded so far came within `over`.
    ///
    /// A lease has the permits that callers ask for within `lead` at that rate, but no more than a
    /// fixed part of those left. It pays if these are enough for four average callers. So nothing
    /// is fetched ahead when few callers come, or when the limiter is nearly exhausted.
    pub(crate) fn amount(&self, over: Duration, lead: Duration) -> u32 {
        let (over, asked) = (over.as_nanos().max(1), u128::from(self.permits));
        let expected = asked.saturating_mul(lead.as_nanos()) / over;
        let expected = u64::try_from(expected).unwrap_or(u64::MAX);
        let caller = self.permits.div_ceil(self.calls.max(1));
        let most = u64::from(self.most).max(caller.saturating_mul(PAYS));
        let amount = expected.min(most).min(self.left / SHARE);
        let served = u128::from(amount).saturating_mul(self.calls.into());
        if served < asked.saturating_mul(PAYS.into()) {
            return 0;
        }
        u32::try_from(amount).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAD: Duration = Duration::from_millis(100);

    /// The estimate after `calls` within the lead, each for `permits`, with `left` left.
    fn estimate(calls: u32, permits: u32, left: u64) -> DemandEstimate {
        let mut estimate = DemandEstimate {
            left,
            ..DemandEstimate::default()
        };
        (0..calls).for_each(|_| estimate.record(permits));
        estimate
    }

    /// One that is used up is followed by four times as much, any other by twice what was used.
    #[test]
    fn the_next_lease_goes_by_what_became_of_the_last() {
        let mut estimate = estimate(1000, 1, 1_000_000);
        assert_eq!(estimate.amount(LEAD, LEAD), 4);
        for (taken, used, next) in [(100, 100, 400), (100, 99, 198), (100, 30, 60), (100, 0, 4)] {
            estimate.ended(taken, used);
            assert_eq!(estimate.amount(LEAD, LEAD), next, "{used} of {taken}");
        }
        estimate.refused(100);
        assert_eq!(estimate.amount(LEAD, LEAD), 50);
    }

    /// A lease pays if four callers come within the lead, and it can serve them all.
    #[test]
    fn nothing_is_taken_ahead_that_does_not_pay() {
        for (calls, left, expected) in [(3, 1000, 0), (4, 1000, 20), (4, 160, 20), (4, 159, 0)] {
            let amount = estimate(calls, 5, left).amount(LEAD, LEAD);
            assert_eq!(amount, expected, "{calls} calls, {left} left");
        }
        assert_eq!(estimate(10, 1, 32).amount(LEAD, LEAD), 4);
        assert_eq!(estimate(10, 1, 31).amount(LEAD, LEAD), 0);
        assert_eq!(estimate(0, 1, 1000).amount(LEAD, LEAD), 0);
    }
}
