//! The limiters of a store in memory, and what decides by them: a store without a queue.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use super::{
    shard::{Kept, Shard, lock},
    strangers::Strangers,
};
use crate::{
    algorithm::answer::Answer,
    clock::{Clock, Now},
    decision::Decision,
    demand::{Acquire, Charge, Limiter, Target},
    error::{Error, ErrorKind},
    limit::LimitSource,
    list::List,
    name::Name,
    receipt::{PermitId, Receipt},
    store::{Decide, DecideRuns, Listeners, Op, Outcome, guard::policy},
};

/// More shards than there will be cores, so that requests seldom wait for each other.
const SHARDS: usize = 64;
pub(super) const MOST_LIMITERS: usize = 100_000;

/// The store without its queue.
pub(crate) struct Shared {
    pub(super) shards: Box<[Mutex<Shard>]>,
    pub(super) count: AtomicUsize,
    pub(super) max: usize,
    /// Those that have no place.
    pub(super) strangers: Strangers,
    pub(super) last_id: AtomicU64,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) listeners: Listeners,
}

impl Decide for Shared {
    /// Decides, unless its caller would wait where there is no room.
    fn decide_at_once(&self, acquire: &mut Acquire) -> Option<Result<Decision, Error>> {
        acquire.identify(self.next_id());
        acquire
            .patience
            .is_none()
            .then(|| self.acquire_one(acquire))
    }

    async fn acquire(&self, acquire: &Acquire) -> Result<Decision, Error> {
        self.acquire_one(acquire)
    }

    async fn manage(&self, name: &Name, op: &Op) -> Result<Outcome, Error> {
        self.manage_now(name, op)
    }

    fn settle(&self, receipt: Receipt, keep: u32) {
        let now = self.now();
        {
            let mut shard = self.shard(receipt.name());
            if shard.get_mut(receipt.name(), now, &self.count).is_none() {
                if keep <= receipt.permits || receipt.limit().given().is_none() {
                    return;
                }
                drop(shard);
                let Ok(with_room) = self.shard_with_room(&receipt.limiter, false, now) else {
                    self.owe(&receipt, keep, now);
                    return;
                };
                shard = with_room;
            }
            let Some(kept) = shard.limiters.get_mut(receipt.name().text()) else {
                return;
            };
            let credited = (kept.limiter)
                .settle(&receipt, receipt.settle(), keep, now)
                .unwrap_or(0);
            if credited < 0 {
                kept.keep_alive(now);
            }
            if kept.limiter.full_at().is_none_or(|at| at <= now.tick) && !kept.lasting {
                // Idle earlier than was noted.
                let limiter = kept.as_named();
                shard.record_idle(now.tick, limiter);
            }
            if credited <= 0 {
                return;
            }
        }
        self.listeners.room(receipt.name(), false);
    }
}

impl DecideRuns for Shared {
    async fn acquire_run(&self, run: &[Acquire]) -> Result<Vec<Decision>, Error> {
        match self.acquire_together(run) {
            Err(error) => match policy::without_trials(run, &error) {
                Some(enforced) => self.acquire_together(&enforced),
                None => Err(error),
            },
            decisions => decisions,
        }
    }

    fn decides_together(&self, _: &Acquire) -> bool {
        true
    }
}

impl Shared {
    pub(super) fn new(max: usize, clock: Arc<dyn Clock>, listeners: Listeners) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            count: AtomicUsize::new(0),
            max,
            strangers: Strangers::default(),
            last_id: AtomicU64::new(0),
            clock,
            listeners,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    fn acquire_one(&self, acquire: &Acquire) -> Result<Decision, Error> {
        let run = std::slice::from_ref(acquire);
        let decision = if acquire.rest.is_empty() {
            self.decide_one(acquire)
        } else {
            self.decide(run).map(|answers| acquire.decision(&answers))
        };
        match decision {
            Ok(decision) => Ok(decision),
            Err(error) => match policy::without_trials(run, &error).as_deref() {
                Some([enforced]) => {
                    let answers = self.decide(std::slice::from_ref(enforced))?;
                    Ok(enforced.decision(&answers))
                }
                _ => Err(error),
            },
        }
    }

    fn acquire_together(&self, run: &[Acquire]) -> Result<Vec<Decision>, Error> {
        let answers = self.decide(run)?;
        let Some(first) = run.first() else {
            return Ok(Vec::new());
        };
        let answers = answers.chunks(first.charges().count());
        let decisions = run.iter().zip(answers);
        Ok(decisions
            .map(|(acquire, answers)| acquire.decision(answers))
            .collect())
    }

    /// Decides for one caller of one limiter.
    fn decide_one(&self, acquire: &Acquire) -> Result<Decision, Error> {
        acquire.check()?;
        let own = self.with_limiter(&acquire.first, |kept, now| kept.decide_one(acquire, now));
        match own {
            Ok((answer, limiter)) => Ok(acquire.decision_alone(&answer, limiter)),
            Err(error) if error.kind() == ErrorKind::Full => {
                let answers = self.decide_list(std::slice::from_ref(acquire), true)?;
                Ok(acquire.decision(&answers))
            }
            Err(error) => Err(error),
        }
    }

