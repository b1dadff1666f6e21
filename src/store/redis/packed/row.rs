//! What a charge counts by, of any kind, and what a reply says of it.

use redis::Value;

use super::{
    Group, MOST, NO_WINDOW, Numbers, PackedStanding,
    bytes::Buffer,
    calendar::{self, CalendarRow},
    gcra::{self, GcraRow},
    log::{self, LogRow},
    window::{self, WindowRow, without_room},
};
use crate::{
    algorithm::answer::{Answer, Each, Verdict},
    store::redis::reply,
    values::{
        charge::Charge,
        error::Error,
        limit::{Algorithm, StoredLimit},
    },
};

/// The only number of a group that an enforced ban refuses.
const BANNED: i64 = 1 - MOST;

/// What a charge counts by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Row {
    Log(LogRow),
    Gcra(GcraRow),
    Window(WindowRow),
    Calendar(CalendarRow),
}

impl Row {
    /// Returns what a call counts by that reads, settles or releases what a limiter has by its own
    /// limit.
    pub(super) fn any(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::SlidingLog => Self::Log(LogRow::any()),
            Algorithm::FixedWindow => Self::Window(WindowRow::ANY),
            Algorithm::Gcra => Self::Gcra(GcraRow::ANY),
            Algorithm::Calendar => Self::Calendar(CalendarRow::ANY),
        }
    }

    /// Returns what a receipt is settled by, and the two numbers by which its grant is found;
    /// `None` if it lacks what that needs.
    pub(super) fn settled(receipt: &Charge) -> Option<(Self, [i64; 2])> {
        Some(match receipt.compiled().counting.algorithm {
            Algorithm::SlidingLog => {
                let (row, mark) = log::settled(receipt)?;
                (Self::Log(row), mark)
            }
            Algorithm::FixedWindow => {
                let (row, mark) = window::settled(receipt)?;
                (Self::Window(row), mark)
            }
            Algorithm::Gcra => {
                let (row, mark) = gcra::settled(receipt)?;
                (Self::Gcra(row), mark)
            }
            Algorithm::Calendar => {
                let (row, mark) = calendar::settled(receipt)?;
                (Self::Calendar(row), mark)
            }
        })
    }

    /// Returns whether each grant has a record of its own.
    pub(crate) fn has_records(&self) -> bool {
        matches!(self, Self::Log(_))
    }

    /// Returns what the key of a limiter ends with that counts by it.
    pub(super) fn suffix(&self) -> &'static str {
        match self {
            Self::Calendar(_) => calendar::SUFFIX,
            _ => super::SUFFIX,
        }
    }

    /// Writes it.
    pub(super) fn put(&self, bytes: &mut Buffer) {
        match self {
            Self::Log(row) => row.put(bytes),
            Self::Gcra(row) => row.put(bytes),
            Self::Window(row) => row.put(bytes),
            Self::Calendar(row) => row.put(bytes),
        }
    }

    /// Reads a group; `None` if no window holds the time. The limiter stood so `before`.
    pub(super) fn group(
        &self,
        numbers: &mut Numbers<'_>,
        callers: usize,
        before: Option<PackedStanding>,
    ) -> Result<Option<Group>, Error> {
        let mut number = numbers.next()?;
        if number == NO_WINDOW {
            return Ok(None);
        }
        let mut granted = usize::from(number >= 0);
        if callers > 1 {
            let said = usize::try_from(number).ok();
            let said = said.filter(|granted| *granted <= callers);
            granted = said.ok_or_else(reply::unreadable)?;
            number = numbers.next()?;
        }
        let (mut standing, mut each) = (None, None);
        if granted > 0 {
            standing = Some(match self {
                Self::Log(row) => {
                    let (standing, of_each) = row.with_room(number, numbers)?;
                    each = of_each;
                    standing
                }
                Self::Gcra(_) => GcraRow::with_room(number, numbers)?,
                Self::Window(row) => row.with_room(number, numbers)?,
                Self::Calendar(row) => row.with_room(number, numbers)?,
            });
            if granted == callers {
                return Ok(Some(Group {
                    granted,
                    wait: 0,
                    standing,
                    each,
                }));
            }
            number = numbers.next()?;
        }
        if number >= 0 {
            return Err(reply::unreadable());
        }
        if number != BANNED {
            let before = standing.or(before);
            standing = Some(match self {
                Self::Log(_) => LogRow::without_room(numbers, standing)?,
                Self::Gcra(_) => GcraRow::without_room(numbers)?,
                Self::Window(_) | Self::Calendar(_) => without_room(number, numbers, before)?,
            });
            let has_next = each.take();
            each = self.each(numbers)?;
            if let (Some(each), Some(before)) = (&mut each, has_next) {
                let pairs = each.iter_mut().zip(before.iter());
                pairs.for_each(|(of, before)| of.next = before.next);
            }
        }
        let wait = if number > BANNED { -number } else { 0 };
        Ok(Some(Group {
            granted,
            wait,
            standing,
            each,
        }))
    }

    /// Reads how each of several limits stands, behind a group that has no room.
    fn each(&self, numbers: &mut Numbers<'_>) -> Result<Option<Box<Each>>, Error> {
        match self {
            Self::Log(row) => row.each(numbers),
            Self::Gcra(_) | Self::Window(_) | Self::Calendar(_) => Ok(None),
        }
    }

    /// Reads the reply to a call of one caller, which is not a list where one number says all.
    pub(super) fn read_lone(&self, reply: &Value) -> Result<Group, Error> {
        let mut numbers = Numbers::alone(reply)?;
        let group = self.group(&mut numbers, 1, None)?;
        numbers.end()?;
        group.ok_or_else(reply::unreadable)
    }

    /// Returns the limit, without the length of a window.
    pub(super) fn limit(&self) -> StoredLimit {
        match self {
            Self::Log(row) => row.limit(),
            Self::Gcra(row) => row.limit(),
            Self::Window(row) => row.limit(),
            Self::Calendar(row) => row.limit(),
        }
    }

    /// Returns the most permits that a caller can take.
    pub(super) fn most(&self) -> i64 {
        match self {
            Self::Log(row) => row.most(),
            Self::Gcra(_) | Self::Window(_) | Self::Calendar(_) => self.limit().rate,
        }
    }

    /// Returns what is answered to all callers.
    pub(super) fn answer(&self, micros: i64, standing: PackedStanding) -> Answer {
        match self {
            Self::Log(row) => row.answer(micros / 1000, standing),
            Self::Gcra(row) => row.answer(micros, standing),
            Self::Window(row) => row.answer(micros / 1000, standing),
            Self::Calendar(row) => row.answer(micros / 1000, standing),
        }
    }

    /// Returns what is answered to a caller alone by what is said of it; `None` if that is a ban.
    pub(super) fn answer_lone(&self, charge: &Charge, micros: i64, said: &Group) -> Option<Answer> {
        let (standing, permits) = (said.standing?, i64::from(charge.permits));
        let answer = Answer {
            each: said.each.clone(),
            ..self.answer(micros, standing)
        };
        Some(if said.granted > 0 {
            answer.for_caller(Verdict::Granted, 0)
        } else if permits > self.most() {
            answer.for_caller(Verdict::AboveRate, 0)
        } else {
            let wait = self.wait(&answer, standing, permits);
            answer.for_caller(Verdict::Refused, wait.max(said.wait))
        })
    }

    /// Returns the ms until a caller that needs so many permits has room.
    pub(super) fn wait(&self, answer: &Answer, standing: PackedStanding, needs: i64) -> i64 {
        match self {
            Self::Log(row) => row.wait(standing, needs),
            Self::Gcra(row) => row.wait(answer.now, standing, needs),
            Self::Window(row) => row.wait(standing, needs),
            Self::Calendar(row) => row.wait(answer, standing, needs),
        }
    }
}
