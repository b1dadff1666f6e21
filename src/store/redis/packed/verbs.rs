//! The calls that settle receipts and carry out verbs, each for one limiter.

use std::iter;

use redis::Value;

use super::{ASKS, Argument, BANS, HAS_BAN, Numbers, Stamp, ban, calendar, gcra, key, row::Row};
use crate::{
    charge::Charge,
    clock::Millis,
    error::Error,
    limit::{Algorithm, Ban},
    name::Name,
    store::{guard::deny_cache::bans::Carried, redis::wire::script::ScriptCall},
};

/// What a call counts by that says nothing about its limiter.
const ANY: Row = Row::Gcra(gcra::Row::ANY);

/// Makes the call that settles a receipt at a number of permits; `None` if it lacks what that
/// needs.
pub(crate) fn settle(receipt: &Charge, now: Option<Millis>, keep: u32) -> Option<ScriptCall> {
    let id = receipt.id;
    match receipt.of().counting.algorithm {
        Algorithm::Gcra => gcra::settle(receipt, Stamp { id, now }, keep),
        _ => calendar::settle(receipt, keep),
    }
}

/// Makes the call that asks what is left.
pub(crate) fn ask_left(row: &Row, name: &Name, stamp: Stamp) -> ScriptCall {
    let argument = row.put(Argument::new(stamp, 1));
    let argument = argument.request(1, None, 1, ASKS).charge(0, 0, 1);
    argument.verb(iter::once(key(name)))
}

/// Reads the reply to it: the time by which it counted, in us, and what is left; `None` if no
/// window holds that time.
pub(crate) fn read_left(row: &Row, reply: &Value) -> Result<(i64, Option<i64>), Error> {
    let (mut numbers, now) = Numbers::of(reply)?;
    let group = row.group(&mut numbers, 1, None)?;
    let standing = group.and_then(|group| group.standing);
    let left = standing.map(|standing| row.answer(now, standing).remaining);
    Ok((now, left))
}

/// Makes the call that bans the caller of a limiter for so many ms, whatever ban it has.
pub(crate) fn ban_for(name: &Name, stamp: Stamp, millis: u64) -> ScriptCall {
    of_ban(name, stamp, BANS, millis)
}

/// Makes the call that asks until when the caller of a limiter is banned.
pub(crate) fn ask_ban(name: &Name, stamp: Stamp) -> ScriptCall {
    of_ban(name, stamp, ASKS, 0)
}

/// Reads the reply to both: the time by which it counted and that at which the ban ends, in ms.
pub(crate) fn read_ban(reply: &Value) -> Result<[i64; 2], Error> {
    let (mut numbers, now) = Numbers::of(reply)?;
    ANY.group(&mut numbers, 1, None)?;
    let found = ban::read(&mut numbers)?;
    numbers.end()?;
    let now = now / 1000;
    Ok([now, now.saturating_add(found.left)])
}

/// A call that bans has its length where others have the age of refusals.
fn of_ban(name: &Name, stamp: Stamp, flags: u8, age: u64) -> ScriptCall {
    let argument = ANY.put(Argument::new(stamp, 2));
    let argument = ban::put(argument, &Ban::after(1));
    let request = argument.request(1, None, 1, flags).charge(0, HAS_BAN, 1);
    let keys = [key(name), ban::key(name)];
    request
        .ban(1, Carried { number: 0, age })
        .verb(keys.into_iter())
}
