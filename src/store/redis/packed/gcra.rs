//! A limit by GCRA, one string, which has the theoretical arrival time (TAT): see
//! [`algorithm::gcra`](crate::algorithm::gcra).

use redis::Value;

use super::{
    Group, MOST, Numbers, PackedStanding, RowKind, SUFFIX, Stamp, Stands, number_at, put_number,
    sent_once,
};
use crate::{
    algorithm::{
        answer::{Answer, Changed},
        gcra::{Pace, State},
    },
    store::redis::{
        reply,
        script::{LazyScript, Script, ScriptCall},
    },
    values::{
        charge::{Charge, Taken, Tat},
        clock::Now,
        error::Error,
        limit::StoredLimit,
        name::Short,
    },
};

/// The script for one caller of one limiter in the usual case.
pub(crate) static LONE: LazyScript = LazyScript::new(|| {
    let text = include_str!("../../../../lua/packed/gcra_lone.lua");
    Script::new("packed/gcra_lone", text)
});

/// The kind of a state and of a row.
const KIND: u8 = 2;

/// What a charge counts by. A limiter stands as how far TAT lies ahead of now, and how far
/// settlements have moved it back so far, both in us.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct GcraRow(pub(crate) Pace);

impl GcraRow {
    /// Returns the row of a call that reads or settles what a state has by its own limit.
    pub(super) const ANY: Self = Self(Pace::ANY);

    /// Makes the call for a caller alone; `None` where another script must decide.
    pub(super) fn lone(&self, stamp: Stamp, charge: &Charge) -> Option<ScriptCall> {
        let permits = i64::from(charge.permits);
        if permits > self.0.rate {
            return None;
        }
        let (cost, Pace { rate, interval, .. }) = (self.0.cost(permits), self.0);
        let room = self.0.whole() - cost;
        // All are whole and at most 2^53. Zero stands for the server's clock.
        let now = stamp.now.map_or(0.0, |now| now as f64 * 1000.0);
        let numbers = [now, cost as f64, room as f64, interval as f64, rate as f64];
        let numbers = numbers.map(f64::to_le_bytes);
        let mut argument = Short::default();
        for bytes in [&stamp.id.short()[..], &[0, 1], numbers.as_flattened()] {
            argument.push(bytes);
        }
        let keys = [(charge.name(), SUFFIX)];
        Some(sent_once(&LONE, &keys, &argument, 1))
    }

    /// Reads the reply to it: the time in us, and what it says of the caller; `None` if the other
    /// script must decide.
    pub(super) fn read_lone(reply: &Value) -> Result<Option<(i64, Group)>, Error> {
        let group = |is_granted, standing| Group {
            granted: usize::from(is_granted),
            wait: 0,
            standing: Some((standing, None)),
        };
        Ok(match reply {
            Value::Nil => None,
            // A refusal does not contain the time, which makes no difference to it.
            Value::Int(backlog @ 0..=MOST) => Some((0, group(false, [*backlog, 0, 0]))),
            Value::BulkString(text) => {
                let (&[micros, tat, given], []) = text.as_chunks::<8>() else {
                    return Err(reply::unreadable());
                };
                let numbers = [micros, tat, given].map(f64::from_le_bytes);
                let is_ours = |number: f64| number.fract() == 0.0 && number.abs() <= MOST as f64;
                if !numbers.into_iter().all(is_ours) {
                    return Err(reply::unreadable());
                }
                let [micros, tat, given] = numbers.map(|number| number as i64);
                let standing = [(tat - micros).max(0), given, 0];
                Some((micros, group(true, standing)))
            }
            _ => return Err(reply::unreadable()),
        })
    }
}

impl RowKind for GcraRow {
    fn put(&self, bytes: &mut Short) {
        bytes.push(&[KIND]);
        put_number(bytes, self.0.interval, 6);
        put_number(bytes, self.0.rate, 7);
    }

    fn limit(&self) -> StoredLimit {
        StoredLimit {
            rate: self.0.rate,
            interval: self.0.interval,
            ..StoredLimit::default()
        }
    }

    fn with_room(&self, backlog: i64, numbers: &mut Numbers<'_>) -> Result<Stands, Error> {
        Ok(([backlog, numbers.next()?, 0], None))
    }

    fn without_room(
        &self,
        _: i64,
        numbers: &mut Numbers<'_>,
        _: Option<PackedStanding>,
    ) -> Result<PackedStanding, Error> {
        Ok([numbers.next()?, numbers.next()?, 0])
    }

    fn answer(&self, micros: i64, [backlog, given, _]: PackedStanding) -> Answer {
        let now = Now::millis(micros / 1000);
        let [next, reset] =
            [self.0.next(backlog), backlog].map(|micros| now.ticks_of_micros(micros));
        let at = micros.saturating_add(backlog);
        Answer {
            remaining: self.0.left(backlog),
            next,
            reset,
            taken: Some(Taken::Tat(Tat { at, given })),
            ..Answer::new(&self.limit(), Changed::Nothing, now)
        }
    }

    fn wait(&self, answer: &Answer, [backlog, ..]: PackedStanding, needs: i64) -> i64 {
        answer.now.ticks_of_micros(self.0.wait(backlog, needs))
    }
}

/// Returns what a receipt is settled by, and the two numbers by which its grant is found; `None` if
/// it lacks what that needs.
pub(super) fn settled(receipt: &Charge) -> Option<(GcraRow, [i64; 2])> {
    let Some(Taken::Tat(tat)) = receipt.claim_mark() else {
        return None;
    };
    let limit = receipt.limit().given()?.stored();
    Some((
        GcraRow(Pace::of(limit.rate, limit.interval)?),
        [tat.at, tat.given],
    ))
}

/// Reads a state; `None` if it is another one.
pub(crate) fn read(bytes: &[u8]) -> Option<State> {
    let is_ours = bytes.len() == 76 && bytes.ends_with(&[16 + KIND, 183]);
    let state = is_ours.then(|| State {
        interval: number_at(bytes, 0, 6),
        rate: number_at(bytes, 6, 7),
        tat: Tat {
            at: number_at(bytes, 27, 7),
            given: number_at(bytes, 20, 7),
        },
    });
    state.filter(|state| Pace::of(state.rate, state.interval).is_some())
}
