//! A fixed window in Redis: `lua/fixed_window/`. Pure.

use super::{
    format::given,
    scripts::{CallSettings, Scripts},
    verbs,
};
use crate::{
    store::redis::script::{LazyScript, Script, ScriptCall, lua},
    values::charge::{Charge, Taken},
};

pub(crate) static ACQUIRE: LazyScript = lua!(
    "fixed_window/acquire":
    "lib/state.lua",
    "fixed_window/state.lua",
    "fixed_window/acquire.lua"
);
pub(crate) static VERBS: LazyScript = lua!(
    "fixed_window/verbs":
    "lib/state.lua",
    "fixed_window/state.lua",
    "lib/verbs.lua",
    "fixed_window/verbs.lua"
);

pub(crate) static SCRIPTS: Scripts = Scripts {
    acquire: &ACQUIRE,
    verbs: &VERBS,
    brief: |_, _, _| None,
    settle,
};

fn settle(receipt: &Charge, keep: u32, settings: CallSettings<'_>) -> Option<ScriptCall> {
    let Some(Taken::Window(end)) = receipt.claim_mark() else {
        return None;
    };
    let credited = i64::from(receipt.permits) - i64::from(keep);
    let mut call = verbs::settle(&VERBS, receipt, settings, true);
    call.command.arg((credited, end));
    given(&mut call.command, receipt.limit());
    Some(call)
}
