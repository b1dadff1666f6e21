//! The calls that carry out verbs, each for one limiter.

use std::iter;

use redis::Value;

use super::{ASKS, BANS, HAS_BAN, Numbers, RELEASES, REPORTS, Stamp, ban, call::Call, row::Row};
use crate::{
    store::{
        guard::deny_cache::bans::{BanState, Carried},
        redis::script::ScriptCall,
    },
    values::{
        List,
        charge::Charge,
        clock::Millis,
        compiled_limit::Limiter,
        demand::Demand,
        error::Error,
        limit::{Algorithm, Ban},
        name::Name,
    },
};

/// What settles a receipt: its caller keeps so many of the permits that it took, which are found by
/// two numbers of their kind.
pub(crate) struct GrantToSettle {
    stamp: Stamp,
    row: Row,
    /// Those that it took, and those that it keeps
    permits: [u32; 2],
    mark: [i64; 2],
}

impl GrantToSettle {
    /// Returns `None` if the receipt lacks what that needs.
    pub(crate) fn of(receipt: &Charge, now: Option<Millis>, keep: u32) -> Option<Self> {
        let (row, mark) = Row::settled(receipt)?;
        let id = receipt.id;
        Some(Self {
            stamp: Stamp { id, now },
            row,
            permits: [receipt.permits, keep],
            mark,
        })
    }

    /// Returns whether the limiter knows the grant by a record of its own, so that it is settled
    /// once however often that is sent.
    pub(crate) fn is_repeatable(&self) -> bool {
        self.row.has_records()
    }
}

/// Makes the call of grants of these limiters.
pub(crate) fn settle<'a>(
    grants: impl IntoIterator<Item = (&'a Name, &'a GrantToSettle)>,
) -> ScriptCall {
    let mut call = Call::default();
    for (name, grant) in grants {
        call.begin(grant.stamp.now);
        call.limiter(name, grant.row);
        call.settle(grant.stamp.id, grant.permits, grant.mark);
    }
    call.settlement()
}

/// Makes the call that releases so many permits of any callers.
pub(crate) fn release(algorithm: Algorithm, name: &Name, stamp: Stamp, permits: u32) -> ScriptCall {
    let of_any = GrantToSettle {
        stamp,
        row: Row::any(algorithm),
        permits: [permits, 0],
        mark: RELEASES,
    };
    settle([(name, &of_any)])
}

/// Makes the call that asks what is left.
pub(crate) fn ask_left(row: &Row, name: &Name, Stamp { id, now }: Stamp) -> ScriptCall {
    let mut call = Call::new(now);
    call.limiter(name, *row);
    call.request(iter::once(id), 1, ASKS);
    call.charge(0, 0, 1);
    call.verb()
}

/// Reads the reply to it: the time by which it counted, in us, and what is left; `None` if no
/// window holds that time.
pub(crate) fn read_left(row: &Row, reply: &Value) -> Result<(i64, Option<i64>), Error> {
    let (mut numbers, now) = Numbers::with_time(reply)?;
    let group = row.group(&mut numbers, 1, None)?;
    let standing = group.and_then(|group| group.standing);
    let left = standing.map(|(standing, _)| row.answer(now, standing).remaining);
    Ok((now, left))
}

/// Makes the call that bans the caller of a limiter for so many ms, whatever ban it has.
pub(crate) fn ban_for(limiter: &Limiter, stamp: Stamp, millis: u64) -> ScriptCall {
    of_ban(limiter, stamp, BANS, millis)
}

/// Makes the call that asks until when the caller of a limiter is banned.
pub(crate) fn ask_ban(limiter: &Limiter, stamp: Stamp) -> ScriptCall {
    of_ban(limiter, stamp, ASKS, 0)
}

/// Reads the reply to both: the time by which it counted and that at which the ban ends, in ms.
pub(crate) fn read_ban(reply: &Value) -> Result<[i64; 2], Error> {
    let (mut numbers, now) = Numbers::with_time(reply)?;
    Row::any(Algorithm::Gcra).group(&mut numbers, 1, None)?;
    let found = ban::read(&mut numbers)?;
    numbers.end()?;
    let now = now / 1000;
    Ok([now, now.saturating_add(found.left)])
}

/// Makes the call that reports refusals to the bans of a caller's limiters, for each limiter so
/// many, and the ms until it has room. It asks how the bans stand, and may be sent again.
pub(crate) fn report(caller: &Demand, strikes: &[(Carried, i64)], stamp: Stamp) -> ScriptCall {
    let mut call = Call::new(stamp.now);
    let banning = || {
        let each = caller.charges().zip(strikes);
        each.filter_map(|(charge, strikes)| {
            Some((&charge.limiter, charge.compiled().ban?, strikes))
        })
    };
    for (limiter, ..) in banning() {
        call.beside_ban(limiter);
    }
    let limiters = banning().count();
    for (index, (limiter, ban, (carried, wait))) in banning().enumerate() {
        call.ban(limiter, ban);
        call.again(stamp.id, 0, 1, REPORTS);
        call.charge(
            index,
            HAS_BAN,
            u32::try_from((*wait).max(0)).unwrap_or(u32::MAX),
        );
        call.banning(limiters + index, *carried);
    }
    call.verb()
}

/// Reads the reply to it: how the ban of each limiter stands.
pub(crate) fn read_report(reply: &Value, caller: &Demand) -> Result<List<BanState>, Error> {
    let (mut numbers, _) = Numbers::with_time(reply)?;
    let each = caller.charges().map(|charge| match charge.compiled().ban {
        None => Ok(BanState::default()),
        Some(_) => {
            Row::any(Algorithm::Gcra).group(&mut numbers, 1, None)?;
            ban::read(&mut numbers)
        }
    });
    let found = each.collect::<Result<_, _>>()?;
    numbers.end()?;
    Ok(found)
}

/// A call that bans has its length where others have the age of refusals.
fn of_ban(limiter: &Limiter, Stamp { id, now }: Stamp, flags: u8, age: u64) -> ScriptCall {
    let mut call = Call::new(now);
    call.beside_ban(limiter);
    call.ban(limiter, Ban::after(1));
    call.request(iter::once(id), 1, flags);
    call.charge(0, HAS_BAN, 1);
    call.banning(
        1,
        Carried {
            age,
            ..Carried::default()
        },
    );
    call.verb()
}
