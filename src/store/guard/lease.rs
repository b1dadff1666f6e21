//! Takes permits ahead, for callers that are still to come, so that most of them need not ask the store.
//!
//! A lease is one entry in the store, of several permits, and scored at its end: each permit is used before its score, so
//! no window has more than the rate. It is asked for by the call that serves those who found none, as one more caller
//! behind them; so nothing is asked that would not be asked anyway. What nobody used is given back by receipt, when the
//! lease ends or its limiter is changed by this store; if the process dies it expires with its score.
//!
//! It stands within the queue, where it sees the callers that are asked for together, and whether
//! a caller waits. Waiters go before those still to come: while there are some, nothing is taken
//! ahead, and a lease ends when a waiter is refused.

mod account;
mod keeper;
mod meter;
mod pools;

use std::{
    fmt, slice,
    sync::{Arc, Weak},
    time::Duration,
};

pub(crate) use self::account::Account;
use self::{
    keeper::Keeper,
    pools::{Lease, Plan, Pools, longest},
};
use super::{clock::StoreClock, line::Lines};
use crate::{
    clock::Clock,
    decision::{Decision, LimitState, RefusalKind},
    demand::{Acquire, Charge},
    error::{Error, ErrorKind},
    name::Name,
    receipt::Receipt,
    store::{Decide, DecideRuns, Listener, Op, Outcome},
};

/// A store of which permits are taken ahead.
pub(crate) struct Leasing<S: DecideRuns> {
    inner: Arc<S>,
    pools: Pools,
    keeper: Arc<Keeper<S>>,
    lines: Lines,
}

/// For how long a caller's rule has permits taken ahead. Not for lists: they are granted together or not at all.
fn lease_of(acquire: &Acquire) -> Option<Duration> {
    let charge = &acquire.first;
    let leases = acquire.rest.is_empty() && !charge.shadow;
    // What has no entry of its own has no score.
    let logged = charge.name().tells_grants_apart();
    charge.lease.filter(|_| leases && logged)
}

impl<S: DecideRuns> Leasing<S> {
    /// `own_clock` is that of the logs, if it is this process's; `clock` is the one to wait by. `lines` are those around it.
    pub(crate) fn new(
        inner: Arc<S>,
        own_clock: Option<Arc<dyn Clock>>,
        clock: Arc<dyn Clock>,
        lines: Lines,
    ) -> Self {
        Self {
            keeper: Arc::new(Keeper::new(Arc::clone(&inner), clock)),
            pools: Pools::new(StoreClock::new(own_clock)),
            inner,
            lines,
        }
    }

    pub(crate) fn inner(&self) -> &Arc<S> {
        &self.inner
    }

    /// How many leases are out.
    pub(crate) fn count(&self) -> usize {
        self.keeper.count()
    }

    /// Gives back what so many leases hold and nobody has.
    pub(crate) fn end_first(&self, most: usize) {
        self.keeper.end_first(most);
    }

    /// Gives back all that was taken ahead and that nobody has.
    pub(crate) fn end_all(&self) {
        self.keeper.end_all();
    }

    fn end(&self, lease: Option<Lease>) {
        if let Some(lease) = lease {
            self.keeper.end(lease.end, &lease.account);
        }
    }

    /// Asks for callers, and for what is taken ahead behind them.
    async fn ask(&self, run: &[Acquire], plan: &Plan) -> Result<Vec<Decision>, Error> {
        let Some(first) = run.first().filter(|_| plan.ahead > 0) else {
            let decisions = self.inner.acquire_run(run).await?;
            self.hear(run, &decisions);
            return Ok(decisions);
        };
        let ahead = ahead(first, plan);
        let mut asking = Asking {
            leasing: self,
            name: first.first.name(),
            unheard: Some(ahead.first.receipt()),
        };
        let mut all = run.to_vec();
        all.push(ahead);
        let sent = self.pools.clock().now();
        let decisions = self.inner.acquire_run(&all).await;
        // What a call may have taken that failed, the store has given back.
        let receipt = asking.unheard.take();
        let mut decisions = decisions?;
        let lease = (decisions.len() == all.len()).then(|| decisions.pop());
        self.hear(run, &decisions);
        let name = first.first.name();
        match lease.flatten() {
            None => {}
            Some(Decision::Deny(_)) => self.pools.refused(name, plan.ahead),
            Some(Decision::Allow(grant)) => {
                let (Some(state), Some(receipt)) = (grant.limits().first(), receipt) else {
                    return Ok(decisions);
                };
                let account = Arc::new(Account::new(receipt.granted(state.interval)));
                let received = self.pools.clock().elapsed(&sent);
                let lasts = plan.lead.min(longest(state.interval));
                let left = lasts.saturating_sub(received);
                let lease = Lease {
                    end: self.keeper.watch(Arc::clone(&account), left),
                    account,
                    limit: first.first.limit(),
                    sent,
                    lasts,
                    received,
                    state: state.clone(),
                };
                // What one of them lacked is not for those still to come.
                let lacking =
                    decisions.iter().any(is_over_limit) || self.lines.is_waited_for(first);
                let refused = if lacking || left.is_zero() {
                    Some(lease)
                } else {
                    self.pools.put(name, lease, plan.generation)
                };
                if refused.is_none() {
                    decisions
                        .iter_mut()
                        .for_each(|decision| add(decision, plan.ahead));
                }
                self.end(refused);
            }
        }
        Ok(decisions)
    }

