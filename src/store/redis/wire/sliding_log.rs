//! A sliding log in Redis: `lua/sliding_log/`. Pure.

use redis::Value;

use super::{
    format::{self, given, member, optional},
    reply::{answer_by, numbers, read_answers, unreadable},
    script::{Ask, Call, Loaded, ReadLone, Script, Scripts, lua},
    verbs,
};
use crate::{
    algorithm::answer::{Answer, Verdict},
    clock::{Millis, Now},
    demand::{Acquire, Charge},
    error::Error,
    limit::LimitSource,
    receipt::Receipt,
};

/// Decides the usual case of a lone caller with few commands, and contains `ACQUIRE_LIST` for all
/// others.
pub(crate) static ACQUIRE: Loaded = lua!(
    "sliding_log/acquire.lua",
    "lib/state.lua",
    "sliding_log/entries.lua",
    "sliding_log/acquire_list.lua"
);
pub(crate) static ACQUIRE_LIST: Loaded = lua!(
    "lib/state.lua",
    "sliding_log/entries.lua",
    "sliding_log/acquire_list.lua"
);
pub(crate) static VERBS: Loaded = lua!(
    "lib/state.lua",
    "sliding_log/entries.lua",
    "lib/verbs.lua",
    "sliding_log/verbs.lua"
);

pub(crate) static SCRIPTS: Scripts = Scripts {
    acquire: &ACQUIRE_LIST,
    verbs: &VERBS,
    is_idempotent: true,
    takes_lists: true,
    tells_tat: false,
    lone,
    settle: |receipt, keep, ask| Some(settle(&VERBS, receipt, keep, ask)),
    limit_of: None,
};

fn lone(caller: &Acquire, rewrites: bool, ask: Ask<'_>) -> Option<(Call, ReadLone)> {
    if !is_lone(caller) {
        return None;
    }
    let limiters = std::iter::once((&caller.first, rewrites));
    let callers = std::iter::once((caller.charges(), caller.patience.is_some()));
    let call = Call {
        script: &ACQUIRE,
        command: format::acquire(&ACQUIRE, limiters, callers, ask),
        once: false,
    };
    Some((call, |reply, charge, now| {
        lone_answer(reply, charge, now).map(Some)
    }))
}

/// Returns whether it takes permits of one limiter, if there is room, and now: then it makes no
/// difference whether it waits.
fn is_lone(caller: &Acquire) -> bool {
    caller.rest.is_empty() && !caller.first.shadow && caller.first.lead == 0
}

/// Reads the reply of `acquire.lua`, which is brief in the usual case; `charge` and `now` are what
/// was asked.
///
/// A brief reply by the server's clock does not contain the time: the answer's is 0.
pub(crate) fn lone_answer(
    reply: &Value,
    charge: &Charge,
    now: Option<Millis>,
) -> Result<Answer, Error> {
    let Some((verdict, [remaining, wait, next], reset)) = brief(reply) else {
        let answers = read_answers(reply, 1, 1, false)?;
        return Ok(*answers.first().ok_or_else(unreadable)?);
    };
    // A limit that is not in force as it was given has the whole reply.
    let LimitSource::Code(limit) = charge.limit() else {
        return Err(unreadable());
    };
    let limit = limit.stored();
    let now = Now::millis(now.map_or(0, |now| i64::try_from(now).unwrap_or(i64::MAX)));
    let reset = reset.unwrap_or(limit.interval);
    Ok(answer_by(
        &limit,
        verdict,
        now,
        [remaining, wait, next, reset],
    ))
}

/// Returns the verdict; permits left, wait, ms until one more is free; ms until all are, if that is
/// not the interval. `None` for a reply that is not brief.
fn brief(reply: &Value) -> Option<(Verdict, [i64; 3], Option<i64>)> {
    match reply {
        Value::Int(left @ 0..) => Some((Verdict::Granted, [*left, 0, 0], None)),
        Value::Int(wait) => Some((Verdict::Refused, [0, wait.saturating_neg(), 0], None)),
        Value::BulkString(_) => match *numbers(reply).ok()? {
            [left, next] => Some((Verdict::Granted, [left, 0, next], None)),
            [0, wait, reset] => Some((Verdict::Refused, [0, wait, 0], Some(reset))),
            _ => None,
        },
        _ => None,
    }
}

/// Makes the call that settles a receipt: safe to repeat, as it names the entries.
pub(super) fn settle(script: &'static Script, receipt: &Receipt, keep: u32, ask: Ask<'_>) -> Call {
    let (taken, rest) = match keep.checked_sub(receipt.permits) {
        Some(more) => (None, Some(member(receipt.id.for_more(), more))),
        None => {
            let rest = (keep > 0).then(|| member(receipt.id, keep));
            (Some(member(receipt.id, receipt.permits)), rest)
        }
    };
    let mut call = verbs::settle(script, receipt, ask, false);
    optional(&mut call.command, taken.as_ref());
    optional(&mut call.command, ask.now);
    optional(&mut call.command, rest.as_ref());
    given(&mut call.command, receipt.limit());
    call
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::guard::scripted::{asks, charge, shadow};

    // The script for lone callers does not read how a charge is taken.
    #[test]
    fn a_caller_is_lone_that_takes_now_and_in_earnest() {
        let plain = charge("orders", 1, LimitSource::Store);
        let ahead = Charge {
            lead: 50,
            ..plain.clone()
        };
        assert!(is_lone(&asks([plain.clone()])));
        assert!(!is_lone(&asks([shadow(plain.clone())])));
        assert!(!is_lone(&asks([ahead])));
        assert!(!is_lone(&asks([plain.clone(), plain])));
    }
}
