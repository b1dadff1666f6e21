//! Limiters in this process: for development, tests and services that run once.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, hash_map::RandomState},
    fmt,
    hash::BuildHasher,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use super::{
    Acquire, AnyStore, Charge, Deciding, Managing, Op, Outcome, RuleNames,
    guard::fallback,
    sealed::{Handle, Sealed},
    window::{Ask, Limiter},
};
use crate::{
    clock::{Clock, SteadyClock, millis},
    decision::{Decision, PermitId, Receipt},
    error::{Error, ErrorKind},
    limit::LimitSource,
    name::Name,
};

/// More shards than there will be cores, so that requests seldom wait for each other.
const SHARDS: usize = 64;
const MOST_LIMITERS: usize = 100_000;

/// Keeps limiters in this process.
///
/// The embedded default for development, tests and services that run as a single process: the same arithmetic and the
/// same answers as [`RedisStore`](crate::RedisStore), with no server. Clones share their limiters.
///
/// # Bounds
///
/// It holds up to 100 000 limiters by default, some 250 bytes each and 32 more for each grant of the last interval. At
/// the bound, a new key takes the place of one that a rule made and whose permits are all free again, so that nobody
/// regains a quota by being forgotten. If there is none, the newcomer is refused as
/// [unavailable](crate::RefusalKind::Unavailable) whatever its [`FailurePolicy`](crate::FailurePolicy), because letting
/// it pass would open the gate to whoever fills the store.
///
/// # Example
///
/// ```
/// # use tower_ratelimit::{Limit, MemoryStore, RateLimitLayer, key::PeerIp};
/// let store = MemoryStore::new();
/// let layer = RateLimitLayer::new(&store, Limit::per_minute(60).by(PeerIp));
/// ```
#[derive(Clone)]
pub struct MemoryStore(Arc<Shared>);

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::build(MOST_LIMITERS, Arc::new(SteadyClock::new()))
    }

    /// The most limiters it holds. Default: 100 000. At least 1.
    ///
    /// Returns a new, empty store.
    #[must_use]
    pub fn max_limiters(self, max: usize) -> Self {
        Self::build(max.max(1), Arc::clone(&self.0.clock))
    }

    /// The clock it counts by. Default: the system's, steadied.
    ///
    /// Returns a new, empty store.
    #[must_use]
    pub fn clock(self, clock: impl Clock) -> Self {
        Self::build(self.0.max, Arc::new(clock))
    }

    /// How many limiters it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.count.load(Ordering::Relaxed)
    }

    /// Whether it holds no limiter.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn build(max: usize, clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(Shared {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            // Seeded anew each time: nobody outside can choose names that share a shard.
            hasher: RandomState::new(),
            count: AtomicUsize::new(0),
            max,
            last_id: AtomicU64::new(0),
            clock,
            rule_names: RuleNames::default(),
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
            .field("max_limiters", &self.0.max)
            .finish_non_exhaustive()
    }
}

impl Sealed for MemoryStore {
    fn handle(&self) -> Handle {
        Handle(self.0.clone())
    }
}

struct Shared {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    count: AtomicUsize,
    max: usize,
    last_id: AtomicU64,
    clock: Arc<dyn Clock>,
    rule_names: RuleNames,
}

#[derive(Default)]
struct Shard {
    limiters: HashMap<Name, Kept>,
    /// When limiters that rules made are idle, at the earliest. Each of them is in here at least once; what is said of
    /// it may be out of date, but never too late by more than a grant that was given back.
    idle: BinaryHeap<Reverse<(i64, Name)>>,
}

struct Kept {
    limiter: Limiter,
    /// Whether a verb set it: it stays until it is deleted.
    lasting: bool,
}

impl AnyStore for Shared {
    fn acquire(self: Arc<Self>, acquire: Acquire) -> Deciding {
        let decision = match &*acquire.charges {
            [charge] => self.acquire_one(&acquire, charge),
            // Rules with several limits are refused when they are built.
            _ => Err(ErrorKind::Permits.into()),
        };
        Deciding::ready(fallback::settle(&acquire, decision))
    }

    fn manage(self: Arc<Self>, name: Name, op: Op) -> Managing {
        let outcome = self.manage_now(&name, op);
        Box::pin(std::future::ready(outcome))
    }

    fn give_back(&self, receipt: Receipt) {
        let now = self.now();
        let mut shard = self.shard(&receipt.name);
        let Some(kept) = shard.limiters.get_mut(&receipt.name) else {
            return;
        };
        kept.limiter.give_back(receipt.id, receipt.permits, now);
        if kept.limiter.full_at().is_none() && !kept.lasting {
            // Idle earlier than was noted.
            shard.note_idle(now, &receipt.name);
        }
    }

    fn permit_id(&self) -> Result<PermitId, Error> {
        // Nothing is ever sent twice here, so a count is enough.
        let id = self.last_id.fetch_add(1, Ordering::Relaxed);
        let mut bytes = [0; 16];
        bytes[8..].copy_from_slice(&id.to_be_bytes());
        Ok(PermitId(bytes))
    }

    fn prefix(&self) -> &'static str {
        "memory"
    }

    fn rule_names(&self) -> &RuleNames {
        &self.rule_names
    }
}

