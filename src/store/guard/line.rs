//! Where callers wait for permits: first come, first served, with one call in flight and one timer for each limiter.
//!
//! Nobody owns the line. One waiter drives it for all, and when that one leaves, because it was served or dropped, the next
//! takes over: so the call in flight survives any one caller. A waiter that is neither polled nor dropped holds up those
//! behind it.

mod waiter;

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    future::poll_fn,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

use self::waiter::Waiter;
use crate::{
    clock::{Clock, can_wait},
    decision::{Decision, Receipt, Refusal, RefusalKind},
    error::{Error, ErrorKind},
    limit::LimitSource,
    list::List,
    name::Name,
    store::{Acquire, Decide, Op, Outcome, Patience},
};

/// How many callers one call decides for. The others wait for the next call: as many are seldom served at once.
const LONGEST_RUN: usize = 64;

/// A store in whose lines callers may wait.
pub(crate) struct Line<S> {
    inner: Arc<S>,
    clock: Arc<dyn Clock>,
    lines: Lines,
}

/// The lines in which somebody waits. Callers of other limiters, or that go by other limits, do not share one.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<HashMap<Key, Arc<Queue>>>>);

/// What the callers of a line charge.
pub(crate) type Key = List<(Name, LimitSource)>;

impl Lines {
    /// Asks again for those who wait for `name`: there may be room.
    pub(crate) fn nudge(&self, name: &Name) {
        self.nudge_some(name, |_| true);
    }

    /// As `nudge`, for some of the lines.
    pub(crate) fn nudge_some(&self, name: &Name, which: impl Fn(&Key) -> bool) {
        let waited_for = |key: &Key| key.iter().any(|(waited_for, _)| waited_for == name);
        let queues: Vec<_> = lock(&self.0)
            .iter()
            .filter(|(key, _)| waited_for(key) && which(key))
            .map(|(_, queue)| Arc::clone(queue))
            .collect();
        queues.iter().for_each(|queue| queue.nudge());
    }
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
            Patience::For(time) => now.checked_add(time),
            Patience::Endless => None,
        };
        let key: Key = acquire
            .charges()
            .map(|charge| (charge.name.clone(), charge.limit))
            .collect();
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

/// One line. Its lock is never held while a future of the store is polled or dropped.
#[derive(Default)]
struct Queue(Mutex<State>);

#[derive(Default)]
struct State {
    waiters: VecDeque<Waiter>,
    last_ticket: u64,
    /// The waiter that polls the driver, and the driver while it is not polled.
    leader: Option<u64>,
    driver: Option<Driver>,
    /// When the first in line can be served, as far as the last call told.
    due: Option<Duration>,
    /// The last refusal.
    refusal: Option<Refusal>,
    /// Whether to ask before that.
    nudged: bool,
    /// Whether the driver is to look at the line again, and how to reach it.
    woken: bool,
    sleeper: Option<Waker>,
}

type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What a waiter does next.
#[allow(
    clippy::large_enum_variant,
    reason = "it lives for a moment, and a box would be an allocation"
)]
enum Turn {
    Served(Result<Decision, Error>),
    /// Another waiter drives
    Wait,
    /// It drives, and makes the driver if there is none
    Drive(Option<Driver>),
}

impl Queue {
    fn enter(&self, acquire: &Acquire, deadline: Option<Duration>, now: Duration) -> u64 {
        let mut state = self.state();
        state.last_ticket += 1;
        let ticket = state.last_ticket;
        let outcome = state
            .hopeless(acquire, deadline, now)
            .map(|refusal| Ok(Decision::Deny(refusal)));
        state.waiters.push_back(Waiter {
            ticket,
            acquire: acquire.clone(),
            receipts: acquire.receipts(),
            deadline,
            due: None,
            asking: false,
            outcome,
            waker: None,
        });
        // The driver may sleep beyond this one's deadline.
        state.wake_driver();
        ticket
    }

    fn poll(&self, ticket: u64, waker: &Waker) -> Turn {
        let mut state = self.state();
        let Some(waiter) = state
            .waiters
            .iter_mut()
            .find(|waiter| waiter.ticket == ticket)
        else {
            return Turn::Wait;
        };
        if let Some(outcome) = waiter.outcome.take() {
            state.remove(ticket);
            return Turn::Served(outcome);
        }
        waiter.waker = Some(waker.clone());
        match state.leader {
            Some(leader) if leader != ticket => Turn::Wait,
            _ => {
                state.leader = Some(ticket);
                Turn::Drive(state.driver.take())
            }
        }
    }

