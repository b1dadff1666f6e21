//! The verbs that take no permits.

use super::shared::Shared;
use crate::{
    algorithm,
    demand::{Limiter, Target},
    error::{Error, ErrorKind},
    limit::LimitSource,
    name::Name,
    receipt::PermitId,
    store::{ExpireWhen, Op, Outcome, TimeToLive},
};

/// Marks entries that a repair adds: nothing is sent twice here, so they need no ids of their own.
const NO_ID: PermitId = PermitId::NONE;

/// Returns the limiter of this name, whose limit is the stored one.
fn stored(name: &Name) -> Target {
    let (name, limit) = (name.clone(), LimitSource::Store);
    Target::Named(Limiter { name, limit })
}

impl Shared {
    pub(super) fn manage_now(&self, name: &Name, op: &Op) -> Result<Outcome, Error> {
        let now = self.now();
        let mut shard = self.shard(name);
        let is_new = shard.get_mut(name, now).is_none();
        if is_new {
            // It may have expired.
            shard.remove(name);
        }
        let found = match op {
            Op::TrySetRate(_)
            | Op::SetRate {
                existing: false, ..
            } if is_new => Some(shard.add(&stored(name), now).ok_or(ErrorKind::Full)?),
            _ => shard.get_mut(name, now),
        };
        let Some(kept) = found else {
            let left = (self.strangers.any())
                .then(|| self.strangers().left(name))
                .flatten();
            return Ok(match (op, left) {
                (Op::Available, Some((_, left))) => Outcome::Permits(left),
                (Op::Inspect, Some((limit, _))) => Outcome::Limit(Some(limit)),
                (Op::Available | Op::Release(_) | Op::Repair, _) => {
                    return Err(ErrorKind::NotInitialized.into());
                }
                (Op::Inspect, None) => Outcome::Limit(None),
                (Op::TimeToLive, _) => Outcome::TimeToLive(TimeToLive::Missing),
                _ => Outcome::Changed(false),
            });
        };
        if let Op::SetRate { .. } | Op::Release(_) | Op::Available | Op::Repair = op {
            algorithm::count_by(&mut kept.limiter, name, now);
        }
        let outcome = match *op {
            Op::TrySetRate(limit) => {
                kept.lasting = true;
                let changed = kept.limiter.try_set_rate(limit);
                if is_new {
                    self.begin(kept, &stored(name), now)?;
                }
                if changed {
                    kept.keep_alive(now);
                }
                Outcome::Changed(changed)
            }
            Op::SetRate { limit, keep, .. } => {
                kept.lasting = true;
                kept.limiter.set_rate(limit, keep, now);
                if is_new && keep {
                    self.begin(kept, &stored(name), now)?;
                }
                kept.expires_at = None;
                kept.keep_alive(now);
                Outcome::Changed(true)
            }
            Op::Release(permits) => {
                Outcome::Permits(kept.limiter.release(permits.into(), now, NO_ID)?)
            }
            Op::Expire(millis, when) => {
                let new = now.after(millis);
                let applies = match (when, kept.expires_at) {
                    (ExpireWhen::Always, _)
                    | (ExpireWhen::NotSet | ExpireWhen::Less, None)
                    | (ExpireWhen::Set, Some(_)) => true,
                    (ExpireWhen::NotSet, Some(_))
                    | (ExpireWhen::Set | ExpireWhen::Greater, None) => false,
                    (ExpireWhen::Greater, Some(old)) => new > old,
                    (ExpireWhen::Less, Some(old)) => new < old,
                };
                if applies {
                    kept.expires_at = Some(new);
                }
                Outcome::Changed(applies)
            }
            Op::ClearExpire => Outcome::Changed(kept.expires_at.take().is_some()),
            Op::TimeToLive => Outcome::TimeToLive(match kept.expires_at {
                None => TimeToLive::Lasting,
                Some(end) => TimeToLive::Left(now.until(end - now.tick)),
            }),
            Op::Delete => {
                shard.remove(name);
                Outcome::Changed(true)
            }
            Op::Inspect => Outcome::Limit(kept.limiter.limit),
            Op::Available => {
                let permits = kept.limiter.available(now, NO_ID)?;
                kept.keep_alive(now);
                Outcome::Permits(permits)
            }
            Op::Repair => {
                let lost = kept.limiter.repair(now)?;
                kept.keep_alive(now);
                Outcome::Permits(lost)
            }
            Op::Rename(ref new_name) => {
                let moved = shard.remove(name);
                drop(shard);
                if let Some(mut kept) = moved {
                    kept.rename(new_name);
                    self.shard(new_name).put(kept);
                }
                Outcome::Changed(true)
            }
        };
        Ok(outcome)
    }
}
