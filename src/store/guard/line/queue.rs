//! One line behind its lock: who stands in it, which call is in flight for whom, and who is woken to see to it.
//!
//! The lock is never held while a future is polled or dropped, or somebody woken.

use std::{
    collections::VecDeque,
    mem,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use super::{lines::Gone, lock};
use crate::{
    decision::{Decision, Receipt, Refusal},
    error::Error,
    list::List,
    store::Acquire,
};

/// How many callers of each kind one call decides for: those who wait, and those who do not. The others wait for the next
/// call. Counted apart, so that neither keeps out the other.
pub(super) const LONGEST_RUN: usize = 64;

/// One line. It is woken by the calls that callers make alone.
#[derive(Default)]
pub(super) struct Queue(Mutex<State>);

#[derive(Default)]
pub(super) struct State {
    /// Who takes part in runs, in the order in which they came.
    pub(super) members: VecDeque<Member>,
    /// Who makes a call alone. Another one begins when the last is answered, so there is seldom more than one.
    alone: List<Alone>,
    last_ticket: u64,
    driver: Seat,
    /// Whether the driver has something to do.
    pub(super) woken: bool,
    /// Whether it is to end its sleep for that.
    pub(super) look: bool,
    /// Whether it has a call in flight.
    in_call: bool,
    /// Who polled the driver last, and who did when it made its timer.
    polled_by: u64,
    timer_of: Option<u64>,
    /// When the first who waits can be served, as far as the last call told.
    pub(super) due: Option<Duration>,
    /// The last refusal of one who waits.
    pub(super) refusal: Option<Refusal>,
    /// Whether to ask before that.
    pub(super) nudged: bool,
}

/// What makes the calls for many, and sleeps until those who wait can be served.
pub(super) struct Driver {
    pub(super) future: Pin<Box<dyn Future<Output = ()> + Send>>,
    pub(super) waker: Waker,
}

#[derive(Default)]
enum Seat {
    /// There is no driver
    #[default]
    Empty,
    /// Somebody polls it
    Polled,
    Taken(Driver),
}

pub(super) struct Member {
    ticket: u64,
    pub(super) acquire: Acquire,
    /// Made before the first call. Of one that waits: what the others took, whoever drops them gives back or not.
    receipts: List<Receipt>,
    pub(super) deadline: Option<Duration>,
    /// When it can be served, as far as the last call told.
    pub(super) due: Option<Duration>,
    /// Whether a call for it is in flight.
    asking: bool,
    pub(super) outcome: Option<Result<Decision, Error>>,
    waker: Option<Waker>,
}

struct Alone {
    ticket: u64,
    /// Whether the reply is there, or something else for its caller to do: then nobody need wait for that one.
    answered: bool,
    waker: Option<Waker>,
}

/// What a caller does next.
#[allow(
    clippy::large_enum_variant,
    reason = "it lives for a moment, and a box would be an allocation"
)]
pub(super) enum Turn {
    Served(Result<Decision, Error>),
    /// Another one sees to it
    Wait,
    /// It makes its own call
    Alone,
    /// It polls the driver, and makes it if there is none
    Drive(Option<Driver>),
}

/// What the driver does next.
pub(super) enum Next {
    Ask(Run),
    Sleep(Duration),
    /// Nobody is left to see to
    End,
}

/// Callers that one call decides for.
#[derive(Default)]
pub(super) struct Run {
    tickets: Vec<u64>,
    pub(super) callers: Vec<Acquire>,
}

/// Who is woken, once the lock is free.
#[derive(Default)]
pub(super) struct Wakes(List<Waker>);

impl Wakes {
    fn add(&mut self, waker: Option<Waker>) {
        if let Some(waker) = waker {
            self.0.push(waker);
        }
    }
}

