//! The verbs that take no permits.

use super::{
    shard::{Kept, Shard},
    shared::Shared,
};
use crate::{
    algorithm,
    clock::Now,
    demand::Target,
    error::{Error, ErrorKind},
    limit::LimitSource,
    name::{Limiter, Name},
    receipt::PermitId,
    store::{ExpireWhen, Op, OpResult, TimeToLive},
};

/// Marks entries that a repair adds: nothing is sent twice here, so they need no ids of their own.
const NO_ID: PermitId = PermitId::NONE;

/// Returns the limiter of this name, whose limit is the stored one.
fn stored(name: &Name) -> Target {
    let (name, limit) = (name.clone(), LimitSource::Store);
    Target::Named(Limiter { name, limit })
}

/// Returns the limiter that a verb is for, and whether the verb makes it.
fn find<'s>(
    shard: &'s mut Shard,
    name: &Name,
    op: &Op,
    now: Now,
) -> Result<(Option<&'s mut Kept>, bool), Error> {
    let is_new = shard.get_mut(name, now).is_none();
    if is_new {
        // It may have expired.
        shard.remove(name);
    }
    let found = match op {
        Op::TrySetRate(_)
        | Op::SetRate {
            existing: false, ..
        } if is_new => Some(
            shard
                .add(&stored(name), false, now)
                .ok_or(ErrorKind::Full)?,
        ),
        _ => shard.get_mut(name, now),
    };
    Ok((found, is_new))
}

impl Shared {
    /// Carries out a verb at once.
    pub(super) fn manage_now(&self, name: &Name, op: &Op) -> Result<OpResult, Error> {
        let now = self.now();
        let mut shard = self.shard(name);
        let (found, is_new) = find(&mut shard, name, op, now)?;
        let Some(kept) = found else {
            return self.without_limiter(name, op);
        };
        if let Op::SetRate { .. } | Op::Release(_) | Op::Available | Op::Used | Op::Repair = op {
            algorithm::count_by(&mut kept.limiter, name, now);
        }
        let outcome = match *op {
            Op::TrySetRate(limit) => {
                let changed = kept.limiter.try_set_rate(limit);
                self.set(kept, changed, is_new, name, now)?
            }
            Op::SetRate { limit, keep, .. } => {
                kept.limiter.set_rate(limit, keep, now);
                kept.expires_at = None;
                self.set(kept, true, is_new && keep, name, now)?
            }
            Op::Release(permits) => {
                OpResult::Permits(kept.limiter.release(permits.into(), now, NO_ID)?)
            }
            Op::Expire(millis, when) => OpResult::Changed(expire(kept, now.after(millis), when)),
            Op::ClearExpire => OpResult::Changed(kept.expires_at.take().is_some()),
            Op::TimeToLive => OpResult::TimeToLive(match kept.expires_at {
                None => TimeToLive::Lasting,
                Some(end) => TimeToLive::Left(now.until(end - now.tick)),
            }),
            Op::Delete => {
                shard.remove(name);
                OpResult::Changed(true)
            }
            Op::Inspect => OpResult::Limit(kept.limiter.limit),
            Op::Available => {
                let permits = kept.limiter.available(now, NO_ID)?;
                kept.keep_alive(now);
                OpResult::Permits(permits)
            }
            Op::Used => {
                let limit = kept.limiter.limit.map_or(0, |limit| limit.rate);
                OpResult::Permits(limit - kept.limiter.available(now, NO_ID)?)
            }
            Op::Repair => {
                let lost = kept.limiter.repair(now)?;
                kept.keep_alive(now);
                OpResult::Permits(lost)
            }
            Op::Rename(ref new_name) => {
                let moved = shard.remove(name);
                drop(shard);
                if let Some(mut kept) = moved {
                    kept.rename(new_name);
                    self.shard(new_name).put(kept);
                }
                OpResult::Changed(true)
            }
        };
        Ok(outcome)
    }
    /// Completes the setting of a limit: a limiter that `begins` counts what was estimated for it
    /// before.
    fn set(
        &self,
        kept: &mut Kept,
        changed: bool,
        begins: bool,
        name: &Name,
        now: Now,
    ) -> Result<OpResult, Error> {
        kept.lasting = true;
        if begins {
            self.begin(kept, &stored(name), now)?;
        }
        if changed {
            kept.keep_alive(now);
        }
        Ok(OpResult::Changed(changed))
    }

    /// Returns the outcome of a verb for a limiter that this store does not hold.
    fn without_limiter(&self, name: &Name, op: &Op) -> Result<OpResult, Error> {
        let estimate = (self.untracked.any())
            .then(|| self.untracked().left(name))
            .flatten();
        Ok(match (op, estimate) {
            (Op::Available, Some((_, left))) => OpResult::Permits(left),
            (Op::Used, Some((limit, left))) => OpResult::Permits(limit.rate - left),
            (Op::Used, None) => OpResult::Permits(0),
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

/// Sets the tick at which a limiter ends, if the condition holds. Returns whether it does. One
/// without an end counts as one that never ends.
fn expire(kept: &mut Kept, end: i64, when: ExpireWhen) -> bool {
    let applies = match (when, kept.expires_at) {
        (ExpireWhen::Always, _)
        | (ExpireWhen::NotSet | ExpireWhen::Less, None)
        | (ExpireWhen::Set, Some(_)) => true,
        (ExpireWhen::NotSet, Some(_)) | (ExpireWhen::Set | ExpireWhen::Greater, None) => false,
        (ExpireWhen::Greater, Some(old)) => end > old,
        (ExpireWhen::Less, Some(old)) => end < old,
    };
    if applies {
        kept.expires_at = Some(end);
    }
    applies
}
