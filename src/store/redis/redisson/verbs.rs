//! Makes the calls of verbs: see `lua/lib/verbs.lua`.

use redis::Value;

use super::{
    format::{self, fields, optional},
    reply::{flag, second},
    scripts::CallSettings,
};
use crate::{
    store::{
        ExpireWhen, Op, OpResult, random_id,
        redis::{
            keys,
            script::{Script, ScriptCall},
        },
    },
    values::{charge::Charge, compiled_limit::Limiter, error::Error},
};

/// Makes the call of the verb that carries this out, by the script of the limiter's algorithm;
/// `None` where a plain command does.
pub(crate) fn call(
    script: &'static Script,
    limiter: &Limiter,
    op: &Op,
    settings: CallSettings<'_>,
) -> Result<Option<ScriptCall>, Error> {
    let name = &limiter.name;
    let mut own = Vec::from(format::keys(name, settings.client_id));
    let verb = match op {
        Op::SetRate { .. } => "set_rate",
        Op::Available => "available",
        Op::TimeToLive | Op::Inspect | Op::Delete => return Ok(None),
        other => other.verb(),
    };
    // A second call would find nothing to repair, and report that.
    let once = matches!(op, Op::Release(_) | Op::Repair | Op::Rename(_));
    if let Op::Rename(new_name) = op {
        own.push(keys::ban(name, false));
        own.extend(format::keys(new_name, settings.client_id));
        own.push(keys::ban(new_name, false));
    }
    let mut call = start(script, &own, verb, once);
    let command = &mut call.command;
    match op {
        Op::TrySetRate(limit) => {
            command.arg(fields(limit));
        }
        Op::SetRate {
            limit,
            keep,
            existing,
        } => {
            command.arg(fields(limit));
            optional(command, settings.now);
            command.arg((keep, existing));
        }
        Op::Release(permits) => {
            command.arg(permits);
            optional(command, settings.now);
            command.arg(&random_id()?.0);
        }
        Op::Expire(millis, when) => {
            command.arg((millis, pexpire_option(*when)));
        }
        Op::Available => {
            optional(command, settings.now);
            command.arg(&random_id()?.0);
        }
        Op::Repair => optional(command, settings.now),
        _ => {}
    }
    Ok(Some(call))
}

fn pexpire_option(when: ExpireWhen) -> &'static str {
    match when {
        ExpireWhen::Always => "",
        ExpireWhen::NotSet => "NX",
        ExpireWhen::Set => "XX",
        ExpireWhen::Greater => "GT",
        ExpireWhen::Less => "LT",
    }
}

/// Reads the reply: those that count reply with several numbers, those that change with one.
pub(crate) fn outcome(reply: &Value) -> Result<OpResult, Error> {
    match reply {
        Value::Int(_) => flag(reply).map(OpResult::Changed),
        _ => second(reply).map(OpResult::Number),
    }
}

/// Starts the call that settles a receipt.
pub(super) fn settle(
    script: &'static Script,
    receipt: &Charge,
    settings: CallSettings<'_>,
    once: bool,
) -> ScriptCall {
    let keys = format::keys(receipt.name(), settings.client_id);
    start(script, &keys, "settle", once)
}

/// Starts the call of a verb.
pub(crate) fn start(
    script: &'static Script,
    keys: &[String],
    verb: &str,
    once: bool,
) -> ScriptCall {
    let mut command = script.start(keys.len(), 8);
    command.arg(keys).arg(verb);
    ScriptCall {
        script,
        command,
        once,
        callers: 0,
    }
}
