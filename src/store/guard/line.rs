//! Where callers of one limiter stand while it is asked: one call in flight, and the next one for all who came meanwhile.
//!
//! Whoever comes to an open line makes its own call at once, as if there were no line. Those who come while it is in flight
//! go together with the next. So a busy limiter is asked as often as the store answers, however many ask, and nobody ever
//! waits for others to come. Callers that wait for permits stand in the same line, first come, first served, with one timer
//! for all of them.
//!
//! Nobody owns the line. A call for many is polled by whichever of its callers is polled, so that it survives any one of
//! them. One that is neither polled nor dropped holds up nobody: a wake-up goes to all of a call's callers and to the last
//! behind them, and to two where there is no call. Where several are kept without being polled, others may wait until
//! somebody comes, or until their own deadline has them polled: whoever is polled sees to the line.
//!
//! A call made alone is its caller's; when it has been answered, the next one goes, whether or not that caller looks. When
//! all callers of a call have left, at their deadlines for example, it is dropped, and those behind it go on: a call that
//! hangs holds up others no longer than their own would, and a line needs no clock for that.
//!
//! A failed run is an error for each of its callers. Those behind them, who may be many, try once more, in one call.

mod lines;
mod member;
mod patience;
mod queue;
mod state;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    future::poll_fn,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

pub(crate) use self::lines::{Key, Lines};
use self::{
    lines::key,
    member::{Run, gave_back},
    queue::{Driver, Next, Queue, Turn},
};
use crate::{
    clock::{Clock, no_timer},
    decision::{Decision, RefusalKind},
    demand::Acquire,
    error::Error,
    name::Name,
    receipt::Receipt,
    store::{Decide, DecideRuns, Op, Outcome},
};

/// A store whose callers stand in lines.
pub(crate) struct Line<S> {
    inner: Arc<S>,
    clock: Arc<dyn Clock>,
    lines: Lines,
}

impl<S: DecideRuns> Line<S> {
    /// `lines` is also among the store's listeners.
    pub(crate) fn new(inner: Arc<S>, clock: Arc<dyn Clock>, lines: Lines) -> Self {
        Self {
            inner,
            clock,
            lines,
        }
    }

    /// Stands in line until it is served, or until it is its turn to make its own call.
    async fn stand(
        &self,
        acquire: &Acquire,
        deadline: Option<Duration>,
        now: Duration,
    ) -> Result<Decision, Error> {
        let waits = acquire.patience.is_some();
        let key = key(acquire);
        let in_parts = !self.inner.decides_together(acquire);
        let (queue, (ticket, alone)) = self.lines.enter(&key, (waits, in_parts), |queue| {
            queue.enter(acquire, deadline, now)
        });
        let place = Place {
            line: self,
            key,
            waits,
            queue,
            ticket,
        };
        if !alone && let Some(outcome) = poll_fn(|cx| place.poll(cx)).await {
            return outcome;
        }
        let mut call = pin!(self.inner.acquire(acquire));
        let waker = Waker::from(Arc::clone(&place.queue));
        poll_fn(|cx| {
            place.queue.reach_alone(ticket, cx.waker());
            call.as_mut().poll(&mut Context::from_waker(&waker))
        })
        .await
    }

    /// Decides for one that would wait, where there is no timer to wait by: a refusal tells it how
    /// long.
    ///
    /// # Errors
    ///
    /// Those of the store; and one that says so, where a refusal has no meaning to who waits
    /// without end.
    async fn acquire_unwaiting(&self, acquire: &Acquire) -> Result<Decision, Error> {
        let is_endless = acquire.patience.is_some_and(|wait| wait.longest.is_none());
        let at_once = Acquire {
            patience: None,
            ..acquire.clone()
        };
        match self.inner.acquire(&at_once).await? {
            Decision::Deny(refusal) if is_endless && refusal.kind() == RefusalKind::OverLimit => {
                Err(no_timer())
            }
            decision => Ok(decision),
        }
    }

