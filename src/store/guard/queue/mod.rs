//! Decides which callers share a call, which wait for permits, and how many calls are in flight.
//!
//! A caller that finds no call of its limiter in flight sends its own, at once and in its own
//! future. Callers that come meanwhile stand behind it and share the next call. So a limiter has
//! one call for each answer of the store, however many callers there are: see [`runs`]. Callers
//! that wait for permits stand in a queue of their own, first come, first served: see [`waits`].
//!
//! All of it is plain state behind a mutex. A task lives as long as one call, and runs on the
//! runtime of one of its callers. If that runtime is gone, another one runs it, or the callers send
//! their own calls. If a runtime is alive but not polled, its call blocks others for one deadline
//! at most.
//!
//! A call to a node gets its place among those [`in_flight`] before its callers are picked. So a
//! caller that leaves before that takes nothing.

mod in_flight;
mod runs;
#[cfg(test)]
mod tests;
mod wait_queue;
mod waits;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::Waker,
    time::Duration,
};

use self::{in_flight::InFlightPlace, runs::Run, wait_queue::WaitQueue};
pub(crate) use self::{
    in_flight::{InFlight, take_out},
    runs::while_wanted,
};
use crate::{
    charge::{Charge, PermitId},
    clock::{Clock, no_timer},
    compiled_limit::Limiter,
    decision::{Decision, Grant, RefusalKind, Source},
    demand::Demand,
    error::Error,
    list::List,
    name::{BuildSpread, Name},
    store::{Calls, Listener},
    sync::{OnDrop, lock},
};

/// The limiters of a queue's callers, each with whether it is a shadow, and whether its rule bans.
/// Callers that differ in any of these share no call.
type Key = List<(Limiter, [bool; 2])>;

fn key(demand: &Demand) -> Key {
    let key_of = |charge: &Charge| {
        let bans = charge.of().ban.is_some();
        (charge.limiter.clone(), [charge.shadow, bans])
    };
    demand.charges().map(key_of).collect()
}

/// Names bring their own hash, by a secret of this process.
type Table<T> = HashMap<Key, T, BuildSpread>;

/// The queues of a store.
#[derive(Default)]
pub(crate) struct Queues {
    runs: Mutex<Table<Run>>,
    waits: Mutex<Table<WaitQueue>>,
    /// The number of callers that wait for permits, in all queues.
    waiting: AtomicUsize,
    /// The number of the next call or caller.
    next: AtomicU64,
    /// The ids of the callers of shared calls in flight. True if the caller has given back
    /// meanwhile: the call may arrive after that receipt, or be sent once more, so its end gives
    /// back once more. Ids are random.
    unanswered: Mutex<HashMap<PermitId, bool, BuildSpread>>,
}

