//! The state of a limiter as one string: its kind, and what another kind makes of it.

use std::fmt;

use super::{Clock, Id, Reader, ban::Ban, gcra::Gcra, log::Log, put_id, window::Window};

/// The last byte of each state.
pub const MAGIC: u8 = 0xB7;
/// The version of the states, in the upper half of the byte before it.
const VERSION: u8 = 1;

/// The kinds of states, as numbered in the lower half of that byte.
pub const LOG: u8 = 1;
pub const GCRA: u8 = 2;
pub const WINDOW: u8 = 3;
pub const BAN: u8 = 4;
pub const CALENDAR: u8 = 5;

/// The error where a key holds what this version did not write: a request that meets it is not
/// decided, and the key stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Foreign;

/// A state by value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    Log(Log),
    Gcra(Gcra),
    Window(Window),
    Calendar(Window),
    Ban(Ban),
}

impl State {
    pub fn parse(bytes: &[u8]) -> Result<Self, Foreign> {
        let kind = match bytes {
            [.., kind, MAGIC] if kind >> 4 == VERSION => kind & 15,
            _ => return Err(Foreign),
        };
        let state = match kind {
            LOG => Log::read(bytes).map(Self::Log),
            GCRA => Gcra::read(bytes).map(Self::Gcra),
            WINDOW => Window::read(bytes).map(Self::Window),
            CALENDAR => Window::read(bytes).map(Self::Calendar),
            BAN => Ban::read(bytes).map(Self::Ban),
            _ => None,
        };
        state.ok_or(Foreign)
    }

    pub fn pack(&self) -> Vec<u8> {
        let (mut bytes, kind) = match self {
            Self::Log(log) => (log.pack(), LOG),
            Self::Gcra(gcra) => (gcra.pack(), GCRA),
            Self::Window(window) => (window.pack(), WINDOW),
            Self::Calendar(window) => (window.pack(), CALENDAR),
            Self::Ban(ban) => (ban.pack(), BAN),
        };
        bytes.extend([16 * VERSION + kind, MAGIC]);
        bytes
    }

    /// Returns whether a grant to this caller is found in it.
    pub fn holds(&self, id: Id, clock: Clock) -> bool {
        match self {
            Self::Log(log) => log.share(id).is_some(),
            Self::Gcra(gcra) => gcra.callers.hold(id),
            Self::Window(window) | Self::Calendar(window) => {
                window.is_open(clock) && window.callers.hold(id)
            }
            Self::Ban(_) => false,
        }
    }

    /// Sets back what the server's clock wrote before it was set back, if a call counts by that
    /// clock; a caller's proves nothing. Returns whether there was any.
    pub fn set_back(&mut self, clock: Clock) -> bool {
        clock.is_by_server
            && match self {
                Self::Log(log) => log.set_back(clock.now()),
                Self::Gcra(gcra) => gcra.set_back(clock.us),
                Self::Window(window) => window.set_back(clock.now()),
                // Its label says when it is over.
                Self::Calendar(_) => false,
                Self::Ban(ban) => ban.set_back(clock.now()),
            }
    }

    /// Returns the permits in use now, up to `rate`: what another kind goes on from.
    pub fn in_use(&self, rate: i64, clock: Clock) -> i64 {
        let used = match self {
            Self::Log(log) => log.in_use(clock.now()),
            Self::Gcra(gcra) => gcra.in_use(clock),
            Self::Window(window) if window.is_open(clock) => window.used,
            Self::Window(_) | Self::Calendar(_) | Self::Ban(_) => 0,
        };
        used.min(rate).max(0)
    }
}

/// So many callers has what a settlement has added to the grant of one.
pub const ADDED: u8 = 255;

/// The callers of one grant: that of `id`, and those at the places behind it.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Callers {
    pub id: Id,
    pub number: u8,
}

impl fmt::Debug for Callers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}+{}", self.id, self.number)
    }
}

impl Callers {
    pub fn of(id: Id, number: u8) -> Self {
        Self { id, number }
    }

    /// Returns those who are granted together, who are known by the first.
    pub fn together(ids: &[Id]) -> Self {
        Self {
            id: ids.first().copied().unwrap_or_default(),
            number: u8::try_from(ids.len()).unwrap_or(u8::MAX),
        }
    }

    /// Returns how many of them stand before a caller, if it is among them.
    pub fn place_of(&self, id: Id) -> Option<u8> {
        let place = id.place.checked_sub(self.id.place)?;
        let is_grant = self.number < ADDED;
        (is_grant && id.command == self.id.command && place < self.number).then_some(place)
    }

    pub fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            id: reader.id()?,
            number: reader.byte()?,
        })
    }

    pub fn put(&self, bytes: &mut Vec<u8>) {
        put_id(bytes, self.id);
        bytes.push(self.number);
    }
}

/// The callers of the last four grants, the newest first; zeros where there were none. A state
/// without a record of each grant finds resent callers by them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recent([Callers; 4]);

impl Recent {
    pub fn hold(&self, id: Id) -> bool {
        self.0.iter().any(|callers| callers.place_of(id).is_some())
    }

    pub fn push(&mut self, callers: Callers) {
        self.0.rotate_right(1);
        self.0[0] = callers;
    }

    pub fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let mut recent = Self::default();
        for callers in &mut recent.0 {
            *callers = Callers::read(reader)?;
        }
        Some(recent)
    }

    pub fn put(&self, bytes: &mut Vec<u8>) {
        self.0.iter().for_each(|callers| callers.put(bytes));
    }
}
