//! Leases: permits fetched ahead, which this process grants without asking the store.
//!
//! A lease is one entry of several permits in the store's log. Its time there, in Redisson's format
//! its score, is the end of the lease: each permit is used before that, so no window has more than
//! the rate.
//!
//! A lease costs no call of its own. When callers find no lease, the call that decides for them
//! also takes the next lease, as if one more caller stood behind them.
//!
//! A lease ends at its time, when this store changes its limiter, or when the store is dropped. The
//! permits that no grant has are then given back by receipt. If the process dies, the entry expires
//! by its time.
//!
//! This guard stands between the outbox and the store. So it sees all callers of a call, and
//! whether a caller waits for permits. Waiters take precedence over later callers: while there are
//! waiters, no permits are fetched ahead, and a lease ends when a waiter is refused.

mod balance;
mod estimate;
mod table;

use std::{
    borrow::Cow,
    mem,
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{runtime::Handle, task::JoinSet};

use self::{
    balance::{Balance, SettleFn},
    table::{Lease, LeasePlan, LeaseTable, MOST_LIMITERS, lead_of, longest},
};
use super::{clock::StoreClock, local::recent::Recent, outbox::Waits};
use crate::{
    store::{Answered, Calls, Joins, Listener, Op},
    values::{
        List,
        charge::{Charge, TakenFrom},
        clock::{Clock, millis_of},
        decision::{Charges, Decision, RefusalKind},
        demand::Demand,
        error::Error,
        name::Name,
    },
};

/// Sends calls to a store, and fetches permits ahead with them.
///
/// It is a type between the outbox and the store because tasks of the outbox send calls through it.
pub(crate) struct Leasing<S: Calls> {
    pub(crate) inner: Arc<S>,
    pub(crate) table: LeaseTable,
    /// Settles with `inner`.
    settle: SettleFn,
    /// The clock that timers use.
    clock: Arc<dyn Clock>,
    waits: Arc<Waits>,
    recent: Arc<Recent>,
}

impl<S: Calls> Leasing<S> {
    /// `own_clock` is the clock of the logs, if that is a clock of this process; `clock` is the one
    /// that timers use. `waits` are those of the outbox around it. What leases take and give back
    /// is recorded in `recent`.
    pub(crate) fn new(
        inner: Arc<S>,
        own_clock: Option<Arc<dyn Clock>>,
        clock: Arc<dyn Clock>,
        waits: Arc<Waits>,
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
            waits,
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

    /// Serves callers out of a lease, which may have come while they stood in their line, or plans
    /// what their call fetches ahead.
    fn begin<'a>(&'a self, run: &'a [Demand]) -> Begun<'a, S> {
        let first = run.first();
        let Some((first, lead)) = first.and_then(|first| Some((first, lead_of(first)?))) else {
            return Begun::Unleased;
        };
        let (entry, clock) = (self.table.entry(first.first().name()), &self.table.clock);
        // Callers that it does not serve are not tried, and are in the next call.
        let served = entry.serve(run, clock);
        if !served.is_empty() {
            return Begun::Served(Served {
                leasing: self,
                decisions: served,
            });
        }
        let reserved = self.waits.is_waited_for(first);
        let plan = entry.plan(run, lead, reserved, clock);
        let ahead = (plan.ahead > 0).then(|| ahead(first, &plan));
        Begun::Leased(LeaseCall {
            leasing: self,
            // Made before the call is sent: its caller may leave.
            receipt: ahead.as_ref().map(|ahead| ahead.first().to_send().into()),
            asked: match ahead {
                Some(ahead) => [run, &[ahead]].concat().into(),
                None => run.into(),
            },
            plan,
        })
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

/// A run before its call.
enum Begun<'a, S: Calls> {
    Unleased,
    Served(Served<'a, S>),
    Leased(LeaseCall<'a, S>),
}

/// A run that a lease has served. Dropped before its callers are answered, as those of the same
/// command have all left, it gives back what they took.
struct Served<'a, S: Calls> {
    leasing: &'a Leasing<S>,
    decisions: List<Decision>,
}

impl<S: Calls> Served<'_, S> {
    fn decisions(&mut self) -> List<Decision> {
        mem::take(&mut self.decisions)
    }
}

impl<S: Calls> Drop for Served<'_, S> {
    fn drop(&mut self) {
        for decision in &self.decisions {
            if let Decision::Allow(grant) = decision {
                let taken = grant.charges().iter();
                taken.for_each(|charge| self.leasing.settle(charge.clone(), 0));
            }
        }
    }
}

/// A run that is asked for, with what it fetches ahead. Dropped unanswered, it gives that back.
struct LeaseCall<'a, S: Calls> {
    leasing: &'a Leasing<S>,
    plan: LeasePlan,
    /// The callers, and behind them what is fetched ahead, if anything is
    asked: Cow<'a, [Demand]>,
    /// Of what is fetched ahead, until it is answered
    receipt: Option<Box<Charge>>,
}

impl<S: Calls> LeaseCall<'_, S> {
    /// Puts what was fetched ahead into a lease. Returns the decisions of the callers.
    fn end(&mut self, outcome: Result<List<Decision>, Error>) -> Result<List<Decision>, Error> {
        // If the call failed, the store has given back what it may have taken.
        let receipt = self.receipt.take();
        let mut decisions = outcome?;
        let fetched = receipt.filter(|_| decisions.len() == self.asked.len());
        let fetched = fetched.and_then(|receipt| Some((receipt, decisions.pop()?)));
        record(&self.asked, &decisions, &self.plan);
        match fetched {
            None => {}
            Some((_, Decision::Deny(_))) => self.plan.entry.refused(self.plan.ahead),
            Some((receipt, Decision::Allow(grant))) => {
                if let Some(Charge { standing, .. }) = grant.charges().first() {
                    let receipt = Charge {
                        standing: *standing,
                        ..*receipt
                    };
                    self.put(receipt, &mut decisions);
                }
            }
        }
        Ok(decisions)
    }

    /// Keeps what was fetched ahead for later callers, and adds it to what these are told is left.
    fn put(&self, receipt: Charge, decisions: &mut [Decision]) {
        let (leasing, plan) = (self.leasing, &self.plan);
        let standing = receipt.standing;
        let received = leasing.table.clock.elapsed(&plan.sent);
        let lasts = plan.lead.min(longest(standing.interval()));
        let left = lasts.saturating_sub(received);
        // Before the lease can end: that subtracts what no grant has.
        leasing
            .recent
            .record(receipt.name(), &standing, plan.ahead, left);
        let balance = Arc::new(Balance::new(receipt, Arc::clone(&leasing.settle)));
        let lease = Lease {
            _expiry: leasing.expiry(plan, &balance, left),
            balance,
            sent: plan.sent,
            lasts,
            received,
        };
        // Permits that one of these callers lacked are not kept for later callers.
        let is_waited_for = |first| leasing.waits.is_waited_for(first);
        let lacking =
            decisions.iter().any(is_over_limit) || self.asked.first().is_some_and(is_waited_for);
        let put = Arc::downgrade(&lease.balance);
        if !lacking && !left.is_zero() && plan.entry.put(lease, plan.changes) {
            // The expiry task may have run before the lease was put.
            if leasing.table.clock.elapsed(&plan.sent) >= lasts {
                plan.entry.end(&put);
            }
            decisions
                .iter_mut()
                .for_each(|decision| add(decision, plan.ahead));
        }
    }
}