impl Queues {
    /// Returns whether a caller waits for permits of these limiters that no call is in flight for.
    pub(crate) fn is_waited_for(&self, demand: &Demand) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
            && lock(&self.waits)
                .get(&key(demand))
                .is_some_and(|queue| queue.waiting().any(|waiter| waiter.call.is_none()))
    }

    /// Ends a shared call for a caller. Returns whether it was given back meanwhile.
    fn end_shared(&self, demand: &Demand) -> bool {
        lock(&self.unanswered).remove(&demand.first().id) == Some(true)
    }

    /// Returns a number that no other call or caller has. Later ones are greater.
    fn next(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

impl Listener for Arc<Queues> {
    /// Asks again for those that wait for `name`.
    fn room(&self, name: &Name, undone: bool) {
        // A caller that begins to wait after this look asks after it, too.
        if self.waiting.load(Ordering::SeqCst) == 0 {
            return;
        }
        let waited_for = |key: &Key| key.iter().any(|(limiter, ..)| limiter.name == *name);
        let mut wakers = Vec::new();
        for (key, queue) in lock(&self.waits).iter_mut() {
            if waited_for(key) && !(undone && queue.in_parts) {
                queue.nudge();
                wakers.append(&mut queue.wakers);
            }
        }
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// A store whose callers stand in queues.
pub(crate) struct Queued<S> {
    inner: Arc<S>,
    /// The clock to wait by.
    clock: Arc<dyn Clock>,
    queues: Arc<Queues>,
    in_flight: Arc<InFlight>,
    /// How long after an answer those that wait are asked for again at the latest: other processes
    /// make room unseen. `None` if there are none.
    looks_after: Option<Duration>,
}

impl<S: Calls> Queued<S> {
    /// `queues` is also among the listeners of the store.
    pub(crate) fn new(
        inner: Arc<S>,
        clock: Arc<dyn Clock>,
        queues: Arc<Queues>,
        in_flight: Arc<InFlight>,
        looks_after: Option<Duration>,
    ) -> Arc<Self> {
        Arc::new(Self {
            inner,
            clock,
            queues,
            in_flight,
            looks_after,
        })
    }

    /// Decides by a call of the caller's own.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    async fn call_alone(&self, demand: &Demand, was_sent: bool) -> Result<Decision, Error> {
        let _place = self.take_place(demand, was_sent).await?;
        self.inner.acquire(demand).await
    }

    /// Decides for a caller whose shared call was dropped: that call may have arrived. What it took
    /// is given back, unless the caller's own call is granted by the same id.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    async fn call_again(&self, demand: &Demand) -> Result<Decision, Error> {
        let decided = self.call_alone(demand, true).await;
        let by_its_id = |grant: &Grant| grant.source() == Source::Store;
        if !matches!(&decided, Ok(Decision::Allow(grant)) if by_its_id(grant)) {
            self.give_back(demand.to_settle());
        }
        decided
    }

    /// Waits until the call of one caller may be sent. One that was sent before cannot be said to
    /// be unsent.
    ///
    /// # Cancel safety
    ///
    /// Dropping it gives the place up.
    async fn take_place(&self, demand: &Demand, was_sent: bool) -> Result<InFlightPlace, Error> {
        let leaving = OnDrop::new(|| {
            if !was_sent {
                let _ = demand.unsent.set(());
            }
        });
        let place = self
            .in_flight
            .take_place(demand.first().name(), was_sent)
            .await;
        leaving.disarm();
        place
    }

    fn give_back(&self, charges: Vec<Charge>) {
        for charge in charges.into_iter().filter(Charge::took) {
            self.inner.settle(charge, 0);
        }
    }

    /// Decides for a caller that would wait, where there is no timer: a refusal says how long.
    ///
    /// # Errors
    ///
    /// Those of the store, and that there is no timer where the caller waits without end.
    async fn acquire_unwaiting(&self, demand: &Demand) -> Result<Decision, Error> {
        let is_endless = demand.max_wait.is_some_and(|wait| wait.longest.is_none());
        match self.inner.acquire(demand).await? {
            Decision::Deny(refusal) if is_endless && refusal.kind() == RefusalKind::OverLimit => {
                Err(no_timer())
            }
            decision => Ok(decision),
        }
    }

    /// Decides for a caller, by its own call or one that it shares.
    ///
    /// # Errors
    ///
    /// Those of the store, and [`Late::Unsent`](super::late::Late).
    ///
    /// # Cancel safety
    ///
    /// Dropping it before its call is sent takes nothing. After that, what was or may yet be taken
    /// for a caller that waits for permits is given back; for one that does not, the caller of this
    /// method decides, by the receipts that it can make.
    pub(crate) async fn acquire(self: &Arc<Self>, demand: &Demand) -> Result<Decision, Error> {
        // Boxed because it is rare, so that it does not enlarge the future.
        let Some(max_wait) = demand.max_wait else {
            if !self.inner.decides_together(demand) {
                // One after the other, callers would wait for nothing.
                return Box::pin(self.call_alone(demand, false)).await;
            }
            return runs::acquire(self, demand).await;
        };
        if !self.clock.can_sleep() {
            return Box::pin(self.acquire_unwaiting(demand)).await;
        }
        let now = self.clock.now();
        let deadline = max_wait.longest.and_then(|wait| now.checked_add(wait));
        waits::acquire(self, demand, deadline).await
    }

    /// Settles as the store does, once more where a shared call is still on its way.
    pub(crate) fn settle(&self, receipt: Charge, keep: u32) {
        if let Some(gave_back) = lock(&self.queues.unanswered).get_mut(&receipt.id) {
            *gave_back = true;
        }
        self.inner.settle(receipt, keep);
    }
}
