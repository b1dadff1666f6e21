//! The outbox of a store: decides which callers share a command, which wait for permits, and how
//! many are in flight to a node.
//!
//! What is in flight to a node, and who waits to be sent there, stands in one [`nodes::Node`]
//! behind one lock, with what is known of it. [`command`] has the way of a caller that does not
//! wait for permits, and the tasks that send shared commands. Callers that wait for permits stand
//! in front, in a queue of their own, first come, first served: see [`waits`].
//!
//! All of it is plain state behind a mutex. A task lives as long as one command, and runs on the
//! runtime of one of its callers. If that runtime is gone, another one runs it, or the callers send
//! their own calls. If a runtime is alive but not polled, its command blocks others for one
//! deadline at most.
//!
//! A command counts as in flight before its callers are picked. So a caller that leaves before that
//! takes nothing.

mod bound;
#[cfg(feature = "_guards")]
pub(crate) mod breaker;
mod caller;
mod command;
mod flights;
mod nodes;
#[cfg(feature = "_guards")]
pub(crate) mod passes;
#[cfg(feature = "_guards")]
mod silence;
#[cfg(test)]
mod tests;
mod wait_queue;
mod waits;

use std::{
    collections::HashMap,
    future, mem,
    pin::Pin,
    slice,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::Waker,
    time::Duration,
};

use tokio::sync::oneshot;

#[cfg(feature = "_guards")]
pub(crate) use self::nodes::HasUnread;
pub(crate) use self::nodes::Nodes;
use self::{
    caller::{LineKey, Reply, first_of},
    command::{Command, InFlight},
    flights::{Flights, Start},
    wait_queue::WaitQueue,
};
use super::late::Late;
use crate::{
    store::{Calls, Listener},
    sync::{OnDrop, lock},
    values::{
        List,
        charge::Charge,
        clock::{Clock, no_timer},
        decision::{Decision, Grant, RefusalKind, Source},
        demand::{Demand, MaxWait},
        error::Error,
        name::{BuildSpread, Name},
    },
};

/// The queues of those that wait for permits of a store's limiters.
#[derive(Default)]
pub(crate) struct Waits {
    /// Names bring their own hash, by a secret of this process.
    queues: Mutex<HashMap<LineKey, WaitQueue, BuildSpread>>,
    /// The number of callers that wait, in all queues.
    waiting: AtomicUsize,
    /// The number of the next call or caller.
    next: AtomicU64,
}

