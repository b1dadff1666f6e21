//! What is known of a line: who does what next, and who is to know of it.

use std::{collections::VecDeque, mem, task::Waker, time::Duration};

use super::{
    lines::Gone,
    lock,
    member::{Alone, LONGEST_RUN, Member, Run, Wakes, gave_back, reach},
    queue::{Driver, Next, Turn},
};
use crate::{
    decision::{Decision, Grant, Refusal, Source},
    demand::Acquire,
    error::Error,
    list::List,
    receipt::Receipt,
};

#[derive(Default)]
pub(crate) struct State {
    /// Who takes part in runs, in the order in which they came.
    pub(crate) members: VecDeque<Member>,
    /// Who makes a call alone. Another one begins when the last is answered, so there is seldom more than one.
    alone: List<Alone>,
    last_ticket: u64,
    driver: Seat,
    /// Whether the driver has something to do.
    pub(crate) woken: bool,
    /// Whether it is to end its sleep for that.
    pub(crate) look: bool,
    /// Whether it has a call in flight.
    in_call: bool,
    /// Who polled the driver last, and who did when it made its timer.
    polled_by: u64,
    timer_of: Option<u64>,
    /// When the first who waits can be served, as far as the last call told.
    pub(crate) due: Option<Duration>,
    /// The last refusal of one who waits.
    pub(crate) refusal: Option<Refusal>,
    /// Whether to ask before that.
    pub(crate) nudged: bool,
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

impl State {
    /// Takes a place: the ticket, and whether the caller makes its own call.
    pub(crate) fn enter(
        &mut self,
        acquire: &Acquire,
        deadline: Option<Duration>,
        now: Duration,
        wakes: &mut Wakes,
    ) -> (u64, bool) {
        self.last_ticket += 1;
        let ticket = self.last_ticket;
        let waits = acquire.patience.is_some();
        if !waits && !self.in_call && !self.calls_alone() && self.idle().next().is_none() {
            self.alone.push(Alone::new(ticket));
            return (ticket, true);
        }
        if waits && self.waiting().next().is_none() {
            // The last one who waited may have left, and have needed more than this one does.
            (self.due, self.refusal) = (None, None);
        }
        let refusal = self.hopeless(acquire, deadline, now);
        self.members
            .push_back(Member::new(ticket, acquire, deadline, refusal));
        if waits {
            self.turn_away(now, wakes);
            // The driver may sleep beyond this one's deadline. This one polls it.
            self.look_again();
        }
        (ticket, false)
    }

    /// Notes how to reach a caller that makes its own call.
    pub(crate) fn reach_alone(&mut self, ticket: u64, waker: &Waker) {
        if let Some(alone) = self.alone.iter_mut().find(|alone| alone.ticket == ticket) {
            reach(&mut alone.waker, waker);
        }
    }

    /// Notes that those who make calls alone have something to do: mostly, to read the reply. The next call need not wait
    /// for that, in case it is not done.
    pub(crate) fn answered_alone(&mut self, wakes: &mut Wakes) {
        for alone in self.alone.iter_mut() {
            alone.answered = true;
            wakes.add(alone.waker.take());
        }
        self.rouse_if_stuck(wakes);
    }

    /// Notes that the driver has something to do.
    pub(crate) fn wake_driver(&mut self, wakes: &mut Wakes) {
        self.woken = true;
        self.rouse(wakes);
    }

