//! The commands in flight to a node, the limiters that they are for, and what waits to be sent.
//! Pure.
//!
//! What is beyond the bound waits here, in the order of arrival. If as much waits as may be in
//! flight, or the first has waited for half a deadline, a caller that comes fails with overload: it
//! is answered by its failure policy, and the breaker does not count it.
//!
//! The callers of one limiter stand in a [`Line`], which one command at a time is for.

use std::{
    collections::{HashMap, VecDeque},
    mem,
    time::Duration,
};

use tokio::{
    runtime::{Handle, Id},
    sync::oneshot,
};

use super::{
    caller::{Caller, Key, Member, Reply},
    commands::{Bounds, Commands},
};
use crate::{
    store::Joins,
    values::{List, charge::PermitId, demand::Demand, name::BuildSpread},
};

/// The most commands in flight for several limiters each. More are smaller, and cost more.
const MOST_JOINT: usize = 8;
/// The lanes that are kept beside those that are in use, as most processes have a runtime or two.
const MOST_LANES: usize = 16;
/// The most callers that a command decides for: some milliseconds of a server's time at the worst.
pub(super) const MOST_CALLERS: usize = 64;
/// The most limits and bans of a command.
const MOST_TERMS: usize = 255;

pub(super) struct Flights {
    pub(super) commands: Commands,
    lines: HashMap<Key, Line, BuildSpread>,
    /// What goes alone, each since when it waits.
    alone: VecDeque<(Duration, Turn)>,
    /// The limiters that go with others.
    lanes: Vec<Lane>,
    /// To be dropped when the node is not locked: with it may go the last of a runtime.
    pub(super) gone: Vec<Lane>,
    /// The ids of the callers of shared commands in flight. True if the caller has given back
    /// meanwhile: the command may arrive after that receipt, or be sent once more, so its end gives
    /// back once more. Ids are random.
    unanswered: HashMap<PermitId, bool, BuildSpread>,
}

/// The limiters that wait to go together, and whose callers are of one runtime: one that is alive
/// and not driven delays no others.
pub(super) struct Lane {
    runtime: Handle,
    /// Each since when it waits
    waiting: VecDeque<(Duration, Key)>,
    /// The command that is about to take them, also where it counts no longer as its runtime is not
    /// driven: then there is no other.
    gathers: Option<u64>,
}

/// The callers of a limiter, of one list or of one limit. It is there while a command is in flight
/// for it, or a caller waits to be sent.
#[derive(Default)]
struct Line {
    /// What it needs of a command that it shares with others.
    joins: Option<Joins>,
    /// The command for those that stood before these, and when it was sent.
    command: Option<(u64, Duration)>,
    /// In the order of arrival
    behind: VecDeque<Member>,
    /// So many of the first go apart from others, as a command did not answer them, which may have
    /// been carried out.
    apart: usize,
    was_sent: bool,
}

impl Line {
    fn push(&mut self, number: u64, demand: &Demand, runtime: &Handle) -> Entered {
        let (reply, receiver) = oneshot::channel();
        let caller = Caller {
            number,
            reply,
            runtime: runtime.clone(),
        };
        self.behind.push_back((demand.clone(), caller));
        Entered::Behind(number, receiver)
    }
}

/// What waits to be sent alone.
enum Turn {
    /// A call of one caller, or for those that wait for permits: it gets the command's number.
    Place(oneshot::Sender<u64>),
    Line(Key),
}

/// What may be sent now.
pub(super) enum Start {
    Place(oneshot::Sender<u64>, u64),
    /// A command for the callers of one limiter, or of several, by a task of this runtime.
    Task(Handle, u64, Option<Key>),
}

/// What becomes of a caller that comes.
pub(super) enum Entered {
    /// It sends this command itself, for itself
    Alone(u64),
    /// It has this number in its line
    Behind(u64, oneshot::Receiver<Reply>),
    Overload,
}

/// The callers of one limiter that a command takes.
pub(super) struct Taken {
    pub(super) key: Key,
    pub(super) members: Vec<Member>,
    /// Set if they were sent before.
    pub(super) again: bool,
}

