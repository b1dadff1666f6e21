//! A log whose grants are merged in slots: `lua/slots/`, and otherwise as any. Pure.

use super::{
    algorithm::Scripts,
    arguments::Word,
    format::keys,
    script::{Call, Loaded, Script, lua},
    sliding_log::{self, settled},
    verbs,
};
use crate::{
    clock::Millis,
    receipt::{Receipt, Taken},
};

pub(crate) static ACQUIRE_LIST: Loaded = lua!(
    "lib/state.lua",
    "sliding_log/entries.lua",
    "slots/entries.lua",
    "sliding_log/acquire_list.lua"
);
/// For `settle` alone: the other verbs write no grants.
pub(crate) static VERBS: Loaded = lua!(
    "lib/state.lua",
    "sliding_log/entries.lua",
    "slots/entries.lua",
    "lib/verbs.lua",
    "sliding_log/verbs.lua"
);

pub(crate) struct Slots;

impl Scripts for Slots {
    fn acquire(&self) -> &'static Script {
        &ACQUIRE_LIST
    }

    fn verbs(&self) -> &'static Script {
        &sliding_log::VERBS
    }

    fn takes_lists(&self) -> bool {
        true
    }

    fn settle(
        &self,
        receipt: &Receipt,
        keep: u32,
        client_id: &str,
        now: Option<Millis>,
    ) -> Option<Call> {
        let (Some(Taken::Slot(end)), Some(slots)) = (receipt.settle(), receipt.name().slots())
        else {
            return None;
        };
        let mut argv = settled(receipt, keep, now);
        argv.extend([Word::number(end), Word::number(slots.count())]);
        let keys = keys(receipt.name(), client_id);
        Some(Call {
            script: &VERBS,
            arguments: verbs::arguments(keys, "settle", argv),
            once: true,
        })
    }
}
