//! Slots: the resolution of a log, for large limits.

use std::time::Duration;

use crate::values::error::{ConfigError, bail};

/// The most slots: with more, there would be as many entries as grants.
const MOST_SLOTS: u32 = 10_000;

/// The number of slots in an interval: all grants in one slot are one entry of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Slots(u32);

impl Slots {
    /// Checks a number of slots for the limiter or rule of this name, with the intervals that are
    /// known.
    ///
    /// The score offset of a grant is less than a slot. With at least ten slots it never exceeds
    /// the tenth of an interval that every process allows.
    pub(crate) fn try_new(
        slots: u32,
        name: &str,
        has_log: bool,
        mut intervals: impl Iterator<Item = Duration>,
    ) -> Result<Self, ConfigError> {
        let reason = if !has_log {
            "only a sliding log has slots"
        } else if !(10..=MOST_SLOTS).contains(&slots) {
            "an interval has 10 to 10000"
        } else if intervals.any(|interval| interval.as_millis() < slots.into()) {
            "each takes at least a millisecond, and the interval is too short for so many"
        } else {
            return Ok(Self(slots));
        };
        bail!(Limit: "{name:?} cannot have {slots} slots: {reason}")
    }

    pub(crate) fn count(self) -> u32 {
        self.0
    }

    /// Returns the end of the slot that contains an instant: that instant, or less than one slot
    /// later. It is the same for all callers with as many slots, as they are counted from the
    /// epoch. Both are in ticks.
    ///
    /// A stored interval may be too short for as many: it then has one for each tick.
    pub(crate) fn end(self, now: i64, interval: i64) -> i64 {
        let width = interval.max(1).unsigned_abs().div_ceil(self.0.into());
        now.saturating_add(now.saturating_neg().rem_euclid(width.cast_signed()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        // So that every process expects the slot's score, and its entries are few.
        #[test]
        fn a_slot_ends_no_later_than_a_score_may_lead(
            slots in 10..=MOST_SLOTS,
            interval in prop_oneof![1i64..3000, 1..1_i64 << 45, Just((1 << 53) - 1)],
            now in 0i64..(1 << 45),
        ) {
            let slots = Slots(slots);
            let end = slots.end(now, interval);
            prop_assert!((now..=now + interval / 10).contains(&end));
            prop_assert!(end - now <= interval / i64::from(slots.count()));
            // All of the slot has the same end, and the next instant has another.
            prop_assert_eq!(slots.end(end, interval), end);
            let next = slots.end(end + 1, interval);
            prop_assert!(next > end);
            prop_assert!((next - end) * i64::from(slots.count()) >= interval);
        }
    }
}
