//! A GCRA limiter in Redis: its value's bytes, and what a lone caller of one asks and is told. Pure.

use redis::Value;

use super::arguments::{Arguments, Word};
use crate::{
    algorithm::{
        answer::{Answer, Changed, Verdict},
        gcra::{Pace, State},
    },
    clock::{Millis, Now},
    demand::Charge,
    error::Error,
    limit::{RateType, StoredLimit},
    list::List,
    name::Name,
    receipt::{Receipt, Tat},
    store::redis::wire,
};

/// The keys that may hold its value, and what they say of the limit's type.
pub(crate) fn values(name: &Name, client_id: &str) -> [(String, RateType); 2] {
    let [_, value, client_value, ..] = wire::keys(name, client_id);
    [
        (value, RateType::Overall),
        (client_value, RateType::PerClient),
    ]
}

/// What a value holds: five doubles; `None` for another algorithm's.
pub(crate) fn state(value: &[u8]) -> Option<State> {
    let &[interval, rate, tat, _, given] = &*doubles(value)? else {
        return None;
    };
    Some(State {
        tat: Tat { at: tat, given },
        rate,
        interval,
    })
}

/// The limit by which a value is counted.
pub(crate) fn limit_of(value: &Value, rate_type: RateType) -> Option<StoredLimit> {
    let Value::BulkString(value) = value else {
        return None;
    };
    let State { rate, interval, .. } = state(value)?;
    Pace::of(rate, interval)?;
    Some(StoredLimit {
        rate,
        interval,
        rate_type,
        keep_alive: 0,
    })
}

/// What a lone caller of a limiter that a rule made asks for: `gcra/acquire.lua`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lone {
    pace: Pace,
    limit: StoredLimit,
    permits: i64,
}

impl Lone {
    /// None where that script cannot decide: more is asked for than the limit ever allows, or it is only tried out.
    pub(crate) fn new(charge: &Charge, limit: &StoredLimit) -> Option<Self> {
        let permits = i64::from(charge.permits);
        (permits <= limit.rate && !charge.shadow).then_some(Self {
            pace: Pace::of(limit.rate, limit.interval)?,
            limit: *limit,
            permits,
        })
    }

    pub(crate) fn arguments(&self, name: &Name, client_id: &str, now: Option<Millis>) -> Arguments {
        let [_, value, client_value, ..] = wire::keys(name, client_id);
        let key = match self.limit.rate_type {
            RateType::Overall => value,
            RateType::PerClient => client_value,
        };
        let cost = self.pace.cost(self.permits);
        let limit = packed([self.limit.interval, self.limit.rate]);
        let cost_and_room = packed([cost, self.pace.whole() - cost]);
        Arguments::new([key], [wire::time(now), limit, cost_and_room])
    }

    /// Reads the reply; `None` if it is for `gcra/acquire_run.lua` to decide.
    pub(crate) fn answer(&self, reply: &Value) -> Result<Option<Answer>, Error> {
        // The time does not matter to who is refused, and is not told.
        let now = Now::millis(0);
        let answer = match reply {
            Value::Nil => return Ok(None),
            Value::Int(backlog) => Answer {
                wait: now.ticks_of_micros(self.pace.wait(*backlog, self.permits)),
                ..self.told(Verdict::Refused, *backlog, now)
            },
            Value::BulkString(text) => {
                let numbers = doubles(text).ok_or_else(wire::unreadable)?;
                let &[now, at, given] = &*numbers else {
                    return Err(wire::unreadable());
                };
                Answer {
                    tat: Some(Tat { at, given }),
                    ..self.told(Verdict::Granted, at - now, Now::millis(now / 1000))
                }
            }
            _ => return Err(wire::unreadable()),
        };
        Ok(Some(answer))
    }

    fn told(&self, verdict: Verdict, backlog: i64, now: Now) -> Answer {
        Answer {
            verdict,
            remaining: self.pace.left(backlog),
            wait: 0,
            next: match verdict {
                Verdict::Granted => now.ticks_of_micros(self.pace.next(backlog)),
                Verdict::Refused | Verdict::AboveRate => 0,
            },
            reset: now.ticks_of_micros(backlog),
            now,
            rate: self.limit.rate,
            interval: self.limit.interval,
            changed: Changed::Nothing,
            repaired: 0,
            tat: None,
            estimated: false,
        }
    }
}

/// Reads the reply of `gcra/acquire_run.lua`: an answer for each caller.
pub(crate) fn answers(reply: &Value, callers: usize) -> Result<List<Answer>, Error> {
    let numbers = wire::numbers(reply)?;
    let [numbers @ .., at, given] = &*numbers else {
        return Err(wire::unreadable());
    };
    let tat = Some(Tat {
        at: *at,
        given: *given,
    });
    let answers = wire::read_answers(numbers, 1, callers)?;
    Ok(answers
        .iter()
        .map(|answer| Answer { tat, ..*answer })
        .collect())
}

/// The call that leaves `keep` permits of what an acquire took when it left `tat`, or charges what is more.
pub(crate) fn settle(
    receipt: &Receipt,
    keep: u32,
    tat: Tat,
    client_id: &str,
    now: Option<Millis>,
) -> Arguments {
    let credited = i64::from(receipt.permits) - i64::from(keep);
    let (source, limit) = wire::limit_source(receipt.limit(), true);
    let mut argv = vec![
        Word::number(credited),
        wire::time(now),
        Word::number(tat.at),
        Word::number(tat.given),
        source,
    ];
    argv.extend(limit);
    Arguments::new(wire::keys(receipt.name(), client_id), argv)
}

/// As the scripts keep numbers: doubles, little-endian. All are whole and below 2^53.
fn packed(numbers: [i64; 2]) -> Word {
    let [first, second] = numbers.map(|number| (number as f64).to_le_bytes());
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&first);
    bytes[8..].copy_from_slice(&second);
    Word::from(bytes)
}

/// Whole numbers; `None` for what are none.
fn doubles(text: &[u8]) -> Option<List<i64>> {
    let (doubles, []) = text.as_chunks::<8>() else {
        return None;
    };
    let mut numbers = List::EMPTY;
    for double in doubles {
        let number = f64::from_le_bytes(*double);
        let whole = number.fract() == 0.0 && number.abs() <= MOST;
        if !whole {
            return None;
        }
        numbers.push(number as i64);
    }
    Some(numbers)
}

/// 2^53: doubles below it are exact.
const MOST: f64 = 9_007_199_254_740_992.0;
