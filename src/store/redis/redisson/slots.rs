//! A sliding log with slots in Redis: `lua/slots/` joined into the scripts of `lua/sliding_log/`.
//! Pure.

use super::{
    scripts::{CallSettings, Scripts},
    sliding_log,
};
use crate::{
    store::redis::script::{LazyScript, Script, ScriptCall, lua},
    values::charge::{Charge, Taken},
};

pub(crate) static ACQUIRE_LIST: LazyScript = lua!(
    "slots/acquire_list":
    "lib/state.lua",
    "sliding_log/state.lua",
    "sliding_log/entries.lua",
    "slots/entries.lua",
    "sliding_log/acquire_list.lua"
);
/// For `settle` alone: the other verbs write no grants.
pub(crate) static VERBS: LazyScript = lua!(
    "slots/verbs":
    "lib/state.lua",
    "sliding_log/state.lua",
    "sliding_log/entries.lua",
    "slots/entries.lua",
    "lib/verbs.lua",
    "sliding_log/verbs.lua"
);

pub(crate) static SCRIPTS: Scripts = Scripts {
    acquire: &ACQUIRE_LIST,
    verbs: &sliding_log::VERBS,
    brief: |_, _, _| None,
    settle,
};

fn settle(receipt: &Charge, keep: u32, settings: CallSettings<'_>) -> Option<ScriptCall> {
    let (Some(Taken::Slot(end)), Some(slots)) =
        (receipt.claim_mark(), receipt.compiled().counting.slots())
    else {
        return None;
    };
    let mut call = sliding_log::settle(&VERBS, receipt, keep, settings);
    call.command.arg((end, slots.count()));
    Some(ScriptCall { once: true, ..call })
}
