//! A limit by a sliding log, one string, which has a record of each grant.

use super::{
    DECIDE, MOST, Numbers, PackedStanding, RowKind, SUFFIX, Stamp, Stands, left_and, number_at,
    put_number, sent_once,
};
use crate::{
    algorithm::answer::{Answer, Changed, Each},
    store::redis::script::ScriptCall,
    values::{
        charge::Charge,
        clock::{Millis, Now},
        error::Error,
        limit::{Limit, Shorter, StoredLimit},
        name::Short,
    },
};

/// The kind of a state and of a row.
const KIND: u8 = 1;

/// What a charge counts by. A limiter stands as the permits left, the ms until there is one more,
/// and those until all are free: 0 for what is not known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LogRow {
    pub(crate) rate: i64,
    pub(crate) interval: i64,
    pub(crate) shorter: Shorter,
}

impl LogRow {
    pub(crate) fn of(limit: &Limit) -> Self {
        let StoredLimit { rate, interval, .. } = limit.stored();
        let shorter = limit.shorter();
        Self {
            rate,
            interval,
            shorter,
        }
    }

    /// Returns the row of a call that releases what was taken by any limit.
    pub(super) fn any() -> Self {
        Self {
            rate: 1,
            interval: 1,
            shorter: Shorter::default(),
        }
    }

    /// Returns the rates and intervals, the longest first.
    fn limits(&self) -> impl DoubleEndedIterator<Item = [i64; 2]> {
        let shorter = self.shorter.iter();
        let shorter = shorter.map(|it| [it.permits.cast_signed(), it.interval.cast_signed()]);
        [[self.rate, self.interval]].into_iter().chain(shorter)
    }

    /// Makes the call for a caller alone.
    pub(super) fn lone(&self, stamp: Stamp, charge: &Charge) -> ScriptCall {
        let mut argument = Short::default();
        argument.push(&stamp.id.short());
        put_number(&mut argument, stamp.now.map_or(0, Millis::cast_signed), 6);
        argument.push(&[0]);
        self.put(&mut argument);
        put_number(&mut argument, charge.permits.into(), 4);
        sent_once(&DECIDE, &[(charge.name(), SUFFIX)], &argument, 1)
    }
}

impl RowKind for LogRow {
    fn put(&self, bytes: &mut Short) {
        let number = 1 + self.shorter.iter().count();
        bytes.push(&[KIND, number as u8]);
        for [rate, interval] in self.limits() {
            put_number(bytes, interval, 6);
            put_number(bytes, rate, 7);
        }
    }

    fn limit(&self) -> StoredLimit {
        StoredLimit {
            rate: self.rate,
            interval: self.interval,
            ..StoredLimit::default()
        }
    }

    fn most(&self) -> i64 {
        let shortest = self.limits().next_back();
        shortest.map_or(self.rate, |[rate, _]| rate)
    }

    /// As the limit that has the fewest permits left.
    fn with_room(&self, first: i64, numbers: &mut Numbers<'_>) -> Result<Stands, Error> {
        let mut each = (!self.shorter.is_none()).then(Box::<Each>::default);
        let [mut left, mut next] = [MOST, 0];
        for (index, [rate, interval]) in self.limits().enumerate() {
            let number = if index == 0 { first } else { numbers.next()? };
            let said = left_and(number, numbers, rate, interval)?;
            [left, next] = said.min([left, next]);
            if let Some(of) = each.as_mut().and_then(|each| each.get_mut(index)) {
                let [remaining, next] = said;
                of.remaining = remaining;
                of.next = if remaining < rate { next } else { 0 };
            }
        }
        // Some were taken just now.
        let reset = if left < self.rate { self.interval } else { 0 };
        Ok(([left, next, reset], each))
    }

    fn without_room(
        &self,
        _: i64,
        numbers: &mut Numbers<'_>,
        before: Option<PackedStanding>,
    ) -> Result<PackedStanding, Error> {
        let [left, reset] = [numbers.next()?, numbers.next()?];
        Ok([left, before.map_or(0, |[_, next, _]| next), reset])
    }

    fn each(&self, numbers: &mut Numbers<'_>) -> Result<Option<Box<Each>>, Error> {
        if self.shorter.is_none() {
            return Ok(None);
        }
        let mut each = Box::new(Each::default());
        for (of, _) in each.iter_mut().zip(self.limits()) {
            (of.remaining, of.wait) = (numbers.next()?, numbers.next()?);
        }
        Ok(Some(each))
    }

    fn answer(&self, now: i64, [left, next, reset]: PackedStanding) -> Answer {
        let now = Now::millis(now / 1000);
        Answer {
            remaining: left,
            next: if left < self.most() { next } else { 0 },
            reset,
            ..Answer::new(&self.limit(), Changed::Nothing, now)
        }
    }

    /// At the earliest: the reply says it for the first caller that has no room.
    fn wait(&self, _: &Answer, [_, next, _]: PackedStanding, needs: i64) -> i64 {
        let rounds = self.limits().map(|[rate, interval]| {
            let rounds = (needs - 1).div_euclid(rate.max(1));
            rounds.saturating_mul(interval)
        });
        next.max(1).saturating_add(rounds.max().unwrap_or(0))
    }
}

/// Returns what a receipt is settled by, and the two numbers by which its grant is found; `None` if
/// it lacks what that needs.
pub(super) fn settled(receipt: &Charge) -> Option<(LogRow, [i64; 2])> {
    Some((LogRow::of(receipt.limit().given()?), [0, 0]))
}

/// What a state says.
pub(crate) struct State {
    /// The time of each record, and its permits
    pub(crate) records: Vec<(i64, i64)>,
    /// Of each limit: interval, rate
    pub(crate) limits: Vec<(i64, i64)>,
}

impl State {
    /// Reads a state; `None` if it is another one.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let (front, &[ahead, windows, form, magic]) = bytes.split_last_chunk()?;
        let (ahead, windows) = (usize::from(ahead), usize::from(windows));
        let stop = front.len().checked_sub(30 * windows + 6)?;
        let is_ours = [form, magic] == [16 + KIND, 183]
            && (1..=4).contains(&windows)
            && ahead <= 64
            && stop % 22 == 0
            && stop >= 22 * (ahead + 1);
        let record = |at| (number_at(bytes, at + 16, 6), number_at(bytes, at + 10, 6));
        let limit = |at| (number_at(bytes, at, 6), number_at(bytes, at + 6, 7));
        is_ours.then(|| Self {
            records: (0..stop).step_by(22).map(record).collect(),
            limits: (0..windows).map(|index| limit(stop + 30 * index)).collect(),
        })
    }
}
