//! The keys of a server, and what a call holds of them until it writes.

use std::collections::BTreeMap;

use super::{
    Clock,
    state::{Foreign, State},
};

/// By how much a calendar's key outlives its window, in ms.
const LINGERS: i64 = 3_600_000;

/// Keys by name.
pub type Keys = BTreeMap<String, Stored>;

/// The value of a key, if it is a string, and when it expires, in ms by the server's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub bytes: Option<Vec<u8>>,
    pub expires: Option<i64>,
    /// How often calls have written it
    pub writes: u32,
}

impl Stored {
    pub fn state(&self) -> Result<State, Foreign> {
        self.bytes
            .as_ref()
            .map_or(Err(Foreign), |bytes| State::parse(bytes))
    }
}

/// Removes the keys that have expired at this time of the server, in ms.
pub fn expire(keys: &mut Keys, server: i64) {
    keys.retain(|_, stored| stored.expires.is_none_or(|expires| expires > server));
}

/// A key during a call.
pub struct Held {
    /// As the requests up to now have left it
    pub state: Result<Option<State>, Foreign>,
    before: Option<State>,
    /// The length of what is stored
    length: usize,
    has_changed: bool,
    whole: bool,
    /// How far ahead permits were fetched
    lead: i64,
}

impl Held {
    pub fn of(stored: Option<&Stored>) -> Self {
        let state = stored.map(Stored::state).transpose();
        Self {
            before: state.clone().unwrap_or(None),
            state,
            length: stored.and_then(|it| it.bytes.as_ref()).map_or(0, Vec::len),
            has_changed: false,
            whole: false,
            lead: 0,
        }
    }

    pub fn change(&mut self, state: State, whole: bool, lead: i64) {
        self.has_changed = true;
        self.whole |= whole;
        self.lead = self.lead.max(lead);
        self.state = Ok(Some(state));
    }

    /// Writes the state, if it has changed. A write that is no rewrite leaves the expiry.
    pub fn write(self, name: &str, keys: &mut Keys, clock: Clock) {
        let (true, Ok(Some(mut state))) = (self.has_changed, self.state) else {
            return;
        };
        let before = self.before.filter(|_| !self.whole);
        let kept = match (&mut state, &before) {
            (State::Log(log), before) => {
                let is_log = matches!(before, Some(State::Log(_)));
                log.keep(!is_log || log.length() < self.length, self.lead, clock)
            }
            (State::Gcra(gcra), before) => gcra.keep(before.is_none(), clock),
            (State::Ban(ban), before) => ban.keep(before.is_none(), self.length, clock),
            (State::Window(window), Some(State::Window(before)))
            | (State::Calendar(window), Some(State::Calendar(before)))
                if window.ends_as(before) =>
            {
                None
            }
            (State::Window(window), _) => Some(window.lasts(clock)),
            (State::Calendar(window), _) => Some(window.lasts(clock) + LINGERS),
        };
        let stored = keys.get(name);
        let mut expires = stored.and_then(|stored| stored.expires);
        let writes = stored.map_or(1, |stored| stored.writes + 1);
        if let Some(kept) = kept {
            let lingers = if clock.is_by_server { 0 } else { 60_000 };
            expires = Some(clock.server() + kept + lingers);
        }
        if kept.is_some_and(|kept| kept <= 0) {
            keys.remove(name);
        } else {
            let bytes = Some(state.pack());
            let stored = Stored {
                bytes,
                expires,
                writes,
            };
            keys.insert(name.to_owned(), stored);
        }
    }
}
