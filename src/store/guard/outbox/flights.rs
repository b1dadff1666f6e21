//! The commands in flight to a node, the limiters that they are for, and what waits to be sent.
//! Pure.
//!
//! More commands than a server answers in time only make each other late. So what is beyond the
//! bound waits here, in the order of arrival. If as much waits as may be in flight, or the first
//! has waited for half a deadline, a caller that comes fails with overload: it is answered by its
//! failure policy, and the breaker does not count it.
//!
//! The bound adapts. A command that takes longer than half a deadline halves it, at most once in a
//! deadline. It grows by one after as many commands as the bound have ended in time while it was
//! reached. A command older than a deadline counts no longer.
//!
//! The callers of one limiter stand in a [`Line`], which one command at a time is for.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use tokio::{
    runtime::{Handle, Id},
    sync::oneshot,
};

use super::{Key, command::Reply};
use crate::{charge::PermitId, demand::Demand, list::List, name::BuildSpread, store::Joins};

/// The largest and the smallest bound.
const MOST: usize = 256;
const LEAST: usize = 1;
/// The most commands in flight for several limiters each. More are smaller, and cost more.
const MOST_JOINT: usize = 8;
/// The most callers that a command decides for: some milliseconds of a server's time at the worst.
pub(super) const MOST_CALLERS: usize = 64;
/// The most limits and bans of a command.
const MOST_TERMS: usize = 255;

/// The time for which a command counts as in flight, and the limits of the bound.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    pub(super) deadline: Duration,
    pub(super) most: usize,
    pub(super) least: usize,
}

impl Bounds {
    pub(super) const fn of(deadline: Duration) -> Self {
        Self {
            deadline,
            most: MOST,
            least: LEAST,
        }
    }
}

pub(super) struct Flights {
    bounds: Bounds,
    bound: usize,
    /// The commands that ended in time while the bound was reached, since it last grew.
    in_time: usize,
    /// When the bound was last lowered.
    lowered: Duration,
    /// The number of the last command or caller.
    last: u64,
    /// In the order of their numbers
    commands: VecDeque<Command>,
    /// The command that is about to take the callers of several limiters.
    gathers: Option<u64>,
    lines: HashMap<Key, Line, BuildSpread>,
    /// What goes alone, and the limiters that go with others: each since when it waits.
    alone: VecDeque<(Duration, Turn)>,
    joint: VecDeque<(Duration, Key)>,
    /// The ids of the callers of shared commands in flight. True if the caller has given back
    /// meanwhile: the command may arrive after that receipt, or be sent once more, so its end gives
    /// back once more. Ids are random.
    unanswered: HashMap<PermitId, bool, BuildSpread>,
}

struct Command {
    number: u64,
    since: Duration,
    is_joint: bool,
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

/// What a caller in a line asks, and where it waits for the reply.
pub(super) type Member = (Demand, Caller);

/// A caller in a line, or of a shared command.
pub(super) struct Caller {
    number: u64,
    pub(super) reply: oneshot::Sender<Reply>,
    runtime: Handle,
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
            bounds,
            bound: bounds.most,
            in_time: 0,
            lowered: Duration::ZERO,
            last: 0,
            commands: VecDeque::new(),
            gathers: None,
            lines: HashMap::default(),
            alone: VecDeque::new(),
            joint: VecDeque::new(),
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
        let deadline = self.bounds.deadline;
        // A command older than the deadline no longer holds the limiter. Those behind it follow the
        // command of this caller.
        let is_old = |(_, since): (u64, Duration)| now >= since.saturating_add(deadline);
        let is_new = match self.lines.get_mut(key) {
            Some(line) if !line.command.is_some_and(is_old) => {
                self.last += 1;
                return line.push(self.last, demand, runtime);
            }
            line => line.is_none(),
        };
        if self.has_room(joins.is_some()) {
            let number = self.send(now, joins.is_some());
            let line = self.lines.entry(key.clone()).or_default();
            (line.joins, line.command) = (joins, Some((number, now)));
            return Entered::Alone(number);
        }
        if is_new && self.is_overloaded(joins.is_some(), now) {
            return Entered::Overload;
        }
        let number = self.next();
        let line = self.lines.entry(key.clone()).or_default();
        (line.joins, line.command) = (joins, None);
        let entered = line.push(number, demand, runtime);
        self.waits(key.clone(), now);
        entered
    }

