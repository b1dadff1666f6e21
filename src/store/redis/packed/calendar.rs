//! A limit by the calendar, one string, which has the permits used in a window, under its label.
//!
//! A call carries two windows of the limit, the present one by the caller's clock and the next, and
//! the server's time chooses. If neither holds that time, the call must be made once more, by that
//! time.

use super::{Argument, LATEST, MOST, Numbers, Stamp, Standing, number_at};
use crate::{
    algorithm::answer::{Answer, Changed},
    charge::{Charge, Taken},
    clock::Now,
    error::Error,
    limit::{RateType, StoredLimit, calendar::Window},
    name::Name,
    store::redis::wire::{self, script::ScriptCall},
};

/// The kind of a state and of a row.
const KIND: u8 = 5;

/// What a charge counts by. A limiter stands as the permits left, and the ms until the window ends:
/// 0 if all ask for more than the rate, which says no end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) rate: i64,
    pub(crate) windows: [Window; 2],
}

/// The window that was counted.
#[derive(Clone, Copy)]
struct Counted {
    /// Not of a window that the call does not know
    label: Option<i64>,
    end: i64,
    length: i64,
}

impl Row {
    /// Returns that of a call which knows one window, and does nothing once that is over. The
    /// server's clock may be set back, so it has begun always.
    fn until(end: i64, label: i64, rate: i64) -> Self {
        let start = 0;
        Self {
            rate,
            windows: [Window { label, start, end }; 2],
        }
    }

    /// Writes it.
    pub(super) fn put(&self, argument: Argument) -> Argument {
        let argument = argument.bytes(&[KIND]).number(self.rate, 7);
        let numbers = self.windows.iter();
        let numbers = numbers.flat_map(|window| [window.label, window.start, window.end]);
        numbers.fold(argument, |argument, number| argument.number(number, 6))
    }

    /// Makes the call that leaves so many of the permits that were taken in its window.
    fn settle(&self, stamp: Stamp, name: &Name, took: u32, keep: u32) -> ScriptCall {
        let label = self.windows[0].label;
        let argument = self.put(Argument::new(stamp, 1));
        argument.settle(stamp.id, name, [took, keep], [label, 0])
    }

    /// Reads the permits left and the ms until the window ends.
    pub(super) fn with_room(
        &self,
        number: i64,
        numbers: &mut Numbers<'_>,
    ) -> Result<Standing, Error> {
        let unit = self.span() + 1;
        let is_one = (self.rate + 1).saturating_mul(unit) <= MOST;
        let (left, ends) = match is_one {
            true => (number.div_euclid(unit), number.rem_euclid(unit)),
            false => (number, numbers.next()?),
        };
        match left >= 0 && ends > 0 {
            true => Ok([left, ends]),
            false => Err(wire::unreadable()),
        }
    }

    /// Reads the same where there is no room, which may have stood so `before`.
    pub(super) fn without_room(
        &self,
        wait: i64,
        numbers: &mut Numbers<'_>,
        before: Option<Standing>,
    ) -> Result<Standing, Error> {
        let ends_before = before.map_or(0, |[_, ends]| ends);
        let left = numbers.next()?;
        Ok([left, if wait > -MOST { -wait } else { ends_before }])
    }

    /// Returns the ms from the first start to the last end. No grant says a longer time.
    fn span(&self) -> i64 {
        let [first, second] = self.windows;
        first.end.max(second.end) - first.start.min(second.start).max(0)
    }

    /// Returns the limit, whose interval is that of the present window.
    pub(super) fn limit(&self) -> StoredLimit {
        StoredLimit {
            rate: self.rate,
            interval: self.windows[0].end - self.windows[0].start,
            rate_type: RateType::Overall,
            keep_alive: 0,
        }
    }

    /// Returns the window that was counted: that which ends so many ms from now. One that the call
    /// does not know is taken for as long as the present one.
    fn counted(&self, now: i64, ends: i64) -> Counted {
        let mut windows = self.windows.iter();
        let known = match ends {
            0 => windows.find(|window| window.holds(now)),
            ends => windows.find(|window| window.end == now + ends),
        };
        let present = self.windows.iter().find(|window| window.holds(now));
        let window = known.or(present).unwrap_or(&self.windows[1]);
        Counted {
            label: known.map(|known| known.label),
            end: if ends > 0 { now + ends } else { window.end },
            length: window.end - window.start,
        }
    }

    /// Returns what is answered to all callers.
    pub(super) fn answer(&self, now: i64, [left, ends]: Standing) -> Answer {
        let window = self.counted(now, ends);
        let limit = StoredLimit {
            interval: window.length,
            ..self.limit()
        };
        let turn = window.end - now;
        let reset = if left < self.rate { turn } else { 0 };
        Answer {
            remaining: left,
            next: reset,
            reset,
            // Without its label, a grant cannot be settled.
            taken: window.label.map(|label| Taken::Date {
                label,
                end: window.end,
            }),
            ..Answer::new(&limit, Changed::Nothing, Now::millis(now))
        }
    }

    /// Returns the ms until so many permits are free: later windows are assumed to be as long as
    /// this one.
    pub(super) fn wait(&self, answer: &Answer, [_, ends]: Standing, needs: i64) -> i64 {
        let now = answer.now.tick;
        let turn = self.counted(now, ends).end - now;
        let rounds = (needs - 1).div_euclid(self.rate.max(1));
        turn.saturating_add(rounds.saturating_mul(answer.interval))
    }
}

/// Makes the call that settles a receipt at a number of permits.
pub(super) fn settle(receipt: &Charge, keep: u32) -> Option<ScriptCall> {
    let Some(Taken::Date { label, end }) = receipt.settle() else {
        return None;
    };
    let rate = receipt.limit().given()?.stored().rate;
    let row = Row::until(end, label, rate);
    let stamp = Stamp {
        id: receipt.id,
        now: None,
    };
    Some(row.settle(stamp, receipt.name(), receipt.permits, keep))
}

/// Makes the call that gives back so many permits of the window of a state, if it is open.
pub(crate) fn release(name: &Name, stamp: Stamp, state: &State, permits: u32) -> ScriptCall {
    let row = Row::until(LATEST, state.label, MOST);
    row.settle(stamp, name, permits, 0)
}

/// What a state says.
pub(crate) struct State {
    pub(crate) label: i64,
    pub(crate) used: i64,
}

impl State {
    /// Reads a state; `None` if it is another one.
    pub(crate) fn of(bytes: &[u8]) -> Option<Self> {
        let is_ours = bytes.len() == 74 && bytes.ends_with(&[16 + KIND, 183]);
        is_ours.then(|| Self {
            label: number_at(bytes, 0, 6),
            used: number_at(bytes, 12, 7),
        })
    }
}
