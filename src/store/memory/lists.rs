//! Decides for several callers or limiters at once, and for untracked names, with all of their
//! shards locked.

use std::sync::MutexGuard;

use smallvec::SmallVec;

use super::{
    shard::{Granted, Shard, Tracked},
    shared::Shared,
    untracked::Untracked,
};
use crate::{
    algorithm::{
        answer::Answer,
        ban::{self, Record},
        call,
        limiter::LimiterState,
    },
    sync::lock,
    values::{
        List,
        charge::Charge,
        clock::Now,
        decision::Decision,
        demand::Demand,
        error::{Error, ErrorKind},
        limit::Limit,
        name::Name,
    },
};

/// The shards of a list, with their numbers.
type LockedShards<'a> = SmallVec<[(usize, MutexGuard<'a, Shard>); 4]>;

/// A limiter that a list counts by, and whether the list has made it.
struct Lent {
    tracked: Tracked,
    is_new: bool,
}

impl Shared {
    /// Grants a list if each of its limiters is tracked and has room, as nearly all have. Otherwise
    /// puts back what it took, and returns `None`.
    pub(super) fn grant_list(&self, demand: &mut Demand) -> Option<Decision> {
        let (now, exact) = (self.now(), demand.wants_remaining);
        let mut locked = self.lock_all(demand);
        let mut granted = SmallVec::<[Granted; 4]>::new();
        for charge in demand.charges() {
            let shard = self.shard_in(&mut locked, charge.name());
            let kept = shard.get_mut(charge.name(), now);
            if let Some(grant) = kept.and_then(|kept| kept.grant(charge, exact, now)) {
                granted.push(grant);
                continue;
            }
            // The same instant, and the same locks: all of it is there.
            for (charge, granted) in demand.charges().zip(granted) {
                let shard = self.shard_in(&mut locked, charge.name());
                if let Some(kept) = shard.get_mut(charge.name(), now) {
                    kept.put_back(charge, granted, now);
                }
            }
            return None;
        }
        drop(locked);
        Some(demand.decided(granted.iter().map(|grant| &grant.answer)))
    }

    /// Decides for callers of the same limiters; the limits of the first apply to all.
    pub(super) fn decide_list(&self, run: &[Demand]) -> Result<Vec<Decision>, Error> {
        let Some(first) = run.first() else {
            return Ok(Vec::new());
        };
        first.check()?;
        let answers = self.decide_locked(first, run)?;
        if answers.iter().any(|answer| answer.estimated) {
            let minute = self.clock.now().as_secs() / 60;
            self.untracked.count_decision(minute);
        }
        let answers = answers.chunks(first.charges().count());
        let decisions = run.iter().zip(answers);
        Ok(decisions
            .map(|(demand, answers)| demand.decision(answers))
            .collect())
    }

    fn decide_locked(&self, first: &Demand, run: &[Demand]) -> Result<List<Answer>, Error> {
        let now = self.now();
        let mut locked = self.lock_all(first);
        if first.has_ban() {
            self.decide_or_ban(first, run, &mut locked, now)
        } else {
            self.decide_lent(first, run, &mut locked, now)
        }
    }