impl Queue {
    /// Takes a place: the ticket, and whether the caller makes its own call.
    pub(super) fn enter(
        &self,
        acquire: &Acquire,
        deadline: Option<Duration>,
        now: Duration,
    ) -> (u64, bool) {
        self.with(|state, wakes| {
            state.last_ticket += 1;
            let ticket = state.last_ticket;
            let waits = acquire.patience.is_some();
            if !waits && !state.in_call && !state.calls_alone() && state.idle().next().is_none() {
                state.alone.push(Alone::new(ticket));
                return (ticket, true);
            }
            let refusal = state.hopeless(acquire, deadline, now);
            state.members.push_back(Member {
                ticket,
                acquire: acquire.clone(),
                receipts: if waits {
                    acquire.receipts()
                } else {
                    List::EMPTY
                },
                deadline,
                due: None,
                asking: false,
                outcome: refusal.map(|refusal| Ok(Decision::Deny(refusal))),
                waker: None,
            });
            if waits {
                state.turn_away(now, wakes);
                // The driver may sleep beyond this one's deadline. This one polls it.
                state.look_again();
            }
            (ticket, false)
        })
    }

    pub(super) fn poll(&self, ticket: u64, waker: &Waker) -> Turn {
        self.with(|state, wakes| state.turn(ticket, waker, wakes))
    }

    /// Notes how to reach a caller that makes its own call.
    pub(super) fn reach_alone(&self, ticket: u64, waker: &Waker) {
        self.with(|state, _| {
            if let Some(alone) = state.alone.iter_mut().find(|alone| alone.ticket == ticket) {
                reach(&mut alone.waker, waker);
            }
        });
    }

    /// Keeps the driver until it is polled again; whether whoever polled it was served meanwhile.
    pub(super) fn put_back(&self, driver: Driver, ticket: u64, waker: &Waker) -> bool {
        let (served, unwanted) = self.with(|state, wakes| {
            let unwanted = if state.is_deserted() {
                state.in_call = false;
                state.driver = Seat::Empty;
                state.rouse_if_stuck(wakes);
                Some(driver)
            } else {
                state.driver = Seat::Taken(driver);
                if state.woken {
                    // Later, and not at once: what it waits for may be that this task yields.
                    wakes.add(Some(waker.clone()));
                }
                None
            };
            let member = state.member(ticket);
            (
                member.is_some_and(|member| member.outcome.is_some()),
                unwanted,
            )
        });
        drop(unwanted);
        served
    }

    /// Notes that the driver has ended, or panicked: then those it called for are asked for again.
    pub(super) fn ended(&self) {
        self.with(|state, wakes| {
            state.driver = Seat::Empty;
            state.in_call = false;
            state
                .members
                .iter_mut()
                .for_each(|member| member.asking = false);
            state.rouse_if_stuck(wakes);
        });
    }

    /// Gives up a place; what was or may be taken for it and is to be given back.
    pub(super) fn leave(&self, ticket: u64, gone: &Gone) -> List<Receipt> {
        let (receipts, unwanted) = self.with(|state, wakes| {
            let alone = mem::take(&mut state.alone).into_iter();
            state.alone = alone.filter(|alone| alone.ticket != ticket).collect();
            let receipts = match state.remove(ticket) {
                Some(member) => state.left(member, gone),
                None => List::EMPTY,
            };
            // Those whom the call was for have left: nobody is to wait for the end of it. Whoever polls it just now sees so.
            let abandons = state.is_deserted() || state.members.is_empty();
            let unwanted = abandons.then(|| state.take_driver()).flatten();
            state.in_call &= unwanted.is_none();
            state.rouse_if_stuck(wakes);
            (receipts, unwanted)
        });
        // Before anything is given back: it is not to be sent again after that.
        drop(unwanted);
        receipts
    }

    /// Whether nobody is left.
    pub(super) fn is_empty(&self) -> bool {
        self.with(|state, _| state.is_empty())
    }

