//! Decides for several limiters at once, and for strangers, with all of their shards locked.

use super::{
    shard::lock,
    shared::Shared,
    strangers::{Counting, Strangers, count_with},
};
use crate::{
    algorithm::answer::Answer,
    clock::Now,
    demand::{Acquire, Charge},
    error::{Error, ErrorKind},
    list::List,
    name::Name,
};

impl Shared {
    /// Decides for callers of several limiters, or of one without a place if the store `is_full`.
    pub(super) fn decide_list(
        &self,
        run: &[Acquire],
        is_full: bool,
    ) -> Result<List<Answer>, Error> {
        let Some(first) = run.first() else {
            return Ok(List::new());
        };
        let now = self.now();
        // The room for a newcomer may be that of an idle limiter of the same list, which is then
        // the newcomer of the next attempt.
        for _ in first.charges() {
            // Done before all are locked, because finding room takes one lock at a time.
            let charges = first.charges();
            let have_room = charges.map(|charge| self.has_room(charge, is_full, now));
            let have_room = have_room.collect::<Result<List<_>, _>>()?;
            if let Some(answers) = self.decide_locked(first, &have_room, run, now)? {
                if answers.iter().any(|answer| answer.estimated) {
                    self.strangers
                        .count_decision(self.clock.now().as_secs() / 60);
                }
                return Ok(answers);
            }
        }
        Err(ErrorKind::Full.into())
    }

    /// Decides with all shards locked; `None` if one of the limiters was evicted meanwhile.
    fn decide_locked(
        &self,
        first: &Acquire,
        have_room: &[bool],
        run: &[Acquire],
        now: Now,
    ) -> Result<Option<List<Answer>>, Error> {
        // Always locked in this order, so that no two lists wait for each other. The lock of the
        // strangers is last.
        let mut places: Vec<_> = first
            .charges()
            .map(|charge| Self::shard_of(charge.name()))
            .collect();
        places.sort_unstable();
        places.dedup();
        let mut shards: Vec<_> = places
            .iter()
            .map(|place| lock(&self.shards[*place]))
            .collect();
        let locked = |name: &Name| places.binary_search(&Self::shard_of(name)).ok();
        let mut strangers = None;
        // Limiters are taken out while they count, because a shard lends one at a time.
        let mut taken = Vec::with_capacity(places.len());
        for (charge, has_room) in first.charges().zip(have_room) {
            let shard = locked(charge.name()).and_then(|place| shards.get_mut(place));
            let kept = shard.and_then(|shard| shard.limiters.remove(charge.name().text()));
            let counted = match (kept, charge.limit().given()) {
                (Some(kept), _) => Some(Counting::Own(kept)),
                (None, Some(limit)) if !has_room => strangers
                    .get_or_insert_with(|| self.strangers())
                    .meet(charge.name(), limit, self.max)
                    .map(Counting::Stranger),
                (None, _) => None,
            };
            taken.push((charge, counted));
        }
        let answers = count_with(&mut taken, run, now);
        for (charge, counted) in taken {
            let shard = locked(charge.name()).and_then(|place| shards.get_mut(place));
            match (counted, shard, &mut strangers) {
                (Some(Counting::Own(mut kept)), Some(shard), _) => {
                    if matches!(answers, Ok(Some(_))) {
                        kept.keep_alive(now);
                    }
                    shard.put(kept);
                }
                (Some(Counting::Stranger(stranger)), _, Some(strangers)) => {
                    strangers.keep(&stranger);
                }
                _ => {}
            }
        }
        answers
    }

    /// Finds a place for the limiter of a charge, unless it has one. Returns false if there is
    /// none, for a charge that can be decided without.
    fn has_room(&self, charge: &Charge, is_full: bool, now: Now) -> Result<bool, Error> {
        let found = if is_full {
            Err(ErrorKind::Full.into())
        } else {
            self.shard_with(charge, now).map(drop)
        };
        match found {
            Ok(()) => Ok(true),
            Err(error) if error.kind() != ErrorKind::Full => Err(error),
            Err(_) if Strangers::can_count(charge.limit().given()) => Ok(false),
            Err(full) => Err(full),
        }
    }
}
