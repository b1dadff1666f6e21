//! The leases of a store, and the state that this process keeps for each limiter that may have one.

use std::{
    mem, ptr,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use tokio::task::JoinSet;

use super::{balance::Balance, estimate::DemandEstimate};
use crate::{
    store::guard::{
        Cache, cache,
        clock::{StoreClock, StoreInstant},
    },
    sync::lock,
    values::{
        List,
        charge::{Charge, OfLease, Standing, TakenFrom},
        compiled_limit::CompiledLimit,
        decision::{Decision, Grant, Source},
        demand::Demand,
        limit::LimitSource,
        name::Name,
    },
};

/// The largest number of limiters that are known. One that is evicted gives its lease back, and is
/// known again after two calls.
pub(super) const MOST_LIMITERS: usize = 1 << 16;

pub(crate) struct LeaseTable {
    entries: Cache<Name, Arc<LeaseEntry>>,
    pub(crate) clock: StoreClock,
}

/// One limiter.
#[derive(Default)]
pub(crate) struct LeaseEntry(Mutex<State>);

#[derive(Default)]
struct State {
    lease: Option<Lease>,
    /// Set if a call asks for a lease: one at a time does.
    asking: bool,
    /// How often the limiter was changed: what was asked for before that is not handed out.
    changes: u64,
    estimate: DemandEstimate,
    /// Since when demand is counted: the first call does not show how often there are calls.
    since: Option<StoreInstant>,
    /// The interval, as stored, once it is known.
    interval: Option<Duration>,
}

/// Permits in hand. Dropping it ends it: what no grant has is given back.
pub(crate) struct Lease {
    pub(crate) balance: Arc<Balance>,
    /// When its call was sent: the lease lasts for `lasts` from then.
    pub(crate) sent: StoreInstant,
    pub(crate) lasts: Duration,
    /// The time until the answer came.
    pub(crate) received: Duration,
    /// The task that ends it in time, even if no caller comes. Without a runtime there is none: the
    /// entry in the store expires.
    pub(crate) _expiry: Option<JoinSet<()>>,
}

/// The lease that a call takes ahead, behind its callers.
pub(crate) struct LeasePlan {
    /// The number of permits; 0 if the call takes no lease.
    pub(crate) ahead: u32,
    /// The longest time that the lease lasts.
    pub(crate) lead: Duration,
    pub(crate) sent: StoreInstant,
    /// The changes of its limiter before it was sent.
    pub(crate) changes: u64,
    pub(crate) entry: Arc<LeaseEntry>,
}

impl LeaseTable {
    /// Keeps at most `most` limiters.
    pub(crate) fn new(most: usize, clock: StoreClock) -> Self {
        let entries = cache(most, most);
        Self { entries, clock }
    }

    /// Grants out of the lease, if it has enough.
    ///
    /// That overtakes no waiter: where one waits there is no lease.
    #[inline]
    pub(crate) fn take(&self, demand: &mut Demand) -> Option<Grant> {
        lead_of(demand)?;
        let entry = self.entries.get(demand.first().name())?;
        lock(&entry.0).take(demand, &self.clock)
    }

    /// Returns the entry of a limiter, which is made if there is none.
    pub(super) fn entry(&self, name: &Name) -> Arc<LeaseEntry> {
        self.entries.get(name).unwrap_or_else(|| {
            let entry = Arc::new(LeaseEntry::default());
            self.entries.insert(name.clone(), Arc::clone(&entry));
            entry
        })
    }

    /// Ends the lease of a limiter that is changed.
    pub(crate) fn changed(&self, name: &Name) {
        if let Some(entry) = self.entries.get(name) {
            entry.end_if(|state| {
                state.changes += 1;
                state.lease.take()
            });
        }
    }

    /// Returns how many leases are out.
    pub(crate) fn count(&self) -> usize {
        let has_lease = |(_, entry): &(Name, Arc<LeaseEntry>)| lock(&entry.0).lease.is_some();
        self.entries.iter().filter(has_lease).count()
    }

    /// Ends this many leases, and so gives back the permits that no grant has.
    pub(crate) fn end_first(&self, most: usize) {
        let ended = |(_, entry): (Name, Arc<LeaseEntry>)| lock(&entry.0).lease.take();
        let ended = self.entries.iter().filter_map(ended);
        ended.take(most).for_each(drop);
    }
}

/// Returns the time for which a caller's rule takes permits ahead; `None` for a list, which is
/// granted together or not at all.
pub(crate) fn lead_of(demand: &Demand) -> Option<Duration> {
    let charge = demand.first();
    let leases = !demand.is_list() && !charge.shadow;
    // Grants without entries of their own have no score.
    let logged = charge.compiled().counting.tells_grants_apart();
    charge.compiled().lease.filter(|_| leases && logged)
}

/// Returns the longest time that a lease lasts: a score leads by no more.
pub(crate) fn longest(interval: Duration) -> Duration {
    let millis = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX);
    Duration::from_millis(millis / 10)
}

impl LeaseEntry {
    /// Serves the first of these callers out of the lease, as many as it has enough for.
    pub(super) fn serve(&self, run: &[Demand], clock: &StoreClock) -> List<Decision> {
        let mut state = lock(&self.0);
        if state.lease.is_none() {
            return List::new();
        }
        let served = run
            .iter()
            .map_while(|demand| state.take(&mut demand.clone(), clock));
        served.map(Decision::Allow).collect()
    }

