//! The verbs of a store in memory, which take no permits.

use std::mem;

use super::{
    shard::{KeptLimiter, NEVER, Shard},
    shared::Shared,
};
use crate::{
    store::{ExpireWhen, Op, OpResult, TimeToLive},
    values::{
        charge::PermitId,
        clock::{Now, TICKS},
        compiled_limit::Limiter,
        error::{Error, ErrorKind},
        name::Name,
    },
};

/// Marks entries that a repair adds: nothing is sent twice here, so they need no ids of their own.
const NO_ID: PermitId = PermitId::NONE;

/// Returns the limiter that a verb is for, and whether the verb makes it.
fn find<'s>(
    shard: &'s mut Shard,
    limiter: &Limiter,
    op: &Op,
    now: Now,
) -> Result<(Option<&'s mut KeptLimiter>, bool), Error> {
    let name = &limiter.name;
    let is_new = shard.get_mut(name, now).is_none();
    if is_new {
        // It may have expired.
        shard.remove(name);
    }
    if let Op::SetRate { .. } | Op::Release(_) | Op::Expire(..) = op {
        // It may be idle earlier than was known.
        shard.may_be_idle_at(now.tick);
    }
    let found = match op {
        Op::TrySetRate(_)
        | Op::SetRate {
            existing: false, ..
        } if is_new => {
            shard.make_room(name, false, now)?;
            Some(shard.make(name, KeptLimiter::new(&limiter.compiled)))
        }
        _ => shard.get_mut(name, now),
    };
    Ok((found, is_new))
}

impl Shared {
    /// Carries out a verb at once.
    pub(in crate::store) fn manage_now(
        &self,
        limiter: &Limiter,
        op: &Op,
    ) -> Result<OpResult, Error> {
        let (name, now) = (&limiter.name, self.now());
        let mut shard = self.shard(name);
        if let Some(outcome) = manage_ban(&mut shard, name, op, now) {
            return Ok(outcome);
        }
        let (found, is_new) = find(&mut shard, limiter, op, now)?;
        let Some(kept) = found else {
            return self.without_limiter(limiter, op);
        };
        if let Op::SetRate { .. } | Op::Release(_) | Op::Available | Op::Repair = op {
            kept.count_by(&limiter.compiled, now);
        }
        let outcome = match *op {
            Op::TrySetRate(limit) => {
                let changed = kept.limiter.try_set_rate(limit);
                self.set(kept, changed, is_new, limiter, now)?
            }
            Op::SetRate { limit, keep, .. } => {
                kept.limiter.set_rate(limit, keep, now);
                kept.expires_at = NEVER;
                kept.in_flight = limiter.compiled.is_in_flight();
                self.set(kept, true, is_new && keep, limiter, now)?
            }
            Op::Release(permits) => {
                OpResult::Number(kept.limiter.release(permits.into(), now, NO_ID)?)
            }
            Op::Expire(millis, when) => OpResult::Changed(expire(kept, now.after(millis), when)),
            Op::ClearExpire => {
                OpResult::Changed(mem::replace(&mut kept.expires_at, NEVER) != NEVER)
            }
            Op::TimeToLive => OpResult::TimeToLive(match kept.expires_at {
                NEVER => TimeToLive::Lasting,
                end => TimeToLive::Left(now.until(end - now.tick)),
            }),
            Op::Delete => OpResult::Changed(shard.delete(name)),
            Op::Inspect => OpResult::Limit(kept.limiter.limit),
            Op::Available => {
                let permits = kept.limiter.available(now, NO_ID)?;
                kept.keep_alive(now);
                OpResult::Number(permits)
            }
            Op::Repair => {
                let lost = kept.limiter.repair(now)?;
                kept.keep_alive(now);
                OpResult::Number(lost)
            }
            Op::Rename(ref new_name) => {
                let (moved, record) = (shard.remove(name), shard.remove_record(name));
                drop(shard);
                if let Some(kept) = moved {
                    self.shard(new_name).put_renamed(new_name, kept, record);
                }
                OpResult::Changed(true)
            }
            Op::Ban(_) | Op::Unban | Op::BannedUntil => OpResult::Changed(false),
        };
        Ok(outcome)
    }

    /// Completes the setting of a limit: a limiter that `begins` counts what was estimated for it
    /// before.
    fn set(
        &self,
        kept: &mut KeptLimiter,
        changed: bool,
        begins: bool,
        limiter: &Limiter,
        now: Now,
    ) -> Result<OpResult, Error> {
        kept.lasting = true;
        if begins {
            self.charge_estimated(kept, limiter, now)?;
        }
        if changed {
            kept.keep_alive(now);
        }
        Ok(OpResult::Changed(changed))
    }

    /// Returns the outcome of a verb for a limiter that this store does not hold.
    fn without_limiter(&self, limiter: &Limiter, op: &Op) -> Result<OpResult, Error> {
        let estimate = (self.untracked.any())
            .then(|| self.untracked().left(limiter))
            .flatten();
        Ok(match (op, estimate) {
            (Op::Available, Some((_, left))) => OpResult::Number(left),
            (Op::Inspect, Some((limit, _))) => OpResult::Limit(Some(limit)),
            (Op::Available | Op::Release(_) | Op::Repair, _) => {
                return Err(ErrorKind::NotInitialized.into());
            }
            (Op::Inspect, None) => OpResult::Limit(None),
            (Op::TimeToLive, _) => OpResult::TimeToLive(TimeToLive::Missing),
            _ => OpResult::Changed(false),
        })
    }
}

/// Carries out a verb for bans, which need no limiter; `None` for others.
fn manage_ban(shard: &mut Shard, name: &Name, op: &Op, now: Now) -> Option<OpResult> {
    Some(match *op {
        Op::Ban(millis) => {
            let mut record = shard.take_record(name, now);
            record.ban_for(now.ticks(millis.cast_signed()), now);
            shard.put_record(name, record, 0, now);
            OpResult::Changed(true)
        }
        Op::Unban => OpResult::Changed(shard.take_record(name, now).in_force(now).is_some()),
        Op::BannedUntil => {
            let left = shard
                .record(name, now)
                .and_then(|record| record.in_force(now));
            let until = |[left, _]: [i64; 2]| {
                let end = now.micros().saturating_add(left);
                end.saturating_add(TICKS - 1) / TICKS
            };
            OpResult::Number(left.map_or(0, until))
        }
        // Without a limiter there is a ban at most.
        Op::Delete if shard.get_mut(name, now).is_none() => {
            OpResult::Changed(shard.take_record(name, now).in_force(now).is_some())
        }
        _ => return None,
    })
}

/// Sets the tick at which a limiter ends, if the condition holds. Returns whether it does. One
/// without an end counts as one that never ends.
fn expire(kept: &mut KeptLimiter, end: i64, when: ExpireWhen) -> bool {
    let applies = match when {
        ExpireWhen::Always => true,
        ExpireWhen::NotSet => kept.expires_at == NEVER,
        ExpireWhen::Set => kept.expires_at != NEVER,
        ExpireWhen::Greater => end > kept.expires_at,
        ExpireWhen::Less => end < kept.expires_at,
    };
    if applies {
        kept.expires_at = end;
    }
    applies
}