    /// Locks the shards of a list: always in this order, so that no two lists wait for each other.
    /// The lock of the untracked names is last.
    fn lock_all(&self, demand: &Demand) -> LockedShards<'_> {
        let charges = demand.charges();
        let mut shards: SmallVec<[_; 4]> = charges.map(|it| self.shard_of(it.name())).collect();
        shards.sort_unstable();
        shards.dedup();
        let locked = shards
            .into_iter()
            .map(|shard| (shard, lock(&self.shards[shard])));
        locked.collect()
    }

    /// Decides for callers that a limit may ban.
    fn decide_or_ban(
        &self,
        first: &Demand,
        run: &[Demand],
        locked: &mut LockedShards<'_>,
        now: Now,
    ) -> Result<List<Answer>, Error> {
        let (mut terms, mut records, mut limits) = (List::new(), List::new(), List::new());
        for charge in first.charges() {
            let (name, ban) = (charge.name(), charge.compiled().ban);
            let shard = self.shard_in(locked, name);
            records.push(ban.map_or_else(Record::default, |_| shard.take_record(name, now)));
            terms.push(ban);
            let stored = shard.get_mut(name, now).and_then(|kept| kept.limiter.limit);
            limits.push(stored.or_else(|| charge.limit().given().map(Limit::stored)));
        }
        let decided = if ban::is_banned(first, &terms, &records, now) {
            Ok(ban::refuse(run, &terms, &records, &limits, now))
        } else {
            self.decide_lent(first, run, locked, now)
                .map(|mut answers| {
                    // An estimate may count permits of others: it bans no caller.
                    let each = terms.iter().zip(&answers);
                    let counted: List<_> = each
                        .map(|(ban, answer)| ban.filter(|_| !answer.estimated))
                        .collect();
                    ban::judge(run, &counted, &mut records, &mut answers, now);
                    answers
                })
        };
        for ((charge, record), ban) in first.charges().zip(records).zip(terms) {
            if let Some(ban) = ban {
                let (name, [within, ..]) = (charge.name(), ban.millis());
                let shard = self.shard_in(locked, name);
                shard.put_record(name, record, now.ticks(within), now);
            }
        }
        decided
    }

    fn shard_in<'s>(&self, locked: &'s mut LockedShards<'_>, name: &Name) -> &'s mut Shard {
        let shard = self.shard_of(name);
        let at = locked.partition_point(|(other, _)| *other < shard);
        &mut locked[at].1
    }

    fn decide_lent(
        &self,
        first: &Demand,
        run: &[Demand],
        locked: &mut LockedShards<'_>,
        now: Now,
    ) -> Result<List<Answer>, Error> {
        // Lent while they count, because a shard lends one reference at a time.
        let mut lent = Vec::new();
        let all_lent = first.charges().try_for_each(|charge| {
            if (first.charges().take(lent.len())).any(|other| other.name() == charge.name()) {
                let detail = "two limits of a list are one limiter by different algorithms";
                return Err(Error::new(ErrorKind::Limit).detail(detail));
            }
            lent.push(self.lend(self.shard_in(locked, charge.name()), charge, now)?);
            Ok(())
        });
        let answers = all_lent.and_then(|()| self.count(first, &mut lent, run, now));
        for (charge, lent) in first.charges().zip(lent) {
            if let Some(Lent { tracked, is_new }) = lent {
                let shard = self.shard_in(locked, charge.name());
                // A list that takes nothing leaves nothing: callers make up keys.
                if is_new && tracked.kept.is_idle(now) {
                    shard.free_lent();
                } else {
                    shard.take_back(tracked);
                }
            }
        }
        answers
    }

    /// Lends the limiter of a charge, which is made if there is room. Returns `None` if there is
    /// none, for a charge that can be counted by an estimate.
    fn lend(&self, shard: &mut Shard, charge: &Charge, now: Now) -> Result<Option<Lent>, Error> {
        let is_new = shard.get_mut(charge.name(), now).is_none();
        let found = if is_new {
            self.add(shard, &charge.limiter, now).map(drop)
        } else {
            Ok(())
        };
        match found {
            Ok(()) => Ok((shard.lend(charge.name())).map(|tracked| Lent { tracked, is_new })),
            Err(full)
                if full.kind() == ErrorKind::Full
                    && Untracked::can_count(charge.limit().given()) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Takes permits of limiters, one for each charge, and of untracked names where there is none.
    fn count(
        &self,
        first: &Demand,
        lent: &mut [Option<Lent>],
        run: &[Demand],
        now: Now,
    ) -> Result<List<Answer>, Error> {
        let estimated: List<_> = lent.iter().map(Option::is_none).collect();
        let mut untracked = estimated.contains(&true).then(|| self.untracked());
        let mut met = Vec::new();
        if let Some(untracked) = &mut untracked {
            for (charge, _) in first.charges().zip(&estimated[..]).filter(|it| *it.1) {
                let limit = charge.compiled().limit.given();
                let estimate = limit.and_then(|it| untracked.meet(charge.name(), it, self.max));
                met.push(estimate.ok_or(ErrorKind::Full)?);
            }
        }
        let mut next_met = met.iter_mut();
        let limiters = first
            .charges()
            .zip(&mut *lent)
            .filter_map(|(charge, kept)| match kept {
                Some(Lent { tracked, .. }) => {
                    tracked.kept.count_by(charge.compiled(), now);
                    Some(&mut *tracked.kept.limiter)
                }
                None => next_met
                    .next()
                    .map(|estimate| estimate as &mut LimiterState),
            });
        let mut answers = call::acquire(limiters, run, now)?;
        let kept = lent.iter_mut().flatten();
        kept.for_each(|lent| lent.tracked.kept.keep_alive(now));
        if let Some(untracked) = &mut untracked {
            met.iter().for_each(|estimate| untracked.keep(estimate));
        }
        for (answer, estimated) in answers.iter_mut().zip(estimated.iter().cycle()) {
            answer.estimated = *estimated;
        }
        Ok(answers)
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use proptest::prelude::*;

    use super::*;
    use crate::{
        store::{
            Decide, Op,
            guard::scripted::charge,
            memory::{saved::bytes_of, shared::stand_in},
        },
        values::{
            clock::ManualClock,
            limit::{Algorithm, LimitSource},
        },
    };

    const ALGORITHMS: [Algorithm; 3] = [
        Algorithm::SlidingLog,
        Algorithm::Gcra,
        Algorithm::FixedWindow,
    ];

    /// Asks for these permits of three of five limiters from `first` on, each by a rate of its own,
    /// and a shadow as its last.
    fn list(permits: [u32; 3], first: usize, rate: u64, shadow: bool) -> Demand {
        let charges = permits.into_iter().enumerate().map(|(index, permits)| {
            let number = (first + index) % 5;
            let limit = Limit::per_second(rate + number as u64);
            let name = format!("limiter{number}");
            Charge {
                shadow: shadow && index == 2,
                ..charge(&name, permits, LimitSource::Code(limit))
                    .counted_by(ALGORITHMS[number % 3])
            }
        });
        Demand {
            wants_remaining: true,
            ..Demand::caller(charges, false)
        }
    }

    proptest! {
        /// Also where limits change, and where a limiter is not tracked yet.
        #[test]
        fn a_list_that_is_granted_at_once_is_granted_as_any(
            asks in prop::collection::vec(
                (prop::array::uniform3(1u32..4), 4u64..7, any::<bool>(), 0u64..700), 1..40,
            ),
        ) {
            let clock = ManualClock::new();
            let [fast, slow] = [(); 2].map(|()| stand_in(Arc::new(clock.clone())));
            for (permits, rate, shadow, pause) in asks {
                let ask = list(permits, 0, rate, shadow);
                let decided = fast.decide_at_once(&mut ask.clone()).unwrap();
                let expected = slow.decide_list(std::slice::from_ref(&ask)).unwrap();
                prop_assert_eq!(format!("{:?}", decided.unwrap().charges()),
                    format!("{:?}", expected[0].charges()));
                clock.advance(Duration::from_millis(pause));
            }
        }

        /// Callers make up keys. What is counted by a limiter is to the byte what it was.
        #[test]
        fn a_refused_list_tracks_no_newcomer_and_changes_nothing(
            asks in prop::collection::vec(
                (prop::array::uniform3(1u32..7), 0usize..5, 0u64..700), 1..40,
            ),
        ) {
            let clock = ManualClock::new();
            let store = stand_in(Arc::new(clock.clone()));
            let held = |ask: &Demand| {
                let bytes = |charge: &Charge| {
                    // Counting tidies up.
                    let _ = store.manage_now(&charge.limiter, &Op::Available);
                    let (name, now) = (charge.name(), store.now());
                    let shard = store.shard(name);
                    let (limiter, record) = shard.held(name);
                    bytes_of(name.as_str(), limiter, record, now)
                };
                (store.len(), ask.charges().map(bytes).collect::<Vec<_>>())
            };
            for (permits, first, pause) in asks {
                let ask = list(permits, first, 5, false);
                let before = held(&ask);
                if !store.decide_at_once(&mut ask.clone()).unwrap().unwrap().is_allowed() {
                    prop_assert_eq!(held(&ask), before);
                }
                clock.advance(Duration::from_millis(pause));
            }
        }
    }
}
