//! The limiters of a store in memory, and the decisions on them, without a queue for waiters.

use std::{
    mem,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
};

use super::{
    shard::{KeptLimiter, Shard},
    untracked::{self, Untracked},
};
use crate::{
    store::{Calls, Decide, Listeners, Op, OpResult, StandIn, guard::policy},
    sync::lock,
    values::{
        List,
        charge::{Charge, PermitId},
        clock::{Clock, Now},
        compiled_limit::Limiter,
        decision::{Decision, Refusal, RefusalKind},
        demand::Demand,
        error::{Error, ErrorKind},
        limit::LimitSource,
        name::Name,
    },
};

/// The maximum number of shards: more than there will be cores, so that requests seldom wait for
/// each other. A small store has fewer, as each has a bound of its own.
const MOST_SHARDS: usize = 64;
const LEAST_OF_A_SHARD: usize = 1024;
pub(super) const MOST_LIMITERS: usize = 100_000;

/// A store in memory without its queue.
pub(crate) struct Shared {
    pub(super) shards: Box<[Mutex<Shard>]>,
    pub(super) max: usize,
    /// What stands for the names that have no limiter here.
    pub(super) untracked: Untracked,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) listeners: Listeners,
    /// Set if the limiters are also counted by the clocks of others.
    pub(super) is_by_callers: bool,
    /// The number of limiters, which the shards change.
    count: Arc<AtomicUsize>,
}

impl Decide for Shared {
    /// Decides for callers that do not wait for permits. All others go through the outbox.
    fn decide_at_once(&self, demand: &mut Demand) -> Option<Result<Decision, Error>> {
        let waits = demand.max_wait.is_some();
        if !waits && let Some(decision) = self.decide_one(demand) {
            return Some(Ok(decision));
        }
        demand.identify(PermitId::next());
        if waits {
            return None;
        }
        if demand.is_list()
            && !demand.has_ban()
            && let Some(granted) = self.grant_list(demand)
        {
            return Some(Ok(granted));
        }
        let decisions = self.acquire_all(std::slice::from_ref(demand));
        Some(decisions.and_then(|mut one| one.pop().ok_or_else(|| ErrorKind::Full.into())))
    }

    async fn manage(&self, limiter: &Limiter, op: &Op) -> Result<OpResult, Error> {
        self.manage_now(limiter, op)
    }

    fn strike(&self, demand: &Demand, refusal: &mut Refusal) {
        for charge in demand.charges() {
            let (name, of) = (charge.name(), charge.compiled());
            let (Some(ban), Some(refused)) = (of.ban, refusal.without_room(&charge.limiter)) else {
                continue;
            };
            let (now, mut shard) = (self.now(), self.shard(name));
            if shard.get_mut(name, now).is_none() {
                continue;
            }
            let mut record = shard.take_record(name, now);
            let wait = refused.standing.wait.unwrap_or_default().as_micros();
            let wait = i64::try_from(wait).unwrap_or(i64::MAX);
            if record.strike(&ban, (charge.id, 1, now.tick), wait, now)
                && let Some([_, back]) = record.in_force(now)
            {
                refused.ban(now.until(back));
                let wait = refused.standing.wait.max(refusal.retry_after);
                (refusal.kind, refusal.retry_after) = (RefusalKind::Banned, wait);
            }
            let [within, ..] = ban.millis();
            shard.put_record(name, record, now.ticks(within), now);
        }
    }

    fn limiters(&self) -> usize {
        self.len()
    }
}

impl Calls for Shared {
    async fn acquire_run(&self, run: &[Demand], _: bool) -> Result<List<Decision>, Error> {
        self.acquire_all(run).map(List::from_vec)
    }

    fn settle(&self, receipt: Charge, keep: u32) {
        let now = self.now();
        let credited = {
            let mut shard = self.shard(receipt.name());
            let is_there = shard.get_mut(receipt.name(), now).is_some();
            if !is_there && (keep <= receipt.permits || receipt.limit().given().is_none()) {
                return;
            }
            let Ok(kept) = self.find_or_add(&mut shard, &receipt.limiter, now) else {
                return self.owe(&receipt, keep, now);
            };
            let credited = kept.settle(&receipt, keep, now);
            let idle_at = kept.idle_at();
            shard.may_be_idle_at(idle_at);
            credited
        };
        if credited > 0 {
            self.listeners.room(receipt.name(), false);
        }
    }
}

