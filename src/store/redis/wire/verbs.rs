//! The calls of the verbs: see `lua/lib/verbs.lua`. Pure.

use redis::Value;

use super::{
    arguments::{Arguments, Word},
    format::{self, Ask, flag_byte, keys, limit_fields, random_id, time},
    reply::{flag, second},
    script::{Call, Script},
};
use crate::{
    error::Error,
    name::Name,
    receipt::Receipt,
    store::{ExpireWhen, Op, Outcome},
};

/// Makes the call of the verb that carries this out, by the script of the limiter's algorithm;
/// `None` where a plain command does.
pub(crate) fn call(
    script: &'static Script,
    name: &Name,
    op: &Op,
    ask: Ask<'_>,
) -> Result<Option<Call>, Error> {
    let now = time(ask.now);
    let id = || random_id().map(|id| Word::from(id.0));
    let mut keys = Vec::from(keys(name, ask.client_id));
    let (verb, argv, once) = match op {
        Op::TrySetRate(limit) => ("try_set_rate", limit_fields(limit).into(), false),
        Op::SetRate {
            limit,
            keep,
            existing,
        } => {
            let mut argv = Vec::from(limit_fields(limit));
            argv.extend([now, flag_byte(*keep), flag_byte(*existing)]);
            ("set_rate", argv, false)
        }
        Op::Release(permits) => ("release", vec![Word::number(permits), now, id()?], true),
        Op::Expire(millis, when) => ("expire", vec![Word::number(millis), when_of(*when)], false),
        Op::ClearExpire => ("clear_expire", vec![], false),
        Op::Available => ("available", vec![now, id()?], false),
        // A second call would find nothing to repair, and report that.
        Op::Repair => ("repair", vec![now], true),
        Op::Rename(new_name) => {
            keys.extend(format::keys(new_name, ask.client_id));
            ("rename", vec![], true)
        }
        Op::TimeToLive | Op::Inspect | Op::Delete => return Ok(None),
    };
    Ok(Some(Call {
        script,
        arguments: arguments(keys, verb, argv),
        once,
    }))
}

fn when_of(when: ExpireWhen) -> Word {
    match when {
        ExpireWhen::Always => Word::default(),
        ExpireWhen::NotSet => Word::from(*b"NX"),
        ExpireWhen::Set => Word::from(*b"XX"),
        ExpireWhen::Greater => Word::from(*b"GT"),
        ExpireWhen::Less => Word::from(*b"LT"),
    }
}

/// Reads the reply: those that count reply with several numbers, those that change with one.
pub(crate) fn outcome(reply: &Value) -> Result<Outcome, Error> {
    match reply {
        Value::Int(_) => flag(reply).map(Outcome::Changed),
        _ => second(reply).map(Outcome::Permits),
    }
}

/// Makes the call that settles a receipt.
pub(crate) fn settle(
    script: &'static Script,
    receipt: &Receipt,
    ask: Ask<'_>,
    argv: Vec<Word>,
    once: bool,
) -> Call {
    Call {
        script,
        arguments: arguments(keys(receipt.name(), ask.client_id), "settle", argv),
        once,
    }
}

/// Returns the arguments of a verb's script.
pub(crate) fn arguments(
    keys: impl IntoIterator<Item = impl AsRef<[u8]>>,
    verb: &str,
    argv: impl IntoIterator<Item = Word>,
) -> Arguments {
    let mut arguments = Arguments::new(keys, [verb]);
    argv.into_iter().for_each(|word| arguments.push(word));
    arguments
}
