//! The commands in flight to a node, the limiters that they are for, and what waits to be sent.
//! Pure.
//!
//! Callers beyond the bound wait here, in the order of arrival. How long the last command took says
//! who would be answered too late. A caller that comes fails with overload if the first before it
//! would be late. One that comes behind a command for its limiter fails if it would be late itself,
//! and one that waits if it would be late when its turn comes. Such a caller meets its failure
//! policy, and the breaker does not count it. So the server decides for callers that wait for it
//! still, and is not sent what the others would give back.
//!
//! The callers of one limiter stand in a [`Line`], which one command at a time is for.

mod lanes;

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    time::Duration,
};

use tokio::{
    runtime::{Handle, Id},
    sync::oneshot,
};

use self::lanes::Lanes;
use super::{
    bound::{Bounds, Commands},
    caller::{Caller, Line, LineKey, Member, Reply, TakenCallers},
};
use crate::{
    store::Joins,
    values::{List, charge::PermitId, demand::Demand, name::BuildSpread},
};

/// The most limits and bans of a command: their number is a byte, whose last value says another
/// thing to the script.
const MOST_TERMS: usize = 254;
/// The most queues that are kept for their memory, and callers that one has room for.
const MOST_SPARE: usize = 64;

pub(super) struct Flights {
    pub(super) commands: Commands,
    lines: HashMap<LineKey, Line, BuildSpread>,
    /// What goes alone, each with when it began to wait.
    unshared: VecDeque<(Duration, UnsharedTurn)>,
    /// The limiters that go with others.
    pub(super) lanes: Lanes,
    /// The ids of the callers of shared commands in flight. True if the caller has given back
    /// meanwhile: the command may arrive after that receipt, or be sent once more, so its end gives
    /// back once more. Ids are random.
    unanswered: HashMap<PermitId, bool, BuildSpread>,
    /// Those whose turn came too late.
    late: Vec<Caller>,
    /// Queues that lines are done with, kept for their memory: most lines last for one command.
    spare: Vec<VecDeque<Member>>,
}

/// Queues a line in its lane, or among what goes alone.
fn queue(
    alone: &mut VecDeque<(Duration, UnsharedTurn)>,
    lanes: &mut Lanes,
    key: LineKey,
    line: &Line,
    since: Duration,
) {
    let last = line.behind.back().map(|(_, last)| &last.runtime);
    match last.filter(|_| line.joins.is_some() && line.apart == 0) {
        Some(runtime) => lanes.push(runtime, since, key),
        None => alone.push_back((since, UnsharedTurn::Line(key))),
    }
}

/// What waits to be sent alone.
enum UnsharedTurn {
    /// A call of one caller, or for those that wait for permits: it gets the command's number.
    Call(oneshot::Sender<u64>),
    Line(LineKey),
}

/// What is to be done now.
pub(super) enum Start {
    Call(oneshot::Sender<u64>, u64),
    /// Nothing for this caller, whose turn came too late.
    Late(Caller),
    /// A command for the callers of one limiter, or of several, by a task of this runtime.
    Task(Handle, u64, Option<LineKey>),
}

/// What becomes of a caller that comes.
pub(super) enum Entered {
    /// It sends this command itself, for itself
    Alone(u64),
    /// It has this number in its line
    Behind(u64, oneshot::Receiver<Reply>),
    Overload,
}

