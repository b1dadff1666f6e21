//! The limiters that the script keeps in Redis, decided in Rust: the same bytes, the same replies.
//!
//! Each limiter is one string: a state of one of five kinds. A call asks for permits of several of
//! them, and [`decide`] answers it as the script does. No bytes make it panic.

pub mod ban;
pub mod call;
pub mod count;
pub mod decide;
pub mod gcra;
pub mod keys;
pub mod log;
pub mod reply;
pub mod state;
pub mod window;

use std::fmt;

/// The greatest number that a script counts exactly.
pub const MOST: i64 = (1 << 53) - 1;
/// The greatest number of six bytes: most times, and the permits of one record.
pub const MOST_I6: i64 = (1 << 48) - 1;

/// The latest time of a clock, in ms.
pub const LATEST: i64 = (1 << 42) - 1;

/// The time of a call, and that of the server.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// In us, by the clock that the call counts by
    pub us: i64,
    /// In us, by the server's clock, by which keys expire
    pub server_us: i64,
    /// Set if the call counts by the server's clock.
    pub is_by_server: bool,
}

impl Clock {
    /// Returns the clock of a call that gives `now` in ms, where 0 stands for the server's clock.
    pub fn of(now: i64, server_us: i64) -> Self {
        Self {
            us: if now == 0 { server_us } else { now * 1000 },
            server_us,
            is_by_server: now == 0,
        }
    }

    pub fn now(&self) -> i64 {
        self.us.div_euclid(1000)
    }

    pub fn server(&self) -> i64 {
        self.server_us.div_euclid(1000)
    }
}

/// A caller: the command that brought it, and its place there.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Id {
    pub command: [u8; 8],
    pub place: u8,
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}:{}", u64::from_be_bytes(self.command), self.place)
    }
}

impl Id {
    /// Returns the id of the caller so many places behind this one.
    pub fn plus(self, places: i64) -> Self {
        let place = u8::try_from(i64::from(self.place) + places).unwrap_or(u8::MAX);
        Self { place, ..self }
    }
}

/// A limit: at most `rate` permits in an `interval` of ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    pub interval: i64,
    pub rate: i64,
}

/// Reads bytes from the front: little-endian numbers of one to seven bytes, and ids.
pub struct Reader<'b>(pub &'b [u8]);

impl Reader<'_> {
    pub fn number(&mut self, width: usize) -> Option<i64> {
        let (head, rest) = self.0.split_at_checked(width)?;
        self.0 = rest;
        let mut bytes = [0; 8];
        bytes[..width].copy_from_slice(head);
        Some(i64::from_le_bytes(bytes))
    }

    pub fn byte(&mut self) -> Option<u8> {
        u8::try_from(self.number(1)?).ok()
    }

    pub fn id(&mut self) -> Option<Id> {
        let (command, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(Id {
            command: *command,
            place: self.byte()?,
        })
    }
}

/// Writes a number in so many bytes. One that does not fit is cut to the nearest that does.
pub fn put(bytes: &mut Vec<u8>, number: i64, width: usize) {
    let most = (1_i64 << (8 * width)) - 1;
    let number = number.clamp(0, most.min(MOST));
    bytes.extend_from_slice(&number.to_le_bytes()[..width]);
}

/// Writes the id of a caller.
pub fn put_id(bytes: &mut Vec<u8>, id: Id) {
    bytes.extend_from_slice(&id.command);
    bytes.push(id.place);
}