impl Waits {
    /// Returns whether a caller waits for permits of these limiters that no call is in flight for.
    pub(crate) fn is_waited_for(&self, demand: &Demand) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
            && lock(&self.queues)
                .get(&LineKey(demand.charges.clone()))
                .is_some_and(|queue| queue.waiting().any(|waiter| waiter.call.is_none()))
    }

    /// Returns a number that no other call or caller has. Later ones are greater.
    fn next(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

impl Listener for Arc<Waits> {
    /// Asks again for those that wait for `name`.
    fn room(&self, name: &Name, undone: bool) {
        // A caller that begins to wait after this look asks after it, too.
        if self.waiting.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut wakers = Vec::new();
        for (key, queue) in lock(&self.queues).iter_mut() {
            if key.names().any(|it| it == name) && !(undone && queue.in_parts) {
                queue.nudge();
                wakers.append(&mut queue.wakers);
            }
        }
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// The way of all calls for permits to a store.
pub(crate) struct Outbox<S> {
    inner: Arc<S>,
    /// The clock to wait for permits by.
    clock: Arc<dyn Clock>,
    waits: Arc<Waits>,
    nodes: Arc<Nodes>,
    /// The longest time after an answer until those that wait are asked for again, as other
    /// processes make room unseen. `None` if there are none.
    asks_again_after: Option<Duration>,
}

impl<S: Calls> Outbox<S> {
    /// `waits` is also among the listeners of the store.
    pub(crate) fn new(
        inner: Arc<S>,
        clock: Arc<dyn Clock>,
        waits: Arc<Waits>,
        nodes: Arc<Nodes>,
        asks_again_after: Option<Duration>,
    ) -> Arc<Self> {
        Arc::new(Self {
            inner,
            clock,
            waits,
            nodes,
            asks_again_after,
        })
    }

    /// Acts on what is in flight to a node, and starts what may be sent then. Its lock is released
    /// first: what is started may end at once, and then takes it again.
    fn with_flights<T>(
        self: &Arc<Self>,
        index: usize,
        act: impl FnOnce(&mut Flights, Duration) -> T,
    ) -> T {
        let now = self.nodes.clock.now();
        let (acted, started, _gone) = {
            let flights = &mut self.nodes.node(index).flights;
            flights.forget(now);
            let acted = act(flights, now);
            let started = flights.start(now);
            #[cfg(test)]
            flights.check();
            (acted, started, mem::take(&mut flights.lanes.gone))
        };
        for start in started {
            match start {
                Start::Call(caller, number) => {
                    if caller.send(number).is_err() {
                        drop(self.in_flight(index, number, List::new()));
                    }
                }
                Start::Late(caller) => drop(caller.reply.send(Reply {
                    outcome: Err(Late::Unsent.error()),
                    gave_back: false,
                })),
                Start::Task(runtime, number, line) => {
                    let command = Command::new(self, (index, number), line, runtime.id());
                    drop(runtime.spawn(command.send()));
                }
            }
        }
        acted
    }

    /// Sleeps by the monotonic clock. Without a timer it never ends: the end of a call then wakes
    /// the callers that wait for it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    fn sleep_until(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        if self.nodes.clock.can_sleep() {
            self.nodes.clock.sleep_until(time)
        } else {
            Box::pin(future::pending())
        }
    }

    /// Waits until a call may be sent to the node of `name`. That of a patient caller is never
    /// refused for overload.
    ///
    /// # Errors
    ///
    /// [`Late::Unsent`], at once.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the turn.
    async fn wait_to_send(
        self: &Arc<Self>,
        name: &Name,
        is_patient: bool,
    ) -> Result<InFlight<S>, Error> {
        let node = self.nodes.index(name);
        loop {
            match self.with_flights(node, |flights, now| flights.enter_alone(is_patient, now)) {
                None => return Err(Late::Unsent.error()),
                Some(Ok(number)) => return Ok(self.in_flight(node, number, List::new())),
                Some(Err(number)) => {
                    let mut waiting = WaitingCall {
                        outbox: self,
                        node,
                        number,
                    };
                    let number = (&mut waiting.number).await;
                    let number = number.map_err(|_| Late::Unsent.error())?;
                    // The call counts from now on.
                    let mut in_flight = self.in_flight(node, number, List::new());
                    if let Some(number) =
                        self.with_flights(node, |flights, now| flights.commands.renew(number, now))
                    {
                        in_flight.number = number;
                        return Ok(in_flight);
                    }
                }
            }
        }
    }

    /// Decides by a call of the caller's own.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    async fn call_alone(self: &Arc<Self>, demand: &Demand) -> Result<Decision, Error> {
        let leaving = OnDrop::new(|| {
            let _ = demand.unsent.set(());
        });
        let entered = self.wait_to_send(demand.first().name(), false).await;
        leaving.disarm();
        let mut in_flight = entered?;
        let decided = in_flight.acquire_run(slice::from_ref(demand), false);
        decided.await.and_then(first_of)
    }

    /// Decides for a caller whose shared command was dropped, which may have arrived. What it took
    /// is given back, unless the caller's own call is granted by the same id.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    async fn call_again(self: &Arc<Self>, demand: &Demand) -> Result<Decision, Error> {
        let mut in_flight = self.wait_to_send(demand.first().name(), true).await?;
        let decided = in_flight.acquire_run(slice::from_ref(demand), true).await;
        let decided = decided.and_then(first_of);
        drop(in_flight);
        let by_its_id = |grant: &Grant| grant.source() == Source::Store;
        if !matches!(&decided, Ok(Decision::Allow(grant)) if by_its_id(grant)) {
            self.give_back(demand.to_settle());
        }
        decided
    }

    fn give_back(&self, charges: Vec<Charge>) {
        for charge in charges.into_iter().filter(Charge::took) {
            self.inner.settle(charge, 0);
        }
    }

    /// Decides for a caller that waits for permits. Where there is no timer it does not: a refusal
    /// says how long.
    ///
    /// # Errors
    ///
    /// Those of the store, and that there is no timer where the caller waits without end.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    async fn acquire_waiting(
        self: &Arc<Self>,
        demand: &Demand,
        max_wait: MaxWait,
    ) -> Result<Decision, Error> {
        if self.clock.can_sleep() {
            let now = self.clock.now();
            let deadline = max_wait.longest.and_then(|wait| now.checked_add(wait));
            return waits::acquire(self, demand, deadline).await;
        }
        let decided = Box::pin(self.inner.acquire_run(slice::from_ref(demand), false)).await;
        let is_endless = max_wait.longest.is_none();
        match decided.and_then(first_of)? {
            Decision::Deny(refusal) if is_endless && refusal.kind() == RefusalKind::OverLimit => {
                Err(no_timer())
            }
            decision => Ok(decision),
        }
    }

    /// Settles with the store. If a shared command of the caller is in flight, its end settles once
    /// more.
    pub(crate) fn settle(&self, receipt: Charge, keep: u32) {
        let node = self.nodes.index(receipt.name());
        self.nodes.node(node).flights.gives_back(receipt.id);
        self.inner.settle(receipt, keep);
    }
}

/// A call that waits to be sent. Dropping it gives up its turn.
struct WaitingCall<'a, S: Calls> {
    outbox: &'a Arc<Outbox<S>>,
    node: usize,
    number: oneshot::Receiver<u64>,
}

impl<S: Calls> Drop for WaitingCall<'_, S> {
    fn drop(&mut self) {
        self.number.close();
        if let Ok(number) = self.number.try_recv() {
            drop(self.outbox.in_flight(self.node, number, List::new()));
        }
    }
}
