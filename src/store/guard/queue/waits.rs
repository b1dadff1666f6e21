//! Callers that wait for permits: first come, first served, one call for the first of them.
//!
//! Nobody owns a queue. A waiter that is polled and finds that it is time sends a call for the
//! first ones, in a task, and all of them learn of its reply. Two are woken in time, as one may
//! not be polled; the others look a little later.

use std::{
    future::poll_fn,
    mem,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::runtime::Handle;

use super::{
    Inner, Key, key, lock,
    max_wait::{Queue, Times, Turn, Until, Wakers},
    reply::of_each,
};
use crate::{
    decision::Decision, demand::Acquire, error::Error, list::List, receipt::Receipt,
    store::DecideRuns,
};

type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Waits for permits until `deadline`, if there is one.
///
/// # Cancel safety
///
/// Dropping it gives up the place, and gives back what was or may yet be taken.
pub(super) async fn acquire<S: DecideRuns>(
    queue: &Arc<Inner<S>>,
    acquire: &Acquire,
    deadline: Option<Duration>,
) -> Result<Decision, Error> {
    let (key, number) = (key(acquire), queue.queues.0.next());
    let now = queue.clock.now();
    let in_parts = !queue.store.decides_together(acquire);
    // Before it can be asked for, or room that is made then would go unnoticed.
    queue.queues.0.waiting.fetch_add(1, Ordering::SeqCst);
    let wakers = {
        let mut queues = lock(&queue.queues.0.waits);
        let waits = queues.entry(key.clone()).or_default();
        waits.in_parts = in_parts;
        waits.enter(number, acquire, deadline, now)
    };
    let mut place = Place {
        queue,
        key,
        number,
        timer: None,
        asking: None,
    };
    wake(wakers);
    poll_fn(|cx| place.poll(cx)).await
}

/// A waiter's place in its queue.
struct Place<'a, S: DecideRuns> {
    queue: &'a Arc<Inner<S>>,
    key: Key,
    number: u64,
    timer: Option<(Until, Sleep)>,
    /// The call that it sends where there is no runtime for a task.
    asking: Option<Sleep>,
}

