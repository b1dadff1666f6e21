//! A sliding log in Redis: `lua/sliding_log/`. Pure.

use std::io::Write;

use redis::{Cmd, RedisWrite, Value};

use super::{
    format::{add_keys, fields, given, member, optional, source_argument},
    reply::{Numbers, answer_by, numbers, read_answers, unreadable},
    script::{CallSettings, Loaded, ReadBrief, Script, ScriptCall, Scripts, lua},
    verbs,
};
use crate::{
    algorithm::answer::{Answer, Verdict},
    charge::Charge,
    clock::Now,
    demand::Demand,
    error::Error,
    limit::LimitSource,
    list::List,
};

/// Decides the usual case with few commands, for callers with equal demands, and contains
/// `ACQUIRE_LIST` for all other cases.
pub(crate) static ACQUIRE: Loaded =
    lua!("sliding_log/acquire": "sliding_log/acquire.lua", [ACQUIRE_LIST]);
/// Carries out several calls of `ACQUIRE`, each by itself.
pub(crate) static ACQUIRE_BATCH: Loaded = lua!(
    "sliding_log/acquire_batch":
    "lib/decide.lua",
    [ACQUIRE],
    "sliding_log/acquire_batch.lua"
);
/// Decides the usual case of one caller of several limiters, and contains `ACQUIRE_LIST`, too.
pub(crate) static ACQUIRE_SEVERAL: Loaded =
    lua!("sliding_log/acquire_several": "sliding_log/acquire_several.lua", [ACQUIRE_LIST]);
pub(crate) static ACQUIRE_LIST: Loaded = lua!(
    "sliding_log/acquire_list":
    "lib/state.lua",
    "sliding_log/entries.lua",
    "sliding_log/acquire_list.lua"
);
pub(crate) static BANNING: Loaded =
    lua!("ban/sliding_log": "lib/decide.lua", [ACQUIRE_LIST], "ban/acquire.lua");
/// Carries out several calls of `BANNING`, each by itself.
pub(crate) static BANNING_BATCH: Loaded =
    lua!("ban/sliding_log_batch": "lib/decide.lua", [BANNING], "ban/acquire_batch.lua");
pub(crate) static VERBS: Loaded = lua!(
    "sliding_log/verbs":
    "lib/state.lua",
    "sliding_log/entries.lua",
    "lib/verbs.lua",
    "sliding_log/verbs.lua"
);

pub(crate) static SCRIPTS: Scripts = Scripts {
    acquire: &ACQUIRE_LIST,
    banning: Some(&BANNING),
    verbs: &VERBS,
    brief,
    settle: |receipt, keep, settings| Some(settle(&VERBS, receipt, keep, settings)),
};

fn brief(
    run: &[Demand],
    limiters: &[(&Charge, bool)],
    settings: CallSettings<'_>,
) -> Option<(ScriptCall, ReadBrief)> {
    let call = |script, command| ScriptCall::new(script, command, run.len(), false);
    let is_of_code = |charge: &Charge| matches!(charge.limit(), LimitSource::Code(_));
    let is_plain = |(it, _): &(&Charge, bool)| is_of_code(it) && it.lead == 0;
    match (run, limiters) {
        // Several limiters now, each by a limit of its own. A shadow is taken where all have room.
        ([_], [_, _, ..]) if limiters.iter().all(is_plain) => {
            let command = acquire_several(limiters, settings);
            Some((call(&ACQUIRE_SEVERAL, command), |reply, run, _| {
                let caller = run.first().ok_or_else(unreadable)?;
                several_answers(reply, caller).map(Some)
            }))
        }
        (_, &[(first, rewrite)]) if have_same_demand(first, run) => {
            let typed = is_of_code(first);
            let mut command = ACQUIRE.start(if typed { 3 } else { 5 }, 4);
            add_keys(&mut command, first, typed, settings.client_id);
            source_in_one(&mut command, first.limit(), rewrite);
            let mut members = command.writer_for_next_arg();
            for caller in run {
                let _ = members.write_all(&member(caller.first().id, first.permits));
            }
            drop(members);
            unless_usual(&mut command, settings, false);
            Some((call(&ACQUIRE, command), |reply, run, asked| match reply {
                // A batch has not answered it.
                Value::Nil => Ok(None),
                reply => brief_answers(reply, run, asked).map(Some),
            }))
        }
        _ => None,
    }
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

/// Returns the command of one caller of several limiters.
fn acquire_several(limiters: &[(&Charge, bool)], settings: CallSettings<'_>) -> Cmd {
    let mut command = ACQUIRE_SEVERAL.start(3 * limiters.len(), 2 * limiters.len() + 3);
    for (charge, _) in limiters {
        add_keys(&mut command, charge, true, settings.client_id);
    }
    for (charge, rewrite) in limiters {
        source_in_one(&mut command, charge.limit(), *rewrite);
        command.arg(&member(charge.id, charge.permits));
    }
    let has_shadows = limiters.iter().any(|(charge, _)| charge.shadow);
    unless_usual(&mut command, settings, has_shadows);
    if has_shadows {
        let mut shadows = command.writer_for_next_arg();
        for (charge, _) in limiters {
            let _ = shadows.write_all(if charge.shadow { b"1" } else { b"0" });
        }
    }
    command
}

/// Writes whose limit counts, and the limit, in one argument.
fn source_in_one(command: &mut Cmd, source: LimitSource, rewrite: bool) {
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
fn unless_usual(command: &mut Cmd, settings: CallSettings<'_>, more: bool) {
    if settings.now.is_some() || !settings.exact || more {
        optional(command, settings.now);
    }
    if !settings.exact || more {
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

/// Reads the reply of `acquire_several.lua`, which is brief in the usual case, too.
fn several_answers(reply: &Value, caller: &Demand) -> Result<List<Answer>, Error> {
    let limiters = caller.charges.len();
    let brief = brief_numbers(reply)?;
    let split = brief.split_first();
    let (now, each) = match split.map(|(now, rest)| (now, rest.as_chunks::<3>())) {
        Some((now, (each, []))) if each.len() == limiters => (Now::millis(*now), each),
        _ => return read_answers(reply, limiters, 1),
    };
    let each = caller.charges().zip(each);
    let answers = each.map(|(charge, &[left, reset, next])| match charge.limit() {
        LimitSource::Code(limit) => {
            let (limit, numbers) = (limit.stored(), [left, 0, next, reset]);
            Ok(answer_by(&limit, Verdict::Granted, now, numbers))
        }
        _ => Err(unreadable()),
    });
    answers.collect()
}

/// Returns the numbers of a brief reply, which is one text; none for another one.
fn brief_numbers(reply: &Value) -> Result<Numbers, Error> {
    match reply {
        Value::BulkString(_) => numbers(reply),
        _ => Ok(Numbers::new()),
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
    use crate::demand::MaxWait;
    use crate::store::guard::scripted::{asks, charge, shadow};

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