    /// Adds a call of its own, unless there is no room. `is_patient` is never refused for overload:
    /// its callers wait for permits, and so have time.
    pub(super) fn enter_alone(
        &mut self,
        is_patient: bool,
        now: Duration,
    ) -> Option<Result<u64, oneshot::Receiver<u64>>> {
        if self.has_room(false) {
            return Some(Ok(self.send(now, false)));
        }
        if !is_patient && self.is_overloaded(false, now) {
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
            self.joint.retain(|(_, waiting)| waiting != key);
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
        let renewed = self.renew(number, now)?;
        let mut taken = Vec::new();
        if let Some(key) = key {
            taken.extend(self.take_line(key, Some(number), (renewed, now), MOST_CALLERS));
            return Some((renewed, taken));
        }
        let (mut callers, mut terms) = (0, 0);
        while callers < MOST_CALLERS
            && let Some((_, key)) = self.joint.front()
            && let joins = self.lines.get(key).and_then(|line| line.joins)
            && let Joins {
                terms: more,
                callers: most,
            } = joins.unwrap_or_default()
            && (terms + more <= MOST_TERMS || callers == 0)
            && let Some((_, key)) = self.joint.pop_front()
        {
            let most = most.min(MOST_CALLERS - callers);
            let line = self.take_line(key, None, (renewed, now), most);
            callers += line.as_ref().map_or(0, |line| line.members.len());
            terms += more;
            taken.extend(line);
        }
        Some((renewed, taken))
    }

    /// Counts a command as sent now, by the number that this returns; `None` if it has counted for a
    /// deadline already.
    pub(super) fn renew(&mut self, number: u64, now: Duration) -> Option<u64> {
        let is_joint = self.remove(number)?.is_joint;
        Some(self.send(now, is_joint))
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
        self.answered(number, now);
        for key in keys {
            let line = self.lines.get_mut(&key);
            let is_its = |line: &&mut Line| line.command.is_some_and(|(it, _)| it == number);
            let Some(line) = line.filter(is_its) else {
                continue;
            };
            line.command = None;
            match line.behind.is_empty() {
                true => drop(self.lines.remove(&key)),
                false => self.waits(key, now),
            }
        }
    }

    /// Takes the callers that wait to be sent in a runtime that is gone, those of this limiter or
    /// of all that go with others.
    pub(super) fn abandon(&mut self, runtime: Id, key: Option<&Key>) -> Vec<Member> {
        let mut gone = Vec::new();
        let keys = match key {
            Some(key) => vec![key.clone()],
            None => self.joint.iter().map(|(_, key)| key.clone()).collect(),
        };
        for key in &keys {
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
        while let Some(oldest) = self.commands.front()
            && now >= oldest.since.saturating_add(self.bounds.deadline)
        {
            let number = oldest.number;
            self.remove(number);
            self.lower(now);
        }
        while let Some((_, Turn::Place(first))) = self.alone.front()
            && first.is_closed()
        {
            self.alone.pop_front();
        }
    }

    /// Returns what may be sent now, in the order of arrival.
    pub(super) fn start(&mut self, now: Duration) -> Vec<Start> {
        let mut started = Vec::new();
        while self.commands.len() < self.bound {
            let since = |first: Option<Duration>| first.unwrap_or(Duration::MAX);
            let alone = since(self.alone.front().map(|(since, _)| *since));
            let joint = self.joint.front().map(|(since, _)| *since);
            if joint.is_some_and(|joint| joint <= alone)
                && self.gathers.is_none()
                && self.joint_in_flight() < MOST_JOINT
                && let Some(runtime) = self.joint.back().and_then(|(_, key)| self.last_of(key))
            {
                let number = self.send(now, true);
                self.gathers = Some(number);
                started.push(Start::Task(runtime, number, None));
                continue;
            }
            match self.alone.pop_front() {
                Some((_, Turn::Place(first))) if first.is_closed() => {}
                Some((_, Turn::Place(first))) => {
                    started.push(Start::Place(first, self.send(now, false)));
                }
                Some((_, Turn::Line(key))) => {
                    let Some(runtime) = self.last_of(&key) else {
                        continue;
                    };
                    let number = self.send(now, false);
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

    /// Has a line wait for its turn.
    fn waits(&mut self, key: Key, now: Duration) {
        let joins = |line: &Line| line.joins.is_some() && line.apart == 0;
        match self.lines.get(&key).is_some_and(joins) {
            true => self.joint.push_back((now, key)),
            false => self.alone.push_back((now, Turn::Line(key))),
        }
    }

    /// Returns whether a command may be sent at once: of those that go with others, the first.
    fn has_room(&self, is_joint: bool) -> bool {
        self.commands.len() < self.bound
            && match is_joint {
                true => self.joint.is_empty() && self.joint_in_flight() == 0,
                false => self.alone.is_empty(),
            }
    }

    fn is_overloaded(&self, is_joint: bool, now: Duration) -> bool {
        let is_late = |since| now.saturating_sub(since) >= self.bounds.deadline / 2;
        match is_joint {
            // One that is about to take them waits for a connection.
            true if self.gathers.is_some() => self.joint.len() >= self.most_joint(),
            true => {
                let first = self.joint.front().map(|(since, _)| *since);
                self.joint.len() >= self.most_joint() || first.is_some_and(is_late)
            }
            false => {
                let first = self.alone.front().map(|(since, _)| *since);
                self.alone.len() >= self.bound || first.is_some_and(is_late)
            }
        }
    }

    /// Returns how many limiters may be in flight with others.
    fn most_joint(&self) -> usize {
        self.bound.min(MOST_JOINT) * MOST_CALLERS
    }

    fn joint_in_flight(&self) -> usize {
        self.commands.iter().filter(|it| it.is_joint).count()
    }

    fn send(&mut self, now: Duration, is_joint: bool) -> u64 {
        let number = self.next();
        self.commands.push_back(Command {
            number,
            since: now,
            is_joint,
        });
        number
    }

    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn remove(&mut self, number: u64) -> Option<Command> {
        self.gathers.take_if(|gathers| *gathers == number);
        let at = self.commands.binary_search_by_key(&number, |it| it.number);
        self.commands.remove(at.ok()?)
    }

    /// Takes a command out that was answered, or given up.
    fn answered(&mut self, number: u64, now: Duration) {
        let was_full = self.commands.len() >= self.bound;
        let Some(ended) = self.remove(number) else {
            return;
        };
        if now.saturating_sub(ended.since) > self.bounds.deadline / 2 {
            self.lower(now);
        } else if was_full {
            self.in_time += 1;
            if self.in_time >= self.bound {
                self.in_time = 0;
                self.bound = (self.bound + 1).min(self.bounds.most);
            }
        }
    }

    /// Lowers the bound, once a deadline.
    fn lower(&mut self, now: Duration) {
        if now.saturating_sub(self.lowered) >= self.bounds.deadline {
            self.lowered = now;
            self.bound = (self.bound / 2).max(self.bounds.least);
        }
    }
}

#[cfg(test)]
mod tests;
