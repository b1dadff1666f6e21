//! A limit by a fixed window, one string, which has the permits used since its first grant.

use super::{MOST, Numbers, PackedStanding, RowKind, Stands, left_and, number_at, put_number};
use crate::{
    algorithm::answer::{Answer, Changed},
    values::{
        charge::{Charge, Taken},
        clock::Now,
        error::Error,
        limit::StoredLimit,
        name::Short,
    },
};

/// The kind of a state and of a row.
const KIND: u8 = 3;

/// What a charge counts by. A limiter stands as the permits left, and the ms until the window ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct WindowRow {
    pub(crate) rate: i64,
    pub(crate) interval: i64,
}

impl WindowRow {
    /// Returns the row of a call that releases what was taken by any limit.
    pub(super) const ANY: Self = Self {
        rate: MOST,
        interval: 1,
    };
}

impl RowKind for WindowRow {
    fn put(&self, bytes: &mut Short) {
        bytes.push(&[KIND]);
        put_number(bytes, self.interval, 6);
        put_number(bytes, self.rate, 7);
    }

    fn limit(&self) -> StoredLimit {
        StoredLimit {
            rate: self.rate,
            interval: self.interval,
            ..StoredLimit::default()
        }
    }

    fn with_room(&self, first: i64, numbers: &mut Numbers<'_>) -> Result<Stands, Error> {
        let [left, ends] = left_and(first, numbers, self.rate, self.interval)?;
        Ok(([left, ends, 0], None))
    }

    fn answer(&self, now: i64, [left, ends, _]: PackedStanding) -> Answer {
        let now = now / 1000;
        let reset = if left < self.rate { ends } else { 0 };
        Answer {
            remaining: left,
            next: reset,
            reset,
            taken: Some(Taken::Date {
                label: now + ends,
                end: now + ends,
            }),
            ..Answer::new(&self.limit(), Changed::Nothing, Now::millis(now))
        }
    }

    /// Later windows begin at once.
    fn wait(&self, _: &Answer, [_, ends, _]: PackedStanding, needs: i64) -> i64 {
        let rounds = (needs - 1).div_euclid(self.rate.max(1));
        ends.saturating_add(rounds.saturating_mul(self.interval))
    }
}

/// Returns what a receipt is settled by, and the two numbers by which its grant is found; `None` if
/// it lacks what that needs.
pub(super) fn settled(receipt: &Charge) -> Option<(WindowRow, [i64; 2])> {
    let Some(Taken::Date { label, .. }) = receipt.claim_mark() else {
        return None;
    };
    let StoredLimit { rate, interval, .. } = receipt.limit().given()?.stored();
    Some((WindowRow { rate, interval }, [label, 0]))
}

/// What a state says: when the window ends, in ms, the permits used in it, and the limit.
pub(crate) struct State {
    pub(crate) ends: i64,
    pub(crate) used: i64,
    pub(crate) interval: i64,
    pub(crate) rate: i64,
}

impl State {
    /// Reads a state; `None` if it is another one.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let is_ours = bytes.len() == 74 && bytes.ends_with(&[16 + KIND, 183]);
        is_ours.then(|| Self {
            ends: number_at(bytes, 6, 6),
            used: number_at(bytes, 12, 7),
            interval: number_at(bytes, 19, 6),
            rate: number_at(bytes, 25, 7),
        })
    }
}
