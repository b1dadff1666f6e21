//! GCRA, a token bucket: one time says how much is in use.
//!
//! Each permit is in use for one emission, one after the other. The theoretical arrival time (TAT)
//! is when all of them are free: how far it lies ahead of now is the backlog. All in us.

use super::{
    Clock, Id, Limit, MOST, Reader,
    call::Settled,
    put,
    reply::Standing,
    state::{Callers, Recent, State},
};

/// The length of a state.
const LENGTH: usize = 76;
/// The longest interval that can be counted by, in ms.
const LONGEST: i64 = 3_200_000_000_000;
/// What was given back is counted up to this, and from 0 again.
const WRAP: i64 = 1 << 52;

/// A limit as it is counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pace {
    /// From permit to permit, rounded up, so that the limit is never exceeded
    emission: i64,
    /// The time that all permits take
    whole: i64,
}

impl Pace {
    /// Returns that of a limit; `None` if it cannot be counted by.
    fn of(limit: Limit) -> Option<Self> {
        let Limit { interval, rate } = limit;
        if rate < 1 || interval > LONGEST || rate > interval * 1000 {
            return None;
        }
        let emission = (interval * 1000 + rate - 1) / rate;
        Some(Self {
            emission,
            whole: emission * rate,
        })
    }

    /// Returns the permits that such a part of a backlog is of, rounded up.
    fn permits(&self, backlog: i64) -> i64 {
        (backlog + self.emission - 1) / self.emission
    }

    fn cost(&self, permits: i64) -> i64 {
        permits.saturating_mul(self.emission)
    }

    /// Returns a backlog with so much more owed: two whole limits at most, but not less than it is.
    fn owe(&self, backlog: i64, permits: i64) -> i64 {
        let owed = backlog.saturating_add(self.cost(permits));
        owed.min(2 * self.whole).max(backlog)
    }
}

/// The state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gcra {
    limit: Limit,
    pace: Pace,
    /// By the server's clock, the time until which the key is kept
    ends: i64,
    /// By how much settlements have moved the TAT back
    pub given: i64,
    pub tat: i64,
    pub callers: Recent,
}

impl Gcra {
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader((bytes.len() == LENGTH).then_some(bytes)?);
        let limit = Limit {
            interval: reader.number(6)?,
            rate: reader.number(7)?,
        };
        Some(Self {
            limit,
            pace: Pace::of(limit)?,
            ends: reader.number(7)?,
            given: reader.number(7)?,
            tat: reader.number(7)?,
            callers: Recent::read(&mut reader)?,
        })
    }

    pub fn pack(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        put(&mut bytes, self.limit.interval, 6);
        for number in [self.limit.rate, self.ends, self.given, self.tat] {
            put(&mut bytes, number, 7);
        }
        self.callers.put(&mut bytes);
        bytes
    }

    fn backlog(&self, us: i64) -> i64 {
        (self.tat - us).max(0)
    }

    /// Sets the TAT back to what all permits take, if the server's clock wrote it before it was set
    /// back: a debt is at most as much above that. Returns whether it did.
    pub fn set_back(&mut self, us: i64) -> bool {
        let is_wrong = self.backlog(us) > 22 * self.pace.whole / 10;
        if is_wrong {
            self.tat = us + self.pace.whole;
        }
        is_wrong
    }

    /// Returns whether it is counted by this limit, and no clock that was set back has written it.
    pub fn is_usual(&self, limit: Limit, is_by_server: bool, us: i64) -> bool {
        self.limit == limit && !(is_by_server && self.backlog(us) > 2 * self.pace.whole)
    }

    /// Returns the permits in use now: by the server's clock not more than all, as another clock
    /// made what is.
    pub fn in_use(&self, clock: Clock) -> i64 {
        let backlog = self.backlog(clock.us);
        self.pace.permits(if clock.is_by_server {
            backlog.min(self.pace.whole)
        } else {
            backlog
        })
    }

    /// Returns whether the key is to be kept for longer.
    pub fn is_due(&self, clock: Clock) -> bool {
        clock.server_us + self.backlog(clock.us) > self.ends
    }

    /// Returns how long the key is kept, in ms, if that changes.
    pub fn keep(&mut self, whole: bool, clock: Clock) -> Option<i64> {
        if !whole && !self.is_due(clock) {
            return None;
        }
        let until = clock.server_us + self.backlog(clock.us);
        self.ends = (until + self.pace.whole).min(MOST);
        Some((self.ends - clock.server_us) / 1000 + 2)
    }

    /// Settles what a caller took at so many permits. Returns how many are free again; below zero,
    /// how many are charged.
    pub fn settle(&mut self, permits: i64, settled: &Settled, us: i64) -> i64 {
        let (backlog, more) = (self.backlog(us), permits - settled.was);
        if more >= 0 {
            let owed = self.pace.owe(backlog, more);
            self.tat = if owed > backlog {
                (us + owed).min(MOST)
            } else {
                self.tat
            };
            return -more;
        }
        // What others gave back since may have been before it.
        let since = (self.given - settled.given).rem_euclid(WRAP);
        let ahead = (settled.mark - since - us).min(backlog);
        let moved = self.pace.cost(-more).min(ahead).max(0);
        if moved > 0 {
            self.tat = us + backlog - moved;
            self.given = (self.given + moved) % WRAP;
        }
        self.pace.permits(moved)
    }
}

