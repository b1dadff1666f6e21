//! Who has leased permits of which limiter, behind locks that few limiters share.

use std::{
    collections::HashMap,
    fmt,
    hash::{BuildHasher, RandomState},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::{account::Account, keeper::End, lease_of, meter::Meter};
use crate::{
    decision::{Decision, Grant, LimitState, Source},
    demand::Acquire,
    limit::LimitSource,
    list::List,
    name::Name,
    receipt::{PermitId, Receipt},
    store::guard::clock::{StoreClock, StoreInstant},
};

/// More shards than there will be cores, so that requests seldom wait for each other.
pub(crate) const SHARDS: usize = 64;
/// How many limiters are known in each. What is known of one that finds no place is nothing: then nothing is taken ahead.
const PLACES: usize = 1024;

pub(crate) struct Pools {
    shards: Box<[Mutex<Shard>]>,
    /// Of its own: names come from requests, and nobody may choose which ones share a lock.
    hasher: RandomState,
    places: usize,
    clock: StoreClock,
}

#[derive(Default)]
struct Shard {
    pools: HashMap<Name, Pool>,
    /// How often a limiter of this shard was changed: what was asked for before that is not handed out.
    generation: u64,
}

/// What is known of one limiter.
struct Pool {
    lease: Option<Lease>,
    /// Whether somebody asks for a lease: one at a time does.
    asking: bool,
    meter: Meter,
    /// Since when the meter counts.
    since: StoreInstant,
    /// The interval, as stored, once it is known.
    interval: Option<Duration>,
}

/// Permits in hand.
pub(crate) struct Lease {
    pub(crate) account: Arc<Account>,
    pub(crate) end: End,
    /// Whose limit it was taken by.
    pub(crate) limit: LimitSource,
    /// Until when it lasts: so long after it was sent.
    pub(crate) sent: StoreInstant,
    pub(crate) lasts: Duration,
    /// How long the answer took.
    pub(crate) received: Duration,
    /// The limit when it was taken, with what was left beside it.
    pub(crate) state: LimitState,
}

/// What a call is to do beside its callers' bidding.
pub(crate) struct Plan {
    /// How many permits it takes ahead, and for how long; none with 0.
    pub(crate) ahead: u32,
    pub(crate) lead: Duration,
    pub(crate) generation: u64,
    /// A lease of which nothing can be handed out any more.
    pub(crate) over: Option<Lease>,
}

impl Pools {
    pub(crate) fn new(clock: StoreClock) -> Self {
        Self::knowing(PLACES, clock)
    }

    pub(crate) fn knowing(places: usize, clock: StoreClock) -> Self {
        Self {
            shards: std::iter::repeat_with(Mutex::default)
                .take(SHARDS)
                .collect(),
            hasher: RandomState::new(),
            places,
            clock,
        }
    }

    pub(crate) fn clock(&self) -> &StoreClock {
        &self.clock
    }

    /// Grants out of the lease, if it has enough.
    pub(crate) fn take(&self, acquire: &Acquire) -> Option<Decision> {
        lease_of(acquire)?;
        let mut shard = self.shard(acquire.first.name())?;
        let pool = shard.pools.get_mut(acquire.first.name())?;
        pool.take(acquire, &self.clock)
    }

    /// What a call for these callers, who found no lease that suffices, is to take ahead. Nothing where `reserved` says that
    /// what is left is for others.
    pub(crate) fn plan(&self, run: &[Acquire], lead: Duration, reserved: bool) -> Plan {
        let mut plan = Plan {
            ahead: 0,
            lead,
            generation: 0,
            over: None,
        };
        let Some(first) = run.first() else {
            return plan;
        };
        let Some(mut shard) = self.shard(first.first.name()) else {
            return plan;
        };
        plan.generation = shard.generation;
        let Some(pool) = shard.pools.get_mut(first.first.name()) else {
            // Of one call nobody can tell how often it comes.
            shard.insert(first.first.name(), self.places, &self.clock);
            return plan;
        };
        run.iter()
            .for_each(|acquire| pool.meter.note(acquire.first.permits));
        let worn = pool
            .lease
            .as_ref()
            .is_some_and(|lease| lease.is_over(&self.clock) || reserved || lease.account.is_worn());
        if worn {
            plan.over = pool.lease.take();
        }
        if let Some(over) = &plan.over {
            pool.meter.ended(over.account.taken(), over.account.used());
        }
        // The longest that a score may lead: the script goes no farther.
        let most = pool.interval.map_or(lead, longest);
        plan.lead = lead.min(most);
        let over = self.clock.elapsed(&pool.since);
        let amount = pool.meter.amount(over, plan.lead);
        if amount > 0 || over >= plan.lead {
            pool.since = self.clock.now();
            pool.meter.restart();
        }
        if pool.lease.is_none() && !pool.asking && !reserved {
            plan.ahead = amount;
            pool.asking = amount > 0;
        }
        plan
    }

    /// Notes how a call left the limiter. A lease by another limit than the one in force is over.
    pub(crate) fn told(&self, name: &Name, state: &LimitState) -> Option<Lease> {
        let mut shard = self.shard(name)?;
        let pool = shard.pools.get_mut(name)?;
        pool.interval = Some(state.interval);
        if let Some(left) = state.remaining {
            pool.meter.told(left);
        }
        let other = |lease: &mut Lease| {
            lease.state.permits != state.permits || lease.state.interval != state.interval
        };
        pool.lease.take_if(other)
    }

    /// Notes that there was no room for so many permits.
    pub(crate) fn refused(&self, name: &Name, permits: u32) {
        if let Some(pool) = self
            .shard(name)
            .as_mut()
            .and_then(|shard| shard.pools.get_mut(name))
        {
            pool.meter.refused(permits);
        }
    }

    /// Notes that nobody asks for a lease any more.
    pub(crate) fn asked(&self, name: &Name) {
        if let Some(pool) = self
            .shard(name)
            .as_mut()
            .and_then(|shard| shard.pools.get_mut(name))
        {
            pool.asking = false;
        }
    }

    /// Has callers served out of a lease, unless the limiter was changed since it was asked for: then it comes back.
    pub(crate) fn put(&self, name: &Name, lease: Lease, generation: u64) -> Option<Lease> {
        let Some(mut shard) = self.shard(name) else {
            return Some(lease);
        };
        let same = shard.generation == generation;
        match shard.pools.get_mut(name) {
            Some(pool) if same => pool.lease.replace(lease),
            _ => Some(lease),
        }
    }

    /// Takes the lease out, because the limiter is `changed` or its permits are for those who wait.
    pub(crate) fn remove(&self, name: &Name, changed: bool) -> Option<Lease> {
        let mut shard = self.shard(name)?;
        shard.generation += u64::from(changed);
        shard.pools.get_mut(name)?.lease.take()
    }

    fn shard(&self, name: &Name) -> Option<MutexGuard<'_, Shard>> {
        // The lowest bits, of which there are enough on every machine.
        let place = self.hasher.hash_one(name) as usize % SHARDS;
        // What is behind the lock is whole between any two statements, so a panic elsewhere does not spoil it.
        let shard = self.shards.get(place)?;
        Some(shard.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The longest lease: a score leads by no more than this.
pub(crate) fn longest(interval: Duration) -> Duration {
    let millis = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX);
    Duration::from_millis(millis / 10)
}

impl Shard {
    fn insert(&mut self, name: &Name, places: usize, clock: &StoreClock) {
        if self.pools.len() >= places {
            // All at once, so that it seldom happens: what they knew is learnt again by two calls. A lease that is over is
            // nobody's, and its end is the keeper's business.
            self.pools
                .retain(|_, pool| pool.asking || pool.has_lease(clock));
        }
        if self.pools.len() < places {
            self.pools.insert(name.clone(), Pool::new(clock.now()));
        }
    }
}

impl Pool {
    fn new(since: StoreInstant) -> Self {
        Self {
            lease: None,
            asking: false,
            meter: Meter::new(),
            since,
            interval: None,
        }
    }

    fn has_lease(&self, clock: &StoreClock) -> bool {
        self.lease
            .as_ref()
            .is_some_and(|lease| !lease.is_over(clock))
    }

    fn take(&mut self, acquire: &Acquire, clock: &StoreClock) -> Option<Decision> {
        let lease = self.lease.as_ref()?;
        if !lease.serves(acquire.first.limit()) {
            return None;
        }
        let elapsed = clock.elapsed(&lease.sent);
        if elapsed >= lease.lasts {
            return None;
        }
        let (left, id) = lease.account.take(acquire.first.permits)?;
        self.meter.note(acquire.first.permits);
        Some(lease.grant(acquire, id, left, elapsed))
    }
}

impl Lease {
    /// Whether it was taken by the limit that a caller goes by. The stored one is the same for all who go by that.
    fn serves(&self, limit: LimitSource) -> bool {
        let stored = |limit: &LimitSource| !matches!(limit, LimitSource::Code(_));
        self.limit == limit || stored(&self.limit) && stored(&limit)
    }

    fn is_over(&self, clock: &StoreClock) -> bool {
        clock.elapsed(&self.sent) >= self.lasts
    }

    /// A grant that leaves so many permits in hand.
    fn grant(&self, acquire: &Acquire, id: PermitId, left: u32, elapsed: Duration) -> Decision {
        let charge = &acquire.first;
        let answered = elapsed.saturating_sub(self.received);
        let remaining = acquire.remaining.then_some(self.state.remaining).flatten();
        let state = LimitState {
            labels: Arc::clone(&charge.labels),
            permits: self.state.permits,
            interval: self.state.interval,
            remaining: remaining.map(|others| others.saturating_add(u64::from(left))),
            // What this process holds, and gives back, is not in the store's count.
            next_after: None,
            reset_after: self.state.reset_after.saturating_sub(answered),
            refused: false,
            retry_after: None,
            shadow: false,
        };
        let receipt = Receipt {
            id,
            ..charge.receipt().granted(self.state.interval)
        };
        let receipt = receipt.leased(Arc::<Account>::clone(&self.account));
        let (limits, receipts) = (List::one(state), List::one(receipt));
        Decision::Allow(Grant::new(limits, receipts, Source::Lease))
    }
}

// Names hold identities.
impl fmt::Debug for Pools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pools").finish_non_exhaustive()
    }
}
