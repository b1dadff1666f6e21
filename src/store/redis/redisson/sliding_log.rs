//! A sliding log in Redis: `lua/sliding_log/`. Pure.

use std::io::Write;

use redis::{Cmd, RedisWrite, Value};

use super::{
    format::{add_keys, fields, given, member, optional, source_argument},
    reply::{ReplyNumbers, answer_by, numbers, read_answers},
    scripts::{CallSettings, ReadBrief, Scripts},
    verbs,
};
use crate::{
    algorithm::answer::{Answer, Verdict},
    store::redis::{
        reply::unreadable,
        script::{LazyScript, Script, ScriptCall, lua},
    },
    values::{List, charge::Charge, clock::Now, demand::Demand, error::Error, limit::LimitSource},
};

/// Decides the usual case with few commands, for callers with equal demands, and contains
/// `ACQUIRE_LIST` for all other cases.
pub(crate) static ACQUIRE: LazyScript =
    lua!("sliding_log/acquire": "sliding_log/acquire.lua", [ACQUIRE_LIST]);
pub(crate) static ACQUIRE_LIST: LazyScript = lua!(
    "sliding_log/acquire_list":
    "lib/state.lua",
    "sliding_log/state.lua",
    "sliding_log/entries.lua",
    "sliding_log/acquire_list.lua"
);
pub(crate) static VERBS: LazyScript = lua!(
    "sliding_log/verbs":
    "lib/state.lua",
    "sliding_log/state.lua",
    "sliding_log/entries.lua",
    "lib/verbs.lua",
    "sliding_log/verbs.lua"
);

pub(crate) static SCRIPTS: Scripts = Scripts {
    acquire: &ACQUIRE_LIST,
    verbs: &VERBS,
    brief,
    settle: |receipt, keep, settings| Some(settle(&VERBS, receipt, keep, settings)),
};

fn brief(
    run: &[Demand],
    limiters: &[(&Charge, bool)],
    settings: CallSettings<'_>,
) -> Option<(ScriptCall, ReadBrief)> {
    let &[(first, rewrite)] = limiters else {
        return None;
    };
    if !have_same_demand(first, run) {
        return None;
    }
    let typed = matches!(first.limit(), LimitSource::Code(_));
    let mut command = ACQUIRE.start(if typed { 3 } else { 5 }, 4);
    add_keys(&mut command, first, typed, settings.client_id);
    source_in_one(&mut command, first.limit(), rewrite);
    let mut members = command.writer_for_next_arg();
    for caller in run {
        let _ = members.write_all(&member(caller.first().id, first.permits));
    }
    drop(members);
    unless_usual(&mut command, settings);
    let call = ScriptCall {
        script: &ACQUIRE,
        command,
        once: false,
        callers: run.len(),
    };
    Some((call, |reply, run, asked| {
        brief_answers(reply, run, asked).map(Some)
    }))
}

/// Returns whether all callers have the same demand: the same number of permits of one limiter,
/// enforced, and not for a use later. All of them must not wait, or there is only one caller.
fn have_same_demand(first: &Charge, run: &[Demand]) -> bool {
    let is_plain =
        |charge: &Charge| !charge.shadow && charge.lead == 0 && charge.permits == first.permits;
    let is_now = |caller: &Demand| caller.max_wait.is_none() || run.len() == 1;
    let mut each = run.iter();
    each.all(|it| !it.is_list() && is_plain(it.first()) && is_now(it))
}

/// Writes whose limit counts, and the limit, in one argument.
fn source_in_one(command: &mut Cmd, source: &LimitSource, rewrite: bool) {
    let mut text = command.writer_for_next_arg();
    // Writing to memory cannot fail.
    let _ = text.write_all(source_argument(source, rewrite).as_bytes());
    if let Some(limit) = source.given() {
        let (rate, interval, per_client, keep_alive) = fields(&limit.stored());
        let _ = write!(
            text,
            " {rate} {interval} {} {keep_alive}",
            u8::from(per_client)
        );
    }
}

/// Writes the time and whether the permits left are wanted exactly: each only if it is not the
/// script's default, or if more follows.
fn unless_usual(command: &mut Cmd, settings: CallSettings<'_>) {
    if settings.now.is_some() || !settings.exact {
        optional(command, settings.now);
    }
    if !settings.exact {
        command.arg(settings.exact);
    }
}