impl Flights {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self {
            commands: Commands::new(bounds),
            lines: HashMap::default(),
            alone: VecDeque::new(),
            lanes: Vec::new(),
            gone: Vec::new(),
            unanswered: HashMap::default(),
        }
    }

    /// Adds a caller of these limiters.
    pub(super) fn enter(
        &mut self,
        key: &Key,
        joins: Option<Joins>,
        demand: &Demand,
        runtime: &Handle,
        now: Duration,
    ) -> Entered {
        let deadline = self.commands.bounds.deadline;
        // A command older than the deadline no longer holds the limiter. Those behind it follow the
        // command of this caller.
        let is_old = |(_, since): (u64, Duration)| now >= since.saturating_add(deadline);
        let is_new = match self.lines.get_mut(key) {
            Some(line) if !line.command.is_some_and(is_old) => {
                let number = self.commands.next();
                let waits = line.command.is_none();
                let entered = line.push(number, demand, runtime);
                if waits {
                    self.leave_stalled(key);
                }
                return entered;
            }
            line => line.is_none(),
        };
        let joint = joins.map(|_| runtime.id());
        if self.has_room(joint) {
            let number = self.commands.send(now, joint);
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
        let entered = line.push(number, demand, runtime);
        self.waits(key.clone(), now);
        entered
    }

    /// Moves a line that waits for a runtime which was not driven for a deadline to that of its
    /// last caller.
    fn leave_stalled(&mut self, key: &Key) {
        let commands = &self.commands;
        let is_stalled = |lane: &&mut Lane| lane.gathers.is_some_and(|it| !commands.has(it));
        let mut moved = None;
        for lane in self.lanes.iter_mut().filter(is_stalled) {
            let at = lane.waiting.iter().position(|(_, waiting)| waiting == key);
            moved = moved.or(at.and_then(|at| lane.waiting.remove(at)));
        }
        if let Some((since, key)) = moved {
            self.waits(key, since);
        }
    }

    /// Adds a call of its own, unless there is no room. `is_patient` is never refused for overload:
    /// its callers wait for permits, and so have time.
    pub(super) fn enter_alone(
        &mut self,
        is_patient: bool,
        now: Duration,
    ) -> Option<Result<u64, oneshot::Receiver<u64>>> {
        if self.has_room(None) {
            return Some(Ok(self.commands.send(now, None)));
        }
        if !is_patient && self.is_overloaded(None, now) {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        self.alone.push_back((now, Turn::Place(sender)));
        Some(Err(receiver))
    }

    /// Takes a caller out of its line. Returns whether no command was ever sent for it.
    pub(super) fn leave(&mut self, key: &Key, number: u64) -> Option<(Member, bool)> {
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
            for lane in &mut self.lanes {
                lane.waiting.retain(|(_, waiting)| waiting != key);
            }
            let is_its = |turn: &Turn| matches!(turn, Turn::Line(waiting) if waiting == key);
            self.alone.retain(|(_, turn)| !is_its(turn));
        }
        Some((left, !(is_apart && is_sent)))
    }

    /// Takes the callers of a command that is sent now, of one limiter or of several that wait.
    /// Returns its number from now on, and none if it has counted for a deadline already because
    /// its task was not polled: others go in its place.
    pub(super) fn take(
        &mut self,
        number: u64,
        key: Option<Key>,
        now: Duration,
    ) -> Option<(u64, Vec<Taken>)> {
        let lane = self.gathered(number);
        let renewed = self.commands.renew(number, now)?;
        let mut taken = Vec::new();
        if let Some(key) = key {
            taken.extend(self.take_line(key, Some(number), (renewed, now), MOST_CALLERS));
            return Some((renewed, taken));
        }
        let (mut callers, mut terms) = (0, 0);
        while callers < MOST_CALLERS
            && let Some(lane) = lane.and_then(|at| self.lanes.get_mut(at))
            && let Some((_, key)) = lane.waiting.front()
            && let joins = self.lines.get(key).and_then(|line| line.joins)
            && let Joins {
                terms: more,
                callers: most,
            } = joins.unwrap_or_default()
            && (terms + more <= MOST_TERMS || callers == 0)
            && let Some((_, key)) = lane.waiting.pop_front()
        {
            let most = most.min(MOST_CALLERS - callers);
            let line = self.take_line(key, None, (renewed, now), most);
            callers += line.as_ref().map_or(0, |line| line.members.len());
            terms += more;
            taken.extend(line);
        }
        Some((renewed, taken))
    }

    /// Notes that a command no longer is about to take limiters. Returns the lane of those.
    fn gathered(&mut self, number: u64) -> Option<usize> {
        let mut lanes = self.lanes.iter();
        let at = lanes.position(|lane| lane.gathers == Some(number))?;
        self.lanes[at].gathers = None;
        Some(at)
    }

    /// Takes the first callers of a line that this command is `of`, or none yet.
    fn take_line(
        &mut self,
        key: Key,
        of: Option<u64>,
        command: (u64, Duration),
        most: usize,
    ) -> Option<Taken> {
        let line = self.lines.get_mut(&key)?;
        if line.command.map(|(number, _)| number) != of {
            return None;
        }
        line.command = Some(command);
        let again = line.apart > 0 && line.was_sent;
        let count = match line.apart {
            0 => most.min(line.behind.len()),
            apart => most.min(apart),
        };
        let members: Vec<_> = line.behind.drain(..count).collect();
        line.apart = line.apart.saturating_sub(count);
        let ids = members.iter().map(|(demand, _)| demand.first().id);
        // Before they can give back.
        self.unanswered.extend(ids.map(|id| (id, false)));
        Some(Taken {
            key,
            members,
            again,
        })
    }

    /// Puts callers back at the front of their line, if this command is still for it. With `apart`
    /// they go apart from others now, and may have been sent or not. Returns those that find no
    /// line, or have left.
    pub(super) fn put_back(
        &mut self,
        key: &Key,
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
    pub(super) fn end(&mut self, number: u64, keys: List<Key>, now: Duration) {
        self.gathered(number);
        self.commands.end(number, now);
        for key in keys {
            let line = self.lines.get_mut(&key);
            let is_its = |line: &&mut Line| line.command.is_some_and(|(it, _)| it == number);
            let Some(line) = line.filter(is_its) else {
                continue;
            };
            line.command = None;
            if line.behind.is_empty() {
                drop(self.lines.remove(&key));
            } else {
                self.waits(key, now);
            }
        }
    }

    /// Takes the callers that wait to be sent in a runtime that is gone, those of this limiter or
    /// of all that go with others.
    pub(super) fn abandon(&mut self, runtime: Id, key: Option<&Key>) -> Vec<Member> {
        let mut gone = Vec::new();
        let mut lanes = self.lanes.iter_mut();
        let lane = lanes.find(|lane| key.is_none() && lane.runtime.id() == runtime);
        let waiting = lane.map(|lane| mem::take(&mut lane.waiting));
        let waiting = waiting.unwrap_or_default();
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
            self.waits(key, since);
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
        while let Some((_, Turn::Place(first))) = self.alone.front()
            && first.is_closed()
        {
            self.alone.pop_front();
        }
    }

    /// Returns what may be sent now, in the order of arrival.
    pub(super) fn start(&mut self, now: Duration) -> Vec<Start> {
        let mut started = Vec::new();
        while self.commands.has_room() {
            let alone = self.alone.front().map(|(since, _)| *since);
            if let Some(at) = self.next_lane(alone.unwrap_or(Duration::MAX)) {
                let runtime = self.lanes[at].runtime.clone();
                let number = self.commands.send(now, Some(runtime.id()));
                self.lanes[at].gathers = Some(number);
                started.push(Start::Task(runtime, number, None));
                continue;
            }
            match self.alone.pop_front() {
                Some((_, Turn::Place(first))) if first.is_closed() => {}
                Some((_, Turn::Place(first))) => {
                    started.push(Start::Place(first, self.commands.send(now, None)));
                }
                Some((_, Turn::Line(key))) => {
                    let Some(runtime) = self.last_of(&key) else {
                        continue;
                    };
                    let number = self.commands.send(now, None);
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
    fn last_of(&self, key: &Key) -> Option<Handle> {
        let (_, last) = self.lines.get(key)?.behind.back()?;
        Some(last.runtime.clone())
    }

    /// Returns a lane whose limiters a command may take now, as they have waited since then.
    fn next_lane(&self, since: Duration) -> Option<usize> {
        let may_go = |lane: &Lane| {
            let first = lane.waiting.front();
            lane.gathers.is_none()
                && first.is_some_and(|(first, _)| *first <= since)
                && self.commands.of(lane.runtime.id()) < MOST_JOINT
        };
        self.lanes.iter().position(may_go)
    }

    /// Lets a line wait for its turn.
    fn waits(&mut self, key: Key, now: Duration) {
        let Some(line) = self.lines.get(&key) else {
            return;
        };
        let last = line.behind.back().map(|(_, last)| &last.runtime);
        let Some(runtime) = last.filter(|_| line.joins.is_some() && line.apart == 0) else {
            return self.alone.push_back((now, Turn::Line(key)));
        };
        let at = self
            .lanes
            .iter()
            .position(|lane| lane.runtime.id() == runtime.id());
        let at = at.unwrap_or_else(|| {
            if self.lanes.len() >= MOST_LANES {
                let is_idle = |lane: &Lane| lane.waiting.is_empty() && lane.gathers.is_none();
                let idle = self.lanes.iter().position(is_idle);
                self.gone.extend(idle.map(|at| self.lanes.swap_remove(at)));
            }
            self.lanes.push(Lane {
                runtime: runtime.clone(),
                waiting: VecDeque::new(),
                gathers: None,
            });
            self.lanes.len() - 1
        });
        self.lanes[at].waiting.push_back((now, key));
    }

    /// Returns whether a command may be sent at once: of those that go with others, the first of a
    /// runtime.
    fn has_room(&self, joint: Option<Id>) -> bool {
        self.commands.has_room()
            && match joint {
                Some(runtime) => {
                    let mut lanes = self.lanes.iter();
                    !lanes.any(|lane| lane.runtime.id() == runtime && !lane.waiting.is_empty())
                        && self.commands.of(runtime) == 0
                }
                None => self.alone.is_empty(),
            }
    }

    fn is_overloaded(&self, joint: Option<Id>, now: Duration) -> bool {
        let is_late = |since| now.saturating_sub(since) >= self.commands.bounds.deadline / 2;
        let Some(runtime) = joint else {
            let first = self.alone.front().map(|(since, _)| *since);
            return self.alone.len() >= self.commands.bound || first.is_some_and(is_late);
        };
        let mut lanes = self.lanes.iter();
        let lane = lanes.find(|lane| lane.runtime.id() == runtime);
        lane.is_some_and(|lane| {
            let first = lane.waiting.front().map(|(since, _)| *since);
            let most = self.commands.bound.min(MOST_JOINT) * MOST_CALLERS;
            // One that is about to take them waits for a connection.
            let is_held_up = lane.gathers.is_none() && first.is_some_and(is_late);
            lane.waiting.len() >= most || is_held_up
        })
    }
}

#[cfg(test)]
mod tests;