impl<S: DecideRuns> Place<'_, S> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Decision, Error>> {
        loop {
            if let Some(asking) = &mut self.asking
                && asking.as_mut().poll(cx).is_ready()
            {
                self.asking = None;
            }
            match self.turn(cx) {
                Some(Turn::Served(outcome)) => return Poll::Ready(outcome),
                Some(Turn::Ask(call)) => self.ask(call, cx),
                Some(Turn::Sleep(until)) => {
                    if self.timer.as_ref().is_none_or(|(due, _)| *due != until) {
                        self.timer = Some((until, self.sleep(until)));
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

    fn sleep(&self, until: Until) -> Sleep {
        match until {
            Until::Due(time) => self.queue.clock.sleep_until(time),
            Until::Held(time) => self.queue.in_flight.sleep_until(time),
        }
    }

    fn turn(&self, cx: &Context<'_>) -> Option<Turn> {
        let queue = self.queue;
        let next_call = queue.queues.0.next();
        let times = Times {
            now: queue.clock.now(),
            of_calls: queue.in_flight.now(),
            hold: queue.in_flight.bounds.deadline,
        };
        let (turn, wakers) = {
            let mut queues = lock(&queue.queues.0.waits);
            let waits = queues.get_mut(&self.key)?;
            waits.turn(self.number, next_call, times, cx)
        };
        wake(wakers);
        turn
    }

    /// Sends a call. A store in memory answers at once, others to a task.
    fn ask(&mut self, call: u64, cx: &mut Context<'_>) {
        let asking = Asking {
            queue: Arc::clone(self.queue),
            key: self.key.clone(),
            call,
            run: Vec::new(),
            is_over: false,
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
        let mut queues = lock(&self.queue.queues.0.waits);
        if let Some(waits) = queues.get_mut(&self.key)
            && let Some(there) = waits.call.as_mut().filter(|there| there.number == call)
        {
            there.task = Some(task);
        }
    }
}

impl<S: DecideRuns> Drop for Place<'_, S> {
    fn drop(&mut self) {
        self.queue.queues.0.waiting.fetch_sub(1, Ordering::SeqCst);
        let (left, unwanted, wakers) = {
            let mut queues = lock(&self.queue.queues.0.waits);
            let Some(waits) = queues.get_mut(&self.key) else {
                return;
            };
            let left = waits.leave(self.number);
            if waits.waiters.is_empty() {
                queues.remove(&self.key);
            }
            left
        };
        if let Some(task) = unwanted.and_then(|call| call.task) {
            task.abort();
        }
        if let Some(waiter) = left {
            // At once: a reply, by which it would be given back, may never come. The end of the
            // call gives back once more.
            let receipts = match waiter.outcome {
                Some(Ok(Decision::Allow(grant))) => grant.into_receipts(),
                None if waiter.call.is_some() => waiter.acquire.receipts(),
                _ => List::new(),
            };
            self.queue.give_back(receipts);
        }
        wake(wakers);
    }
}

/// A call for those that wait. Dropped unanswered, it gives back what it may have taken.
struct Asking<S: DecideRuns> {
    queue: Arc<Inner<S>>,
    key: Key,
    call: u64,
    run: Vec<(u64, Acquire)>,
    is_over: bool,
}

impl<S: DecideRuns> Asking<S> {
    async fn send(mut self) {
        let Some((name, ..)) = self.key.first() else {
            return;
        };
        let place = self.queue.in_flight.enter(name, true).await;
        let now = self.queue.in_flight.now();
        let run = self.with(|waits| waits.ask(self.call, now));
        self.run = run.unwrap_or_default();
        if self.run.is_empty() {
            return;
        }
        let callers = self.run.iter().map(|(_, acquire)| acquire.clone());
        let callers: Vec<_> = callers.collect();
        let outcome = match place {
            Ok(_place) => self.queue.store.acquire_run(&callers).await,
            Err(overload) => Err(overload),
        };
        self.answer(outcome);
    }

    fn answer(mut self, outcome: Result<Vec<Decision>, Error>) {
        let now = self.queue.clock.now();
        let run = mem::take(&mut self.run);
        let mut outcomes = of_each(outcome, run.len());
        // What the first is refused for holds for anybody; the others are behind it.
        let refused = outcomes.iter_mut().filter_map(|outcome| match outcome {
            Ok(Decision::Deny(refusal)) => Some(refusal),
            _ => None,
        });
        for (place, refusal) in refused.enumerate() {
            refusal.behind = place > 0;
        }
        let mut receipts: Vec<List<Receipt>> = Vec::new();
        let mut wakers = Wakers::new();
        let call = self.call;
        let mut outcomes = outcomes.into_iter();
        self.with(|waits| {
            for ((number, _), outcome) in run.iter().zip(&mut outcomes) {
                let (unread, waker) = waits.answer(*number, call, outcome, now);
                wakers.extend(waker);
                receipts.extend(unread.and_then(granted));
            }
            wakers.extend(waits.turn_away(now));
            wakers.extend(waits.end(call, true));
        });
        self.is_over = true;
        // All of them have left.
        receipts.extend(outcomes.filter_map(granted));
        receipts
            .into_iter()
            .for_each(|receipts| self.queue.give_back(receipts));
        wake(wakers);
    }

    fn with<T>(&self, act: impl FnOnce(&mut Queue) -> T) -> Option<T> {
        lock(&self.queue.queues.0.waits).get_mut(&self.key).map(act)
    }
}

impl<S: DecideRuns> Drop for Asking<S> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let wakers = self.with(|waits| waits.end(self.call, false));
        for (_, acquire) in &self.run {
            self.queue.give_back(acquire.receipts());
        }
        wake(wakers.unwrap_or_default());
    }
}

impl<S: DecideRuns> Inner<S> {
    fn give_back(&self, receipts: List<Receipt>) {
        for receipt in receipts {
            self.store.settle(receipt, 0);
        }
    }
}

fn granted(outcome: Result<Decision, Error>) -> Option<List<Receipt>> {
    match outcome {
        Ok(Decision::Allow(grant)) => Some(grant.into_receipts()),
        _ => None,
    }
}

fn wake(wakers: Wakers) {
    wakers.into_iter().for_each(Waker::wake);
}
