//! Leases: permits fetched ahead, which this process grants without asking the store.
//!
//! A lease is one entry of several permits in the store's log. The score of the entry is the end of
//! the lease: each permit is used before that, so no window has more than the rate.
//!
//! A lease costs no call of its own. When callers find no lease, the call that decides for them
//! also takes the next lease, as if one more caller stood behind them.
//!
//! A lease ends at its time, when this store changes its limiter, or when the store is dropped. The
//! permits that no grant has are then given back by receipt. If the process dies, the entry expires
//! by its score.
//!
//! This guard stands between the queue and the store. So it sees all callers of a call, and whether
//! a caller waits for permits. Waiters take precedence over later callers: while there are waiters,
//! no permits are fetched ahead, and a lease ends when a waiter is refused.

mod balance;
mod estimate;
mod table;

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{runtime::Handle, task::JoinSet};

use self::{
    balance::{Balance, SettleFn},
    table::{Lease, LeasePlan, LeaseTable, MOST_LIMITERS, lease_of, longest},
};
use super::{clock::StoreClock, local::recent::Recent, queue::Queues};
use crate::{
    charge::{Charge, TakenFrom},
    clock::Clock,
    decision::{Charges, Decision, RefusalKind},
    demand::Demand,
    error::Error,
    list::List,
    name::Name,
    store::{Calls, Listener, Op},
    sync::OnDrop,
};

/// Sends calls to a store, and fetches permits ahead with them.
///
/// It is a type between the queue and the store because tasks of the queue send calls through it.
pub(crate) struct Leasing<S: Calls> {
    pub(crate) inner: Arc<S>,
    pub(crate) table: LeaseTable,
    /// Settles with `inner`.
    settle: SettleFn,
    /// The clock that timers use.
    clock: Arc<dyn Clock>,
    queues: Arc<Queues>,
    recent: Arc<Recent>,
}

impl<S: Calls> Leasing<S> {
    /// `own_clock` is the clock of the logs, if that is a clock of this process; `clock` is the one
    /// that timers use. `queues` are those around this guard. What leases take and give back is
    /// recorded in `recent`.
    pub(crate) fn new(
        inner: Arc<S>,
        own_clock: Option<Arc<dyn Clock>>,
        clock: Arc<dyn Clock>,
        queues: Arc<Queues>,
        recent: Arc<Recent>,
    ) -> Self {
        let (store, settled) = (Arc::clone(&inner), Arc::clone(&recent));
        Self {
            table: LeaseTable::new(MOST_LIMITERS, StoreClock { own: own_clock }),
            settle: Arc::new(move |receipt, keep| {
                settled.settle(&receipt, keep);
                store.settle(receipt, keep);
            }),
            clock,
            inner,
            queues,
            recent,
        }
    }

    /// Ends the leases of the limiters that a verb changes, before it is carried out. Leases that
    /// are taken meanwhile end when the listeners learn of the change. Returns whether the verb
    /// changes anything.
    pub(crate) fn end_changed(&self, name: &Name, op: &Op) -> bool {
        op.changes(name).for_each(|name| self.table.changed(name));
        !op.only_reads()
    }

    /// Sends a call for the callers of `run`, with the permits that `plan` fetches ahead behind
    /// them.
    async fn ask(&self, run: &[Demand], plan: &LeasePlan) -> Result<List<Decision>, Error> {
        let Some(first) = run.first().filter(|_| plan.ahead > 0) else {
            let decisions = self.inner.acquire_run(run).await?;
            record(run, &decisions, plan);
            return Ok(decisions);
        };
        let ahead = ahead(first, plan);
        // Made before the call is sent: its caller may leave.
        let mut receipt = ahead.first().to_send();
        let _ended = OnDrop::new(|| plan.entry.asking_ended());
        let unanswered = OnDrop::new(|| self.inner.settle(receipt.clone(), 0));
        let mut all = run.to_vec();
        all.push(ahead);
        let sent = self.table.clock.now();
        let decisions = self.inner.acquire_run(&all).await;
        // If the call failed, the store has given back what it may have taken.
        unanswered.disarm();
        let mut decisions = decisions?;
        let leased = (decisions.len() == all.len()).then(|| decisions.pop());
        record(run, &decisions, plan);
        match leased.flatten() {
            None => {}
            Some(Decision::Deny(_)) => plan.entry.refused(plan.ahead),
            Some(Decision::Allow(grant)) => {
                let Some(Charge { standing, .. }) = grant.charges().first() else {
                    return Ok(decisions);
                };
                receipt.standing = *standing;
                let received = self.table.clock.elapsed(&sent);
                let lasts = plan.lead.min(longest(standing.interval()));
                let left = lasts.saturating_sub(received);
                // Before the lease can end: that subtracts what no grant has.
                self.recent
                    .record(receipt.name(), standing, plan.ahead, left);
                let balance = Arc::new(Balance::new(receipt, Arc::clone(&self.settle)));
                let lease = Lease {
                    _expiry: self.expiry(plan, &balance, left),
                    balance,
                    sent,
                    lasts,
                    received,
                };
                // Permits that one of these callers lacked are not kept for later callers.
                let lacking =
                    decisions.iter().any(is_over_limit) || self.queues.is_waited_for(first);
                let put = Arc::downgrade(&lease.balance);
                if !lacking && !left.is_zero() && plan.entry.put(lease, plan.changes) {
                    // The expiry task may have run before the lease was put.
                    if self.table.clock.elapsed(&sent) >= lasts {
                        plan.entry.end(&put);
                    }
                    decisions
                        .iter_mut()
                        .for_each(|decision| add(decision, plan.ahead));
                }
            }
        }
        Ok(decisions)
    }

