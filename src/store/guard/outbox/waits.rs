//! Serves the callers that wait for permits in order: one call asks for the first of them.
//!
//! No task owns a queue. A waiter that is polled when the call is due sends it, in a task, for the
//! first waiters, and its reply wakes them. The timers of the first two waiters end when the call
//! is due, in case the runtime of one is stalled; those of the others end one deadline later.

use std::{
    collections::hash_map::Entry,
    future::poll_fn,
    mem,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::runtime::Handle;

use super::{
    LineKey, Outbox,
    wait_queue::{Times, Turn, Until, WaitQueue},
};
use crate::{
    store::Calls,
    sync::lock,
    values::{List, charge::Charge, decision::Decision, demand::Demand, error::Error},
};

type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Waits for permits until `deadline`, if there is one.
///
/// # Cancel safety
///
/// Dropping it leaves the queue, and gives back what was or may yet be taken.
pub(super) async fn acquire<S: Calls>(
    outbox: &Arc<Outbox<S>>,
    demand: &Demand,
    deadline: Option<Duration>,
) -> Result<Decision, Error> {
    let key = LineKey(demand.charges.clone());
    let now = outbox.clock.now();
    let in_parts = !outbox.inner.decides_together(demand);
    // Before it can be asked for, or room that is made then would go unnoticed.
    outbox.waits.waiting.fetch_add(1, Ordering::SeqCst);
    let number = outbox.with_waits(&key, |waits| {
        waits.in_parts = in_parts;
        // With the queue locked: by its number a waiter finds itself.
        let number = outbox.waits.next();
        waits.push(number, demand, deadline, now);
        number
    });
    let mut in_queue = InQueue {
        outbox,
        key,
        number,
        timer: None,
        asking: None,
        owed: Vec::new(),
    };
    poll_fn(|cx| in_queue.poll(cx)).await
}

impl<S: Calls> Outbox<S> {
    /// Acts on the queue of a key. Wakers are called when it is not locked any more.
    fn with_waits<T>(&self, key: &LineKey, act: impl FnOnce(&mut WaitQueue) -> T) -> T {
        let (acted, wakers) = {
            let mut queues = lock(&self.waits.queues);
            let mut there = match queues.entry(key.clone()) {
                Entry::Occupied(there) => there,
                Entry::Vacant(free) => free.insert_entry(WaitQueue::default()),
            };
            let acted = act(there.get_mut());
            let wakers = mem::take(&mut there.get_mut().wakers);
            if there.get().is_empty() {
                there.remove();
            }
            (acted, wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
        acted
    }
}

/// A waiter in the queue of its key.
struct InQueue<'a, S: Calls> {
    outbox: &'a Arc<Outbox<S>>,
    key: LineKey,
    number: u64,
    timer: Option<(Until, Sleep)>,
    /// The call that it sends where there is no runtime for a task.
    asking: Option<Sleep>,
    /// The receipts of a call that is still in flight when another has decided.
    owed: Vec<Charge>,
}

impl<S: Calls> InQueue<'_, S> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Decision, Error>> {
        loop {
            if let Some(asking) = &mut self.asking
                && asking.as_mut().poll(cx).is_ready()
            {
                self.asking = None;
            }
            let (outbox, next_call) = (self.outbox, self.outbox.waits.next());
            let times = Times {
                now: outbox.clock.now(),
                of_calls: outbox.nodes.clock.now(),
                hold: outbox.nodes.bounds.deadline,
            };
            let turn = |waits: &mut WaitQueue| waits.turn(self.number, next_call, times, cx);
            match outbox.with_waits(&self.key, turn) {
                Some(Turn::Return(outcome, owed)) => {
                    self.owed = owed;
                    return Poll::Ready(outcome);
                }
                Some(Turn::Ask(call)) => self.ask(call, cx),
                Some(Turn::Sleep(until)) => {
                    if self.timer.as_ref().is_none_or(|(due, _)| *due != until) {
                        let timer = match until {
                            Until::Due(time) => outbox.clock.sleep_until(time),
                            Until::Held(time) => outbox.sleep_until(time),
                        };
                        self.timer = Some((until, timer));
                    }
                    if let Some((_, timer)) = &mut self.timer
                        && timer.as_mut().poll(cx).is_pending()
                    {
                        return Poll::Pending;
                    }
                    self.timer = None;
                }
                None => return Poll::Pending,
            }
        }
    }

    /// Sends a call. In memory the first poll completes it; otherwise a task awaits the reply.
    fn ask(&mut self, call: u64, cx: &mut Context<'_>) {
        let asking = Asking {
            outbox: Arc::clone(self.outbox),
            key: self.key.clone(),
            call,
            callers: Vec::new(),
            is_answered: false,
        };
        let mut asking: Sleep = Box::pin(asking.send());
        if asking.as_mut().poll(cx).is_ready() {
            return;
        }
        let Ok(runtime) = Handle::try_current() else {
            self.asking = Some(asking);
            return;
        };
        let task = runtime.spawn(asking).abort_handle();
        self.outbox
            .with_waits(&self.key, |waits| waits.set_task(call, task));
    }
}