    /// Learns from what callers were told.
    fn hear(&self, run: &[Acquire], decisions: &[Decision]) {
        let told = run.first().zip(decisions.iter().find_map(state_of));
        let Some((first, state)) = told else { return };
        self.end(self.pools.told(first.first.name(), state));
        let mut answered = run.iter().zip(decisions);
        if answered.any(|(acquire, decision)| acquire.patience.is_some() && is_over_limit(decision))
        {
            self.end(self.pools.remove(first.first.name(), false));
        }
    }

    fn changed(&self, name: &Name) {
        self.end(self.pools.remove(name, true));
    }
}

/// The caller that takes ahead: like another one, but for the time of its score. That one is of a rule that leases, so it has
/// no further charges, and is told how much is left, by which the next lease goes.
fn ahead(like: &Acquire, plan: &Plan) -> Acquire {
    Acquire {
        first: Charge {
            permits: plan.ahead,
            id: like.first.id.for_ahead(),
            lead: i64::try_from(plan.lead.as_millis()).unwrap_or(i64::MAX),
            ..like.first.clone()
        },
        ..like.clone()
    }
}

fn is_over_limit(decision: &Decision) -> bool {
    matches!(decision, Decision::Deny(refusal) if refusal.kind() == RefusalKind::OverLimit)
}

fn state_of(decision: &Decision) -> Option<&LimitState> {
    decision.limits().first()
}

/// Has a decision tell of permits that are left in hand.
fn add(decision: &mut Decision, in_hand: u32) {
    let limits = match decision {
        Decision::Allow(grant) => grant.limits_mut(),
        Decision::Deny(refusal) => &mut refusal.limits,
    };
    for limit in limits.iter_mut() {
        let remaining = &mut limit.remaining;
        *remaining = remaining.map(|left| left.saturating_add(u64::from(in_hand)));
    }
}

/// That somebody asks for a lease, until it is over.
struct Asking<'a, S: DecideRuns> {
    leasing: &'a Leasing<S>,
    name: &'a Name,
    /// Of what is taken ahead, made before the call, until the answer is heard.
    unheard: Option<Receipt>,
}

impl<S: DecideRuns> Drop for Asking<'_, S> {
    fn drop(&mut self) {
        self.leasing.pools.asked(self.name);
        if let Some(receipt) = self.unheard.take() {
            self.leasing.inner.settle(receipt, 0);
        }
    }
}

impl<S: DecideRuns> Listener for Weak<Leasing<S>> {
    fn changed(&self, name: &Name) {
        if let Some(leasing) = self.upgrade() {
            leasing.changed(name);
        }
    }

    fn room(&self, _: &Name, _undone: bool) {}
}

impl<S: DecideRuns> Decide for Leasing<S> {
    /// Grants out of a lease, if there is one that suffices.
    ///
    /// That overtakes no waiter: where one waits there is no lease.
    fn decide_at_once(&self, acquire: &mut Acquire) -> Option<Result<Decision, Error>> {
        match self.pools.take(acquire) {
            Some(granted) => Some(Ok(granted)),
            None => self.inner.decide_at_once(acquire),
        }
    }

    /// # Cancel safety
    ///
    /// As the store's within; what is taken ahead meanwhile is given back.
    async fn acquire(&self, acquire: &Acquire) -> Result<Decision, Error> {
        if lease_of(acquire).is_none() {
            return self.inner.acquire(acquire).await;
        }
        // Boxed, so that those without a lease have no room for it in their futures.
        let run = Box::pin(self.acquire_run(slice::from_ref(acquire)));
        let decision = run.await?.pop();
        decision.ok_or_else(|| ErrorKind::Permits.into())
    }

    /// What is in hand goes back before a verb is carried out; what was taken meanwhile, after it.
    async fn manage(&self, name: &Name, op: &Op) -> Result<Outcome, Error> {
        if !op.only_reads() {
            self.changed(name);
        }
        if let Op::Rename(new_name) = op {
            self.changed(new_name);
        }
        self.inner.manage(name, op).await
    }

    fn settle(&self, receipt: Receipt, keep: u32) {
        match (&receipt.lease, receipt.permits.checked_sub(keep)) {
            (Some(account), Some(unused)) => {
                account.give_back(receipt.id, unused, &mut |entry, keep| {
                    self.inner.settle(entry, keep);
                });
            }
            // More than it took is an entry of its own.
            _ => self.inner.settle(receipt, keep),
        }
    }
}

impl<S: DecideRuns> DecideRuns for Leasing<S> {
    async fn acquire_run(&self, run: &[Acquire]) -> Result<Vec<Decision>, Error> {
        let Some((first, lead)) = run
            .first()
            .and_then(|first| Some((first, lease_of(first)?)))
        else {
            return self.inner.acquire_run(run).await;
        };
        // A lease came while they stood in line. Those whom it does not serve are asked for next.
        let served: Vec<_> = run
            .iter()
            .map_while(|acquire| self.pools.take(acquire))
            .collect();
        if !served.is_empty() {
            return Ok(served);
        }
        let mut plan = self.pools.plan(run, lead, self.lines.is_waited_for(first));
        self.end(plan.over.take());
        self.ask(run, &plan).await
    }

    fn decides_together(&self, acquire: &Acquire) -> bool {
        self.inner.decides_together(acquire)
    }
}

impl<S: DecideRuns> Drop for Leasing<S> {
    fn drop(&mut self) {
        self.end_all();
    }
}

impl<S: DecideRuns> fmt::Debug for Leasing<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leasing")
            .field("inner", &self.inner)
            .field("keeper", &self.keeper)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