impl<S: Calls> Drop for LeaseCall<'_, S> {
    fn drop(&mut self) {
        if let Some(receipt) = self.receipt.take() {
            self.leasing.inner.settle(*receipt, 0);
        }
        if self.plan.ahead > 0 {
            self.plan.entry.asking_ended();
        }
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
            lead: millis_of(plan.lead),
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
    async fn acquire_run(&self, run: &[Demand], again: bool) -> Result<List<Decision>, Error> {
        let begun = if again {
            Begun::Unleased
        } else {
            self.begin(run)
        };
        match begun {
            Begun::Unleased => self.inner.acquire_run(run, again).await,
            Begun::Served(mut served) => Ok(served.decisions()),
            Begun::Leased(asking) => {
                // So that it does not enlarge the future of calls without a lease.
                let mut asking = Box::new(asking);
                let outcome = self.inner.acquire_run(&asking.asked, false).await;
                asking.end(outcome)
            }
        }
    }

    /// # Cancel safety
    ///
    /// As [`acquire_run`](Self::acquire_run); so is what others took of a lease.
    async fn acquire_joint(&self, runs: &[&[Demand]]) -> List<Answered> {
        let mut firsts = runs.iter().filter_map(|run| run.first());
        if !firsts.any(|first| lead_of(first).is_some()) {
            return self.inner.acquire_joint(runs).await;
        }
        let mut begun: Vec<_> = runs.iter().map(|run| self.begin(run)).collect();
        let each = runs.iter().zip(&begun);
        let asked: Vec<&[Demand]> = each
            .filter_map(|(run, begun)| match begun {
                Begun::Unleased => Some(*run),
                Begun::Served(_) => None,
                Begun::Leased(asking) => Some(&asking.asked),
            })
            .collect();
        let mut answers = self.inner.acquire_joint(&asked).await.into_iter();
        drop(asked);
        let mut next = || {
            let answered = answers.next();
            answered.unwrap_or(Answered::Apart { was_sent: true })
        };
        let each = begun.drain(..).map(|begun| match begun {
            Begun::Unleased => next(),
            Begun::Served(mut served) => Answered::Decided(Ok(served.decisions())),
            Begun::Leased(mut asking) => match next() {
                Answered::Decided(outcome) => Answered::Decided(asking.end(outcome)),
                Answered::Apart { was_sent } => {
                    // Unsent, it is fetched by the same id next time.
                    asking.receipt.take_if(|_| !was_sent);
                    Answered::Apart { was_sent }
                }
            },
        });
        each.collect()
    }

    fn joins(&self, demand: &Demand) -> Option<Joins> {
        self.inner.joins(demand)
    }

    fn ready(&self) -> impl Future<Output = ()> + Send {
        self.inner.ready()
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
