//! A window of the calendar in Redis: `lua/calendar/`. Pure, apart from the caller's clock.

use redis::{Cmd, Value};

use super::{
    format::companion,
    reply::{numbers, read_answers},
    script::{Ask, Call, Loaded, ReadBrief, ReadTaken, Script, Scripts, Unanswered, lua},
};
use crate::{
    algorithm::answer::Answer,
    clock::{SystemClock, millis},
    demand::{Acquire, Charge},
    error::Error,
    limit::{at_least_zero, calendar::Window},
    list::List,
    name::Name,
    receipt::{Receipt, Taken},
    store::Op,
};

pub(crate) static ACQUIRE: Loaded = lua!(
    "calendar/acquire":
    "lib/state.lua",
    "lib/callers.lua",
    "calendar/state.lua",
    "calendar/acquire.lua"
);
pub(crate) static VERBS: Loaded = lua!(
    "calendar/verbs":
    "lib/state.lua",
    "calendar/state.lua",
    "calendar/verbs.lua"
);

pub(crate) static SCRIPTS: Scripts = Scripts {
    acquire: &ACQUIRE,
    verbs: &VERBS,
    is_idempotent: false,
    takes_lists: false,
    taken: Some(TAKEN),
    brief,
    settle,
    limit_of: None,
};

const TAKEN: ReadTaken = |label, _| Taken::Date(label);

/// Returns the one key of a limiter.
pub(crate) fn key(name: &Name) -> String {
    companion(name, ":calendar")
}

/// Makes the call for any callers. The caller's clock says which windows it carries, and the
/// server's which of them counts.
fn brief(
    run: &[Acquire],
    _rewrites: &dyn Fn(&Charge) -> bool,
    ask: Ask<'_>,
) -> Option<(Call, ReadBrief)> {
    let first = &run.first()?.first;
    let source = first.limit();
    let (limit, calendar) = (source.given()?, first.name().counting().calendar?);
    let now = ask.now.unwrap_or_else(|| millis(&SystemClock));
    let windows = calendar.windows(i64::try_from(now).unwrap_or(i64::MAX));
    let command = acquire(first.name(), limit.permits(), windows, run);
    Some((call(&ACQUIRE, command), |reply, run, _| read(reply, run)))
}

/// Returns the command of callers of one limiter.
pub(crate) fn acquire(name: &Name, rate: u64, windows: [Window; 2], run: &[Acquire]) -> Cmd {
    let mut command = ACQUIRE.start(1, 7 + 4 * run.len());
    command.arg(key(name)).arg(rate);
    for window in windows {
        command.arg((window.label, window.start, window.end));
    }
    for caller in run {
        command.arg((caller.max_wait.is_some(), caller.first.permits, "", ""));
    }
    command
}

/// Reads the reply to it.
pub(crate) fn read(
    reply: &Value,
    run: &[Acquire],
) -> Result<Result<List<Answer>, Unanswered>, Error> {
    match &*numbers(reply)? {
        [-5, now] => Ok(Err(Unanswered::At(at_least_zero(*now)))),
        _ => read_answers(reply, 1, run.len(), Some(TAKEN)).map(Ok),
    }
}

fn settle(receipt: &Receipt, keep: u32, _ask: Ask<'_>) -> Option<Call> {
    let Some(Taken::Date(label)) = receipt.settle() else {
        return None;
    };
    let credited = i64::from(receipt.permits) - i64::from(keep);
    let mut call = verb("settle", receipt.name());
    call.command.arg((label, credited));
    Some(call)
}

/// Makes the call of a verb; `None` where a plain command does, or the verb has no effect.
pub(crate) fn managing(name: &Name, op: &Op) -> Option<Call> {
    match op {
        Op::Used => Some(verb("used", name)),
        Op::Release(permits) => {
            let mut call = verb("release", name);
            call.command.arg(permits);
            Some(call)
        }
        Op::Rename(new_name) => {
            let mut command = VERBS.start(2, 1);
            command.arg((key(name), key(new_name), "rename"));
            Some(call(&VERBS, command))
        }
        _ => None,
    }
}

fn verb(verb: &str, name: &Name) -> Call {
    let mut command = VERBS.start(1, 3);
    command.arg(key(name)).arg(verb);
    call(&VERBS, command)
}

fn call(script: &'static Script, command: Cmd) -> Call {
    Call {
        script,
        command,
        once: true,
        callers: 0,
    }
}