/// A state as a call counts by its own limit.
#[derive(Clone, Copy, Debug)]
pub struct Count {
    gcra: Gcra,
    backlog: i64,
    us: i64,
    /// Until something is taken, what is in use goes on by its own limit.
    rest: Option<Rest>,
}

/// What is in use by another limit or kind.
#[derive(Clone, Copy, Debug)]
struct Rest {
    /// The us until it is free, all or but so much for each permit
    backlog: i64,
    emission: i64,
}

impl Rest {
    fn of(state: &State, clock: Clock) -> Self {
        let us = |ends: i64| (ends - clock.now()) * 1000;
        let (backlog, emission) = match state {
            State::Gcra(gcra) => (gcra.tat - clock.us, gcra.pace.emission),
            State::Log(log) => (us(log.unused_at()), 0),
            State::Window(window) => (us(window.ends), 0),
            State::Calendar(_) | State::Ban(_) => (0, 0),
        };
        Self { backlog, emission }
    }
}

impl Count {
    /// Counts what is in use by this limit; `None` if it cannot be counted by.
    pub fn of(stored: Option<&State>, limit: Limit, clock: Clock) -> Option<Self> {
        let pace = Pace::of(limit)?;
        let (ends, given, callers) = match stored {
            Some(State::Gcra(gcra)) => (gcra.ends, gcra.given, gcra.callers),
            _ => (0, 0, Recent::default()),
        };
        let backlog = match stored {
            Some(State::Gcra(gcra)) if gcra.limit == limit => gcra.backlog(clock.us),
            Some(state) => pace.cost(state.in_use(limit.rate, clock)).min(pace.whole),
            None => 0,
        };
        let gcra = Gcra {
            limit,
            pace,
            ends,
            given,
            tat: clock.us + backlog,
            callers,
        };
        let is_fit = matches!(stored, Some(State::Gcra(gcra)) if gcra.limit == limit);
        let rest = stored.filter(|_| !is_fit);
        Some(Self {
            gcra,
            backlog,
            us: clock.us,
            rest: rest.map(|state| Rest::of(state, clock)),
        })
    }

    fn go_on_with(&mut self, backlog: i64, callers: Callers) {
        self.rest = None;
        self.backlog = backlog;
        self.gcra.tat = self.us.saturating_add(backlog).min(MOST);
        self.gcra.callers.push(callers);
    }
}

impl super::count::Count for Count {
    fn room(&self, permits: i64) -> i64 {
        let Pace { whole, .. } = self.gcra.pace;
        (whole - self.backlog).max(0) / self.gcra.pace.cost(permits).max(1)
    }

    fn take(&mut self, callers: &[Id], permits: i64) {
        let callers = Callers::together(callers);
        let permits = permits.saturating_mul(callers.number.into());
        let cost = self.gcra.pace.cost(permits);
        self.go_on_with(self.backlog.saturating_add(cost), callers);
    }

    fn owe(&mut self, id: Id, permits: i64) {
        let owed = self.gcra.pace.owe(self.backlog, permits);
        self.go_on_with(owed, Callers::of(id, 1));
    }

    fn standing(&self) -> Standing {
        let (backlog, given) = (self.backlog, self.gcra.given);
        Standing::Backlog { backlog, given }
    }

    fn wait(&self, permits: i64) -> Option<i64> {
        if permits > self.gcra.limit.rate {
            return None;
        }
        let Pace { whole, .. } = self.gcra.pace;
        let mut wait = self.backlog + self.gcra.pace.cost(permits).min(whole) - whole;
        if let Some(rest) = self.rest {
            let left = self.gcra.limit.rate - permits;
            wait = wait.max(rest.backlog - left.saturating_mul(rest.emission));
        }
        Some((wait.max(0) + 999) / 1000)
    }

    fn state(&self) -> (State, bool, i64) {
        (State::Gcra(self.gcra), false, 0)
    }
}
