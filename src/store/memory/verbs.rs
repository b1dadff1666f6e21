//! The verbs that take no permits.

use std::sync::{Arc, atomic::Ordering};

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
fn stored(name: &Name) -> Arc<Limiter> {
    let (name, limit) = (name.clone(), LimitSource::Store);
    Arc::new(Limiter { name, limit })
}

impl Shared {
    pub(super) fn manage_now(&self, name: &Name, op: &Op) -> Result<Outcome, Error> {
        let now = self.now();
        let mut shard = self.shard(name);
        let found = shard.get_mut(name, now, &self.count);
        let is_new = found.is_none();
        let found = match (op, found) {
            (
                Op::TrySetRate(_)
                | Op::SetRate {
                    existing: false, ..
                },
                None,
            ) => {
                drop(shard);
                shard = self.shard_with_room(&stored(name), true, now)?;
                shard.limiters.get_mut(name.text())
            }
            (_, found) => found,
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
                    self.begin(kept, &Target::Shared(stored(name)), now)?;
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
                    self.begin(kept, &Target::Shared(stored(name)), now)?;
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
                shard.limiters.remove(name.text());
                self.count.fetch_sub(1, Ordering::Relaxed);
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
                let moved = shard.limiters.remove(name.text());
                drop(shard);
                let mut shard = self.shard(new_name);
                if let Some(mut kept) = moved {
                    let limiter = kept.rename(new_name);
                    if shard.put(kept).is_some() {
                        self.count.fetch_sub(1, Ordering::Relaxed);
                    }
                    shard.record_idle(now.tick, limiter);
                }
                return Ok(Outcome::Changed(true));
            }
        };
        let ends = shard
            .limiters
            .get(name.text())
            .and_then(|kept| Some((kept.expires_at?, kept.as_named())));
        if let (Some((end, limiter)), Op::TrySetRate(_) | Op::SetRate { .. } | Op::Expire(..)) =
            (ends, op)
        {
            shard.record_idle(end, limiter);
        }
        Ok(outcome)
    }
}
