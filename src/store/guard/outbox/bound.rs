//! The bound of what is in flight to a node: [`Commands`]. Pure.
//!
//! A server that is asked for more than it answers in time would work for callers who have left,
//! and then for what these give back. So the callers of the commands in flight are bounded, and the
//! bound adapts. A slow command halves it, at most once in a deadline. It grows by one after as
//! many callers as the bound were answered in time while it was reached. A command older than a
//! deadline counts no longer.
//!
//! A command is slow if it takes longer than the way to the server and half of what that leaves of
//! a deadline: a server is not overloaded because it is far away. A command of one round trip that
//! had nothing in flight before it says how long the way is, and quicker ones make it shorter by
//! and by, as ways vary. It is a third of a deadline at most, as others may overload the server,
//! too.
//!
//! How long the last command took says which of those that wait would be [late](Commands::is_late).
//! One that the server did not answer says nothing, unless it was slow.

use std::{collections::VecDeque, time::Duration};

use tokio::runtime::Id;

use crate::store::MOST_CALLERS;

/// The largest and the smallest bound.
const MOST: usize = if cfg!(interleavings) { 1 } else { 512 };
const LEAST: usize = 1;

/// The time for which a command counts as in flight, the limits of the bound, and the most callers
/// of a command.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    pub(super) deadline: Duration,
    pub(super) most: usize,
    pub(super) least: usize,
    pub(super) most_callers: usize,
}

impl Bounds {
    pub(super) const fn for_deadline(deadline: Duration) -> Self {
        Self {
            deadline,
            most: MOST,
            least: LEAST,
            most_callers: MOST_CALLERS,
        }
    }
}

pub(super) struct Commands {
    pub(super) bounds: Bounds,
    pub(super) bound: usize,
    /// The callers of all that is in flight.
    pub(super) in_flight: usize,
    /// The callers that were answered in time while the bound was reached, since it last grew.
    in_time: usize,
    /// How long the last command took.
    took: Duration,
    /// How long the last one of one round trip took.
    trip: Duration,
    /// Of that, what it takes however few there are.
    way: Duration,
    /// When the bound was last lowered.
    lowered: Duration,
    /// The number of the last command or caller.
    last: u64,
    /// In the order of their numbers
    pub(super) sent: VecDeque<SentCommand>,
}

pub(super) struct SentCommand {
    number: u64,
    since: Duration,
    /// Set if it could be shared: the runtime that sends it.
    joint: Option<Id>,
    /// Whether it takes one round trip.
    is_single: bool,
    /// Whether nothing was in flight before it.
    is_first: bool,
    pub(super) callers: usize,
}

impl Commands {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            bound: bounds.most,
            in_flight: 0,
            in_time: 0,
            took: Duration::ZERO,
            trip: Duration::ZERO,
            way: Duration::ZERO,
            lowered: Duration::ZERO,
            last: 0,
            sent: VecDeque::new(),
        }
    }

    /// Returns whether one more may be sent.
    pub(super) fn has_room(&self) -> bool {
        self.in_flight < self.bound
    }

    /// Returns whether a runtime may send one more that is shared. More of them would be smaller,
    /// and cost more.
    pub(super) fn has_room_of(&self, runtime: Id) -> bool {
        self.in_flight_of(runtime) < self.bound.div_ceil(self.bounds.most_callers)
    }

    /// Returns how many a runtime has in flight that could be shared.
    pub(super) fn in_flight_of(&self, runtime: Id) -> usize {
        let its = self.sent.iter().filter(|it| it.joint == Some(runtime));
        its.count()
    }

    /// Adds a command of one caller, and returns its number. A runtime sends one that could be
    /// shared. `is_single` says that it takes one round trip.
    pub(super) fn send(&mut self, now: Duration, joint: Option<Id>, is_single: bool) -> u64 {
        let number = self.next();
        let is_first = self.in_flight == 0;
        self.in_flight += 1;
        self.sent.push_back(SentCommand {
            number,
            since: now,
            joint,
            is_single,
            is_first,
            callers: 1,
        });
        number
    }

    /// Returns how many callers may share the command that was sent last: of several limiters what
    /// there is room for, and of one more, as these cost little.
    pub(super) fn most_of_last(&self, of_several: bool) -> usize {
        let room = 1 + self.bound.saturating_sub(self.in_flight);
        let most = if of_several { room } else { self.bound };
        most.min(self.bounds.most_callers)
    }

    /// Counts the callers that share the command that was sent last.
    pub(super) fn shares_last(&mut self, callers: usize) {
        if let Some(last) = self.sent.back_mut() {
            self.in_flight = self.in_flight - last.callers + callers;
            last.callers = callers;
        }
    }

    /// Returns whether a caller that has waited since then would be answered too late if it were
    /// sent now, or nearly so.
    pub(super) fn is_late(&self, since: Duration, now: Duration) -> bool {
        now.saturating_sub(since) + self.took > self.latest()
    }

    /// Returns how long a caller may wait to be answered in time.
    fn latest(&self) -> Duration {
        self.way + self.bounds.deadline.saturating_sub(self.way) / 5 * 4
    }

    /// Returns whether a caller that comes now would be late. For its limiter a command was sent
    /// then, and so many others are behind it: these commands take one round trip each.
    pub(super) fn is_late_behind(&self, sent: Duration, others: usize, now: Duration) -> bool {
        let next = sent.saturating_add(self.trip).max(now);
        let rounds = others / self.bound.min(self.bounds.most_callers);
        let rounds = u32::try_from(rounds).unwrap_or(u32::MAX);
        let turn = next.saturating_add(self.trip.saturating_mul(rounds));
        turn.saturating_sub(now) + self.trip > self.latest()
    }

    /// Returns a number that no other command or caller has. Later ones are greater.
    pub(super) fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Counts a command as sent now, by the number that this returns; `None` if it has counted for
    /// a deadline already.
    pub(super) fn renew(&mut self, number: u64, now: Duration) -> Option<u64> {
        let sent = self.remove(number)?;
        Some(self.send(now, sent.joint, sent.is_single))
    }

    /// Returns whether a command counts as in flight.
    pub(super) fn has(&self, number: u64) -> bool {
        let found = self.sent.binary_search_by_key(&number, |it| it.number);
        found.is_ok()
    }

    /// Takes a command out that was answered, or has failed, or was given up.
    pub(super) fn end(&mut self, number: u64, is_answered: bool, now: Duration) {
        let was_full = !self.has_room();
        let Some(ended) = self.remove(number) else {
            // It is forgotten.
            (self.took, self.trip) = (self.bounds.deadline, self.bounds.deadline);
            return;
        };
        if ended.callers == 0 {
            return;
        }
        let took = now.saturating_sub(ended.since);
        if is_answered && ended.is_single && ended.is_first {
            self.way = took.min(self.bounds.deadline / 3);
        } else if is_answered {
            self.way -= self.way.saturating_sub(took) / 8;
        }
        let behind_the_way = self.bounds.deadline.saturating_sub(self.way);
        let is_slow = took > self.way + behind_the_way / 2;
        if !is_answered && !is_slow {
            return;
        }
        self.took = took;
        if ended.is_single {
            self.trip = took;
        }
        if is_slow {
            self.lower(now);
        } else if was_full {
            self.in_time += ended.callers;
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
            self.in_flight -= oldest.callers;
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

    fn remove(&mut self, number: u64) -> Option<SentCommand> {
        let found = self.sent.binary_search_by_key(&number, |it| it.number);
        let removed = self.sent.remove(found.ok()?)?;
        self.in_flight -= removed.callers;
        Some(removed)
    }
}
