//! Where callers wait for permits: first come, first served, with one call in flight and one timer for each limiter.
//!
//! Nobody owns the line. One waiter drives it for all, and when that one leaves, because it was served or dropped, the next
//! takes over: so the call in flight survives any one caller. A waiter that is neither polled nor dropped holds up those
//! behind it.

mod queue;

use std::{
    collections::HashMap,
    fmt,
    future::poll_fn,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use self::queue::{Driver, Queue, Turn};
use crate::{
    clock::{Clock, can_wait},
    decision::{Decision, Receipt},
    error::{Error, ErrorKind},
    limit::LimitSource,
    list::List,
    name::Name,
    store::{Acquire, Decide, Op, Outcome, Patience},
};

/// A store in whose lines callers may wait.
pub(crate) struct Line<S> {
    inner: Arc<S>,
    clock: Arc<dyn Clock>,
    lines: Lines,
}

/// The lines in which somebody waits. Callers of other limiters, or that go by other limits or try out others, do not share
/// one.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<HashMap<Key, Arc<Queue>>>>);

/// What the callers of a line charge.
pub(crate) type Key = List<(Name, LimitSource, bool)>;

impl Lines {
    /// Asks again for those who wait for `name`: there may be room.
    pub(crate) fn nudge(&self, name: &Name) {
        self.nudge_some(name, |_| true);
    }

    /// Whether anybody waits for permits of these limiters who is not being asked for.
    #[cfg(feature = "redis")]
    pub(crate) fn is_waited_for(&self, acquire: &Acquire) -> bool {
        let queue = lock(&self.0).get(&key(acquire)).map(Arc::clone);
        queue.is_some_and(|queue| queue.is_waited_in())
    }

    /// As `nudge`, for some of the lines.
    pub(crate) fn nudge_some(&self, name: &Name, which: impl Fn(&Key) -> bool) {
        let waited_for = |key: &Key| key.iter().any(|(waited_for, ..)| waited_for == name);
        let queues: Vec<_> = lock(&self.0)
            .iter()
            .filter(|(key, _)| waited_for(key) && which(key))
            .map(|(_, queue)| Arc::clone(queue))
            .collect();
        queues.iter().for_each(|queue| queue.nudge());
    }
}

/// The line in which a caller belongs.
fn key(acquire: &Acquire) -> Key {
    acquire
        .charges()
        .map(|charge| (charge.name.clone(), charge.limit, charge.shadow))
        .collect()
}

impl<S: Decide> Line<S> {
    /// `lines` is shared with the store, which says there when room was given back.
    pub(crate) fn new(inner: Arc<S>, clock: Arc<dyn Clock>, lines: Lines) -> Self {
        Self {
            inner,
            clock,
            lines,
        }
    }

    pub(crate) fn inner(&self) -> &S {
        &self.inner
    }

    /// Waits in line.
    ///
    /// # Cancel safety
    ///
    /// Dropping it gives up the place and gives back what was taken for it.
    async fn wait(&self, acquire: &Acquire, patience: Patience) -> Result<Decision, Error> {
        if !can_wait() {
            let error = Error::new(ErrorKind::Unavailable);
            return Err(error.detail("waiting needs a tokio runtime"));
        }
        let now = self.clock.now();
        let deadline = match patience {
            Patience::For(time) | Patience::Queue(time, _) => now.checked_add(time),
            Patience::Endless => None,
        };
        let key = key(acquire);
        let (queue, ticket) = {
            let mut lines = lock(&self.lines.0);
            let queue = Arc::clone(lines.entry(key.clone()).or_default());
            let ticket = queue.enter(acquire, deadline, now);
            (queue, ticket)
        };
        let place = Place {
            line: self,
            key,
            queue,
            ticket,
        };
        poll_fn(|cx| place.poll(cx)).await
    }

    /// What drives a line: asks for the callers in it, then sleeps until the first of them can be served or gives up.
    /// Ends when nobody waits any more.
    fn drive(&self, queue: Arc<Queue>) -> Driver {
        let (inner, clock) = (Arc::clone(&self.inner), Arc::clone(&self.clock));
        Box::pin(async move {
            loop {
                let run = queue.front(clock.now());
                if run.is_empty() {
                    return;
                }
                let decisions = inner.acquire_run(&run).await;
                for receipt in queue.serve(&run, decisions, clock.now()) {
                    inner.give_back(receipt, 0);
                }
                while let Some(until) = queue.sleeps_until(clock.now()) {
                    let mut timer = clock.sleep_until(until);
                    poll_fn(|cx| queue.poll_sleep(&mut timer, cx)).await;
                }
            }
        })
    }
}

impl<S: Decide> Decide for Line<S> {
    async fn acquire(&self, acquire: &Acquire) -> Result<Decision, Error> {
        match acquire.patience {
            // One try: it may overtake those who wait.
            None => self.inner.acquire(acquire).await,
            Some(patience) => self.wait(acquire, patience).await,
        }
    }

    async fn acquire_run(&self, run: &[Acquire]) -> Result<Vec<Decision>, Error> {
        self.inner.acquire_run(run).await
    }

    async fn manage(&self, name: &Name, op: &Op) -> Result<Outcome, Error> {
        let outcome = self.inner.manage(name, op).await;
        if !op.only_reads() {
            self.lines.nudge(name);
        }
        if let Op::Rename(new_name) = op {
            self.lines.nudge(new_name);
        }
        outcome
    }

    fn give_back(&self, receipt: Receipt, keep: u32) {
        self.inner.give_back(receipt, keep);
    }
}

/// One caller's place in a line.
struct Place<'a, S: Decide> {
    line: &'a Line<S>,
    key: Key,
    queue: Arc<Queue>,
    ticket: u64,
}

impl<S: Decide> Place<'_, S> {
    fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<Decision, Error>> {
        loop {
            let mut driver = match self.queue.poll(self.ticket, cx.waker()) {
                Turn::Served(outcome) => return Poll::Ready(outcome),
                Turn::Wait => return Poll::Pending,
                Turn::Drive(driver) => {
                    driver.unwrap_or_else(|| self.line.drive(Arc::clone(&self.queue)))
                }
            };
            match driver.as_mut().poll(cx) {
                Poll::Pending => {
                    if !self.queue.put_back(driver, self.ticket) {
                        return Poll::Pending;
                    }
                }
                Poll::Ready(()) => {}
            }
        }
    }
}

impl<S: Decide> Drop for Place<'_, S> {
    fn drop(&mut self) {
        for receipt in self.queue.leave(self.ticket).iter() {
            self.line.inner.give_back(receipt.clone(), 0);
        }
        // The driver knows the line, and the line the driver: the last one out ends both.
        let driver = {
            let mut lines = lock(&self.line.lines.0);
            let (empty, driver) = self.queue.close_if_empty();
            // Another line may stand there by now.
            let ours = |queue: &Arc<Queue>| Arc::ptr_eq(queue, &self.queue);
            if empty && lines.get(&self.key).is_some_and(ours) {
                lines.remove(&self.key);
            }
            driver
        };
        drop(driver);
    }
}

/// What is behind the lock is whole between any two statements, so a panic elsewhere does not spoil it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lines({})", lock(&self.0).len())
    }
}

impl<S: fmt::Debug> fmt::Debug for Line<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line")
            .field("inner", &self.inner)
            .field("lines", &self.lines)
            .finish_non_exhaustive()
    }
}
