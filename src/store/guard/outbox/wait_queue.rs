//! The queue of the callers that wait for permits of one limiter or one list: decides when to ask
//! the store for which of them, and which to refuse.

use std::{
    collections::VecDeque,
    mem,
    task::{Context, Waker},
    time::Duration,
};

use tokio::task::AbortHandle;

use crate::{
    store::MOST_CALLERS,
    values::{
        charge::Charge,
        decision::{Decision, Refusal, RefusalKind},
        demand::Demand,
        error::Error,
    },
};

#[derive(Default)]
pub(super) struct WaitQueue {
    /// In the order of arrival. One that is decided for stays until it is polled.
    waiters: VecDeque<Waiter>,
    /// The call in flight for the first of them.
    call: Option<CallForWaiters>,
    /// When there is room for the first waiter, as the last call said.
    due: Option<Duration>,
    /// When it asks before that, because other processes may have made room.
    again_at: Option<Duration>,
    /// The last refusal.
    refusal: Option<Box<Refusal>>,
    /// Set if it asks now, without waiting for `due`.
    nudged: bool,
    /// Set if its callers are decided for in several calls.
    pub(super) in_parts: bool,
    /// To be called once the queue is not locked.
    pub(super) wakers: Vec<Waker>,
}

struct CallForWaiters {
    number: u64,
    /// For how long it holds the limiter, by the clock of calls.
    until: Duration,
    is_sent: bool,
    task: Option<AbortHandle>,
}

pub(super) struct Waiter {
    number: u64,
    pub(super) demand: Demand,
    deadline: Option<Duration>,
    /// When there is room for this waiter, as the last call said.
    due: Option<Duration>,
    /// The last call that is in flight for it.
    pub(super) call: Option<u64>,
    /// The calls before it that are in flight still, with what they may take.
    earlier: Vec<(u64, Vec<Charge>)>,
    outcome: Option<Result<Decision, Error>>,
    waker: Option<Waker>,
}

/// The next step of a waiter.
#[allow(
    clippy::large_enum_variant,
    reason = "it lives for a moment, and a box would be an allocation"
)]
pub(super) enum Turn {
    /// The waiter is decided; a call that is still in flight for it may have taken these receipts.
    Return(Result<Decision, Error>, Vec<Charge>),
    /// The waiter sends this call
    Ask(u64),
    Sleep(Until),
}

/// When a waiter looks again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    /// When there may be room, or a waiter gives up, by the clock of the limits.
    Due(Duration),
    /// When the call in flight has held the limiter for a deadline, by a monotonic clock: a user's
    /// clock may stop or jump.
    Held(Duration),
}

/// The time by both clocks, and for how long a call holds a limiter.
#[derive(Clone, Copy)]
pub(super) struct Times {
    pub(super) now: Duration,
    pub(super) of_calls: Duration,
    pub(super) hold: Duration,
}

impl WaitQueue {
    /// Adds a waiter at the end. It is refused at once if its time does not last until its turn.
    pub(super) fn push(
        &mut self,
        number: u64,
        demand: &Demand,
        deadline: Option<Duration>,
        now: Duration,
    ) {
        if self.waiting().next().is_none() {
            // The last one may have left, and have needed more than this one.
            (self.due, self.again_at, self.refusal) = (None, None, None);
        }
        let refusal = self.refusal_if_late(demand, deadline, now);
        self.waiters.push_back(Waiter {
            number,
            demand: demand.clone(),
            deadline,
            due: None,
            call: None,
            earlier: Vec::new(),
            outcome: refusal.map(|refusal| Ok(Decision::Deny(refusal))),
            waker: None,
        });
        self.turn_away(now);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty() && self.call.is_none()
    }

    /// Returns the next step of a waiter that is polled. A call holds the limiter for some time
    /// only, as the task that waits for its reply may not be polled.
    pub(super) fn turn(
        &mut self,
        number: u64,
        next_call: u64,
        times: Times,
        cx: &Context<'_>,
    ) -> Option<Turn> {
        let held = self.call.as_ref().map(|call| call.until);
        let is_held = held.is_some_and(|until| times.of_calls < until);
        if !is_held {
            self.nudged |= held.is_some();
            // Those that are asked for now learn what the store says, also if they are late: there
            // may be room.
            let asked_for = if self.asks(times.now) {
                MOST_CALLERS
            } else {
                0
            };
            self.give_up_late(times.now, asked_for);
        }
        let at = self.index_of(number)?;
        if self.waiters[at].outcome.is_some() {
            let decided = self.waiters.remove(at)?;
            let owed = decided.owed();
            return Some(Turn::Return(decided.outcome?, owed));
        }
        if !is_held && self.asks(times.now) {
            self.call = Some(CallForWaiters {
                number: next_call,
                until: times.of_calls.saturating_add(times.hold),
                is_sent: false,
                task: None,
            });
            return Some(Turn::Ask(next_call));
        }
        self.waiters[at].waker = Some(cx.waker().clone());
        Some(Turn::Sleep(self.next_look(at, held, times)))
    }