/// Reads the reply of `acquire.lua`, which is brief in the usual case, to a call of these callers
/// with these settings.
///
/// A brief reply by the server's clock does not contain the time: the answer's is 0.
pub(crate) fn brief_answers(
    reply: &Value,
    run: &[Demand],
    CallSettings { now, exact, .. }: CallSettings<'_>,
) -> Result<List<Answer>, Error> {
    let brief = brief_numbers(reply)?;
    // Permits left and wait; ms until one more is free, and until all are, if it has them.
    let (verdict, remaining, wait, next, reset) = match (reply, &*brief) {
        (Value::Int(left @ 0..), _) => (Verdict::Granted, *left, 0, None, None),
        (Value::Int(wait), _) => (Verdict::Refused, 0, wait.saturating_neg(), Some(0), None),
        (_, &[left, next]) => (Verdict::Granted, left, 0, Some(next), None),
        (_, &[0, wait, reset]) => (Verdict::Refused, 0, wait, Some(0), Some(reset)),
        _ => return read_answers(reply, 1, run.len()),
    };
    // A limit that is not in force as it was given has the whole reply.
    let source = run.first().map(|caller| caller.first().limit());
    let Some(LimitSource::Code(limit)) = source else {
        return Err(unreadable());
    };
    let limit = limit.stored();
    let now = Now::millis(now.map_or(0, |now| i64::try_from(now).unwrap_or(i64::MAX)));
    let reset = reset.unwrap_or(limit.interval);
    let next = next.unwrap_or(if exact { limit.interval } else { 0 });
    let answer = answer_by(&limit, verdict, now, [remaining, wait, next, reset]);
    Ok(List::from_elem(answer, run.len()))
}

/// Returns the numbers of a brief reply, which is one text; none for another one.
fn brief_numbers(reply: &Value) -> Result<ReplyNumbers, Error> {
    match reply {
        Value::BulkString(_) => numbers(reply),
        _ => Ok(ReplyNumbers::new()),
    }
}

/// Makes the call that settles a receipt: safe to repeat, as it names the entries.
pub(super) fn settle(
    script: &'static Script,
    receipt: &Charge,
    keep: u32,
    settings: CallSettings<'_>,
) -> ScriptCall {
    let (taken, rest) = match keep.checked_sub(receipt.permits) {
        Some(more) => (None, Some(member(receipt.id.for_more(), more))),
        None => {
            let rest = (keep > 0).then(|| member(receipt.id, keep));
            (Some(member(receipt.id, receipt.permits)), rest)
        }
    };
    let mut call = verbs::settle(script, receipt, settings, false);
    optional(&mut call.command, taken.as_ref());
    optional(&mut call.command, settings.now);
    optional(&mut call.command, rest.as_ref());
    given(&mut call.command, receipt.limit());
    call
}

#[cfg(test)]
mod tests {
    use std::slice;

    use super::*;
    use crate::store::guard::scripted::{asks, charge, shadow};
    use crate::values::demand::MaxWait;

    // The script does not read how a charge is taken.
    #[test]
    fn which_callers_have_the_same_demand() {
        let plain = charge("orders", 1, LimitSource::Store);
        let ahead = Charge {
            lead: 50,
            ..plain.clone()
        };
        let same = |run: &[Demand]| have_same_demand(run[0].first(), run);
        let one = asks([plain.clone()]);
        let waits = Demand {
            max_wait: Some(MaxWait::ENDLESS),
            ..one.clone()
        };
        let more = asks([charge("orders", 2, LimitSource::Store)]);
        assert!(same(slice::from_ref(&one)));
        assert!(same(slice::from_ref(&waits)));
        assert!(same(&[one.clone(), one.clone()]));
        assert!(!same(&[one.clone(), waits]));
        assert!(!same(&[one.clone(), more]));
        assert!(!same(&[one, asks([ahead.clone()])]));
        assert!(!same(&[asks([shadow(plain.clone())])]));
        assert!(!same(&[asks([ahead])]));
        assert!(!same(&[asks([plain.clone(), plain])]));
    }
}
