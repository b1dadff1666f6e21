//! How many permits are worth taking ahead.

use std::time::Duration;

/// For how many callers a first lease is at most, and any after one that nobody used up. One that is used up is followed by
/// one of four times as many permits at most.
const FIRST: u32 = 4;
/// At most one of so many permits that are left is taken ahead: the others are for other processes, which take as many.
const SHARE: u64 = 8;

/// What was asked for lately, and what was left.
#[derive(Debug)]
pub(super) struct Meter {
    calls: u64,
    permits: u64,
    most: u32,
    left: u64,
}

impl Meter {
    pub(super) fn new() -> Self {
        Self {
            calls: 0,
            permits: 0,
            most: 0,
            left: 0,
        }
    }

    /// Notes that somebody asked for `permits`.
    pub(super) fn note(&mut self, permits: u32) {
        self.calls = self.calls.saturating_add(1);
        self.permits = self.permits.saturating_add(u64::from(permits));
    }

    /// Begins to count anew.
    pub(super) fn restart(&mut self) {
        (self.calls, self.permits) = (0, 0);
    }

    /// Notes how many permits are left.
    pub(super) fn told(&mut self, left: u64) {
        self.left = left;
    }

    /// Notes what became of a lease.
    pub(super) fn ended(&mut self, taken: u32, used: u32) {
        self.most = if used >= taken {
            taken.saturating_mul(4)
        } else {
            used.saturating_mul(2)
        };
    }

    /// Notes that there was no room for so many.
    pub(super) fn refused(&mut self, permits: u32) {
        self.most = permits / 2;
    }

    /// How many permits to take for `lead`, where what was noted came within `over`; 0 where it does not pay.
    ///
    /// As many as are asked for in that time, if they are of two callers at least, and no greater part of what is left
    /// than others may take, too. So near exhaustion nothing is taken ahead.
    pub(super) fn amount(&self, over: Duration, lead: Duration) -> u32 {
        let within_lead = |count: u64| {
            let over = over.as_nanos().max(1);
            u128::from(count).saturating_mul(lead.as_nanos()) / over
        };
        if within_lead(self.calls) < 2 {
            return 0;
        }
        let expected = u64::try_from(within_lead(self.permits)).unwrap_or(u64::MAX);
        let caller = self.permits.div_ceil(self.calls.max(1));
        let most = u64::from(self.most).max(caller.saturating_mul(u64::from(FIRST)));
        let amount = expected.min(most).min(self.left / SHARE);
        // Less than one caller asks for is of no use, and one permit alone is no lease.
        if amount < caller.max(2) {
            return 0;
        }
        u32::try_from(amount).unwrap_or(u32::MAX)
    }
}
