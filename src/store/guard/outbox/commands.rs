//! The commands in flight to a node, and their bound. Pure.
//!
//! More commands than a server answers in time only make each other late. So they are bounded, and
//! the bound adapts. A command that takes longer than half a deadline halves it, at most once in a
//! deadline. It grows by one after as many commands as the bound have ended in time while it was
//! reached. A command older than a deadline counts no longer.

use std::{collections::VecDeque, time::Duration};

use tokio::runtime::Id;

/// The largest and the smallest bound.
const MOST: usize = if cfg!(interleavings) { 1 } else { 256 };
const LEAST: usize = 1;

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

pub(super) struct Commands {
    pub(super) bounds: Bounds,
    pub(super) bound: usize,
    /// The commands that ended in time while the bound was reached, since it last grew.
    in_time: usize,
    /// When the bound was last lowered.
    lowered: Duration,
    /// The number of the last command or caller.
    last: u64,
    /// In the order of their numbers
    pub(super) sent: VecDeque<Command>,
}

pub(super) struct Command {
    number: u64,
    since: Duration,
    /// Set if it could be shared: the runtime that sends it.
    joint: Option<Id>,
}

impl Commands {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            bound: bounds.most,
            in_time: 0,
            lowered: Duration::ZERO,
            last: 0,
            sent: VecDeque::new(),
        }
    }

    /// Returns whether one more may be sent.
    pub(super) fn has_room(&self) -> bool {
        self.sent.len() < self.bound
    }

    /// Returns how many a runtime has in flight that could be shared.
    pub(super) fn of(&self, runtime: Id) -> usize {
        let its = self.sent.iter().filter(|it| it.joint == Some(runtime));
        its.count()
    }

    /// Adds a command, and returns its number. A runtime sends one that could be shared.
    pub(super) fn send(&mut self, now: Duration, joint: Option<Id>) -> u64 {
        let number = self.next();
        self.sent.push_back(Command {
            number,
            since: now,
            joint,
        });
        number
    }

    /// Returns a number that no other command or caller has. Later ones are greater.
    pub(super) fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Counts a command as sent now, by the number that this returns; `None` if it has counted for
    /// a deadline already.
    pub(super) fn renew(&mut self, number: u64, now: Duration) -> Option<u64> {
        let joint = self.remove(number)?.joint;
        Some(self.send(now, joint))
    }

    /// Returns whether a command counts as in flight.
    pub(super) fn has(&self, number: u64) -> bool {
        self.place(number).is_some()
    }

    /// Takes a command out that was answered, or given up.
    pub(super) fn end(&mut self, number: u64, now: Duration) {
        let was_full = !self.has_room();
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

    /// Forgets old commands.
    pub(super) fn forget(&mut self, now: Duration) {
        while let Some(oldest) = self.sent.front()
            && now >= oldest.since.saturating_add(self.bounds.deadline)
        {
            self.sent.pop_front();
            self.lower(now);
        }
    }

    /// Lowers the bound, once a deadline.
    fn lower(&mut self, now: Duration) {
        if now.saturating_sub(self.lowered) >= self.bounds.deadline {
            self.lowered = now;
            self.bound = (self.bound / 2).max(self.bounds.least);
        }
    }

    fn remove(&mut self, number: u64) -> Option<Command> {
        self.sent.remove(self.place(number)?)
    }

    fn place(&self, number: u64) -> Option<usize> {
        let found = self.sent.binary_search_by_key(&number, |it| it.number);
        found.ok()
    }
}
