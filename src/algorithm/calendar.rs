//! The algorithm of calendar windows: decides in Rust as `lua/packed/window.lua` does in Redis.

use super::{
    answer::Answer,
    bytes::bytes,
    limiter::{CallContext, Counter, GiveBack, Needs},
};
use crate::values::{
    charge::Taken,
    clock::Now,
    error::ErrorKind,
    limit::Counting,
    limit::{
        self, StoredLimit,
        calendar::{LINGERS, Window},
    },
};

/// The permits used of one limiter, and under which label. The limit is not part of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CalendarCount {
    pub(crate) stored: Option<Used>,
    calendar: Option<limit::Calendar>,
    /// The window of the last call, and the one after it.
    pub(crate) windows: [Window; 2],
}

bytes!(CalendarCount { stored }..Self::default());

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Used {
    pub(crate) label: i64,
    /// Above the rate after a lowered rate, or a debt.
    pub(crate) permits: i64,
    /// The end of the window, in ms
    pub(crate) end: i64,
}

bytes!(Used {
    label,
    permits,
    end
});

impl Used {
    /// Returns what is used in the window that counts, and its length; `None` if neither of the two
    /// that the caller knows holds the instant.
    ///
    /// Labels never fall. A newer stored one stays in use, whatever made it: a clock
    /// that was set back since, or a host with other zone data or another zone. One that the caller
    /// does not know is taken for as long as the present one, and nothing is used after its end.
    pub(crate) fn at(now: i64, stored: Option<Self>, windows: &[Window; 2]) -> Option<(Self, i64)> {
        let present = windows.iter().find(|window| window.holds(now))?;
        let stored = stored.filter(|used| used.label >= present.label);
        let used = stored.unwrap_or(Self {
            label: present.label,
            permits: 0,
            end: present.end,
        });
        let known = windows.iter().find(|window| window.label == used.label);
        let (permits, end) = match known {
            Some(known) => (used.permits, known.end),
            None if used.end > now => (used.permits, used.end),
            None => (0, present.end),
        };
        let window = known.unwrap_or(present);
        let used = Self {
            permits,
            end,
            ..used
        };
        Some((used, window.end - window.start))
    }
}

/// Returns the instant in ms since the epoch, rounded down.
fn millis(now: Now) -> i64 {
    now.micros().div_euclid(1000)
}

impl CalendarCount {
    /// Returns what is used in the window that counts now, and its length.
    fn used(&mut self, now: Now) -> (Used, i64) {
        let now = millis(now);
        if let Some(calendar) = self.calendar.filter(|_| !self.windows[0].holds(now)) {
            self.windows = calendar.windows(now);
        }
        Used::at(now, self.stored, &self.windows).unwrap_or_default()
    }

    /// Adds permits, or gives them back, as many as there are. Returns by how many more are used.
    fn add(&mut self, permits: i64, now: Now) -> i64 {
        let (used, _) = self.used(now);
        let permits = permits.max(-used.permits);
        let sum = used.permits + permits;
        self.stored = Some(Used {
            permits: sum,
            ..used
        });
        permits
    }
}

impl Counter for CalendarCount {
    fn kind(&self) -> limit::Algorithm {
        limit::Algorithm::Calendar
    }

    fn count_by(&mut self, counting: Counting) {
        if counting.calendar.is_some() && counting.calendar != self.calendar {
            (self.calendar, self.windows) = (counting.calendar, Default::default());
        }
    }

    // Without windows, nothing that is taken would count.
    fn prepare(&self, call: &mut CallContext) -> Result<i64, ErrorKind> {
        let is_known = self.calendar.is_some() || self.windows != <[Window; 2]>::default();
        is_known.then_some(call.limit.rate).ok_or(ErrorKind::Limit)
    }

    fn begin(&mut self, call: &CallContext, _wanted: i64) -> i64 {
        call.limit.rate - self.used(call.now).0.permits
    }

    fn end(&mut self, call: &CallContext, _taken: i64, answer: &mut Answer, needs: &mut [Needs]) {
        let (now, (used, length)) = (call.now, self.used(call.now));
        let permits = call.limit.rate - answer.remaining;
        if permits != used.permits {
            self.stored = Some(Used { permits, ..used });
        }
        let turn = now.ticks(used.end) - now.tick;
        for needs in needs {
            needs.wait = turn.saturating_add(now.ticks(length.saturating_mul(needs.rounds)));
        }
        answer.interval = length;
        answer.reset = if permits > 0 { turn } else { 0 };
        answer.next = answer.reset;
        answer.taken = Some(Taken::Date {
            label: used.label,
            end: used.end,
        });
    }

    fn roll_past(&mut self, taken: Option<Taken>, now: Now) -> bool {
        let label = self.used(now).0.label;
        matches!(taken, Some(Taken::Date { label: of, .. }) if of != label)
    }

    fn available(&mut self, call: &CallContext) -> Result<i64, ErrorKind> {
        Ok(call.limit.rate - self.used(call.now).0.permits)
    }

    fn release(&mut self, call: &CallContext, wanted: i64) -> Result<i64, ErrorKind> {
        Ok(-self.add(-wanted, call.now))
    }

    fn give_back(&mut self, back: &GiveBack<'_>) -> Result<i64, ErrorKind> {
        Ok(-self.add(-i64::from(back.permits), back.now))
    }

    fn charge(&mut self, call: &CallContext, permits: u32) -> i64 {
        self.add(permits.into(), call.now)
    }

    fn change_limit(&mut self, _: Option<&StoredLimit>, _: &StoredLimit, _: Now) {}

    fn forget(&mut self) {
        self.stored = None;
    }

    fn full_at(&self, _: &StoredLimit) -> Option<i64> {
        let used = self.stored.filter(|used| used.permits > 0);
        used.map(|used| Now::at(0).ticks(used.end))
    }

    fn end_of_life(&self, _: &StoredLimit, now: Now) -> i64 {
        let end = self.stored.map_or(millis(now), |used| used.end);
        now.ticks(end.saturating_add(LINGERS))
    }
}

#[cfg(test)]
#[cfg(feature = "calendar")]
mod tests;
