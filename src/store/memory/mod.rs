//! The store in the memory of this process, for development, tests and single-process services.

mod lists;
mod shard;
mod sketch;
pub(super) mod strangers;
mod verbs;

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use self::{
    shard::{Kept, Shard, caller, lock},
    strangers::Strangers,
};
use super::{
    AnyStore, Decide, Deciding, Managing, Op, Outcome,
    guard::{
        line::{Line, Lines},
        policy,
    },
    rule_names::RuleNames,
    sealed::{Handle, Sealed},
};
use crate::{
    algorithm::answer::Answer,
    clock::{Clock, Now, SteadyClock},
    decision::Decision,
    demand::{Acquire, Charge, Limiter},
    error::{Error, ErrorKind},
    limit::LimitSource,
    list::List,
    name::Name,
    receipt::{PermitId, Receipt},
};

/// More shards than there will be cores, so that requests seldom wait for each other.
const SHARDS: usize = 64;
const MOST_LIMITERS: usize = 100_000;

/// Keeps limiters in this process.
///
/// The embedded default for development, tests and services that run as a single process. It has
/// the same arithmetic as [`RedisStore`](crate::RedisStore), in microseconds instead of
/// milliseconds, and needs no server. Limits and waits are exact at any interval. Clones share
/// their limiters.
///
/// # Bounds
///
/// It holds up to 100 000 limiters by default, some 500 bytes each and 32 more for each grant of
/// the last interval. At the bound, a new key takes the place of a limiter that a rule made and
/// whose permits are all free again, so that no key regains a quota by being forgotten. If there is
/// none, the newcomer is counted by an estimate, which it shares with others. It is granted no more
/// than its limit in any interval, and may be refused early if the grants to such newcomers are as
/// many as twice the bound times the limit. Permits granted to it count an eighth of the interval
/// longer, and permits it gives back are ignored. The estimate takes 144 to 288 bytes for each
/// limiter of the bound, for each of at most four intervals: 19 MB each by default, while newcomers
/// come.
///
/// If no estimate can be made, for a limit of more than 65 535 permits or a fifth interval, a
/// newcomer is refused as [unavailable](crate::RefusalKind::Unavailable) whatever its
/// [`FailurePolicy`](crate::FailurePolicy): otherwise a caller could lift the limit by filling the
/// store.
///
/// # Example
///
/// ```
/// # use tower_ratelimit::{Limit, MemoryStore, RateLimitLayer, key::PeerIp};
/// let store = MemoryStore::new();
/// let layer = RateLimitLayer::new(&store, Limit::per_minute(60).by(PeerIp));
/// ```
#[derive(Clone)]
pub struct MemoryStore(Arc<Front>);