impl Flights {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self {
            commands: Commands::new(bounds),
            lines: HashMap::default(),
            unshared: VecDeque::new(),
            lanes: Lanes::default(),
            unanswered: HashMap::default(),
            late: Vec::new(),
            spare: Vec::new(),
        }
    }

    /// Adds a caller of these limiters.
    pub(super) fn enter(
        &mut self,
        key: &LineKey,
        joins: Option<Joins>,
        demand: &Demand,
        runtime: Handle,
        now: Duration,
    ) -> Entered {
        let deadline = self.commands.bounds.deadline;
        // A command older than the deadline no longer holds the limiter. Those behind it follow the
        // command of this caller.
        let is_old = |(_, since): (u64, Duration)| now >= since.saturating_add(deadline);
        let is_new = match self.lines.get_mut(key) {
            Some(line) if !line.command.is_some_and(is_old) => {
                // It goes by the runtime of its last caller if the other is not driven.
                let waits = line.command.is_none();
                let stalled = waits.then(|| self.lanes.take_stalled(key, &self.commands));
                let stalled = stalled.flatten();
                let is_late = match line.command {
                    Some((_, sent)) => self.commands.is_late_behind(sent, line.behind.len(), now),
                    None => {
                        let first = line.behind.front().map_or(now, |(_, first)| first.since);
                        stalled.is_none() && self.commands.is_late(first, now)
                    }
                };
                if is_late {
                    return Entered::Overload;
                }
                let number = self.commands.next();
                let reply = line.push(number, demand, runtime, now);
                if let Some((since, key)) = stalled {
                    queue(&mut self.unshared, &mut self.lanes, key, line, since);
                }
                return Entered::Behind(number, reply);
            }
            line => line.is_none(),
        };
        let joint = joins.map(|_| runtime.id());
        if self.has_room(joint) {
            let number = self.commands.send(now, joint, true);
            let line = self.lines.entry(key.clone()).or_default();
            (line.joins, line.command) = (joins, Some((number, now)));
            return Entered::Alone(number);
        }
        if is_new && self.is_overloaded(joint, now) {
            return Entered::Overload;
        }
        let number = self.commands.next();
        let line = self.lines.entry(key.clone()).or_default();
        (line.joins, line.command) = (joins, None);
        if line.behind.capacity() == 0 {
            line.behind = self.spare.pop().unwrap_or_default();
        }
        let reply = line.push(number, demand, runtime, now);
        queue(&mut self.unshared, &mut self.lanes, key.clone(), line, now);
        Entered::Behind(number, reply)
    }

    /// Adds a call of its own, unless there is no room. `is_patient` is never refused for overload:
    /// its callers wait for permits, and so have time.
    pub(super) fn enter_alone(
        &mut self,
        is_patient: bool,
        now: Duration,
    ) -> Option<Result<u64, oneshot::Receiver<u64>>> {
        if self.has_room(None) {
            return Some(Ok(self.commands.send(now, None, false)));
        }
        if !is_patient && self.is_overloaded(None, now) {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        self.unshared.push_back((now, UnsharedTurn::Call(sender)));
        Some(Err(receiver))
    }

    /// Takes a caller out of its line. Returns whether no command was ever sent for it.
    pub(super) fn leave(&mut self, key: &LineKey, number: u64) -> Option<(Member, bool)> {
        let line = self.lines.get_mut(key)?;
        let at = line
            .behind
            .binary_search_by_key(&number, |(_, it)| it.number);
        let at = at.ok()?;
        let left = line.behind.remove(at)?;
        let is_sent = line.was_sent;
        let is_apart = at < line.apart;
        line.apart -= usize::from(is_apart);
        if line.behind.is_empty() && line.command.is_none() {
            self.lines.remove(key);
            self.lanes.remove(key);
            let is_its =
                |turn: &UnsharedTurn| matches!(turn, UnsharedTurn::Line(waiting) if waiting == key);
            self.unshared.retain(|(_, turn)| !is_its(turn));
        }
        Some((left, !(is_apart && is_sent)))
    }

    /// Takes the callers of a command that is sent now, of one limiter or of several that wait.
    /// Returns `None` if it has counted for a deadline already because its task was not polled:
    /// others go in its place.
    pub(super) fn take(
        &mut self,
        number: u64,
        key: Option<LineKey>,
        now: Duration,
    ) -> Option<TakenCallers> {
        let lane = self.lanes.gathered(number);
        let mut taken = TakenCallers {
            number: self.commands.renew(number, now)?,
            ..TakenCallers::default()
        };
        if let Some(key) = key {
            let most = self.commands.most_of_last(false);
            self.take_line(&mut taken, key, Some(number), most, now);
        } else {
            let (mut terms, most_callers) = (0, self.commands.most_of_last(true));
            let waiting = lane.and_then(|at| self.lanes.waiting(at));
            taken.reserve(waiting.map_or(0, |it| it.len()).min(most_callers));
            while taken.callers.len() < most_callers
                && let Some(waiting) = lane.and_then(|at| self.lanes.waiting(at))
                && let Some((_, key)) = waiting.front()
                && let joins = self.lines.get(key).and_then(|line| line.joins)
                && let Joins {
                    terms: more,
                    callers: most,
                } = joins.unwrap_or_default()
                && (terms + more <= MOST_TERMS || taken.callers.is_empty())
                && let Some((_, key)) = waiting.pop_front()
            {
                let most = most.min(most_callers - taken.callers.len());
                if self.take_line(&mut taken, key, None, most, now) {
                    terms += more;
                }
            }
        }
        self.commands.shares_last(taken.callers.len());
        Some(taken)
    }

    /// Takes the first callers of a line that a command is `of`, or none yet, but those that would
    /// be late. Returns whether there are any.
    fn take_line(
        &mut self,
        taken: &mut TakenCallers,
        key: LineKey,
        of: Option<u64>,
        most: usize,
        now: Duration,
    ) -> bool {
        let Some(line) = self.lines.get_mut(&key) else {
            return false;
        };
        if line.command.map(|(number, _)| number) != of {
            return false;
        }
        if line.apart == 0 {
            let is_late = |(_, caller): &Member| self.commands.is_late(caller.since, now);
            let late = line.behind.iter().take_while(|it| is_late(it)).count();
            self.late
                .extend(line.behind.drain(..late).map(|(_, caller)| caller));
            if line.behind.is_empty() {
                self.lines.remove(&key);
                return false;
            }
        }
        line.command = Some((taken.number, now));
        let again = line.apart > 0 && line.was_sent;
        let count = match line.apart {
            0 => most.min(line.behind.len()),
            apart => most.min(apart),
        };
        line.apart = line.apart.saturating_sub(count);
        for (demand, caller) in line.behind.drain(..count) {
            // Before it can give back.
            self.unanswered.insert(demand.first().id, false);
            taken.demands.push(demand);
            taken.callers.push(caller);
        }
        taken.keys.push(key);
        taken.counts.push((count, again));
        true
    }

    /// Puts callers back at the front of their line, if this command is still for it. With `apart`
    /// they go apart from others now, and may have been sent or not. Returns those that find no
    /// line, or have left.
    pub(super) fn put_back(
        &mut self,
        key: &LineKey,
        command: u64,
        members: Vec<Member>,
        apart: Option<bool>,
    ) -> Vec<Member> {
        let is_its = |line: &&mut Line| line.command.is_some_and(|(number, _)| number == command);
        let Some(line) = self.lines.get_mut(key).filter(is_its) else {
            return members;
        };
        line.was_sent = apart == Some(true);
        let mut left = Vec::new();
        for member in members.into_iter().rev() {
            if member.1.reply.is_closed() {
                left.push(member);
            } else {
                line.apart += usize::from(apart.is_some());
                line.behind.push_front(member);
            }
        }
        left
    }

    /// Ends a command: those that wait for it follow.
    pub(super) fn end(
        &mut self,
        number: u64,
        is_answered: bool,
        keys: List<LineKey>,
        now: Duration,
    ) {
        self.lanes.gathered(number);
        self.commands.end(number, is_answered, now);
        for key in keys {
            let Entry::Occupied(mut line) = self.lines.entry(key) else {
                continue;
            };
            if line.get().command.is_none_or(|(it, _)| it != number) {
                continue;
            }
            line.get_mut().command = None;
            if line.get().behind.is_empty() {
                let Line { behind, .. } = line.remove();
                let kept = (1..=MOST_SPARE).contains(&behind.capacity());
                if kept && self.spare.len() < MOST_SPARE {
                    self.spare.push(behind);
                }
            } else {
                let (key, line) = (line.key().clone(), line.get());
                queue(&mut self.unshared, &mut self.lanes, key, line, now);
            }
        }
    }

    /// Takes the callers that wait to be sent in a runtime that is gone, those of this limiter or
    /// of all that go with others.
    pub(super) fn abandon(&mut self, runtime: Id, key: Option<&LineKey>) -> Vec<Member> {
        let mut gone = Vec::new();
        let waiting = match key {
            Some(_) => VecDeque::new(),
            None => self.lanes.take_all(runtime),
        };
        for key in waiting.iter().map(|(_, key)| key).chain(key) {
            let behind = self
                .lines
                .get(key)
                .into_iter()
                .flat_map(|line| &line.behind);
            let its = behind.filter(|(_, caller)| caller.runtime.id() == runtime);
            let its: Vec<_> = its.map(|(_, caller)| caller.number).collect();
            let left = its.into_iter().filter_map(|number| self.leave(key, number));
            gone.extend(left.map(|(member, _)| member));
        }
        // Callers of other runtimes go on there.
        for (since, key) in waiting {
            if let Some(line) = self.lines.get(&key) {
                queue(&mut self.unshared, &mut self.lanes, key, line, since);
            }
        }
        gone
    }

    /// Ends a shared command for a caller. Returns whether it was given back meanwhile.
    pub(super) fn end_shared(&mut self, id: PermitId) -> bool {
        self.unanswered.remove(&id) == Some(true)
    }

    /// Notes that a caller gives back what a shared command may yet take.
    pub(super) fn gives_back(&mut self, id: PermitId) {
        if let Some(gave_back) = self.unanswered.get_mut(&id) {
            *gave_back = true;
        }
    }

    /// Forgets old commands, and those that wait no longer.
    pub(super) fn forget(&mut self, now: Duration) {
        self.commands.forget(now);
        while let Some((_, UnsharedTurn::Call(first))) = self.unshared.front()
            && first.is_closed()
        {
            self.unshared.pop_front();
        }
    }

    /// Returns what is to be done now: what may be sent in the order of arrival.
    pub(super) fn start(&mut self, now: Duration) -> Vec<Start> {
        let mut started = Vec::new();
        while let Some(late) = self.late.pop() {
            started.push(Start::Late(late));
        }
        while self.commands.has_room() {
            let alone = self.unshared.front().map(|(since, _)| *since);
            let since = alone.unwrap_or(Duration::MAX);
            if let Some((runtime, number)) = self.lanes.send(since, &mut self.commands, now) {
                started.push(Start::Task(runtime, number, None));
                continue;
            }
            match self.unshared.pop_front() {
                Some((_, UnsharedTurn::Call(first))) if first.is_closed() => {}
                Some((_, UnsharedTurn::Call(first))) => {
                    started.push(Start::Call(first, self.commands.send(now, None, false)));
                }
                Some((_, UnsharedTurn::Line(key))) => {
                    let Some(runtime) = self.last_of(&key) else {
                        continue;
                    };
                    let number = self.commands.send(now, None, true);
                    if let Some(line) = self.lines.get_mut(&key) {
                        line.command = Some((number, now));
                    }
                    started.push(Start::Task(runtime, number, Some(key)));
                }
                None => break,
            }
        }
        started
    }

    /// Returns the runtime of the last caller of a line: it was polled most recently, so it is the
    /// likeliest to run.
    fn last_of(&self, key: &LineKey) -> Option<Handle> {
        let (_, last) = self.lines.get(key)?.behind.back()?;
        Some(last.runtime.clone())
    }

    /// Returns whether a command may be sent at once: of those that go with others, the first of a
    /// runtime.
    fn has_room(&self, joint: Option<Id>) -> bool {
        self.commands.has_room()
            && match joint {
                Some(runtime) => {
                    let lane = self.lanes.lane(runtime);
                    lane.is_none_or(|lane| lane.waiting.is_empty())
                        && self.commands.in_flight_of(runtime) == 0
                }
                None => self.unshared.is_empty(),
            }
    }

    fn is_overloaded(&self, joint: Option<Id>, now: Duration) -> bool {
        let most = self.commands.bounds.most;
        let is_late = |first: Option<Duration>| self.commands.is_late(first.unwrap_or(now), now);
        let Some(runtime) = joint else {
            let first = self.unshared.front().map(|(since, _)| *since);
            return self.unshared.len() >= most || is_late(first);
        };
        self.lanes.lane(runtime).is_some_and(|lane| {
            let first = lane.waiting.front().map(|(since, _)| *since);
            // One that is about to take them waits for a connection.
            let is_held_up = lane.gathers.is_none() && is_late(first);
            lane.waiting.len() >= most || is_held_up
        })
    }
}

#[cfg(test)]
mod tests;