    /// The same, and then the driver, to be dropped.
    pub(super) fn close_if_empty(&self) -> (bool, Option<Driver>) {
        self.with(|state, _| {
            let empty = state.is_empty();
            let driver = empty.then(|| state.take_driver()).flatten();
            (empty, driver)
        })
    }

    /// Has those asked for again who wait.
    pub(super) fn nudge(&self) {
        self.with(|state, wakes| {
            state.nudged = true;
            // What was known no longer is: a newcomer must not be refused by it.
            state.due = None;
            state.look_again();
            state.rouse_if_stuck(wakes);
        });
    }

    pub(super) fn next(&self, now: Duration) -> Next {
        self.with(|state, wakes| state.next(now, wakes))
    }

    /// Tells the callers of a run what became of it. What was granted to nobody, and only now can be given back, is
    /// returned.
    pub(super) fn serve(
        &self,
        run: &Run,
        decisions: Result<Vec<Decision>, Error>,
        now: Duration,
        gone: &Gone,
    ) -> Vec<Receipt> {
        self.with(|state, wakes| {
            state.in_call = false;
            for ticket in &run.tickets {
                if let Some(member) = state.member(*ticket) {
                    member.asking = false;
                }
            }
            let mut unheard = Vec::new();
            match decisions {
                Ok(decisions) => {
                    let callers = run.tickets.iter().zip(&run.callers);
                    for ((ticket, acquire), decision) in callers.zip(decisions) {
                        if state.member(*ticket).is_some() {
                            state.hear(*ticket, decision, now, wakes);
                        } else if let Decision::Allow(grant) = decision
                            && gave_back(acquire, gone)
                        {
                            // Perhaps before it was taken: giving back twice is giving back once.
                            unheard.extend(grant.receipts);
                        }
                    }
                    state.turn_away(now, wakes);
                }
                // What it may have taken was given back by whoever knows that it was sent.
                Err(error) => {
                    for ticket in &run.tickets {
                        if let Some(member) = state.member(*ticket) {
                            member.tell(Err(error.clone()), wakes);
                        }
                    }
                }
            }
            unheard
        })
    }

    /// Sleeps until the timer fires or somebody comes or goes.
    pub(super) fn poll_sleep(
        &self,
        timer: &mut Pin<Box<dyn Future<Output = ()> + Send>>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        if self.with(|state, _| mem::take(&mut state.look)) {
            return Poll::Ready(());
        }
        timer.as_mut().poll(cx)
    }

    /// The driver has something to do.
    fn wake_driver(&self) {
        self.with(|state, wakes| {
            state.woken = true;
            state.rouse(wakes);
        });
    }

    fn with<T>(&self, act: impl FnOnce(&mut State, &mut Wakes) -> T) -> T {
        let mut wakes = Wakes::default();
        let done = act(&mut lock(&self.0), &mut wakes);
        wakes.0.into_iter().for_each(Waker::wake);
        done
    }
}

impl Wake for Queue {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    /// The caller of a call that is made alone has something to do: mostly, to read the reply. The next call need not wait
    /// for that, in case it is not done.
    fn wake_by_ref(self: &Arc<Self>) {
        self.with(|state, wakes| {
            for alone in state.alone.iter_mut() {
                alone.answered = true;
                wakes.add(alone.waker.take());
            }
            state.rouse_if_stuck(wakes);
        });
    }
}

/// Wakes those who can poll the driver of a line.
struct Horn(Arc<Queue>);

impl Wake for Horn {
    fn wake(self: Arc<Self>) {
        self.0.wake_driver();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.wake_driver();
    }
}

impl Driver {
    pub(super) fn new(
        queue: Arc<Queue>,
        future: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        Self {
            future: Box::pin(future),
            waker: Arc::new(Horn(queue)).into(),
        }
    }

    pub(super) fn poll(&mut self) -> Poll<()> {
        let mut context = Context::from_waker(&self.waker);
        self.future.as_mut().poll(&mut context)
    }
}

