//! The fixed window and the window of the calendar: how much is used, and until when it counts.

use super::{
    Clock, Id, Limit, MOST, Reader,
    call::Settled,
    put,
    reply::Standing,
    state::{CALENDAR, Callers, Recent, State, WINDOW},
};

/// The length of a state.
const LENGTH: usize = 74;

/// The state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Of a fixed window, its end
    pub label: i64,
    /// In ms, by the clock of the call that opened it
    pub ends: i64,
    pub used: i64,
    interval: i64,
    rate: i64,
    pub callers: Recent,
}

impl Window {
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader((bytes.len() == LENGTH).then_some(bytes)?);
        Some(Self {
            label: reader.number(6)?,
            ends: reader.number(6)?,
            used: reader.number(7)?,
            interval: reader.number(6)?,
            rate: reader.number(7)?,
            callers: Recent::read(&mut reader)?,
        })
    }

    pub fn pack(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        put(&mut bytes, self.label, 6);
        put(&mut bytes, self.ends, 6);
        put(&mut bytes, self.used, 7);
        put(&mut bytes, self.interval, 6);
        put(&mut bytes, self.rate, 7);
        self.callers.put(&mut bytes);
        bytes
    }

    /// Sets back the end that the server's clock wrote before it was set back: no window lasts
    /// longer than its interval. Returns whether it did.
    pub fn set_back(&mut self, now: i64) -> bool {
        let latest = now + self.interval;
        let is_wrong = self.ends > latest;
        if is_wrong {
            (self.label, self.ends) = (latest, latest);
        }
        is_wrong
    }

    pub fn is_open(&self, clock: Clock) -> bool {
        clock.now() < self.ends
    }

    /// Settles what a caller took at so many permits, if it took them in this window and it is
    /// open. Returns how many are free again; below zero, how many are charged.
    pub fn settle(&mut self, permits: i64, settled: &Settled, clock: Clock) -> Option<i64> {
        let is_meant = [self.label, MOST].contains(&settled.mark);
        if !self.is_open(clock) || !is_meant {
            return None;
        }
        let (before, more) = (self.used, permits - settled.was);
        self.used = (before + more).clamp(0, MOST);
        Some(if more > 0 { -more } else { before - self.used })
    }

    /// Returns whether it is the same window, with the same end.
    pub fn ends_as(&self, other: &Self) -> bool {
        (self.label, self.ends) == (other.label, other.ends)
    }

    pub fn lasts(&self, clock: Clock) -> i64 {
        self.ends - clock.now()
    }
}

/// A window of the calendar as a call brings it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dates {
    /// Greater for later windows
    pub label: i64,
    pub start: i64,
    pub end: i64,
}

impl Dates {
    pub fn hold(&self, now: i64) -> bool {
        self.start <= now && now < self.end
    }

    pub fn length(&self) -> i64 {
        self.end - self.start
    }
}

/// A window as a call counts by its own limit.
#[derive(Clone, Copy, Debug)]
pub struct Count {
    window: Window,
    kind: u8,
    now: i64,
}

impl Count {
    /// Counts by a fixed window: the stored one while it is open, which grows with the interval.
    pub fn fixed(stored: Option<&State>, limit: Limit, clock: Clock) -> Self {
        let (now, Limit { interval, rate }) = (clock.now(), limit);
        let mut window = Window {
            ends: now + interval,
            interval,
            rate,
            ..Window::default()
        };
        match stored {
            Some(State::Window(stored)) if stored.is_open(clock) => {
                let longer = stored.interval.max(interval);
                window = Window {
                    ends: stored.ends + longer - stored.interval,
                    interval: longer,
                    rate,
                    ..*stored
                };
            }
            Some(State::Window(_)) | None => {}
            Some(state) => window.used = state.in_use(rate, clock),
        }
        window.label = window.ends;
        let kind = WINDOW;
        Self { window, kind, now }
    }

    /// Counts by the window of the calendar that holds now; `None` if neither does. A newer stored
    /// label stays, whatever made it, with what is used until its own end, and an older one is
    /// over.
    pub fn calendar(
        stored: Option<&State>,
        rate: i64,
        dates: &[Dates; 2],
        clock: Clock,
    ) -> Option<Self> {
        let (now, kind) = (clock.now(), CALENDAR);
        let present = dates.iter().find(|dates| dates.hold(now))?;
        let mut window = Window {
            label: present.label,
            ends: present.end,
            interval: present.length(),
            rate,
            ..Window::default()
        };
        match stored {
            Some(State::Calendar(stored)) if stored.label >= present.label => {
                let known = dates.iter().find(|dates| dates.label == stored.label);
                let (used, ends) = match known {
                    Some(dates) => (stored.used, dates.end),
                    None if stored.is_open(clock) => (stored.used, stored.ends),
                    None => (0, present.end),
                };
                window = Window {
                    ends,
                    used,
                    interval: known.unwrap_or(present).length(),
                    rate,
                    ..*stored
                };
            }
            // What another kind has in use would count until the window ends.
            Some(_) | None => {}
        }
        Some(Self { window, kind, now })
    }
}

impl super::count::Count for Count {
    fn room(&self, permits: i64) -> i64 {
        (self.window.rate - self.window.used).max(0) / permits.max(1)
    }

    fn take(&mut self, callers: &[Id], permits: i64) {
        let callers = Callers::together(callers);
        let permits = permits.saturating_mul(callers.number.into());
        self.window.used = self.window.used.saturating_add(permits);
        self.window.callers.push(callers);
    }

    fn owe(&mut self, id: Id, permits: i64) {
        self.take(&[id], permits);
    }

    fn standing(&self) -> Standing {
        let left = self.window.rate - self.window.used;
        let next = self.window.ends - self.now;
        Standing::Left { left, next }
    }

    fn wait(&self, permits: i64) -> Option<i64> {
        (permits <= self.window.rate).then_some(self.window.ends - self.now)
    }

    fn state(&self) -> (State, bool, i64) {
        let state = match self.kind {
            CALENDAR => State::Calendar(self.window),
            _ => State::Window(self.window),
        };
        (state, false, 0)
    }
}