    /// Returns when a waiter looks again. Two look in time, as one may not be polled; the others a
    /// little later.
    fn next_look(&self, at: usize, held: Option<Duration>, times: Times) -> Until {
        let ahead = self.waiters.range(..at);
        let is_first = ahead.filter(|waiter| waiter.outcome.is_none()).count() < 2;
        let later = if is_first { Duration::ZERO } else { times.hold };
        if let Some(until) = held {
            return Until::Held(until.saturating_add(later));
        }
        // Or when one gives up: any of them for the first two, itself for the others.
        let seen = if is_first {
            0..self.waiters.len()
        } else {
            at..at + 1
        };
        let seen = self.waiters.range(seen);
        let doubtful = seen.filter(|waiter| waiter.may_time_out());
        let give_up = doubtful.filter_map(|waiter| waiter.deadline);
        let due = self
            .due
            .map(|due| self.again_at.map_or(due, |again_at| again_at.min(due)));
        let due = due.map(|due| due.saturating_add(later));
        Until::Due(give_up.chain(due).min().unwrap_or(times.now))
    }

    /// Names the task that waits for the reply to a call.
    pub(super) fn set_task(&mut self, number: u64, task: AbortHandle) {
        if let Some(call) = self.call.as_mut().filter(|call| call.number == number) {
            call.task = Some(task);
        }
    }

    /// Picks the callers of a call, now that it is sent: their numbers, and what they ask. There
    /// are none if another one was sent in its place.
    pub(super) fn ask(&mut self, number: u64, until: Duration) -> (Vec<u64>, Vec<Demand>) {
        let Some(call) = &mut self.call else {
            return Default::default();
        };
        if call.number != number {
            if call.is_sent {
                return Default::default();
            }
            call.task = None;
        }
        (call.number, call.until, call.is_sent) = (number, until, true);
        (self.nudged, self.due, self.again_at) = (false, None, None);
        let picked = undecided(&mut self.waiters)
            .take(MOST_CALLERS)
            .map(|waiter| {
                if let Some(earlier) = waiter.call.replace(number) {
                    // That call may still be answered: what it takes has an id of its own.
                    waiter.earlier.push((earlier, waiter.demand.to_settle()));
                    waiter.take_new_id();
                }
                (waiter.number, waiter.demand.clone())
            });
        picked.unzip()
    }

    /// Ends a call. Without an answer, its callers are asked for again.
    pub(super) fn end(&mut self, number: u64, is_answered: bool) {
        for waiter in &mut self.waiters {
            waiter.earlier.retain(|(call, _)| *call != number);
            if waiter.call == Some(number) {
                waiter.call = None;
                if !is_answered {
                    waiter.take_new_id();
                    self.nudged = true;
                }
            }
        }
        self.call.take_if(|call| call.number == number);
        self.wake_first();
    }

    /// Has waiters asked for again.
    pub(super) fn nudge(&mut self) {
        self.nudged = true;
        // A newcomer must not be refused by what is no longer known.
        self.due = None;
        self.wake_first();
    }

    /// Gives up a place. Returns what to give back, and the task of a call that is in flight for no
    /// waiter any more.
    pub(super) fn leave(&mut self, number: u64) -> (Vec<Charge>, Option<AbortHandle>) {
        let left = self.index_of(number).and_then(|at| self.waiters.remove(at));
        let undecided = left.as_ref().is_some_and(|left| left.outcome.is_none());
        // Those behind may be served earlier than is known.
        self.nudged |= undecided && self.waiting().any(|behind| behind.number > number);
        let unwanted = self.call.take_if(|call| {
            let is_for = |waiter: &Waiter| waiter.call == Some(call.number);
            self.waiters.is_empty() || call.is_sent && !self.waiters.iter().any(is_for)
        });
        self.wake_first();
        // At once: a reply, by which it would be given back, may never come. The end of the call
        // gives back once more.
        let mut receipts = left.as_ref().map(Waiter::owed).unwrap_or_default();
        if let Some(Ok(Decision::Allow(grant))) = left.and_then(|left| left.outcome) {
            receipts.extend_from_slice(grant.charges());
        }
        (receipts, unwanted.and_then(|call| call.task))
    }