    /// Keeps the driver until it is polled again; whether its leader was served meanwhile.
    fn put_back(&self, driver: Driver, ticket: u64) -> bool {
        let mut state = self.state();
        state.driver = Some(driver);
        state
            .waiters
            .iter()
            .any(|waiter| waiter.ticket == ticket && waiter.outcome.is_some())
    }

    /// Gives up a place; what was or may be taken for it is to be given back.
    fn leave(&self, ticket: u64) -> List<Receipt> {
        let mut state = self.state();
        let Some(waiter) = state.remove(ticket) else {
            return List::EMPTY;
        };
        if waiter.outcome.is_none() && state.anybody_waits_behind(ticket) {
            // They may be served earlier than they were told.
            state.nudged = true;
        }
        state.wake_driver();
        match waiter.outcome {
            // Its receipts may know more than those made before the call.
            Some(Ok(Decision::Allow(grant))) => grant.receipts,
            None if waiter.asking => waiter.receipts,
            _ => List::EMPTY,
        }
    }

    /// Whether nobody is left, and then the driver, to be dropped.
    fn close_if_empty(&self) -> (bool, Option<Driver>) {
        let mut state = self.state();
        if state.waiters.is_empty() {
            (true, state.driver.take())
        } else {
            (false, None)
        }
    }

    fn nudge(&self) {
        let mut state = self.state();
        state.nudged = true;
        // What was known no longer is: a newcomer must not be refused by it.
        state.due = None;
        state.wake_driver();
    }

    /// The callers to ask for now.
    fn front(&self, now: Duration) -> Vec<Acquire> {
        let mut state = self.state();
        state.nudged = false;
        state.due = None;
        state.give_up_late(now);
        let waiting = state
            .waiters
            .iter_mut()
            .filter(|waiter| waiter.outcome.is_none());
        let run = waiting.take(LONGEST_RUN).map(|waiter| {
            waiter.asking = true;
            waiter.acquire.clone()
        });
        run.collect()
    }

    /// Tells the callers of a run what became of it. What was granted to nobody, and only now can be given back, is
    /// returned.
    fn serve(
        &self,
        run: &[Acquire],
        decisions: Result<Vec<Decision>, Error>,
        now: Duration,
    ) -> Vec<Receipt> {
        let mut state = self.state();
        state.due = None;
        let mut unheard = Vec::new();
        match decisions {
            Ok(decisions) => {
                for (acquire, decision) in run.iter().zip(decisions) {
                    unheard.extend(state.hear(acquire, decision, now));
                }
            }
            Err(error) => {
                run.iter().for_each(|acquire| state.fail(acquire, &error));
            }
        }
        unheard
    }

    /// Until when there is nothing to do; `None` if there is something now, or nobody waits.
    fn sleeps_until(&self, now: Duration) -> Option<Duration> {
        let mut state = self.state();
        state.give_up_late(now);
        let due = state.due?;
        if state.nudged || due <= now || !state.anybody_waits() {
            return None;
        }
        let deadlines = state.waiters.iter().filter(|waiter| waiter.is_doubtful());
        Some(
            deadlines
                .filter_map(|waiter| waiter.deadline)
                .min()
                .map_or(due, |first| first.min(due)),
        )
    }

    /// Sleeps until the timer fires or somebody comes or goes.
    fn poll_sleep(&self, timer: &mut Driver, cx: &mut Context<'_>) -> Poll<()> {
        {
            let mut state = self.state();
            if std::mem::take(&mut state.woken) {
                return Poll::Ready(());
            }
            state.sleeper = Some(cx.waker().clone());
        }
        timer.as_mut().poll(cx)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}

impl State {
    /// The refusal of a newcomer whose patience cannot last until its turn, going by what the last call told.
    ///
    /// More than the rate is never free at once: each further rate follows an interval later.
    fn hopeless(
        &self,
        acquire: &Acquire,
        deadline: Option<Duration>,
        now: Duration,
    ) -> Option<Refusal> {
        let (deadline, due, refusal) = (deadline?, self.due?, self.refusal.as_ref()?);
        let [limit] = refusal.limits() else {
            // Of several limits, the one that refused last need not be the one that refuses next.
            return None;
        };
        if u64::from(acquire.first.permits) > limit.permits() {
            // Refused for ever, which the store says.
            return None;
        }
        let waiting = self
            .waiters
            .iter()
            .filter(|waiter| waiter.outcome.is_none());
        let before: u64 = waiting
            .map(|waiter| u64::from(waiter.acquire.first.permits))
            .sum();
        let needs = before + u64::from(acquire.first.permits);
        let rounds = u32::try_from((needs - 1) / limit.permits().max(1)).unwrap_or(u32::MAX);
        let turn = due.saturating_add(limit.interval().saturating_mul(rounds));
        (before > 0 && turn > deadline).then(|| refusal.later(turn.saturating_sub(now)))
    }

