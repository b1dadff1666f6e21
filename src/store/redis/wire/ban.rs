//! Bans in Redis: `lua/ban/`. Pure.

use redis::{Cmd, Value};

use super::{
    format::{self, optional},
    reply::{count, read_answers, unreadable},
    script::{CallSettings, Loaded, Script, ScriptCall, lua},
};
use crate::{
    algorithm::answer::{Answer, Verdict},
    charge::Charge,
    clock::Now,
    compiled_limit::Limiter,
    demand::Demand,
    error::Error,
    limit::{Limit, StoredLimit},
    list::List,
    name::Name,
    store::{
        Op,
        guard::deny_cache::bans::{Carried, Found},
    },
};

pub(crate) static VERBS: Loaded = lua!("ban/verbs": "ban/verbs.lua");

/// Returns the keys of a limiter's strikes and its ban.
pub(crate) fn keys(name: &Name) -> [String; 2] {
    [":strikes", ":ban"].map(|suffix| format::suffixed(name, suffix))
}

/// Returns the command of callers of limiters that may ban them, each limiter with a flag that has
/// a differing limit rewritten and with what this process has not reported yet.
pub(crate) fn acquire_command(
    script: &Script,
    limiters: &[(&Charge, bool)],
    carried: &[Carried],
    run: &[Demand],
    settings: CallSettings<'_>,
) -> Cmd {
    let counting = format::acquire_command(script, limiters, run, settings);
    let pieces = format::pieces(&counting).unwrap_or_default();
    let own = pieces.get(3..).unwrap_or_default();
    let (keys_of_limits, arguments) = own.split_at(own.len().min(5 * limiters.len()));
    let banning = limiters
        .iter()
        .filter(|(charge, _)| charge.of().ban.is_some());
    let keys: Vec<_> = banning
        .flat_map(|(charge, _)| keys(charge.name()))
        .collect();
    let count = 2 + 6 * limiters.len() + arguments.len();
    let mut command = script.start(keys_of_limits.len() + keys.len(), count);
    command.arg(keys_of_limits).arg(keys).arg(limiters.len());
    for ((charge, _), carried) in limiters.iter().zip(carried) {
        match charge.of().ban {
            Some(ban) => command.arg((ban.after, &ban.millis(), carried.number, carried.age)),
            None => command.arg(&[""; 6]),
        };
    }
    let id = run.first().map(|first| first.first().id.for_strikes().0);
    optional(&mut command, id.as_ref());
    command.arg(arguments);
    command
}

/// Reads the reply: the answers, those of the first caller first, and what was found of each
/// limiter.
pub(crate) fn read(reply: &Value, run: &[Demand]) -> Result<(List<Answer>, List<Found>), Error> {
    let (Value::Array(parts), Some(first)) = (reply, run.first()) else {
        return Err(unreadable());
    };
    let [counted, numbers @ ..] = &**parts else {
        return Err(unreadable());
    };
    let numbers: List<i64> = numbers.iter().map(count).collect::<Result<_, _>>()?;
    let (bans, []) = numbers.as_chunks::<6>() else {
        return Err(unreadable());
    };
    let limiters = first.charges.len();
    if bans.len() != limiters {
        return Err(unreadable());
    }
    let mut answers = match counted {
        Value::Nil => {
            let each = first.charges().zip(bans);
            let refused = each.map(|(charge, ban)| refused(charge, ban));
            let all: List<_> = refused.collect();
            let all = all.iter().cycle().take(limiters * run.len());
            all.copied().collect()
        }
        counted => read_answers(counted, limiters, run.len())?,
    };
    let callers = run.iter().zip(answers.chunks_mut(limiters));
    for (number, (caller, answers)) in (1..).zip(callers) {
        let mut each = caller.charges().zip(answers.iter());
        let is_granted = matches!(counted, Value::Array(_))
            && each.all(|(charge, it)| charge.shadow || it.verdict == Verdict::Granted);
        let each = caller.charges().zip(answers).zip(bans);
        for ((charge, answer), &[_, back, first, ..]) in each {
            if first > 0 && number >= first && (charge.shadow || !is_granted) {
                answer.ban(back);
            }
        }
    }
    let found = bans.iter().map(|&[left, back, _, strikes, ..]| Found {
        left,
        back,
        strikes: u32::try_from(strikes).unwrap_or(u32::MAX),
    });
    Ok((answers, found.collect()))
}

/// Returns the answer of a limiter that counted nothing.
fn refused(charge: &Charge, &[.., rate, interval]: &[i64; 6]) -> Answer {
    let given = charge.limit().given().map(Limit::stored);
    let stored = StoredLimit {
        rate,
        interval,
        ..StoredLimit::default()
    };
    Answer::of_banned(Some(given.unwrap_or(stored)), None, Now::millis(0))
}

/// Returns when a stored ban ends, in milliseconds since the epoch.
pub(crate) fn until(ban: &[u8]) -> Option<i64> {
    str::from_utf8(ban).ok()?.split(' ').next()?.parse().ok()
}

/// Makes the call of a verb for bans; `None` for others.
pub(crate) fn verb(limiter: &Limiter, op: &Op, settings: CallSettings<'_>) -> Option<ScriptCall> {
    let (verb, millis) = match op {
        Op::Ban(millis) => ("ban", Some(millis)),
        Op::Unban => ("unban", None),
        Op::BannedUntil => ("until", None),
        _ => return None,
    };
    let mut command = VERBS.start(2, 3);
    command.arg(&keys(&limiter.name));
    let settings = settings.for_bans(limiter.of.counting.algorithm);
    optional(&mut command, settings.now);
    command.arg(verb);
    optional(&mut command, millis);
    Some(ScriptCall::new(&VERBS, command, 0, false))
}