impl<S: Calls> Drop for InQueue<'_, S> {
    fn drop(&mut self) {
        self.outbox.waits.waiting.fetch_sub(1, Ordering::SeqCst);
        let (receipts, unwanted) = self
            .outbox
            .with_waits(&self.key, |waits| waits.leave(self.number));
        unwanted.into_iter().for_each(|task| task.abort());
        // The task's end alone is too late: it may come after the store is closed.
        self.outbox.give_back(receipts);
        self.outbox.give_back(mem::take(&mut self.owed));
    }
}

/// A call for those that wait. Dropped unanswered, it gives back what it may have taken.
struct Asking<S: Calls> {
    outbox: Arc<Outbox<S>>,
    key: LineKey,
    call: u64,
    callers: Vec<Demand>,
    is_answered: bool,
}

impl<S: Calls> Asking<S> {
    async fn send(mut self) {
        let outbox = Arc::clone(&self.outbox);
        let Some(name) = self.key.names().next() else {
            return;
        };
        let entered = outbox.wait_to_send(name, true).await;
        let until = outbox
            .nodes
            .clock
            .now()
            .saturating_add(outbox.nodes.bounds.deadline);
        let (numbers, callers) = outbox.with_waits(&self.key, |waits| waits.ask(self.call, until));
        if callers.is_empty() {
            return;
        }
        self.callers = callers;
        let outcome = match entered {
            Ok(mut in_flight) => in_flight.acquire_run(&self.callers, false).await,
            Err(unsent) => Err(unsent),
        };
        let mut outcomes = of_each(outcome, numbers.len());
        // The first is refused as any caller would be; the others are behind it.
        let refused = outcomes.iter_mut().filter_map(|outcome| match outcome {
            Ok(Decision::Deny(refusal)) => Some(refusal),
            _ => None,
        });
        for (index, refusal) in refused.enumerate() {
            refusal.behind = index > 0;
        }
        let now = outbox.clock.now();
        let again_at = outbox
            .asks_again_after
            .map(|pause| now.saturating_add(pause));
        // The store may have learnt from this call that it takes several.
        let first = self.callers.first();
        let in_parts = first.is_some_and(|first| !outbox.inner.decides_together(first));
        outbox.with_waits(&self.key, |waits| {
            waits.in_parts = in_parts;
            waits.answer(self.call, &numbers, &mut outcomes, now, again_at);
            waits.end(self.call, true);
        });
        self.is_answered = true;
        for outcome in outcomes {
            if let Ok(Decision::Allow(grant)) = outcome {
                outbox.give_back(grant.charges().to_vec());
            }
        }
    }
}

impl<S: Calls> Drop for Asking<S> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.outbox
                .with_waits(&self.key, |waits| waits.end(self.call, false));
            let callers = self.callers.iter();
            callers.for_each(|demand| self.outbox.give_back(demand.to_settle()));
        }
    }
}

/// Returns the decision of each caller of a call. An error is that of each of them.
fn of_each(outcome: Result<List<Decision>, Error>, callers: usize) -> Vec<Result<Decision, Error>> {
    match outcome {
        Ok(decisions) => decisions.into_iter().map(Ok).collect(),
        Err(error) => vec![Err(error); callers],
    }
}
