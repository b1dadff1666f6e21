//! A window of the calendar in Redis: `lua/calendar/`. Pure, apart from the caller's clock.

use redis::{Cmd, Value};

use super::{
    format::own_keys,
    reply::{numbers, read_answers},
    script::{Brief, CallSettings, Loaded, ReadBrief, Script, ScriptCall, Scripts, lua},
    verbs,
};
use crate::{
    charge::{Charge, Taken},
    clock::{SystemClock, millis},
    demand::Acquire,
    error::Error,
    limit::{Algorithm, at_least_zero, calendar::Window},
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
    "lib/verbs.lua",
    "calendar/verbs.lua"
);

pub(crate) static SCRIPTS: Scripts = Scripts {
    acquire: &ACQUIRE,
    banning: None,
    verbs: &VERBS,
    taken: Some(|label, _| Taken::Date(label)),
    brief,
    settle,
    limit_of: None,
};

/// Makes the call for any callers. The caller's clock says which windows it carries, and the
/// server's which of them counts.
fn brief(
    run: &[Acquire],
    _: &[(&Charge, bool)],
    settings: CallSettings<'_>,
) -> Option<(ScriptCall, ReadBrief)> {
    let calendar = run.first()?.first().of().counting.calendar?;
    let now = settings.now.unwrap_or_else(|| millis(&SystemClock));
    let windows = calendar.windows(i64::try_from(now).unwrap_or(i64::MAX));
    let command = acquire_command(run, windows, settings)?;
    let call = ScriptCall::new(&ACQUIRE, command, run.len(), true);
    Some((call, |reply, run, _| read(reply, run)))
}

/// Returns the command of callers of one limiter.
pub(crate) fn acquire_command(
    run: &[Acquire],
    windows: [Window; 2],
    settings: CallSettings<'_>,
) -> Option<Cmd> {
    let first = run.first()?.first();
    let mut command = ACQUIRE.start(1, 7 + 4 * run.len());
    command.arg(own_keys(
        first.name(),
        Algorithm::Calendar,
        settings.client_id,
    ));
    command.arg(first.limit().given()?.permits());
    for window in windows {
        command.arg((window.label, window.start, window.end));
    }
    for caller in run {
        command.arg((caller.max_wait.is_some(), caller.first().permits, "", ""));
    }
    Some(command)
}

/// Reads the reply to this command.
pub(crate) fn read(reply: &Value, run: &[Acquire]) -> Result<Brief, Error> {
    match &*numbers(reply)? {
        [-5, now] => Ok(Brief::AskAt(at_least_zero(*now))),
        _ => read_answers(reply, 1, run.len(), SCRIPTS.taken).map(Brief::Answers),
    }
}

fn settle(receipt: &Charge, keep: u32, settings: CallSettings<'_>) -> Option<ScriptCall> {
    let Some(Taken::Date(label)) = receipt.settle() else {
        return None;
    };
    let credited = i64::from(receipt.permits) - i64::from(keep);
    let mut call = verbs::settle(&VERBS, receipt, settings, true);
    call.command.arg((label, credited));
    Some(call)
}
