//! A sliding log in Redis: `lua/sliding_log/`. Pure.

use redis::Value;

use super::{
    format::{self, given, member, optional},
    reply::{answer_by, numbers, read_answers, unreadable},
    script::{Ask, Loaded, ReadBrief, Script, ScriptCall, Scripts, lua},
    verbs,
};
use crate::{
    algorithm::answer::{Answer, Verdict},
    clock::{Millis, Now},
    demand::{Acquire, LimiterCharge},
    error::Error,
    limit::LimitSource,
    list::List,
    receipt::Receipt,
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
    taken: None,
    brief,
    settle: |receipt, keep, ask| Some(settle(&VERBS, receipt, keep, ask)),
    limit_of: None,
};

fn brief(
    run: &[Acquire],
    rewrites: &dyn Fn(&LimiterCharge) -> bool,
    ask: Ask<'_>,
) -> Option<(ScriptCall, ReadBrief)> {
    let call = |script, command| ScriptCall::new(script, command, run.len(), false);
    match run {
        [caller] if takes_several(caller) => {
            let command = format::acquire_several(&ACQUIRE_SEVERAL, caller, rewrites, ask);
            Some((call(&ACQUIRE_SEVERAL, command), |reply, run, _| {
                let caller = run.first().ok_or_else(unreadable)?;
                several_answers(reply, caller).map(Ok)
            }))
        }
        [first, ..] if have_same_demand(&first.first, run) => {
            let rewrite = rewrites(&first.first);
            let command = format::acquire_same(&ACQUIRE, &first.first, run, rewrite, ask);
            Some((call(&ACQUIRE, command), |reply, run, ask| match reply {
                // A batch has not answered it.
                Value::Nil => Ok(Err(None)),
                reply => brief_answers(reply, run, ask.now, ask.exact).map(Ok),
            }))
        }
        _ => None,
    }
}

/// Returns whether it takes permits of several limiters now, each by a limit of its own. A shadow
/// is taken where all have room.
fn takes_several(caller: &Acquire) -> bool {
    let is_of_code = |charge: &LimiterCharge| matches!(charge.limit(), LimitSource::Code(_));
    !caller.rest.is_empty() && caller.charges().all(|it| is_of_code(it) && it.lead == 0)
}

/// Returns whether all callers have the same demand: the same number of permits of one limiter,
/// enforced, and not for a use later. All of them must not wait, or there is only one caller.
fn have_same_demand(first: &LimiterCharge, run: &[Acquire]) -> bool {
    let is_plain = |charge: &LimiterCharge| {
        !charge.shadow && charge.lead == 0 && charge.permits == first.permits
    };
    let is_now = |caller: &Acquire| caller.max_wait.is_none() || run.len() == 1;
    let mut each = run.iter();
    each.all(|it| it.rest.is_empty() && is_plain(&it.first) && is_now(it))
}

/// Reads the reply of `acquire.lua`, which is brief in the usual case; `run`, `now` and `exact` are
/// what was asked.
///
/// A brief reply by the server's clock does not contain the time: the answer's is 0.
pub(crate) fn brief_answers(
    reply: &Value,
    run: &[Acquire],
    now: Option<Millis>,
    exact: bool,
) -> Result<List<Answer>, Error> {
    let Some((verdict, [remaining, wait], [next, reset])) = in_brief(reply) else {
        return read_answers(reply, 1, run.len(), None);
    };
    // A limit that is not in force as it was given has the whole reply.
    let source = run.first().map(|caller| caller.first.limit());
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
fn several_answers(reply: &Value, caller: &Acquire) -> Result<List<Answer>, Error> {
    let limiters = 1 + caller.rest.len();
    let in_brief = match reply {
        Value::BulkString(_) => Some(numbers(reply)?),
        _ => None,
    };
    let in_brief = in_brief.filter(|numbers| numbers.len() == 1 + 3 * limiters);
    let Some([now, each @ ..]) = in_brief.as_deref() else {
        return read_answers(reply, limiters, 1, None);
    };
    let now = Now::millis(*now);
    let (each, _) = each.as_chunks::<3>();
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

/// Returns the verdict; permits left and wait; ms until one more is free, and until all are, if
/// it has them. `None` for a reply that is not brief.
fn in_brief(reply: &Value) -> Option<(Verdict, [i64; 2], [Option<i64>; 2])> {
    match reply {
        Value::Int(left @ 0..) => Some((Verdict::Granted, [*left, 0], [None, None])),
        Value::Int(wait) => Some((
            Verdict::Refused,
            [0, wait.saturating_neg()],
            [Some(0), None],
        )),
        Value::BulkString(_) => match *numbers(reply).ok()? {
            [left, next] => Some((Verdict::Granted, [left, 0], [Some(next), None])),
            [0, wait, reset] => Some((Verdict::Refused, [0, wait], [Some(0), Some(reset)])),
            _ => None,
        },
        _ => None,
    }
}

/// Makes the call that settles a receipt: safe to repeat, as it names the entries.
pub(super) fn settle(
    script: &'static Script,
    receipt: &Receipt,
    keep: u32,
    ask: Ask<'_>,
) -> ScriptCall {
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
    use std::slice;

    use super::*;
    use crate::demand::MaxWait;
    use crate::store::guard::scripted::{asks, charge, shadow};

    // The script does not read how a charge is taken.
    #[test]
    fn which_callers_have_the_same_demand() {
        let plain = charge("orders", 1, LimitSource::Store);
        let ahead = LimiterCharge {
            lead: 50,
            ..plain.clone()
        };
        let same = |run: &[Acquire]| have_same_demand(&run[0].first, run);
        let one = asks([plain.clone()]);
        let waits = Acquire {
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