impl State {
    fn turn(&mut self, ticket: u64, waker: &Waker, wakes: &mut Wakes) -> Turn {
        let Some(member) = self.member(ticket) else {
            return Turn::Wait;
        };
        if let Some(outcome) = member.outcome.take() {
            self.remove(ticket);
            // It may have been woken to see to the line.
            self.rouse_if_stuck(wakes);
            return Turn::Served(outcome);
        }
        reach(&mut member.waker, waker);
        let (waits, asking) = (member.waits(), member.asking);
        if self.woken && matches!(self.driver, Seat::Taken(_)) {
            return self.drive(ticket);
        }
        if asking || matches!(self.driver, Seat::Polled) {
            return Turn::Wait;
        }
        if waits {
            return match self.driver {
                Seat::Empty => self.drive(ticket),
                Seat::Polled | Seat::Taken(_) => Turn::Wait,
            };
        }
        if self.in_call || self.calls_alone() {
            return Turn::Wait;
        }
        if self.idle().take(2).count() == 1 {
            self.remove(ticket);
            self.alone.push(Alone::new(ticket));
            return Turn::Alone;
        }
        self.look = true;
        self.drive(ticket)
    }

    fn drive(&mut self, ticket: u64) -> Turn {
        self.woken = false;
        self.polled_by = ticket;
        match mem::replace(&mut self.driver, Seat::Polled) {
            Seat::Taken(driver) => Turn::Drive(Some(driver)),
            Seat::Empty | Seat::Polled => Turn::Drive(None),
        }
    }

    fn next(&mut self, now: Duration, wakes: &mut Wakes) -> Next {
        self.look = false;
        self.timer_of = None;
        self.give_up_late(now, wakes);
        let anybody_waits = self.waiting().next().is_some();
        let asks = anybody_waits && (self.nudged || self.due.is_none_or(|due| due <= now));
        let may_ask = asks || !self.calls_alone();
        if asks || (may_ask && self.idle().next().is_some()) {
            if asks {
                self.nudged = false;
                self.due = None;
            }
            return Next::Ask(self.run(asks));
        }
        if !anybody_waits {
            return Next::End;
        }
        self.timer_of = Some(self.polled_by);
        Next::Sleep(self.sleeps_until(now))
    }

    /// The callers to ask for now.
    fn run(&mut self, asks_for_waiting: bool) -> Run {
        self.in_call = true;
        let mut run = Run::default();
        let mut waiting_left = if asks_for_waiting { LONGEST_RUN } else { 0 };
        let mut others_left = LONGEST_RUN;
        let members = self.members.iter_mut();
        for member in members.filter(|member| member.outcome.is_none()) {
            let left = if member.waits() {
                &mut waiting_left
            } else {
                &mut others_left
            };
            if *left > 0 {
                *left -= 1;
                member.asking = true;
                run.tickets.push(member.ticket);
                run.callers.push(member.acquire.clone());
            }
        }
        run
    }

    /// What is to be given back for one that has left.
    fn left(&mut self, member: Member, gone: &Gone) -> List<Receipt> {
        if !member.waits() {
            if member.asking && !self.is_deserted() {
                // Before anybody can hear of the call: this lock is held.
                lock(gone).insert(member.acquire.first.id, false);
            }
            return List::EMPTY;
        }
        if member.outcome.is_none() && self.waiting().any(|behind| behind.ticket > member.ticket) {
            // They may be served earlier than they were told.
            self.nudged = true;
        }
        self.look_again();
        match member.outcome {
            // Its receipts may know more than those made before the call.
            Some(Ok(Decision::Allow(grant))) => grant.receipts,
            None if member.asking => member.receipts,
            _ => List::EMPTY,
        }
    }

    /// Ends the driver's sleep, if it sleeps: after a call it looks at the line anyway.
    pub(super) fn look_again(&mut self) {
        if !self.in_call {
            self.look = true;
            self.woken = true;
        }
    }

