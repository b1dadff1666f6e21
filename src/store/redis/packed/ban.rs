//! The ban of the caller of a limiter, one string: see `lua/packed/ban.lua`.

use super::{Numbers, number_at, put_number};
use crate::{
    store::guard::deny_cache::bans::BanState,
    values::{error::Error, limit::Ban, name::Short},
};

/// The kind of a state and of a row.
const KIND: u8 = 4;

/// Writes the terms of a ban, a row.
pub(super) fn put(bytes: &mut Short, ban: &Ban) {
    bytes.push(&[KIND]);
    put_number(bytes, ban.after.into(), 4);
    ban.millis()
        .iter()
        .for_each(|time| put_number(bytes, *time, 6));
}

/// Reads how a ban stands.
pub(super) fn read(numbers: &mut Numbers<'_>) -> Result<BanState, Error> {
    let [left, back, strikes] = [numbers.next()?, numbers.next()?, numbers.next()?];
    Ok(BanState {
        left,
        back,
        strikes: u32::try_from(strikes).unwrap_or(u32::MAX),
    })
}

/// What a state says: when the ban ends, in ms, and how many refusals counted when it was written.
pub(crate) struct State {
    pub(crate) until: i64,
    pub(crate) strikes: u64,
}

impl State {
    /// Reads a state; `None` if it is another one.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let strikes = bytes.len().checked_sub(47)?;
        let is_ours = strikes % 20 == 0 && bytes.ends_with(&[16 + KIND, 183]);
        is_ours.then(|| Self {
            until: number_at(bytes, strikes + 23, 6),
            strikes: number_at(bytes, strikes + 6, 7).unsigned_abs(),
        })
    }
}
