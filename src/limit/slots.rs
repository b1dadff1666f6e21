//! How finely a log of grants is kept, for large limits.

use std::time::Duration;

use crate::error::ConfigError;

/// More would lead to entries as many as grants.
const MOST_SLOTS: u32 = 10_000;

/// Into how many slots an interval is divided where all that is granted in one of them is one entry of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Slots(u32);

impl Slots {
    /// So many for the limiter or rule of this name, whose limits have these intervals, as far as they are known.
    ///
    /// A score leads its grant by less than a slot. With ten slots that is never more than the tenth of an interval by
    /// which every process expects scores to lead.
    pub(crate) fn try_new(
        slots: u32,
        name: &str,
        mut intervals: impl Iterator<Item = Duration>,
    ) -> Result<Self, ConfigError> {
        let refuse = |reason| {
            let name = name.to_owned();
            Err(ConfigError::Slots {
                name,
                slots,
                reason,
            })
        };
        if !(10..=MOST_SLOTS).contains(&slots) {
            return refuse("an interval has 10 to 10000");
        }
        if intervals.any(|interval| interval.as_millis() < slots.into()) {
            return refuse(
                "each lasts a millisecond at least, and the interval does not have as many",
            );
        }
        Ok(Self(slots))
    }

    #[cfg(any(test, feature = "redis"))]
    pub(crate) fn count(self) -> u32 {
        self.0
    }

    /// The end of the slot that an instant is in: at that instant, or by less than one slot later. The same for all who
    /// count an interval in as many slots, as they are told off from the epoch. Both are in ticks.
    ///
    /// A stored interval may be too short for as many: it then has one for each tick.
    pub(crate) fn end(self, now: i64, interval: i64) -> i64 {
        let width = interval.max(1).unsigned_abs().div_ceil(self.0.into());
        now.saturating_add(now.saturating_neg().rem_euclid(width.cast_signed()))
    }
}