impl Shared {
    fn acquire_one(&self, acquire: &Acquire, charge: &Charge) -> Result<Decision, Error> {
        let ask = Ask {
            permits: charge.permits,
            id: charge.id,
            limit: charge.limit,
            rewrite: true,
            exact: acquire.remaining,
            resendable: false,
            own_clock: true,
        };
        let now = self.now();
        let mut shard = self.shard(&charge.name);
        if !shard.limiters.contains_key(&charge.name) {
            if charge.limit == LimitSource::Store {
                return Err(ErrorKind::NotInitialized.into());
            }
            drop(shard);
            self.make_room(&charge.name, now)?;
            shard = self.shard(&charge.name);
            if shard.limiters.contains_key(&charge.name) {
                // Another request of the same key was faster.
                self.count.fetch_sub(1, Ordering::Relaxed);
            } else {
                shard.insert(charge.name.clone(), false, now);
            }
        }
        let Some(kept) = shard.limiters.get_mut(&charge.name) else {
            return Err(ErrorKind::Full.into());
        };
        let answer = kept.limiter.acquire(&ask, now)?;
        Ok(answer.decision(acquire, charge))
    }

    fn manage_now(&self, name: &Name, op: Op) -> Result<Outcome, Error> {
        let now = self.now();
        let mut shard = self.shard(name);
        match op {
            Op::TrySetRate(limit) => {
                if !shard.limiters.contains_key(name) {
                    drop(shard);
                    self.make_room(name, now)?;
                    shard = self.shard(name);
                    if shard.limiters.contains_key(name) {
                        self.count.fetch_sub(1, Ordering::Relaxed);
                    } else {
                        shard.insert(name.clone(), true, now);
                    }
                }
                let kept = shard.limiters.get_mut(name);
                let changed = kept.is_some_and(|kept| {
                    kept.lasting = true;
                    kept.limiter.try_set_rate(limit)
                });
                Ok(Outcome::Changed(changed))
            }
            Op::Inspect => {
                let kept = shard.limiters.get(name);
                Ok(Outcome::Limit(kept.and_then(|kept| kept.limiter.limit)))
            }
            Op::Available => {
                let kept = shard
                    .limiters
                    .get_mut(name)
                    .ok_or(ErrorKind::NotInitialized)?;
                let permits = kept.limiter.available(now, PermitId([0; 16]))?;
                Ok(Outcome::Permits(permits))
            }
        }
    }

    /// Reserves a place for one more limiter: a free one, or that of an idle limiter, in the newcomer's shard if
    /// possible. Holds one lock at a time.
    fn make_room(&self, newcomer: &Name, now: i64) -> Result<(), Error> {
        let below_max = |count| (count < self.max).then_some(count + 1);
        if self
            .count
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, below_max)
            .is_ok()
        {
            return Ok(());
        }
        let first = self.shard_of(newcomer);
        for offset in 0..SHARDS {
            if lock(&self.shards[(first + offset) % SHARDS]).evict_idle(now) {
                return Ok(());
            }
        }
        Err(ErrorKind::Full.into())
    }

    fn shard(&self, name: &Name) -> MutexGuard<'_, Shard> {
        lock(&self.shards[self.shard_of(name)])
    }

    fn shard_of(&self, name: &Name) -> usize {
        // The remainder is below SHARDS, whatever the width of usize.
        (self.hasher.hash_one(name) % SHARDS as u64) as usize
    }

    fn now(&self) -> i64 {
        i64::try_from(millis(&*self.clock)).unwrap_or(i64::MAX)
    }
}

impl Shard {
    fn insert(&mut self, name: Name, lasting: bool, now: i64) {
        if !lasting {
            self.note_idle(now, &name);
        }
        self.limiters.insert(
            name,
            Kept {
                limiter: Limiter::default(),
                lasting,
            },
        );
    }

    fn note_idle(&mut self, at: i64, name: &Name) {
        if self.idle.len() > 2 * self.limiters.len() + 16 {
            // Many were given back: keep one note of each.
            let limiters = &self.limiters;
            let idle = limiters.iter().filter(|(_, kept)| !kept.lasting);
            self.idle = idle
                .map(|(name, kept)| Reverse((kept.limiter.full_at().unwrap_or(at), name.clone())))
                .collect();
        }
        self.idle.push(Reverse((at, name.clone())));
    }

    /// Forgets one limiter that has all its permits, if there is one.
    fn evict_idle(&mut self, now: i64) -> bool {
        while let Some(Reverse((noted, _))) = self.idle.peek() {
            if *noted > now {
                return false;
            }
            let Some(Reverse((_, name))) = self.idle.pop() else {
                return false;
            };
            let Some(kept) = self.limiters.get(&name) else {
                continue;
            };
            if kept.lasting {
                continue;
            }
            match kept.limiter.full_at() {
                Some(full_at) if full_at > now => self.idle.push(Reverse((full_at, name))),
                _ => {
                    self.limiters.remove(&name);
                    return true;
                }
            }
        }
        false
    }
}

/// What is behind the lock is whole between any two statements, so a panic elsewhere does not spoil it.
fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}