impl MemoryStore {
    /// Creates an empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::build(MOST_LIMITERS, Arc::new(SteadyClock::new()))
    }

    /// Sets the maximum number of limiters. Default: 100 000. At least 1. Beyond it, limiters are
    /// counted [by an estimate](Self#bounds).
    ///
    /// Returns a new, empty store.
    #[must_use]
    pub fn max_limiters(self, max: usize) -> Self {
        Self::build(max.max(1), Arc::clone(&self.shared().clock))
    }

    /// Sets the clock that it counts by. Default: the system's, steadied.
    ///
    /// Returns a new, empty store.
    #[must_use]
    pub fn clock(self, clock: impl Clock) -> Self {
        Self::build(self.shared().max, Arc::new(clock))
    }

    /// Returns how many limiters it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared().count.load(Ordering::Relaxed)
    }

    /// Returns whether it holds no limiter.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Starts a limiter with earlier grants from elsewhere, each with its millisecond, the earliest
    /// first. If the limiter has permits in use, they are charged to it now. Permits beyond its
    /// limit are left out.
    ///
    /// # Errors
    ///
    /// Returns the errors of a charge by this store.
    #[cfg(feature = "redis")]
    pub(crate) fn begin_with(&self, charge: &Charge, past: &[(i64, u32)]) -> Result<(), Error> {
        let shared = self.shared();
        if past.is_empty() {
            return Ok(());
        }
        let now = shared.now();
        let past: Vec<_> = past
            .iter()
            .map(|(at, permits)| (now.ticks(*at), *permits))
            .collect();
        match shared.shard_with(charge, now) {
            Ok(mut shard) => {
                let kept = shard.limiters.get_mut(charge.name().text());
                kept.map_or(Ok(()), |kept| {
                    shared.charge_past(kept, charge.name(), charge.limit(), &past, now)
                })
            }
            Err(full)
                if full.kind() == ErrorKind::Full
                    && shared.charge_stranger(charge.name(), charge.limit(), &past) =>
            {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn shared(&self) -> &Shared {
        self.0.line.inner()
    }

    /// Returns how many decisions it has made by an estimate because it was [full](Self#bounds).
    ///
    /// They have [`Source::Estimate`](crate::Source::Estimate). While there are some, one warning a
    /// minute reports them.
    #[must_use]
    pub fn estimated(&self) -> u64 {
        self.shared().strangers.decided()
    }

    fn build(max: usize, clock: Arc<dyn Clock>) -> Self {
        let (lines, line_clock) = (Lines::default(), Arc::clone(&clock));
        let shared = Shared {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            count: AtomicUsize::new(0),
            max,
            strangers: Strangers::default(),
            last_id: AtomicU64::new(0),
            clock,
            rule_names: RuleNames::default(),
            lines: lines.clone(),
        };
        Self(Arc::new(Front {
            line: Line::new(Arc::new(shared), line_clock, lines),
        }))
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("limiters", &self.len())
            .field("max_limiters", &self.shared().max)
            .finish_non_exhaustive()
    }
}

impl Sealed for MemoryStore {
    fn handle(&self) -> Handle {
        Handle(self.0.clone())
    }
}

/// The store and its queues.
#[derive(Debug)]
struct Front {
    line: Line<Shared>,
}

impl AnyStore for Front {
    fn decide_at_once(&self, acquire: &mut Acquire) -> Option<Result<Decision, Error>> {
        let shared = self.line.inner();
        acquire.identify(shared.next_id());
        acquire.patience.is_none().then(|| {
            let decision = shared.acquire_one(acquire);
            policy::settle(acquire, decision)
        })
    }

    fn acquire(self: Arc<Self>, acquire: Acquire) -> Deciding {
        Deciding::Pending(Box::pin(async move {
            let decision = self.line.acquire(&acquire).await;
            policy::settle(&acquire, decision)
        }))
    }

    fn manage(self: Arc<Self>, name: Name, op: Op) -> Managing {
        Box::pin(async move { self.line.manage(&name, &op).await })
    }

    fn give_back(&self, receipt: Receipt, keep: u32) {
        self.line.give_back(receipt, keep);
    }

    fn prefix(&self) -> &'static str {
        "memory"
    }

    fn rule_names(&self) -> &RuleNames {
        &self.line.inner().rule_names
    }
}

struct Shared {
    shards: Box<[Mutex<Shard>]>,
    count: AtomicUsize,
    max: usize,
    /// The names for which there is no place.
    strangers: Strangers,
    last_id: AtomicU64,
    clock: Arc<dyn Clock>,
    rule_names: RuleNames,
    lines: Lines,
}

impl Decide for Shared {
    async fn acquire(&self, acquire: &Acquire) -> Result<Decision, Error> {
        self.acquire_one(acquire)
    }

    async fn acquire_run(&self, run: &[Acquire]) -> Result<Vec<Decision>, Error> {
        match self.acquire_together(run) {
            Err(error) => match policy::without_trials(run, &error) {
                Some(enforced) => self.acquire_together(&enforced),
                None => Err(error),
            },
            decisions => decisions,
        }
    }

    async fn manage(&self, name: &Name, op: &Op) -> Result<Outcome, Error> {
        self.manage_now(name, op)
    }

    fn decides_together(&self, _: &Acquire) -> bool {
        true
    }

    fn give_back(&self, receipt: Receipt, keep: u32) {
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
            let credited = kept.limiter.settle(&receipt, keep, now).unwrap_or(0);
            if credited < 0 {
                kept.keep_alive(now);
            }
            if kept.limiter.full_at().is_none_or(|at| at <= now.tick) && !kept.lasting {
                // It is idle earlier than recorded.
                let limiter = kept.as_named();
                shard.record_idle(now.tick, limiter);
            }
            if credited <= 0 {
                return;
            }
        }
        self.lines.nudge(receipt.name());
    }
}

impl Shared {
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
                let answers = self.decide_list(acquire, &[caller(acquire)], true)?;
                Ok(acquire.decision(&answers))
            }
            Err(error) => Err(error),
        }
    }

    /// Calls `decide` with the limiter of a charge, which is created if needed.
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

    /// Decides for callers of the same limiters. The limits of the first caller apply to all.
    fn decide(&self, run: &[Acquire]) -> Result<List<Answer>, Error> {
        let Some(first) = run.first() else {
            return Ok(List::EMPTY);
        };
        first.check()?;
        let callers: List<_> = run.iter().map(caller).collect();
        if !first.rest.is_empty() {
            return self.decide_list(first, &callers, false);
        }
        let charge = &first.first;
        let own = self.with_limiter(charge, |kept, now| {
            kept.decide(charge, first.remaining, &callers, now)
        });
        match own {
            Err(error) if error.kind() == ErrorKind::Full => {
                self.decide_list(first, &callers, true)
            }
            answers => answers,
        }
    }

    /// Locks the shard of a charge's limiter, with the limiter in it.
    fn shard_with(&self, charge: &Charge, now: Now) -> Result<MutexGuard<'_, Shard>, Error> {
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

    /// Locks the shard of a newcomer, with the newcomer in it. It starts with what it took as a
    /// stranger.
    fn shard_with_room(
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
                self.begin(kept, name, limiter.limit, now)?;
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

    fn shard(&self, name: &Name) -> MutexGuard<'_, Shard> {
        lock(&self.shards[Self::shard_of(name)])
    }

    fn shard_of(name: &Name) -> usize {
        // The remainder is below SHARDS, whatever the width of usize.
        (name.text().seeded_hash() % SHARDS as u64) as usize
    }

    /// Returns a counter as the id: nothing is ever sent twice here.
    fn next_id(&self) -> PermitId {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed);
        let mut bytes = [0; 16];
        bytes[8..].copy_from_slice(&id.to_be_bytes());
        PermitId(bytes)
    }

    fn now(&self) -> Now {
        Now::by(&*self.clock)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}