    /// Finds the limiter of a charge, or makes it.
    fn with_limiter<T>(
        &self,
        charge: &Charge,
        decide: impl FnOnce(&mut Kept, Now) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let now = self.now();
        let mut shard = self.shard(charge.name());
        if let Some(kept) = shard.limiters.get_mut(charge.name().text())
            && kept.is_there(now)
        {
            return decide(kept, now);
        }
        drop(shard);
        let mut shard = self.shard_with(charge, now)?;
        let kept = shard.limiters.get_mut(charge.name().text());
        decide(kept.ok_or(ErrorKind::Full)?, now)
    }

    /// Decides for callers of the same limiters; all of them go by the limits of the first.
    fn decide(&self, run: &[Acquire]) -> Result<List<Answer>, Error> {
        let Some(first) = run.first() else {
            return Ok(List::EMPTY);
        };
        first.check()?;
        if !first.rest.is_empty() {
            return self.decide_list(run, false);
        }
        match self.with_limiter(&first.first, |kept, now| kept.decide(run, now)) {
            Err(error) if error.kind() == ErrorKind::Full => self.decide_list(run, true),
            answers => answers,
        }
    }

    /// The shard of a charge's limiter, with the limiter in it.
    pub(super) fn shard_with(
        &self,
        charge: &Charge,
        now: Now,
    ) -> Result<MutexGuard<'_, Shard>, Error> {
        let mut shard = self.shard(charge.name());
        if shard.get_mut(charge.name(), now, &self.count).is_some() {
            return Ok(shard);
        }
        if charge.limit() == LimitSource::Store {
            return Err(ErrorKind::NotInitialized.into());
        }
        drop(shard);
        self.shard_with_room(&charge.limiter.share(), false, now)
    }

    /// The shard of a newcomer, with the newcomer in it. It begins with what it took as a stranger.
    pub(super) fn shard_with_room(
        &self,
        limiter: &Arc<Limiter>,
        lasting: bool,
        now: Now,
    ) -> Result<MutexGuard<'_, Shard>, Error> {
        let name = &limiter.name;
        self.make_room(name, now)?;
        let mut shard = self.shard(name);
        if shard.limiters.contains_key(name.text()) {
            // Another caller of the same name was faster.
            self.count.fetch_sub(1, Ordering::Relaxed);
        } else {
            shard.insert(Arc::clone(limiter), lasting, now);
            if let Some(kept) = shard.limiters.get_mut(name.text()) {
                self.begin(kept, &Target::Shared(Arc::clone(limiter)), now)?;
            }
        }
        Ok(shard)
    }

    /// Reserves a place for one more limiter: a free one, or that of an idle limiter, in the
    /// newcomer's shard if possible. Holds one lock at a time.
    fn make_room(&self, newcomer: &Name, now: Now) -> Result<(), Error> {
        let below_max = |count| (count < self.max).then_some(count + 1);
        if self
            .count
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, below_max)
            .is_ok()
        {
            return Ok(());
        }
        let first = Self::shard_of(newcomer);
        for offset in 0..SHARDS {
            if lock(&self.shards[(first + offset) % SHARDS]).evict_idle(now) {
                return Ok(());
            }
        }
        Err(ErrorKind::Full.into())
    }

    pub(super) fn shard(&self, name: &Name) -> MutexGuard<'_, Shard> {
        lock(&self.shards[Self::shard_of(name)])
    }

    pub(super) fn shard_of(name: &Name) -> usize {
        // The remainder is below SHARDS, whatever the width of usize.
        (name.text().seeded_hash() % SHARDS as u64) as usize
    }

    /// Nothing is ever sent twice here, so a count is enough.
    pub(super) fn next_id(&self) -> PermitId {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed);
        let mut bytes = [0; 16];
        bytes[8..].copy_from_slice(&id.to_be_bytes());
        PermitId(bytes)
    }

    pub(super) fn now(&self) -> Now {
        Now::by(&*self.clock)
    }
}

#[cfg(feature = "redis")]
impl crate::store::StandIn for Shared {
    fn begin_with(&self, charge: &Charge, past: Vec<(i64, u32)>) -> Result<(), Error> {
        let most = charge.limit().given().map_or(0, |limit| limit.permits());
        let past = super::strangers::latest(past, most);
        if past.is_empty() {
            return Ok(());
        }
        let now = self.now();
        let ticks = |(at, permits)| (now.ticks(at), permits);
        let past: Vec<_> = past.into_iter().map(ticks).collect();
        match self.shard_with(charge, now) {
            Ok(mut shard) => {
                let kept = shard.limiters.get_mut(charge.name().text());
                kept.map_or(Ok(()), |kept| {
                    self.charge_past(kept, &charge.limiter, &past, now)
                })
            }
            Err(full)
                if full.kind() == ErrorKind::Full
                    && self.charge_stranger(&charge.limiter, &past) =>
            {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

/// Returns a store with no queue, for one that fails.
#[cfg(feature = "redis")]
pub(crate) fn stand_in(clock: Arc<dyn Clock>) -> Arc<Shared> {
    Arc::new(Shared::new(MOST_LIMITERS, clock, Listeners::none()))
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}