    /// Spawns and returns the task that ends a lease after `left`; `None` without a runtime or
    /// timer.
    fn expiry(
        &self,
        plan: &LeasePlan,
        balance: &Arc<Balance>,
        left: Duration,
    ) -> Option<JoinSet<()>> {
        let runtime = Handle::try_current().ok();
        let runtime = runtime.filter(|_| self.clock.can_sleep())?;
        let clock = Arc::clone(&self.clock);
        let end = clock.now().saturating_add(left);
        let (entry, balance) = (Arc::downgrade(&plan.entry), Arc::downgrade(balance));
        let mut task = JoinSet::new();
        let expires = async move {
            clock.sleep_until(end).await;
            if let Some(entry) = entry.upgrade() {
                entry.end(&balance);
            }
        };
        task.spawn_on(expires, &runtime);
        Some(task)
    }
}

/// Updates the estimate of demand by the answers of a call.
fn record(run: &[Demand], decisions: &[Decision], plan: &LeasePlan) {
    if let Some(charge) = decisions
        .iter()
        .find_map(|decision| decision.charges().first())
    {
        let mut answered = run.iter().zip(decisions);
        let lacks = |(demand, decision): (&Demand, &Decision)| {
            demand.max_wait.is_some() && is_over_limit(decision)
        };
        plan.entry.record(&charge.standing, answered.any(lacks));
    }
}

/// Returns the additional caller that takes the lease: a copy of `like` with other permits, another
/// id and another score. The rule of `like` leases, so it has one charge, and its answer has the
/// permits left, which bound the next lease.
fn ahead(like: &Demand, plan: &LeasePlan) -> Demand {
    Demand {
        charges: Charges::one(Charge {
            permits: plan.ahead,
            id: like.first().id.for_ahead(),
            lead: i64::try_from(plan.lead.as_millis()).unwrap_or(i64::MAX),
            ..like.first().clone()
        }),
        ..like.clone()
    }
}

fn is_over_limit(decision: &Decision) -> bool {
    matches!(decision, Decision::Deny(refusal) if refusal.kind() == RefusalKind::OverLimit)
}

/// Adds the permits in hand to what a decision says is left.
fn add(decision: &mut Decision, in_hand: u32) {
    let charges = match decision {
        Decision::Allow(grant) => grant.charges_mut(),
        Decision::Deny(refusal) => &mut refusal.charges,
    };
    for charge in charges.iter_mut() {
        let remaining = &mut charge.standing.remaining;
        *remaining = remaining.map(|left| left.saturating_add(u64::from(in_hand)));
    }
}

impl<S: Calls> Listener for Weak<Leasing<S>> {
    fn changed(&self, name: &Name) {
        if let Some(leasing) = self.upgrade() {
            leasing.table.changed(name);
        }
    }
}

impl<S: Calls> Calls for Leasing<S> {
    /// # Cancel safety
    ///
    /// As that of the inner store; permits that are fetched ahead meanwhile are given back.
    async fn acquire_run(&self, run: &[Demand]) -> Result<List<Decision>, Error> {
        let Some((first, lead)) = run
            .first()
            .and_then(|first| Some((first, lease_of(first)?)))
        else {
            return self.inner.acquire_run(run).await;
        };
        // A lease may have come while they were in the queue. Callers that it does not serve are
        // not tried, and are in the next call.
        let served = run
            .iter()
            .map_while(|demand| self.table.take(&mut demand.clone()));
        let served: List<_> = served.map(Decision::Allow).collect();
        if !served.is_empty() {
            return Ok(served);
        }
        let reserved = self.queues.is_waited_for(first);
        let plan = self.table.plan(first, run, lead, reserved);
        // Boxed, so that those without a lease have no room for it in their futures.
        Box::pin(self.ask(run, &plan)).await
    }

    fn decides_together(&self, demand: &Demand) -> bool {
        self.inner.decides_together(demand)
    }

    fn settle(&self, receipt: Charge, keep: u32) {
        match (&receipt.taken_from, receipt.permits.checked_sub(keep)) {
            (TakenFrom::Lease(lease), Some(unused)) => lease.give_back(unused),
            // A charge above what it took is an entry of its own.
            _ => self.inner.settle(receipt, keep),
        }
    }
}

#[cfg(test)]
mod tests;
