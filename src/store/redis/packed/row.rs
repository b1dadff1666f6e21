//! What a charge counts by, of any kind, and what a reply says of it.

use super::{Argument, MOST, NO_WINDOW, Numbers, Standing, calendar, gcra};
use crate::{algorithm::answer::Answer, error::Error, limit::StoredLimit, store::redis::wire};

/// The only number of a group that an enforced ban refuses.
const BANNED: i64 = 1 - MOST;

/// What a charge counts by.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Row {
    Gcra(gcra::Row),
    Calendar(calendar::Row),
}

/// What the reply says about callers that ask for the same of one limiter.
pub(super) struct Group {
    pub(super) granted: usize,
    /// The ms until the first of the others has room, if nothing else is taken.
    pub(super) wait: i64,
    /// `None` if a ban refuses them.
    pub(super) standing: Option<Standing>,
}

impl Row {
    /// Writes it.
    pub(super) fn put(&self, argument: Argument) -> Argument {
        match self {
            Self::Gcra(row) => row.put(argument),
            Self::Calendar(row) => row.put(argument),
        }
    }

    /// Reads a group; `None` if no window holds the time. The limiter stood so `before`.
    pub(super) fn group(
        &self,
        numbers: &mut Numbers<'_>,
        callers: usize,
        before: Option<Standing>,
    ) -> Result<Option<Group>, Error> {
        let mut number = numbers.next()?;
        if number == NO_WINDOW {
            return Ok(None);
        }
        let mut granted = usize::from(number >= 0);
        if callers > 1 {
            let said = usize::try_from(number).ok();
            let said = said.filter(|granted| *granted <= callers);
            granted = said.ok_or_else(wire::unreadable)?;
            number = numbers.next()?;
        }
        let mut standing = None;
        if granted > 0 {
            standing = Some(match self {
                Self::Gcra(_) => gcra::Row::with_room(number, numbers)?,
                Self::Calendar(row) => row.with_room(number, numbers)?,
            });
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
            return Err(wire::unreadable());
        }
        if number != BANNED {
            standing = Some(match self {
                Self::Gcra(_) => gcra::Row::without_room(numbers)?,
                Self::Calendar(row) => row.without_room(number, numbers, standing.or(before))?,
            });
        }
        let wait = if number > BANNED { -number } else { 0 };
        Ok(Some(Group {
            granted,
            wait,
            standing,
        }))
    }

    /// Returns the limit, without the length of a window.
    pub(super) fn limit(&self) -> StoredLimit {
        match self {
            Self::Gcra(row) => row.limit(),
            Self::Calendar(row) => row.limit(),
        }
    }

    /// Returns what is answered to all callers.
    pub(super) fn answer(&self, micros: i64, standing: Standing) -> Answer {
        match self {
            Self::Gcra(row) => row.answer(micros, standing),
            Self::Calendar(row) => row.answer(micros / 1000, standing),
        }
    }

    /// Returns the ms until a caller that needs so many permits has room.
    pub(super) fn wait(&self, answer: &Answer, standing: Standing, needs: i64) -> i64 {
        match self {
            Self::Gcra(row) => row.wait(answer.now, standing, needs),
            Self::Calendar(row) => row.wait(answer, standing, needs),
        }
    }
}
