//! The window of a calendar: what `lua/calendar` does, in Rust.

use super::{
    answer::Answer,
    limiter::{Algorithm, Call, Needs},
};
use crate::{
    clock::Now,
    error::ErrorKind,
    limit::{
        self, StoredLimit,
        calendar::{LINGERS, Window},
    },
    name::Counting,
    receipt::{PermitId, Receipt, Taken},
};

/// The permits used of one limiter, and under which label. The limit is not part of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Calendar {
    pub(crate) stored: Option<Used>,
    calendar: Option<limit::Calendar>,
    /// The window of the last call, and the one after it.
    windows: Option<[Window; 2]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Used {
    pub(crate) label: i64,
    /// Above the rate after a lowered rate, or a debt.
    pub(crate) permits: i64,
    /// The end of the window, in ms
    pub(crate) end: i64,
}

/// The window in which a call counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Open {
    /// The permits used in it so far, and its label and end
    pub(crate) used: Used,
    /// Its length; of a newer one that the caller does not know, that of the one it knows
    pub(crate) length: i64,
    /// The end of the window after it, as far as that is known
    pub(crate) next_end: i64,
}

impl Open {
    /// Returns the window that counts at an instant, of the two that the caller knows. `None` if
    /// neither holds the instant.
    ///
    /// Labels never fall. A stored one that is newer goes on counting, whatever made it: a clock
    /// that was set back since, or a host with other zone data or another zone.
    pub(crate) fn at(now: i64, stored: Option<Used>, windows: &[Window; 2]) -> Option<Self> {
        let chosen = windows.iter().find(|window| window.holds(now))?;
        let of = |window: &Window| {
            let after = windows.iter().find(|other| other.start == window.end);
            let next_end = after.map_or(window.end + window.length(), |after| after.end);
            (window.length(), next_end)
        };
        let new = Used {
            label: chosen.label,
            permits: 0,
            end: chosen.end,
        };
        let used = match stored {
            Some(used) if used.label >= chosen.label => {
                let known = windows.iter().find(|window| window.label == used.label);
                let end = known.map_or(used.end.max(now), |known| known.end);
                Used { end, ..used }
            }
            _ => new,
        };
        let known = windows.iter().find(|window| window.label == used.label);
        let (length, next_end) = match known {
            Some(known) => of(known),
            None => (chosen.length(), used.end + chosen.length()),
        };
        Some(Self {
            used,
            length,
            next_end,
        })
    }

    /// Returns the ms until permits are free that need so many further windows.
    pub(crate) fn wait(&self, now: i64, rounds: i64) -> i64 {
        let end = match rounds {
            0 => self.used.end,
            _ => {
                let more = (rounds - 1).saturating_mul(self.length);
                self.next_end.saturating_add(more)
            }
        };
        end - now
    }
}

impl Calendar {
    /// Counts by these windows from now on, as a caller sends them.
    #[cfg(all(test, inside))]
    pub(crate) fn go_by(&mut self, windows: [Window; 2]) {
        (self.calendar, self.windows) = (None, Some(windows));
    }

    /// Returns the window that counts now.
    fn open(&mut self, now: Now) -> Open {
        let millis = millis(now);
        let windows = match (self.windows, self.calendar) {
            (Some(known), Some(_)) if known[0].holds(millis) => known,
            (_, Some(calendar)) => calendar.windows(millis),
            (known, None) => known.unwrap_or([Window::EVER; 2]),
        };
        self.windows = Some(windows);
        let open = Open::at(millis, self.stored, &windows);
        // Never: the first of them holds it.
        open.unwrap_or(Open {
            used: Used {
                label: 0,
                permits: 0,
                end: millis,
            },
            length: 0,
            next_end: millis,
        })
    }
}

/// Returns the instant in ms since the epoch, rounded down.
fn millis(now: Now) -> i64 {
    now.micros().div_euclid(1000)
}

impl Algorithm for Calendar {
    fn kind(&self) -> limit::Algorithm {
        limit::Algorithm::Calendar
    }

    fn count_by(&mut self, counting: Counting) {
        if self.calendar != counting.calendar {
            (self.calendar, self.windows) = (counting.calendar, None);
        }
    }

    fn begin(&mut self, call: &Call, _wanted: i64) -> i64 {
        call.limit.rate - self.open(call.now).used.permits
    }

    fn end(&mut self, call: &Call, answer: &mut Answer, needs: &mut [Needs]) {
        let (now, open) = (call.now, self.open(call.now));
        let permits = call.limit.rate - answer.remaining;
        if permits != open.used.permits {
            self.stored = Some(Used {
                permits,
                ..open.used
            });
        }
        let ticks = |rounds| now.ticks(millis(now) + open.wait(millis(now), rounds)) - now.tick;
        for needs in needs {
            needs.wait = ticks(needs.rounds);
        }
        answer.interval = open.length;
        answer.reset = if permits > 0 { ticks(0) } else { 0 };
        answer.next = answer.reset;
        answer.taken = Some(Taken::Date(open.used.label));
    }

    fn available(
        &mut self,
        limit: &StoredLimit,
        now: Now,
        _id: PermitId,
    ) -> Result<i64, ErrorKind> {
        Ok(limit.rate - self.open(now).used.permits)
    }

    fn release(
        &mut self,
        _limit: &StoredLimit,
        wanted: i64,
        now: Now,
        _id: PermitId,
    ) -> Result<i64, ErrorKind> {
        let open = self.open(now);
        Ok(self.credit(open.used.label, wanted))
    }

    /// Gives back permits of the window in the receipt, while it counts.
    fn give_back(
        &mut self,
        _limit: Option<&StoredLimit>,
        grant: &Receipt,
        taken: Option<Taken>,
        keep: u32,
        now: Now,
    ) -> Result<i64, ErrorKind> {
        let label = self.open(now).used.label;
        let less = grant.permits.saturating_sub(keep);
        let is_of = matches!(taken, Some(Taken::Date(of)) if of == label);
        Ok(if is_of {
            self.credit(label, less.into())
        } else {
            0
        })
    }

    /// What exceeds a grant of a window that is over is void, as what was left of it is.
    fn charge(
        &mut self,
        _limit: &StoredLimit,
        permits: u32,
        _id: PermitId,
        taken: Option<Taken>,
        now: Now,
    ) -> i64 {
        let open = self.open(now);
        if matches!(taken, Some(Taken::Date(label)) if label != open.used.label) {
            return 0;
        }
        let permits = i64::from(permits);
        self.stored = Some(Used {
            permits: open.used.permits + permits,
            ..open.used
        });
        permits
    }

    fn change_limit(&mut self, _: Option<&StoredLimit>, _: &StoredLimit, _: Now) {}

    fn forget(&mut self) {
        self.stored = None;
    }

    fn full_at(&self, _limit: &StoredLimit) -> Option<i64> {
        let used = self.stored.filter(|used| used.permits > 0)?;
        Some(Now::at(0).ticks(used.end))
    }

    fn end_of_life(&self, _limit: &StoredLimit, now: Now) -> i64 {
        let used = self.stored.map_or(now.tick, |used| now.ticks(used.end));
        used.saturating_add(now.ticks(LINGERS))
    }
}

impl Calendar {
    /// Gives back permits that are stored under a label, as many as there are. Returns how many.
    fn credit(&mut self, label: i64, permits: i64) -> i64 {
        let used = self.stored.as_mut().filter(|used| used.label == label);
        used.map_or(0, |used| {
            let credited = permits.min(used.permits);
            used.permits -= credited;
            credited
        })
    }
}

#[cfg(all(test, feature = "calendar"))]
mod tests;