    /// Plans a call for these callers, who found no lease with enough permits. It takes nothing
    /// ahead if what is left is `reserved` for waiters.
    pub(super) fn plan(
        self: Arc<Self>,
        run: &[Demand],
        lead: Duration,
        reserved: bool,
        clock: &StoreClock,
    ) -> LeasePlan {
        let entry = Arc::clone(&self);
        let mut state = lock(&self.0);
        let mut plan = LeasePlan {
            ahead: 0,
            lead,
            // Under the lock: not before the time of an earlier plan.
            sent: clock.now(),
            changes: state.changes,
            entry,
        };
        let ended = state.fill_in(&mut plan, run, reserved, clock);
        state.since.get_or_insert(plan.sent);
        drop(state);
        drop(ended);
        plan
    }

    /// Ends the lease that this takes out of the state. Its permits are given back after the lock
    /// is released.
    fn end_if(&self, take: impl FnOnce(&mut State) -> Option<Lease>) {
        let ended = take(&mut lock(&self.0));
        drop(ended);
    }

    /// Records how a call left the limiter. Ends a lease by another limit than the one in force,
    /// and one whose permits a waiter `lacks`.
    pub(crate) fn record(&self, limit: &Standing, lacks: bool) {
        self.end_if(|state| {
            state.interval = Some(limit.interval());
            if let Some(left) = limit.remaining {
                state.estimate.left = left;
            }
            state.lease.take_if(|lease| {
                let of = lease.balance.standing();
                lacks || of.permits != limit.permits || of.interval != limit.interval
            })
        });
    }

    /// Records that a lease of this many permits was refused.
    pub(crate) fn refused(&self, permits: u32) {
        lock(&self.0).estimate.refused(permits);
    }

    /// Records that the call that asked for a lease is over.
    pub(crate) fn asking_ended(&self) {
        lock(&self.0).asking = false;
    }

    /// Serves callers out of a lease from now on, unless the limiter was changed since it was asked
    /// for. Returns whether it does.
    pub(crate) fn put(&self, lease: Lease, changes: u64) -> bool {
        let mut state = lock(&self.0);
        if state.changes != changes {
            return false;
        }
        let before = state.lease.replace(lease);
        drop(state);
        drop(before);
        true
    }

    /// Ends this lease, if it is still in hand.
    pub(crate) fn end(&self, balance: &Weak<Balance>) {
        let is_it = |lease: &mut Lease| Arc::as_ptr(&lease.balance) == balance.as_ptr();
        self.end_if(|state| state.take_lease_if(is_it));
    }
}

impl State {
    fn take(&mut self, demand: &mut Demand, clock: &StoreClock) -> Option<Grant> {
        let permits = demand.first().permits;
        let grant = self.lease.as_ref()?.grant(demand, clock)?;
        self.estimate.record(permits);
        Some(grant)
    }

    /// Takes out a lease that `ends`, and learns from its use.
    fn take_lease_if(&mut self, ends: impl FnOnce(&mut Lease) -> bool) -> Option<Lease> {
        let ended = self.lease.take_if(ends)?;
        self.estimate
            .ended(ended.balance.taken(), ended.balance.used());
        Some(ended)
    }

    /// Fills in the plan. Returns the lease that it ends: at its time, nearly used up, or while
    /// others wait for its permits.
    fn fill_in(
        &mut self,
        plan: &mut LeasePlan,
        run: &[Demand],
        reserved: bool,
        clock: &StoreClock,
    ) -> Option<Lease> {
        let since = self.since?;
        run.iter()
            .for_each(|demand| self.estimate.record(demand.first().permits));
        let ended = self.take_lease_if(|lease| {
            reserved || clock.elapsed(&lease.sent) >= lease.lasts || lease.balance.is_low()
        });
        // The longest that a score may lead: the script goes no farther.
        plan.lead = plan.lead.min(self.interval.map_or(plan.lead, longest));
        let over = clock.between(&since, &plan.sent);
        let amount = self.estimate.amount(over, plan.lead);
        if amount > 0 || over >= plan.lead {
            self.since = Some(plan.sent);
            self.estimate.restart();
        }
        if self.lease.is_none() && !self.asking && !reserved {
            plan.ahead = amount;
            self.asking = amount > 0;
        }
        ended
    }
}

impl Lease {
    /// Returns whether the lease was taken by the same limit as the charge's. A stored limit is the
    /// same for all charges that use it.
    fn serves(&self, charge: &Charge) -> bool {
        let (lease, charge) = (self.balance.compiled(), &**charge.compiled());
        let is_stored = |of: &CompiledLimit| !matches!(of.limit, LimitSource::Code(_));
        ptr::eq(lease, charge)
            || lease.limit == charge.limit
            || (is_stored(lease) && is_stored(charge))
    }

    /// Grants if the lease is in force, and has enough permits for a caller with the same limit: it
    /// answers the charge in place.
    #[inline]
    fn grant(&self, demand: &mut Demand, clock: &StoreClock) -> Option<Grant> {
        let charge = demand.first();
        if !self.serves(charge) {
            return None;
        }
        let elapsed = clock.elapsed(&self.sent);
        if elapsed >= self.lasts {
            return None;
        }
        let (left, id) = self.balance.take(charge.permits)?;
        let answered = elapsed.saturating_sub(self.received);
        let taken = self.balance.standing();
        let remaining = taken.remaining.filter(|_| demand.wants_remaining);
        // No call is made for it.
        for charge in &mut *demand.charges {
            charge.id = id;
            charge.standing = Standing {
                remaining: remaining.map(|others| others.saturating_add(u64::from(left))),
                // What this process holds, and gives back, is not in the store's count.
                wait: None,
                reset_after: taken.reset_after.saturating_sub(answered),
                ..*taken
            };
            charge.taken_from =
                TakenFrom::Lease(OfLease::new(Arc::<Balance>::clone(&self.balance)));
        }
        let charges = mem::take(&mut demand.charges);
        Some(Grant::new(charges, Source::Lease))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.balance.close();
    }
}
