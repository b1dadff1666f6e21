//! Windows of the calendar: their labels and bounds, and the limits that use them.

#[cfg(feature = "calendar")]
mod zoned;

#[cfg(feature = "calendar")]
pub(crate) use self::zoned::Calendar;
#[cfg(feature = "calendar")]
pub use self::zoned::StartingOn;

/// How long a count outlives its window, in ms: hosts whose zone data differ by an hour still find
/// it. The same as in `lua/packed/window.lua`.
pub(crate) const LINGERS: i64 = 3_600_000;

/// A calendar without the feature: there is none.
#[cfg(not(feature = "calendar"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Calendar {}

#[cfg(not(feature = "calendar"))]
impl Calendar {
    pub(crate) fn windows(self, _now: i64) -> [Window; 2] {
        match self {}
    }
}

/// A window of the calendar, in ms since the epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Window {
    /// The date on which it begins, as a number: 20261101. A later window has a greater one.
    pub(crate) label: i64,
    /// The first instant of that date
    pub(crate) start: i64,
    /// The first instant of the next window
    pub(crate) end: i64,
}

impl Window {
    pub(crate) fn holds(&self, now: i64) -> bool {
        (self.start..self.end).contains(&now)
    }
}
