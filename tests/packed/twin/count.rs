//! A state as a charge counts by its row, whatever kind either is.

use super::{
    Clock, Id,
    call::{Ahead, Row},
    gcra, log,
    reply::{Refusal, Standing},
    state::State,
    window,
};

/// What is in use, by the limits of a row.
pub trait Count {
    /// Returns how many callers of so many permits have room.
    fn room(&self, permits: i64) -> i64;

    /// Takes permits for each of these callers.
    fn take(&mut self, callers: &[Id], permits: i64);

    /// Charges one caller for a settlement, whether there is room or not.
    fn owe(&mut self, id: Id, permits: i64);

    /// Fetches permits ahead, if there is room. Only a log does.
    fn fetch(&mut self, _: Id, _: Ahead) -> bool {
        false
    }

    fn standing(&self) -> Standing;

    /// Returns the ms until a caller of so many permits has room; `None` if it never has.
    fn wait(&self, permits: i64) -> Option<i64>;

    /// Returns the ms until nothing is in use, of a log.
    fn reset(&self) -> i64 {
        0
    }

    /// Returns the state after it, whether it must be written whole, and how far ahead permits
    /// were fetched.
    fn state(&self) -> (State, bool, i64);

    /// Returns what the reply says of each limit, if there are several: see
    /// [`Group`](super::reply::Group).
    fn each(&self, _permits: i64) -> [Option<[i64; 3]>; 4] {
        [None; 4]
    }

    /// Returns what a caller of so many permits learns who has no room.
    fn refusal(&self, permits: i64) -> Refusal {
        Refusal::Full {
            wait: self.wait(permits),
            standing: self.standing(),
            reset: self.reset(),
        }
    }
}

/// Counts by a row; `None` if it is a calendar and no window holds now. Takes nothing.
pub fn count(stored: Option<&State>, row: &Row, clock: Clock) -> Option<Box<dyn Count>> {
    Some(match row {
        Row::Log(limits) => Box::new(log::count::Count::of(stored, limits, clock)),
        Row::Gcra(limit) => Box::new(gcra::Count::of(stored, *limit, clock)?),
        Row::Window(limit) => Box::new(window::Count::fixed(stored, *limit, clock)),
        Row::Calendar { rate, dates } => {
            Box::new(window::Count::calendar(stored, *rate, dates, clock)?)
        }
        Row::Ban(_) => return None,
    })
}