    /// Wakes those whom the call in flight is for, and the first behind them; where there is no call, those for whom the next
    /// one would be. All of them, as nobody knows whether a caller that is woken is polled.
    fn rouse(&mut self, wakes: &mut Wakes) {
        let mut behind = if self.in_call { 1 } else { LONGEST_RUN };
        for member in &mut self.members {
            if member.outcome.is_some() || member.waker.is_none() {
                continue;
            }
            if !member.asking {
                if behind == 0 {
                    continue;
                }
                behind -= 1;
            }
            wakes.add(member.waker.take());
        }
    }

    /// Wakes somebody if there is something to do and nobody at it.
    fn rouse_if_stuck(&mut self, wakes: &mut Wakes) {
        let undriven = match self.driver {
            Seat::Polled => return,
            Seat::Taken(_) => self.woken,
            Seat::Empty => self.waiting().next().is_some(),
        };
        if undriven {
            self.rouse(wakes);
        } else if !self.in_call && !self.calls_alone() {
            let mut idle = self.members.iter_mut().filter(|member| member.is_idle());
            let first = idle.find_map(|member| member.waker.take());
            wakes.add(first);
        }
    }

    /// Takes a member out of the line.
    fn remove(&mut self, ticket: u64) -> Option<Member> {
        let place = self.place(ticket)?;
        if self.timer_of == Some(ticket) {
            // The timer is one of its runtime, which may end: the next one makes its own.
            self.timer_of = None;
            self.look_again();
        }
        self.members.remove(place)
    }

    fn take_driver(&mut self) -> Option<Driver> {
        match mem::take(&mut self.driver) {
            Seat::Taken(driver) => Some(driver),
            kept @ (Seat::Empty | Seat::Polled) => {
                self.driver = kept;
                None
            }
        }
    }

    /// Whether there is a call in flight for many, all of whom have left.
    fn is_deserted(&self) -> bool {
        self.in_call && !self.members.iter().any(|member| member.asking)
    }

    fn is_empty(&self) -> bool {
        self.members.is_empty() && self.alone.is_empty()
    }

    /// Whether somebody made a call alone that is not answered.
    fn calls_alone(&self) -> bool {
        self.alone.iter().any(|alone| !alone.answered)
    }

    /// Those who do not wait for permits, and for whom no call is in flight.
    fn idle(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.is_idle())
    }

    /// Those who wait for permits.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Member> {
        let waits = |member: &&Member| member.waits() && member.outcome.is_none();
        self.members.iter().filter(waits)
    }

    pub(super) fn member(&mut self, ticket: u64) -> Option<&mut Member> {
        let place = self.place(ticket)?;
        self.members.get_mut(place)
    }

    fn place(&self, ticket: u64) -> Option<usize> {
        self.members
            .binary_search_by_key(&ticket, |member| member.ticket)
            .ok()
    }
}

impl Member {
    pub(super) fn waits(&self) -> bool {
        self.acquire.patience.is_some()
    }

    fn is_idle(&self) -> bool {
        !self.waits() && !self.asking && self.outcome.is_none()
    }

    pub(super) fn tell(&mut self, outcome: Result<Decision, Error>, wakes: &mut Wakes) {
        self.outcome = Some(outcome);
        wakes.add(self.waker.take());
    }
}

impl Alone {
    fn new(ticket: u64) -> Self {
        Self {
            ticket,
            answered: false,
            waker: None,
        }
    }
}

/// Whether what was granted to a caller that has left is to be given back.
fn gave_back(acquire: &Acquire, gone: &Gone) -> bool {
    // One that waits gives back when it leaves.
    acquire.patience.is_some() || lock(gone).remove(&acquire.first.id) == Some(true)
}

fn reach(place: &mut Option<Waker>, waker: &Waker) {
    if !place.as_ref().is_some_and(|known| known.will_wake(waker)) {
        *place = Some(waker.clone());
    }
}