    /// What drives a line: asks for the callers in it, then sleeps until the first of them can be served or gives up.
    /// Ends when there is nobody to ask for.
    fn drive(&self, queue: &Arc<Queue>) -> Driver {
        let (inner, clock) = (Arc::clone(&self.inner), Arc::clone(&self.clock));
        let (line, lines) = (Arc::clone(queue), self.lines.clone());
        Driver::new(Arc::clone(queue), async move {
            loop {
                match line.next(clock.now()) {
                    Next::Ask(run) => {
                        let called = Called {
                            run,
                            inner: &*inner,
                            lines: &lines,
                        };
                        let run = &called.run;
                        let decisions = inner.acquire_run(&run.callers).await;
                        for receipt in line.serve(run, decisions, clock.now(), lines.gone()) {
                            inner.settle(receipt, 0);
                        }
                    }
                    Next::Sleep(until) => {
                        let mut timer = clock.sleep_until(until);
                        poll_fn(|cx| line.poll_sleep(&mut timer, cx)).await;
                    }
                    Next::End => return,
                }
            }
        })
    }
}

impl<S: DecideRuns> Decide for Line<S> {
    /// Passes the line by: who has to wait is not decided for at once.
    fn decide_at_once(&self, acquire: &mut Acquire) -> Option<Result<Decision, Error>> {
        self.inner.decide_at_once(acquire)
    }

    /// # Cancel safety
    ///
    /// Dropping it gives up the place. What was taken for one that waits for permits is given back; for one that does not,
    /// whoever drops it decides.
    async fn acquire(&self, acquire: &Acquire) -> Result<Decision, Error> {
        let Some(max_wait) = acquire.patience else {
            if !self.inner.decides_together(acquire) {
                // One after the other, they would wait for nothing.
                return self.inner.acquire(acquire).await;
            }
            return self.stand(acquire, None, Duration::ZERO).await;
        };
        if !self.clock.can_sleep() {
            return self.acquire_unwaiting(acquire).await;
        }
        let now = self.clock.now();
        let deadline = max_wait.longest.and_then(|time| now.checked_add(time));
        self.stand(acquire, deadline, now).await
    }

    async fn manage(&self, name: &Name, op: &Op) -> Result<Outcome, Error> {
        self.inner.manage(name, op).await
    }

    fn settle(&self, receipt: Receipt, keep: u32) {
        self.lines.gives_back(&receipt);
        self.inner.settle(receipt, keep);
    }
}

/// One caller's place in a line.
struct Place<'a, S: DecideRuns> {
    line: &'a Line<S>,
    key: Key,
    waits: bool,
    queue: Arc<Queue>,
    ticket: u64,
}

impl<S: DecideRuns> Place<'_, S> {
    /// Ready with the outcome, or with none if it is to make its own call.
    fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Decision, Error>>> {
        loop {
            let driver = match self.queue.poll(self.ticket, cx.waker()) {
                Turn::Served(outcome) => return Poll::Ready(Some(outcome)),
                Turn::Alone => return Poll::Ready(None),
                Turn::Wait => return Poll::Pending,
                Turn::Drive(driver) => driver,
            };
            let mut driver = driver.unwrap_or_else(|| self.line.drive(&self.queue));
            let mut polling = Polling(Some(&self.queue));
            if driver.poll().is_pending() {
                polling.0 = None;
                if !self.queue.put_back(driver, self.ticket, cx.waker()) {
                    return Poll::Pending;
                }
            }
        }
    }
}

impl<S: DecideRuns> Drop for Place<'_, S> {
    fn drop(&mut self) {
        let lines = &self.line.lines;
        let (receipts, last) = self.queue.leave(self.ticket, lines.gone());
        for receipt in receipts {
            self.line.inner.settle(receipt, 0);
        }
        lines.leave(&self.key, self.waits, &self.queue, last);
    }
}

/// A driver that is polled. It is put back, or has ended, also where it panics.
struct Polling<'a>(Option<&'a Queue>);

impl Drop for Polling<'_> {
    fn drop(&mut self) {
        if let Some(queue) = self.0 {
            queue.ended();
        }
    }
}

/// A run in flight.
struct Called<'a, S: DecideRuns> {
    run: Run,
    inner: &'a S,
    lines: &'a Lines,
}

impl<S: DecideRuns> Drop for Called<'_, S> {
    /// Of those who left, nobody is looked out for any longer. Without an answer, what they gave back may have arrived before
    /// the call did, which is not sent again from now on.
    fn drop(&mut self) {
        for acquire in &self.run.callers {
            if gave_back(acquire, self.lines.gone()) {
                for receipt in acquire.receipts() {
                    self.inner.settle(receipt, 0);
                }
            }
        }
    }
}

/// What is behind the lock is whole between any two statements, so a panic elsewhere does not spoil it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<S: fmt::Debug> fmt::Debug for Line<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line")
            .field("inner", &self.inner)
            .field("lines", &self.lines)
            .finish_non_exhaustive()
    }
}