    /// What a caller does that is polled.
    pub(crate) fn turn(&mut self, ticket: u64, waker: &Waker) -> Turn {
        let Some(member) = self.member(ticket) else {
            return Turn::Wait;
        };
        if let Some(outcome) = member.outcome.take() {
            self.remove(ticket);
            return Turn::Served(outcome);
        }
        reach(&mut member.waker, waker);
        let waits = member.waits();
        if self.woken && matches!(self.driver, Seat::Taken(_)) {
            return self.drive(ticket);
        }
        if matches!(self.driver, Seat::Polled) {
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

    /// What the driver does next.
    pub(crate) fn next(&mut self, now: Duration, wakes: &mut Wakes) -> Next {
        self.look = false;
        self.timer_of = None;
        // Those who are asked for now hear what the store says, also where they are late: there may be room.
        let asked_for = if self.asks_for_waiting(now) {
            LONGEST_RUN
        } else {
            0
        };
        self.give_up_late(now, asked_for, wakes);
        let asks = self.asks_for_waiting(now);
        let anybody_waits = self.waiting().next().is_some();
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

    /// Keeps the driver until it is polled again; whether whoever polled it was served meanwhile, and the driver, if it is to
    /// be dropped.
    pub(crate) fn put_back(
        &mut self,
        driver: Driver,
        ticket: u64,
        waker: &Waker,
        wakes: &mut Wakes,
    ) -> (bool, Option<Driver>) {
        let mut unwanted = None;
        if self.is_deserted() {
            self.in_call = false;
            self.driver = Seat::Empty;
            unwanted = Some(driver);
        } else {
            self.driver = Seat::Taken(driver);
            if self.woken {
                // Later, and not at once: what it waits for may be that this task yields.
                wakes.add(Some(waker.clone()));
            }
        }
        // What happened while it was polled woke nobody.
        self.rouse_if_stuck(wakes);
        let member = self.member(ticket);
        let served = member.is_some_and(|member| member.outcome.is_some());
        (served, unwanted)
    }

    /// Notes that the driver has ended, or panicked: then those it called for are asked for again.
    pub(crate) fn ended(&mut self, wakes: &mut Wakes) {
        self.driver = Seat::Empty;
        self.in_call = false;
        for member in &mut self.members {
            member.asking = false;
        }
        self.rouse_if_stuck(wakes);
    }

    /// Gives up a place; what was or may be taken for it and is to be given back, and the driver, if it is to be dropped.
    pub(crate) fn leave(
        &mut self,
        ticket: u64,
        gone: &Gone,
        wakes: &mut Wakes,
    ) -> (List<Receipt>, Option<Driver>) {
        let alone = mem::take(&mut self.alone).into_iter();
        self.alone = alone.filter(|alone| alone.ticket != ticket).collect();
        let receipts = match self.remove(ticket) {
            Some(member) => self.left(member, gone),
            None => List::new(),
        };
        // Those whom the call was for have left: nobody is to wait for the end of it. Whoever polls it just now sees so.
        let abandons = self.is_deserted() || self.members.is_empty();
        let unwanted = abandons.then(|| self.take_driver()).flatten();
        self.in_call &= unwanted.is_none();
        // It may have been woken to see to the line; one that was served, too.
        self.rouse_if_stuck(wakes);
        (receipts, unwanted)
    }

    /// Has those asked for again who wait.
    pub(crate) fn nudge(&mut self, wakes: &mut Wakes) {
        self.nudged = true;
        // What was known no longer is: a newcomer must not be refused by it.
        self.due = None;
        self.look_again();
        self.rouse_if_stuck(wakes);
    }

    /// Tells the callers of a run what became of it. What was granted to nobody, and only now can be given back, is
    /// returned.
    pub(crate) fn serve(
        &mut self,
        run: &Run,
        decisions: Result<Vec<Decision>, Error>,
        now: Duration,
        gone: &Gone,
        wakes: &mut Wakes,
    ) -> Vec<Receipt> {
        self.in_call = false;
        for ticket in &run.tickets {
            if let Some(member) = self.member(*ticket) {
                member.asking = false;
            }
        }
        let mut unheard = Vec::new();
        match decisions {
            Ok(decisions) => {
                let callers = run.tickets.iter().zip(&run.callers);
                let mut behind = false;
                for ((ticket, acquire), mut decision) in callers.zip(decisions) {
                    if acquire.patience.is_some()
                        && let Decision::Deny(refusal) = &mut decision
                    {
                        refusal.behind = mem::replace(&mut behind, true);
                    }
                    let member = self.member(*ticket);
                    if member.is_some_and(|member| member.outcome.is_none()) {
                        self.hear(*ticket, decision, now, wakes);
                    } else if let Decision::Allow(grant) = decision
                        && (gave_back(acquire, gone)
                            || acquire.patience.is_some()
                            || is_leased(&grant))
                    {
                        // Whoever left gave back perhaps before it was taken: giving back twice is giving back once. One
                        // that waited, and was told otherwise meanwhile, does not know of it.
                        unheard.extend(grant.into_receipts());
                    }
                }
                self.turn_away(now, wakes);
            }
            // What it may have taken was given back by whoever knows that it was sent.
            Err(error) => {
                for ticket in &run.tickets {
                    if let Some(member) = self.member(*ticket) {
                        member.tell(Err(error.clone()), wakes);
                    }
                }
            }
        }
        unheard
    }

    /// What is to be given back for one that has left.
    fn left(&mut self, member: Member, gone: &Gone) -> List<Receipt> {
        if member.asking && !self.is_deserted() {
            // Before anybody can hear of the call: this lock is held.
            lock(gone).insert(member.acquire.first.id, member.waits());
        }
        if !member.waits() {
            return match member.outcome {
                Some(Ok(Decision::Allow(grant))) if is_leased(&grant) => grant.into_receipts(),
                _ => List::new(),
            };
        }
        if member.outcome.is_none() && self.waiting().any(|behind| behind.ticket > member.ticket) {
            // They may be served earlier than they were told.
            self.nudged = true;
        }
        self.look_again();
        match member.outcome {
            // Its receipts may know more than those made before the call.
            Some(Ok(Decision::Allow(grant))) => grant.into_receipts(),
            None if member.asking => member.receipts,
            _ => List::new(),
        }
    }

    /// Ends the driver's sleep, if it sleeps: after a call it looks at the line anyway.
    pub(crate) fn look_again(&mut self) {
        if !self.in_call {
            self.look = true;
            self.woken = true;
        }
    }

    /// Wakes those whom the call in flight is for, and the last behind them; where there is no call, those for whom the next
    /// one would be. More than one, as nobody knows whether a caller that is woken is polled.
    fn rouse(&mut self, wakes: &mut Wakes) {
        if self.in_call {
            for member in self.members.iter_mut().filter(|member| member.asking) {
                wakes.add(member.waker.take());
            }
            self.rouse_last(1, |_| true, wakes);
            return;
        }
        let undecided = |member: &&mut Member| member.outcome.is_none() && member.waker.is_some();
        let next = self.members.iter_mut().filter(undecided);
        next.take(LONGEST_RUN)
            .for_each(|member| wakes.add(member.waker.take()));
    }

    /// Wakes the last of those for whom no call is in flight: they were polled not long ago.
    fn rouse_last(&mut self, count: usize, which: impl Fn(&Member) -> bool, wakes: &mut Wakes) {
        let behind = |member: &&mut Member| {
            !member.asking && member.outcome.is_none() && member.waker.is_some()
        };
        let behind = self.members.iter_mut().rev().filter(behind);
        let behind = behind.filter(|member| which(member));
        for member in behind.take(count) {
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
            // One that waits for permits makes no call for these. Two, as one of them may not be polled.
            self.rouse_last(2, |member| !member.waits(), wakes);
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

    pub(crate) fn take_driver(&mut self) -> Option<Driver> {
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

    pub(crate) fn is_empty(&self) -> bool {
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
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &Member> {
        let waits = |member: &&Member| member.waits() && member.outcome.is_none();
        self.members.iter().filter(waits)
    }

    /// Whether anybody waits who is not being asked for.
    #[cfg(feature = "redis")]
    pub(crate) fn is_waited_in(&self) -> bool {
        self.waiting().any(|member| !member.asking)
    }

    pub(crate) fn member(&mut self, ticket: u64) -> Option<&mut Member> {
        let place = self.place(ticket)?;
        self.members.get_mut(place)
    }

    fn place(&self, ticket: u64) -> Option<usize> {
        self.members
            .binary_search_by_key(&ticket, |member| member.ticket)
            .ok()
    }
}

/// Whether a grant was taken from what was at hand, and for no call: one who leaves before it heard of it takes nothing. The
/// receipt that it made beforehand does not tell whom to give it back to.
fn is_leased(grant: &Grant) -> bool {
    grant.source() == Source::Lease
}
