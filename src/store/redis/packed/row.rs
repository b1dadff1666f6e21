//! What a charge counts by, of any kind, and what a reply says of it.

use std::ops::Deref;

use super::{
    Group, MOST, NO_WINDOW, Numbers, PackedStanding, RowKind,
    calendar::{self, CalendarRow},
    gcra::{self, GcraRow},
    log::{self, LogRow},
    window::{self, WindowRow},
};
use crate::{
    store::redis::reply,
    values::{charge::Charge, error::Error, limit::Algorithm},
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
        let mut standing = None;
        if granted > 0 {
            standing = Some(self.with_room(number, numbers)?);
            if granted == callers {
                return Ok(Some(Group {
                    granted,
                    wait: 0,
                    standing,
                }));
            }
            number = numbers.next()?;
        }
        if number >= 0 {
            return Err(reply::unreadable());
        }
        if number != BANNED {
            let (with_room, has_next) = standing.unzip();
            // Only of a window and a calendar: a log's next from earlier callers is not taken over.
            let before = with_room.or(before.filter(|_| !self.has_records()));
            let said = self.without_room(number, numbers, before)?;
            let mut each = self.each(numbers)?;
            if let (Some(each), Some(before)) = (&mut each, has_next.flatten()) {
                let pairs = each.iter_mut().zip(before.iter());
                pairs.for_each(|(of, before)| of.next = before.next);
            }
            standing = Some((said, each));
        }
        let wait = if number > BANNED { -number } else { 0 };
        Ok(Some(Group {
            granted,
            wait,
            standing,
        }))
    }
}

impl Deref for Row {
    type Target = dyn RowKind;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Log(row) => row,
            Self::Gcra(row) => row,
            Self::Window(row) => row,
            Self::Calendar(row) => row,
        }
    }
}
