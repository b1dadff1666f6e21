//! A GCRA limiter in Redis: `lua/gcra/`, and its value's bytes. Pure.

use redis::{Cmd, Value};

use super::{
    format::{self, keys, optional},
    reply::{answer_by, unreadable},
    script::{CallSettings, Loaded, ReadBrief, Script, ScriptCall, Scripts, lua},
    verbs,
};
use crate::{
    algorithm::{
        answer::{Answer, Verdict},
        gcra::{Pace, State},
    },
    charge::{Charge, Taken, Tat},
    clock::{Millis, Now},
    demand::Demand,
    error::Error,
    limit::{LimitSource, RateType, StoredLimit},
    list::List,
    name::Name,
};

/// Stands alone, and reads no limit: for a lone caller of a limiter that a rule made.
pub(crate) static ACQUIRE: Loaded = lua!("gcra/acquire": "gcra/acquire.lua");
pub(crate) static ACQUIRE_RUN: Loaded = lua!(
    "gcra/acquire_run":
    "lib/state.lua",
    "lib/callers.lua",
    "gcra/state.lua",
    "gcra/acquire_run.lua"
);
pub(crate) static BANNING: Loaded =
    lua!("ban/gcra": "lib/decide.lua", [ACQUIRE_RUN], "ban/acquire.lua");
pub(crate) static VERBS: Loaded = lua!(
    "gcra/verbs":
    "lib/state.lua",
    "gcra/state.lua",
    "lib/verbs.lua",
    "gcra/verbs.lua"
);

pub(crate) static SCRIPTS: Scripts = Scripts {
    acquire: &ACQUIRE_RUN,
    banning: Some(&BANNING),
    verbs: &VERBS,
    taken: Some(|at, given| Taken::Tat(Tat { at, given })),
    brief,
    settle,
    limit_of: Some(limit_of),
};

fn brief(
    run: &[Demand],
    limiters: &[(&Charge, bool)],
    settings: CallSettings<'_>,
) -> Option<(ScriptCall, ReadBrief)> {
    let ([_], &[(charge, rewrite)]) = (run, limiters) else {
        return None;
    };
    // A differing limit that is to be left for now is not found by this script.
    let lone = Lone::new(charge).filter(|_| rewrite)?;
    let command = lone.command(charge.name(), settings.client_id, settings.now);
    let call = ScriptCall::new(&ACQUIRE, command, 1, true);
    Some((call, |reply, run, _| {
        let lone = run.first().and_then(|caller| Lone::new(caller.first()));
        let answer = lone.ok_or_else(unreadable)?.answer(reply)?;
        Ok(answer.map(|answer| List::from([answer])))
    }))
}

fn settle(receipt: &Charge, keep: u32, settings: CallSettings<'_>) -> Option<ScriptCall> {
    let Some(Taken::Tat(tat)) = receipt.settle() else {
        return None;
    };
    let mut call = verbs::settle(&VERBS, receipt, settings, true);
    call.command
        .arg(i64::from(receipt.permits) - i64::from(keep));
    optional(&mut call.command, settings.now);
    call.command.arg((tat.at, tat.given));
    format::source(&mut call.command, receipt.limit(), true);
    Some(call)
}

/// Reads the limit by which a value is counted.
fn limit_of(value: &Value, rate_type: RateType) -> Option<StoredLimit> {
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

/// Reads a value: five doubles; `None` for another algorithm's.
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

/// The charge of a lone caller of a limiter that a rule made: `gcra/acquire.lua`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lone {
    pace: Pace,
    limit: StoredLimit,
    permits: i64,
}

impl Lone {
    /// Returns `None` where that script cannot decide: no rule brings the limit, more is asked for
    /// than it ever allows, or the charge is a shadow.
    pub(crate) fn new(charge: &Charge) -> Option<Self> {
        let LimitSource::Code(limit) = charge.limit() else {
            return None;
        };
        let (limit, permits) = (limit.stored(), i64::from(charge.permits));
        (permits <= limit.rate && !charge.shadow).then_some(Self {
            pace: Pace::of(limit.rate, limit.interval)?,
            limit,
            permits,
        })
    }

    pub(crate) fn command(&self, name: &Name, client_id: &str, now: Option<Millis>) -> Cmd {
        let [_, value, client_value, ..] = keys(name, client_id);
        let key = match self.limit.rate_type {
            RateType::Overall => value,
            RateType::PerClient => client_value,
        };
        let StoredLimit { rate, interval, .. } = self.limit;
        let cost = self.pace.cost(self.permits);
        let room = self.pace.whole() - cost;
        // The server's clock is a time below zero. All else is whole and below 2^53.
        let now = now.map_or(-1.0, |now| now as f64 * 1000.0);
        let numbers = [interval as f64, rate as f64, cost as f64, room as f64, now];
        let mut command = ACQUIRE.start(1, 1);
        command.arg(key);
        command.arg(numbers.map(f64::to_le_bytes).as_flattened());
        command
    }

    /// Reads the reply; `None` if `gcra/acquire_run.lua` must decide.
    pub(crate) fn answer(&self, reply: &Value) -> Result<Option<Answer>, Error> {
        let answer = match reply {
            Value::Nil => return Ok(None),
            // A refusal does not contain the time, which makes no difference to it.
            Value::Int(backlog) => self.answer_at(Verdict::Refused, *backlog, Now::millis(0)),
            Value::BulkString(text) => {
                let numbers = doubles(text).ok_or_else(unreadable)?;
                let &[now, at, given] = &*numbers else {
                    return Err(unreadable());
                };
                Answer {
                    taken: Some(Taken::Tat(Tat { at, given })),
                    ..self.answer_at(Verdict::Granted, at - now, Now::millis(now / 1000))
                }
            }
            _ => return Err(unreadable()),
        };
        Ok(Some(answer))
    }

    fn answer_at(&self, verdict: Verdict, backlog: i64, now: Now) -> Answer {
        let (wait, next) = match verdict {
            Verdict::Granted => (0, self.pace.next(backlog)),
            Verdict::Refused | Verdict::AboveRate => (self.pace.wait(backlog, self.permits), 0),
        };
        let [wait, next, reset] = [wait, next, backlog].map(|micros| now.ticks_of_micros(micros));
        let left = self.pace.left(backlog);
        answer_by(&self.limit, verdict, now, [left, wait, next, reset])
    }
}

/// Reads whole numbers; `None` if one is not whole.
fn doubles(text: &[u8]) -> Option<List<i64>> {
    let (doubles, []) = text.as_chunks::<8>() else {
        return None;
    };
    let numbers = doubles.iter().map(|double| {
        let number = f64::from_le_bytes(*double);
        let is_whole = number.fract() == 0.0 && number.abs() <= MOST;
        is_whole.then_some(number as i64)
    });
    numbers.collect()
}

/// 2^53: doubles below it are exact.
const MOST: f64 = 9_007_199_254_740_992.0;
