//! A fixed window in Redis: `lua/fixed_window/`. Pure.

use super::{
    algorithm::Scripts,
    arguments::Word,
    format::{fields_given, keys},
    script::{Call, Loaded, Script, lua},
    verbs,
};
use crate::{
    clock::Millis,
    receipt::{Receipt, Taken},
};

pub(crate) static ACQUIRE: Loaded = lua!(
    "lib/state.lua",
    "lib/callers.lua",
    "fixed_window/state.lua",
    "fixed_window/acquire.lua"
);
pub(crate) static VERBS: Loaded = lua!(
    "lib/state.lua",
    "fixed_window/state.lua",
    "lib/verbs.lua",
    "fixed_window/verbs.lua"
);

pub(crate) struct FixedWindow;

impl Scripts for FixedWindow {
    fn acquire(&self) -> &'static Script {
        &ACQUIRE
    }

    fn verbs(&self) -> &'static Script {
        &VERBS
    }

    fn settle(
        &self,
        receipt: &Receipt,
        keep: u32,
        client_id: &str,
        _: Option<Millis>,
    ) -> Option<Call> {
        let Some(Taken::Window(end)) = receipt.settle() else {
            return None;
        };
        let credited = i64::from(receipt.permits) - i64::from(keep);
        let mut argv = Vec::from([credited, end].map(Word::number));
        argv.extend(if credited < 0 {
            fields_given(receipt)
        } else {
            Default::default()
        });
        let keys = keys(receipt.name(), client_id);
        Some(Call {
            script: &VERBS,
            arguments: verbs::arguments(keys, "settle", argv),
            once: true,
        })
    }
}