    /// Gives the callers of a call its decisions. Leaves those in `outcomes` that no caller takes.
    /// The first of those that wait on is asked for again at `again_at`, if it is not due by then.
    pub(super) fn answer(
        &mut self,
        call: u64,
        callers: &[u64],
        outcomes: &mut Vec<Result<Decision, Error>>,
        now: Duration,
        again_at: Option<Duration>,
    ) {
        let all = callers.iter().zip(mem::take(outcomes));
        outcomes
            .extend(all.filter_map(|(number, outcome)| self.decide(*number, call, outcome, now)));
        let due = self.waiting().next().and_then(|first| first.due);
        self.again_at = again_at.filter(|again_at| due.is_some_and(|due| *again_at < due));
        self.turn_away(now);
    }

    /// Gives a waiter the decision of a call, unless it waits for another one. Returns the decision
    /// if the waiter is not there any more.
    fn decide(
        &mut self,
        number: u64,
        call: u64,
        decision: Result<Decision, Error>,
        now: Duration,
    ) -> Option<Result<Decision, Error>> {
        let at = self
            .index_of(number)
            .and_then(|at| self.waiters.get_mut(at));
        let Some(waiter) = at.filter(|waiter| waiter.outcome.is_none()) else {
            return Some(decision);
        };
        if waiter.call != Some(call) && matches!(decision, Ok(Decision::Deny(_))) {
            // The later call for it decides. An error ends the wait, or calls that follow each
            // other would have no end where none is answered.
            return None;
        }
        let (Some(wait), Ok(Decision::Deny(refusal))) = (wait_of(&decision), &decision) else {
            self.wakers.extend(waiter.decided(decision));
            return None;
        };
        if self.in_parts {
            // What its first parts took is given back, which may arrive after the next call.
            waiter.take_new_id();
        }
        let due = now.saturating_add(wait);
        waiter.due = Some(due);
        self.refusal = Some(Box::new(refusal.clone()));
        let gives_up = |deadline| deadline < due && (deadline <= now || !refusal.may_end_sooner());
        if waiter.deadline.is_some_and(gives_up) {
            // The wait of those behind it counts its permits, too.
            self.nudged = true;
            self.wakers.extend(waiter.decided(decision));
            return None;
        }
        let yields = waiter.demand.max_wait.is_some_and(|wait| wait.yields);
        let turn = if yields { own_turn(due) } else { due };
        // Still in time.
        let latest = waiter.deadline.unwrap_or(turn);
        self.due.get_or_insert(turn.min(latest));
        None
    }

    /// Returns the refusal of a newcomer whose time does not last until its turn, by the last call.
    ///
    /// More than the rate is never free at once: each further rate follows an interval later.
    fn refusal_if_late(
        &self,
        demand: &Demand,
        deadline: Option<Duration>,
        now: Duration,
    ) -> Option<Refusal> {
        let (deadline, due, refusal) = (deadline?, self.due?, self.refusal.as_ref()?);
        let [
            Charge {
                standing,
                each: None,
                ..
            },
        ] = &refusal.charges[..]
        else {
            // Of several limits, the one that refused last need not be the one that refuses next.
            return None;
        };
        if u64::from(demand.first().permits) > standing.permits || refusal.may_end_sooner() {
            // No wait helps: the store refuses it. Or it is not known.
            return None;
        }
        let permits = |waiter: &Waiter| u64::from(waiter.demand.first().permits);
        let needs = self.waiting().map(permits).sum::<u64>() + u64::from(demand.first().permits);
        let rounds = u32::try_from((needs - 1) / standing.permits.max(1)).unwrap_or(u32::MAX);
        let turn = due.saturating_add(standing.interval().saturating_mul(rounds));
        (turn > deadline).then(|| refusal.later(turn.saturating_sub(now)))
    }

