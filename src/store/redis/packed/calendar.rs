//! A limit by the calendar, one string, which has the permits used in a window, under its label.
//!
//! Its key is not that of the other kinds: what is in use by the one would count for too long by
//! the other, so two versions of a service that take turns have a limit each.
//!
//! A call carries two windows of the limit, the present one by the caller's clock and the next, and
//! the server's time chooses. If neither holds that time, the call must be made once more, by that
//! time.

use super::{
    LATEST, MOST, Numbers, PackedStanding, RowKind, Stands, left_and, number_at, put_number,
    suffixed,
};
use crate::{
    algorithm::answer::{Answer, Changed},
    store::redis::reply,
    values::{
        charge::{Charge, Taken},
        clock::Now,
        error::Error,
        limit::{RateType, StoredLimit, calendar::Window},
        name::{Name, Short},
    },
};

/// The kind of a state and of a row.
const KIND: u8 = 5;

/// What the key of a limiter ends with that counts so.
pub(super) const SUFFIX: &str = "~:calendar";

/// Returns that key.
pub(crate) fn key(name: &Name) -> String {
    suffixed(name, SUFFIX)
}

/// What a charge counts by. A limiter stands as the permits left, and the ms until the window ends:
/// 0 if all ask for more than the rate, which says no end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CalendarRow {
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

impl CalendarRow {
    /// Returns the row of a call that releases what was taken in any window.
    pub(super) const ANY: Self = Self::until(LATEST, 0, MOST);

    /// Returns the row of a call that knows one window, and does nothing once that is over. The
    /// server's clock may be set back, so it has begun always.
    const fn until(end: i64, label: i64, rate: i64) -> Self {
        let start = 0;
        Self {
            rate,
            windows: [Window { label, start, end }; 2],
        }
    }

    /// Returns the ms from the first start to the last end. No grant says a longer time.
    fn span(&self) -> i64 {
        let [first, second] = self.windows;
        first.end.max(second.end) - first.start.min(second.start).max(0)
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
}

impl RowKind for CalendarRow {
    fn put(&self, bytes: &mut Short) {
        bytes.push(&[KIND]);
        put_number(bytes, self.rate, 7);
        for window in self.windows {
            for number in [window.label, window.start, window.end] {
                put_number(bytes, number, 6);
            }
        }
    }

    /// Its interval is that of the present window.
    fn limit(&self) -> StoredLimit {
        StoredLimit {
            rate: self.rate,
            interval: self.windows[0].end - self.windows[0].start,
            rate_type: RateType::Overall,
            keep_alive: 0,
        }
    }

    fn with_room(&self, first: i64, numbers: &mut Numbers<'_>) -> Result<Stands, Error> {
        let [left, ends] = left_and(first, numbers, self.rate, self.span())?;
        match ends {
            1.. => Ok(([left, ends, 0], None)),
            _ => Err(reply::unreadable()),
        }
    }

    fn answer(&self, now: i64, [left, ends, _]: PackedStanding) -> Answer {
        let now = now / 1000;
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

    /// Later windows are assumed to be as long as this one.
    fn wait(&self, answer: &Answer, [_, ends, _]: PackedStanding, needs: i64) -> i64 {
        let now = answer.now.tick;
        let turn = self.counted(now, ends).end - now;
        let rounds = (needs - 1).div_euclid(self.rate.max(1));
        turn.saturating_add(rounds.saturating_mul(answer.interval))
    }
}

/// Returns what a receipt is settled by, and the two numbers by which its grant is found; `None` if
/// it lacks what that needs.
pub(super) fn settled(receipt: &Charge) -> Option<(CalendarRow, [i64; 2])> {
    let Some(Taken::Date { label, end }) = receipt.claim_mark() else {
        return None;
    };
    let rate = receipt.limit().given()?.stored().rate;
    Some((CalendarRow::until(end, label, rate), [label, 0]))
}

/// What a state says.
pub(crate) struct State {
    pub(crate) label: i64,
    pub(crate) used: i64,
}

impl State {
    /// Reads a state; `None` if it is another one.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let is_ours = bytes.len() == 74 && bytes.ends_with(&[16 + KIND, 183]);
        is_ours.then(|| Self {
            label: number_at(bytes, 0, 6),
            used: number_at(bytes, 12, 7),
        })
    }
}
