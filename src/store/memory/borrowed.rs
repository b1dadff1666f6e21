//! A store in memory for one call of a store of one's own, which has the limiters of that call.

use std::sync::Arc;

use super::{
    saved::{bytes_of, held},
    shared::Shared,
};
use crate::{
    store::Listeners,
    sync::lock,
    values::{
        charge::Charge,
        clock::{Clock, TICKS},
        error::Error,
        limit::{Ban, StoredLimit},
        name::Name,
    },
};

impl Shared {
    /// Returns an empty store for a call, by a clock that proves nothing about those of others. It
    /// has no bound: a limiter that found no room would begin anew.
    pub(crate) fn for_call(clock: Arc<dyn Clock>) -> Self {
        let mut store = Self::new(1, clock, Listeners::none());
        (store.shards.iter()).for_each(|shard| lock(shard).most = usize::MAX);
        store.is_by_callers = true;
        store
    }

    /// Puts in what a name has, from its bytes.
    ///
    /// # Errors
    ///
    /// As [`held`].
    pub(crate) fn put_bytes(&self, name: &Name, bytes: &[u8]) -> Result<(), Error> {
        let (held, now) = (held(name.as_str(), bytes)?, self.now());
        self.shard(name).put_held(name, held, now);
        Ok(())
    }

    /// Returns the bytes of what a name has; `None` if they say nothing any more.
    pub(crate) fn bytes_of(&self, name: &Name) -> Option<Vec<u8>> {
        let (now, shard) = (self.now(), self.shard(name));
        let (limiter, record) = shard.held(name);
        bytes_of(name.as_str(), limiter, record, now)
    }

    /// Returns the limit that a name has.
    pub(crate) fn limit_of(&self, name: &Name) -> Option<StoredLimit> {
        let shard = self.shard(name);
        let (limiter, _) = shard.held(name);
        limiter.and_then(|limiter| limiter.limiter.limit)
    }

    /// Counts refusals that never reached the store: so many, the first of them so many ms ago.
    pub(crate) fn strike_before(&self, charge: &Charge, ban: &Ban, (number, age): (u32, u64)) {
        let (name, now) = (charge.name(), self.now());
        let mut shard = self.shard(name);
        let mut record = shard.take_record(name, now);
        let [within, ..] = ban.millis().map(|millis| now.ticks(millis));
        let age = now.ticks(i64::try_from(age).unwrap_or(i64::MAX));
        if number > 0 && age < within && record.in_force(now).is_none() {
            record.strike(ban, (charge.id.for_more(), number, now.tick - age), 0, now);
        }
        shard.put_record(name, record, within, now);
    }

    /// Returns the ms until the ban of a caller ends and until the caller may come back, and how
    /// many refusals count.
    pub(crate) fn ban_of(&self, charge: &Charge, ban: &Ban) -> ([i64; 2], u32) {
        let now = self.now();
        let mut shard = self.shard(charge.name());
        let Some(record) = shard.record(charge.name(), now) else {
            return Default::default();
        };
        let millis = |ticks: i64| ticks.saturating_add(TICKS - 1) / TICKS;
        let left = record.in_force(now).unwrap_or_default();
        (left.map(millis), record.strikes(ban, now))
    }
}
