//! One line: who waits in it, who drives it, and when the first of them can be served.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{Mutex, MutexGuard},
    task::{Context, Poll, Waker},
    time::Duration,
};

use super::lock;
use crate::{
    decision::{Decision, Receipt, Refusal, RefusalKind},
    error::Error,
    list::List,
    store::{Acquire, Patience},
};

/// How many callers one call decides for. The others wait for the next call: as many are seldom served at once.
const LONGEST_RUN: usize = 64;

/// One line. Its lock is never held while a future of the store is polled or dropped.
#[derive(Default)]
pub(super) struct Queue(Mutex<State>);

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

pub(super) type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Waiter {
    ticket: u64,
    acquire: Acquire,
    /// Made before the first call.
    receipts: List<Receipt>,
    deadline: Option<Duration>,
    /// When it can be served, as far as the last call told.
    due: Option<Duration>,
    /// Whether a call for it is in flight.
    asking: bool,
    outcome: Option<Result<Decision, Error>>,
    waker: Option<Waker>,
}

/// What a waiter does next.
#[allow(
    clippy::large_enum_variant,
    reason = "it lives for a moment, and a box would be an allocation"
)]
pub(super) enum Turn {
    Served(Result<Decision, Error>),
    /// Another waiter drives
    Wait,
    /// It drives, and makes the driver if there is none
    Drive(Option<Driver>),
}

impl Queue {
    pub(super) fn enter(
        &self,
        acquire: &Acquire,
        deadline: Option<Duration>,
        now: Duration,
    ) -> u64 {
        let mut state = self.state();
        state.last_ticket += 1;
        let ticket = state.last_ticket;
        let refusal = state.hopeless(acquire, deadline, now);
        let outcome = refusal.map(|refusal| Ok(Decision::Deny(refusal)));
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
        state.turn_away(now);
        // The driver may sleep beyond this one's deadline.
        state.wake_driver();
        ticket
    }

    pub(super) fn poll(&self, ticket: u64, waker: &Waker) -> Turn {
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
    pub(super) fn put_back(&self, driver: Driver, ticket: u64) -> bool {
        let mut state = self.state();
        state.driver = Some(driver);
        state
            .waiters
            .iter()
            .any(|waiter| waiter.ticket == ticket && waiter.outcome.is_some())
    }

    /// Gives up a place; what was or may be taken for it is to be given back.
    pub(super) fn leave(&self, ticket: u64) -> List<Receipt> {
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
    pub(super) fn close_if_empty(&self) -> (bool, Option<Driver>) {
        let mut state = self.state();
        if state.waiters.is_empty() {
            (true, state.driver.take())
        } else {
            (false, None)
        }
    }

    pub(super) fn nudge(&self) {
        let mut state = self.state();
        state.nudged = true;
        // What was known no longer is: a newcomer must not be refused by it.
        state.due = None;
        state.wake_driver();
    }

    /// Whether anybody is in it who waits if there is no room, and is not being asked for.
    #[cfg(feature = "redis")]
    pub(super) fn is_waited_in(&self) -> bool {
        let state = self.state();
        let mut waiting = state.waiters.iter();
        waiting.any(|waiter| {
            let waits = waiter.acquire.patience.is_some() && !waiter.asking;
            waits && waiter.outcome.is_none()
        })
    }

    /// The callers to ask for now.
    pub(super) fn front(&self, now: Duration) -> Vec<Acquire> {
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
    pub(super) fn serve(
        &self,
        run: &[Acquire],
        decisions: Result<Vec<Decision>, Error>,
        now: Duration,
    ) -> Vec<Receipt> {
        let mut state = self.state();
        state.due = None;
        match decisions {
            Ok(decisions) => {
                let mut unheard = Vec::new();
                for (acquire, decision) in run.iter().zip(decisions) {
                    unheard.extend(state.hear(acquire, decision, now));
                }
                state.turn_away(now);
                unheard
            }
            Err(error) => {
                run.iter().for_each(|acquire| state.fail(acquire, &error));
                Vec::new()
            }
        }
    }

    /// Until when there is nothing to do; `None` if there is something now, or nobody waits.
    pub(super) fn sleeps_until(&self, now: Duration) -> Option<Duration> {
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
    pub(super) fn poll_sleep(&self, timer: &mut Driver, cx: &mut Context<'_>) -> Poll<()> {
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

    /// Refuses those who came when enough waited already. Who has a place keeps it, as places only move up.
    ///
    /// Only while the first in line is known to wait: that many ask at once is no reason to refuse.
    fn turn_away(&mut self, now: Duration) {
        let stuck = self.due.filter(|due| *due > now);
        let (Some(due), Some(refusal)) = (stuck, self.refusal.clone()) else {
            return;
        };
        let waiting = self
            .waiters
            .iter()
            .filter(|waiter| waiter.outcome.is_none());
        let last = waiting.filter_map(|waiter| waiter.due).max().unwrap_or(due);
        let (mut place, mut gap) = (0, false);
        for waiter in self
            .waiters
            .iter_mut()
            .filter(|waiter| waiter.outcome.is_none())
        {
            match waiter.acquire.patience {
                Some(Patience::Queue(_, longest)) if place >= longest => {
                    // By then it has room, or those before it have been served.
                    let wait = waiter.due.unwrap_or(last).saturating_sub(now);
                    waiter.tell(Ok(Decision::Deny(Refusal {
                        kind: RefusalKind::QueueFull,
                        ..refusal.later(wait)
                    })));
                    gap = true;
                }
                _ => {
                    place += 1;
                    // Those behind it were told to wait for it, too.
                    self.nudged |= gap;
                }
            }
        }
    }

    fn hear(&mut self, acquire: &Acquire, decision: Decision, now: Duration) -> List<Receipt> {
        let Some(place) = self.place(acquire) else {
            // Whoever has left gave back when it left, perhaps before it was taken: giving back twice is giving back once.
            return match decision {
                Decision::Allow(grant) => grant.receipts,
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

impl Waiter {
    fn tell(&mut self, outcome: Result<Decision, Error>) {
        self.outcome = Some(outcome);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Whether it waits without knowing that its turn comes in time.
    fn is_doubtful(&self) -> bool {
        let in_time = match (self.due, self.deadline) {
            (Some(due), Some(deadline)) => due <= deadline,
            _ => false,
        };
        self.outcome.is_none() && !in_time
    }
}
