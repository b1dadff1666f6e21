//! What waits to go with others, in a lane for each runtime. Pure.

use std::{collections::VecDeque, mem, time::Duration};

use tokio::runtime::{Handle, Id};

use super::super::{bound::Commands, caller::LineKey};

/// The lanes that are kept besides those that are in use, as most processes have a runtime or two.
const MOST_LANES: usize = 16;

#[derive(Default)]
pub(in super::super) struct Lanes {
    pub(super) all: Vec<Lane>,
    /// To be dropped when the node is not locked: with it may go the last of a runtime.
    pub(in super::super) gone: Vec<Lane>,
}

/// The limiters that wait to go together, and whose callers are of one runtime: one that is alive
/// and not driven delays no others.
pub(in super::super) struct Lane {
    runtime: Handle,
    /// Each with when it began to wait
    pub(super) waiting: VecDeque<(Duration, LineKey)>,
    /// The command that is about to take them, also where it counts no longer as its runtime is not
    /// driven: then there is no other.
    pub(super) gathers: Option<u64>,
}

impl Lanes {
    /// Lets a limiter wait that is asked for by callers of this runtime.
    pub(super) fn push(&mut self, runtime: &Handle, since: Duration, key: LineKey) {
        let at = self.at(runtime.id()).unwrap_or_else(|| {
            if self.all.len() >= MOST_LANES {
                let is_idle = |lane: &Lane| lane.waiting.is_empty() && lane.gathers.is_none();
                let idle = self.all.iter().position(is_idle);
                self.gone.extend(idle.map(|at| self.all.swap_remove(at)));
            }
            self.all.push(Lane {
                runtime: runtime.clone(),
                waiting: VecDeque::new(),
                gathers: None,
            });
            self.all.len() - 1
        });
        self.all[at].waiting.push_back((since, key));
    }

    /// Takes out a limiter that has no callers any more.
    pub(super) fn remove(&mut self, key: &LineKey) {
        for lane in &mut self.all {
            lane.waiting.retain(|(_, waiting)| waiting != key);
        }
    }

    /// Takes a limiter out of a lane whose runtime was not driven for a deadline.
    pub(super) fn take_stalled(
        &mut self,
        key: &LineKey,
        commands: &Commands,
    ) -> Option<(Duration, LineKey)> {
        let is_stalled = |lane: &&mut Lane| lane.gathers.is_some_and(|it| !commands.has(it));
        self.all.iter_mut().filter(is_stalled).find_map(|lane| {
            let at = lane.waiting.iter().position(|(_, waiting)| waiting == key);
            lane.waiting.remove(at?)
        })
    }

    /// Takes all that waits in a runtime that is gone.
    pub(super) fn take_all(&mut self, runtime: Id) -> VecDeque<(Duration, LineKey)> {
        let at = self.at(runtime);
        at.map_or_else(VecDeque::new, |at| mem::take(&mut self.all[at].waiting))
    }

    /// Notes that a command is no longer about to take limiters. Returns the index of their lane.
    pub(super) fn gathered(&mut self, number: u64) -> Option<usize> {
        let mut lanes = self.all.iter();
        let at = lanes.position(|lane| lane.gathers == Some(number))?;
        self.all[at].gathers = None;
        Some(at)
    }

    /// Returns what waits in a lane.
    pub(super) fn waiting(&mut self, at: usize) -> Option<&mut VecDeque<(Duration, LineKey)>> {
        Some(&mut self.all.get_mut(at)?.waiting)
    }

    /// Sends a command for the lane that waits longest, if that is since then or longer. Returns
    /// its runtime and number.
    pub(super) fn send(
        &mut self,
        since: Duration,
        commands: &mut Commands,
        now: Duration,
    ) -> Option<(Handle, u64)> {
        let first = |lane: &Lane| lane.waiting.front().map(|(since, _)| *since);
        let may_go = |lane: &&mut Lane| {
            lane.gathers.is_none()
                && first(lane).is_some_and(|first| first <= since)
                && commands.has_room_of(lane.runtime.id())
        };
        let waiting = self.all.iter_mut().filter(may_go);
        let lane = waiting.min_by_key(|lane| first(lane))?;
        let number = commands.send(now, Some(lane.runtime.id()), true);
        lane.gathers = Some(number);
        Some((lane.runtime.clone(), number))
    }

    /// Returns the lane of a runtime.
    pub(super) fn lane(&self, runtime: Id) -> Option<&Lane> {
        self.all.iter().find(|lane| lane.runtime.id() == runtime)
    }

    fn at(&self, runtime: Id) -> Option<usize> {
        self.all
            .iter()
            .position(|lane| lane.runtime.id() == runtime)
    }
}