    fn hear(&mut self, acquire: &Acquire, decision: Decision, now: Duration) -> List<Receipt> {
        let Some(place) = self.place(acquire) else {
            // Whoever has left gave back when it left. But that takes what only the reply tells, of a window, and of several
            // limiters it may have come before the last of the calls for them.
            let late = |receipt: &Receipt| receipt.window.is_some() || !acquire.rest.is_empty();
            return match decision {
                Decision::Allow(grant) => grant.receipts.into_iter().filter(late).collect(),
                Decision::Deny(_) => List::EMPTY,
            };
        };
        self.waiters[place].asking = false;
        let Decision::Deny(refusal) = &decision else {
            self.waiters[place].tell(Ok(decision));
            return List::EMPTY;
        };
        let (RefusalKind::OverLimit, Some(wait)) = (refusal.kind(), refusal.retry_after()) else {
            self.waiters[place].tell(Ok(decision));
            return List::EMPTY;
        };
        let due = now.saturating_add(wait);
        self.refusal = Some(refusal.clone());
        let waiter = &mut self.waiters[place];
        waiter.due = Some(due);
        if waiter.deadline.is_some_and(|deadline| deadline < due) {
            waiter.tell(Ok(decision));
            // Those behind it were told to wait for it, too.
            self.nudged = true;
        } else {
            self.due.get_or_insert(due);
        }
        List::EMPTY
    }

    /// Tells a caller that its call failed. What it may have taken was given back by whoever knows that it was sent.
    fn fail(&mut self, acquire: &Acquire, error: &Error) {
        if let Some(place) = self.place(acquire) {
            let waiter = &mut self.waiters[place];
            waiter.asking = false;
            waiter.tell(Err(error.clone()));
        }
    }

    /// Refuses those whose patience is at its end, unless their turn comes before.
    fn give_up_late(&mut self, now: Duration) {
        let Some(refusal) = self.refusal.clone() else {
            return;
        };
        let mut gave_up = false;
        for waiter in &mut self.waiters {
            if waiter.is_doubtful() && waiter.deadline.is_some_and(|deadline| deadline <= now) {
                let due = waiter.due.or(self.due).unwrap_or(now);
                waiter.tell(Ok(Decision::Deny(refusal.later(due.saturating_sub(now)))));
                gave_up = true;
            }
        }
        self.nudged |= gave_up;
    }

    fn place(&self, acquire: &Acquire) -> Option<usize> {
        let id = acquire.first.id;
        self.waiters
            .iter()
            .position(|waiter| waiter.acquire.first.id == id && waiter.outcome.is_none())
    }

    fn anybody_waits_behind(&self, ticket: u64) -> bool {
        self.waiters
            .iter()
            .any(|waiter| waiter.ticket > ticket && waiter.outcome.is_none())
    }

    fn anybody_waits(&self) -> bool {
        self.waiters.iter().any(|waiter| waiter.outcome.is_none())
    }

    /// Takes a waiter out of the line. If it was the leader, the next one takes over.
    fn remove(&mut self, ticket: u64) -> Option<Waiter> {
        let place = self
            .waiters
            .iter()
            .position(|waiter| waiter.ticket == ticket)?;
        let waiter = self.waiters.remove(place);
        // Also where nobody leads: then this one may have been woken to take over, and be dropped before it did.
        if self.leader.is_none_or(|leader| leader == ticket) {
            self.leader = None;
            // The timer may be one of the leader's runtime: the next one makes its own.
            self.woken = true;
            let next = self
                .waiters
                .iter_mut()
                .find(|waiter| waiter.outcome.is_none());
            if let Some(waker) = next.and_then(|waiter| waiter.waker.take()) {
                waker.wake();
            }
        }
        waiter
    }

    fn wake_driver(&mut self) {
        self.woken = true;
        if let Some(sleeper) = self.sleeper.take() {
            sleeper.wake();
        }
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