impl Shared {
    pub(super) fn new(max: usize, clock: Arc<dyn Clock>, listeners: Listeners) -> Self {
        let shards = (max / LEAST_OF_A_SHARD).clamp(1, MOST_SHARDS);
        let shards = 1 << shards.ilog2();
        let most = |shard| max / shards + usize::from(shard < max % shards);
        let count = Arc::default();
        let shards = (0..shards).map(|shard| Mutex::new(Shard::new(most(shard), &count)));
        Self {
            shards: shards.collect(),
            max,
            untracked: Untracked::default(),
            clock,
            listeners,
            is_by_callers: false,
            count,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    pub(super) fn forget_idle(&self) {
        let now = self.now();
        self.shards
            .iter()
            .for_each(|shard| lock(shard).forget_idle(now));
    }

    /// Decides for one limiter that bans nobody and is tracked or can be, as nearly all are. The
    /// charge is answered in place. Returns `None`, having taken nothing, for all others and for
    /// errors: [`acquire_all`](Self::acquire_all) decides these.
    #[inline]
    fn decide_one(&self, demand: &mut Demand) -> Option<Decision> {
        let [charge] = &mut *demand.charges else {
            return None;
        };
        if charge.compiled().ban.is_some() {
            return None;
        }
        charge.id = PermitId::next();
        let (now, exact) = (self.now(), demand.wants_remaining);
        let mut shard = self.shard(charge.name());
        let mut has_new_limit = false;
        let kept = match shard.get_mut(charge.name(), now) {
            Some(kept) => {
                if !kept.last_caller_is(charge.compiled()) {
                    charge.check().ok()?;
                    kept.count_by(charge.compiled(), now);
                    has_new_limit = true;
                }
                kept
            }
            None => {
                // `acquire_all` looks for room, so that it is looked for once.
                if shard.is_full() {
                    return None;
                }
                charge.check().ok()?;
                self.add(&mut shard, &charge.limiter, now).ok()?
            }
        };
        // An answer is large: it is not moved.
        let answered = (kept.limiter).acquire_one(charge, exact, now);
        let answer = answered.as_ref().ok()?;
        kept.keep_alive(now);
        if has_new_limit {
            // In a shorter interval it is idle earlier than was known.
            let idle_at = kept.idle_at();
            shard.may_be_idle_at(idle_at);
        }
        drop(shard);
        let judged = charge.judge_alone(answer, exact);
        Some(judged.decision(mem::take(&mut demand.charges)))
    }

    pub(in crate::store) fn acquire_all(&self, run: &[Demand]) -> Result<Vec<Decision>, Error> {
        match self.decide_list(run) {
            Err(error) => match policy::without_shadows(run, &error) {
                Some(enforced) => self.decide_list(&enforced),
                None => Err(error),
            },
            decisions => decisions,
        }
    }

    /// Finds a limiter in its shard, or makes it.
    pub(super) fn find_or_add<'s>(
        &self,
        shard: &'s mut Shard,
        limiter: &Limiter,
        now: Now,
    ) -> Result<&'s mut KeptLimiter, Error> {
        if shard.get_mut(&limiter.name, now).is_none() {
            return self.add(shard, limiter, now);
        }
        let kept = shard.get_mut(&limiter.name, now);
        kept.ok_or_else(|| ErrorKind::Full.into())
    }

    /// Makes a limiter, unless the caller gives no limit. It starts with what the estimate counted
    /// for it.
    pub(super) fn add<'s>(
        &self,
        shard: &'s mut Shard,
        limiter: &Limiter,
        now: Now,
    ) -> Result<&'s mut KeptLimiter, Error> {
        if limiter.compiled.limit == LimitSource::Store {
            return Err(ErrorKind::NotInitialized.into());
        }
        let can_estimate = Untracked::can_count(limiter.compiled.limit.given());
        shard.make_room(&limiter.name, can_estimate, now)?;
        let mut kept = KeptLimiter::new(&limiter.compiled);
        self.charge_estimated(&mut kept, limiter, now)?;
        Ok(shard.make(&limiter.name, kept))
    }

    pub(super) fn shard(&self, name: &Name) -> MutexGuard<'_, Shard> {
        lock(&self.shards[self.shard_of(name)])
    }

    pub(super) fn shard_of(&self, name: &Name) -> usize {
        // The number of shards is a small power of two, so the low bits suffice on any target.
        name.seeded_hash() as usize & (self.shards.len() - 1)
    }

    pub(super) fn now(&self) -> Now {
        let mut now = Now::by(&*self.clock);
        now.is_by_caller = self.is_by_callers;
        now
    }
}

impl StandIn for Shared {
    fn begin_with(&self, charge: &Charge, past: Vec<(i64, u32)>) -> Result<(), Error> {
        let most = charge.limit().given().map_or(0, |limit| limit.permits());
        let past = untracked::latest(past, most);
        if past.is_empty() {
            return Ok(());
        }
        let now = self.now();
        let ticks = |(at, permits)| (now.ticks(at), permits);
        let past: Vec<_> = past.into_iter().map(ticks).collect();
        let mut shard = self.shard(charge.name());
        match self.find_or_add(&mut shard, &charge.limiter, now) {
            Ok(kept) => kept.charge_past(&charge.limiter, &past, now),
            Err(full)
                if full.kind() == ErrorKind::Full
                    && self.charge_untracked(&charge.limiter, &past) =>
            {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

/// Returns a store with no queue, for one that fails.
pub(crate) fn stand_in(clock: Arc<dyn Clock>) -> Arc<Shared> {
    Arc::new(Shared::new(MOST_LIMITERS, clock, Listeners::none()))
}