    /// Refuses those that came when enough waited already. A position once given is kept, as they
    /// only move up.
    ///
    /// Only while the first is known to wait: that many ask at once is no reason to refuse.
    fn turn_away(&mut self, now: Duration) {
        let stuck = self.due.filter(|due| *due > now);
        let (Some(due), Some(refusal)) = (stuck, self.refusal.clone()) else {
            return;
        };
        let last = self.waiting().filter_map(|waiter| waiter.due).max();
        let last = last.unwrap_or(due);
        let (mut position, mut gap) = (0, false);
        for waiter in undecided(&mut self.waiters) {
            let longest = waiter.demand.max_wait.and_then(|wait| wait.queue);
            if longest.is_none_or(|longest| position < longest) {
                position += 1;
                // The wait of those behind it counts its permits, too.
                self.nudged |= gap;
                continue;
            }
            // By then it has room, or those before it have been served.
            let wait = waiter.due.unwrap_or(last).saturating_sub(now);
            let refusal = Refusal {
                kind: RefusalKind::QueueFull,
                ..refusal.later(wait)
            };
            self.wakers.extend(waiter.refused(refusal));
            gap = true;
        }
    }

    /// Refuses the waiters whose time is over, except the first `asked_for`, which a call asks for.
    fn give_up_late(&mut self, now: Duration, asked_for: usize) {
        let Some(refusal) = &self.refusal else {
            return;
        };
        for waiter in undecided(&mut self.waiters).skip(asked_for) {
            if waiter.may_time_out() && waiter.deadline.is_some_and(|deadline| deadline <= now) {
                let due = waiter.due.or(self.due).unwrap_or(now);
                let refusal = refusal.later(due.saturating_sub(now));
                self.wakers.extend(waiter.refused(refusal));
                self.nudged = true;
            }
        }
    }

    /// Returns whether it is time to ask.
    fn asks(&self, now: Duration) -> bool {
        let is_due = self.nudged
            || self.due.is_none_or(|due| due <= now)
            || self.again_at.is_some_and(|again_at| again_at <= now);
        is_due && self.waiting().next().is_some()
    }

    pub(super) fn waiting(&self) -> impl Iterator<Item = &Waiter> {
        let waits = |waiter: &&Waiter| waiter.outcome.is_none();
        self.waiters.iter().filter(waits)
    }

    /// Wakes two that see to the queue: one may not be polled.
    fn wake_first(&mut self) {
        let wakers = undecided(&mut self.waiters).filter_map(|waiter| waiter.waker.take());
        self.wakers.extend(wakers.take(2));
    }

    fn index_of(&self, number: u64) -> Option<usize> {
        self.waiters
            .binary_search_by_key(&number, |waiter| waiter.number)
            .ok()
    }
}

impl Waiter {
    fn decided(&mut self, outcome: Result<Decision, Error>) -> Option<Waker> {
        self.outcome = Some(outcome);
        self.waker.take()
    }

    fn refused(&mut self, refusal: Refusal) -> Option<Waker> {
        self.decided(Ok(Decision::Deny(refusal)))
    }

    /// Returns whether it waits without knowing that its turn comes in time.
    fn may_time_out(&self) -> bool {
        let in_time = match (self.due, self.deadline) {
            (Some(due), Some(deadline)) => due <= deadline,
            _ => false,
        };
        self.outcome.is_none() && !in_time
    }

    /// Returns what the calls in flight may take for it.
    fn owed(&self) -> Vec<Charge> {
        let earlier = self.earlier.iter().flat_map(|(_, receipts)| receipts);
        let last = self.call.map(|_| self.demand.to_settle());
        let last = last.into_iter().flatten();
        earlier.cloned().chain(last).collect()
    }

    fn take_new_id(&mut self) {
        self.demand.identify(self.demand.first().id.for_next_call());
    }
}

/// Returns those that wait, to change them.
fn undecided(waiters: &mut VecDeque<Waiter>) -> impl Iterator<Item = &mut Waiter> {
    waiters.iter_mut().filter(|waiter| waiter.outcome.is_none())
}

/// Returns how long to wait by a refusal that waiting helps against.
pub(super) fn wait_of(decision: &Result<Decision, Error>) -> Option<Duration> {
    match decision {
        Ok(Decision::Deny(refusal)) if refusal.kind() == RefusalKind::OverLimit => {
            refusal.retry_after()
        }
        _ => None,
    }
}

/// Returns when a waiter that yields asks for what is free from `due` on.
///
/// What becomes free in every other slice of time is left to others: they may come as late as a
/// tick of Redisson's timer, which is at most 100 ms, and 3 ms more. Slices alternate by the
/// Thue-Morse sequence, which has no period that an interval could meet.
pub(super) fn own_turn(due: Duration) -> Duration {
    const SLICE: Duration = Duration::from_millis(110);
    let slice = due.as_millis() / SLICE.as_millis();
    match slice.count_ones() % 2 {
        0 => due,
        _ => due.saturating_add(SLICE),
    }
}
