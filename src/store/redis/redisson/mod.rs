//! Redisson's format: its scripts, with their arguments and replies.
//!
//! Each algorithm that counts in it has a file of its own here, and a folder of the same name in
//! `lua/`.

pub(crate) mod fixed_window;
pub(crate) mod format;
pub(crate) mod reply;
mod scripts;
pub(crate) mod sliding_log;
pub(crate) mod slots;
pub(crate) mod verbs;

pub(crate) use self::{
    format::{acquire_command, is_member_size, keys, permits},
    reply::{read_answers, stored_limit},
    scripts::{CallSettings, Scripts},
};
use super::script::Script;
use crate::values::{
    demand::Demand,
    limit::{Algorithm, Counting},
};

/// Returns the scripts that count a limiter; `None` in [our own format](super::packed).
pub(crate) fn scripts(counting: Counting) -> Option<&'static Scripts> {
    if counting.in_own_format() {
        return None;
    }
    Some(match counting.algorithm {
        Algorithm::SlidingLog if counting.slots.is_some() => &slots::SCRIPTS,
        Algorithm::SlidingLog => &sliding_log::SCRIPTS,
        Algorithm::FixedWindow => &fixed_window::SCRIPTS,
        Algorithm::Gcra | Algorithm::Calendar => return None,
    })
}

/// Returns whether a call for these must not be sent twice: one of the grants has no entry of its
/// own.
pub(crate) fn is_sent_once(acquire: &Demand) -> bool {
    let mut charges = acquire.charges();
    charges.any(|charge| !charge.compiled().counting.tells_grants_apart())
}

/// Returns every script that a limiter in this format can need.
pub(crate) fn all() -> [&'static Script; 7] {
    [
        &sliding_log::ACQUIRE,
        &sliding_log::ACQUIRE_LIST,
        &sliding_log::VERBS,
        &slots::ACQUIRE_LIST,
        &slots::VERBS,
        &fixed_window::ACQUIRE,
        &fixed_window::VERBS,
    ]
}
