//! Our own format in Redis: a limiter is one string, which one script reads and writes.
//!
//! `lua/README.md` describes the string, and the head of `lua/packed/decide.lua` a call and its
//! reply. So far only limits by the calendar have it.

pub(crate) mod calendar;

use std::slice;

use redis::Value;

use super::wire::{
    format::suffixed,
    script::{Loaded, Script, ScriptCall},
    unreadable,
};
use crate::{
    charge::{Charge, PermitId},
    error::{Error, ErrorKind},
    limit::Algorithm,
    name::Name,
};

/// The script.
pub(crate) static DECIDE: Loaded =
    Loaded::new(|| Script::new("packed/decide", joined("decide.lua", "")));

/// The files of the script.
macro_rules! fragments {
    ($($name:literal),+) => {
        [$(($name, include_str!(concat!("../../../../lua/packed/", $name)))),+]
    };
}
const FRAGMENTS: [(&str, &str); 18] = fragments![
    "ban.lua",
    "charge.lua",
    "decide.lua",
    "gcra.lua",
    "log.lua",
    "log_write.lua",
    "merge.lua",
    "prepare.lua",
    "rare.lua",
    "read.lua",
    "resolve.lua",
    "row.lua",
    "settle.lua",
    "state.lua",
    "tell.lua",
    "usual.lua",
    "walk.lua",
    "window.lua"
];

/// Returns the text of a file, in which each line that includes another gives way to that one.
fn joined(name: &str, indent: &str) -> String {
    let text = FRAGMENTS.iter().find(|(file, _)| *file == name);
    let lines = text.map_or("", |(_, text)| text).lines();
    let lines = lines.map(|line| match line.split_once("--- @include ") {
        Some((deeper, name)) => joined(name, &[indent, deeper].concat()),
        None => format!("{indent}{line}\n"),
    });
    lines.collect()
}

/// The greatest number that a script counts exactly, and that of a time in ms.
const MOST: i64 = (1 << 53) - 1;
const LATEST: i64 = (1 << 48) - 1;

/// Returns how many limiters like this one a call can have: here their places have one byte.
pub(super) fn most_together(charge: &Charge) -> usize {
    match charge.of().counting.algorithm {
        Algorithm::Calendar => usize::from(u8::MAX),
        _ => usize::MAX,
    }
}

/// The flags of a request.
const WAITS: u8 = 1;
const ASKS: u8 = 2;
const SETTLES: u8 = 4;

/// Returns the key of a limiter. No name of a limiter in Redisson's format ends so.
pub(crate) fn key(name: &Name) -> String {
    suffixed(name, "~")
}

/// The argument of a call, which tells the time. Each limiter has a key and a row, at the same
/// place.
pub(crate) struct Argument(Vec<u8>);

impl Argument {
    /// Begins one with so many rows, by the server's clock.
    fn new(id: PermitId, rows: usize) -> Self {
        let mut bytes = Vec::with_capacity(80);
        bytes.extend_from_slice(&id.0[..8]);
        Self(bytes).number(0, 6).bytes(&[byte(rows), 1])
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Writes a number in so many bytes. One that does not fit is cut to the nearest that does.
    fn number(self, number: i64, width: usize) -> Self {
        let number = number.clamp(0, if width < 7 { LATEST } else { MOST });
        self.bytes(&number.to_le_bytes()[..width])
    }

    /// Begins a request of so many callers, for so many charges; or of one that was sent before, by
    /// that call and at that place.
    fn request(
        self,
        callers: u8,
        before: Option<(PermitId, u8)>,
        charges: usize,
        flags: u8,
    ) -> Self {
        let argument = match before {
            Some((id, place)) => self.bytes(&[0]).bytes(&id.0[..8]).bytes(&[place]),
            None => self.bytes(&[callers]),
        };
        argument.bytes(&[byte(charges), flags])
    }

    /// Writes a charge of the limiter at this place.
    fn charge(self, place: usize, is_shadow: bool, permits: u32) -> Self {
        let place = byte(place + 1);
        let argument = self.bytes(&[place, place, u8::from(is_shadow)]);
        argument.number(permits.into(), 4)
    }

    /// Makes the call for these limiters, which decides for so many callers.
    pub(crate) fn call<'a>(
        &self,
        names: impl ExactSizeIterator<Item = &'a Name>,
        callers: usize,
    ) -> ScriptCall {
        let mut command = DECIDE.start(names.len(), 1);
        for name in names {
            command.arg(key(name));
        }
        command.arg(&self.0);
        ScriptCall::new(&DECIDE, command, callers, true)
    }
}

fn byte(number: usize) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}

/// The numbers of a reply, behind the time.
struct Numbers<'r>(slice::Iter<'r, Value>);

impl<'r> Numbers<'r> {
    /// Returns those of a reply, and the server's time in ms.
    fn of(reply: &'r Value) -> Result<(Self, i64), Error> {
        let Value::Array(numbers) = reply else {
            return Err(unreadable());
        };
        match &**numbers {
            [Value::Int(micros @ 0..=MOST), rest @ ..] => Ok((Self(rest.iter()), micros / 1000)),
            _ => Err(unreadable()),
        }
    }

    /// Reads the next number. Nil stands for a request whose state is foreign.
    fn next(&mut self) -> Result<i64, Error> {
        match self.0.next() {
            Some(Value::Int(number)) if number.abs_diff(0) <= MOST.abs_diff(0) => Ok(*number),
            Some(Value::Nil) => Err(foreign()),
            _ => Err(unreadable()),
        }
    }

    /// Checks that all were read.
    fn end(&mut self) -> Result<(), Error> {
        self.0.next().map_or(Ok(()), |_| Err(unreadable()))
    }
}

/// Returns the error of a state that is not ours, or of a later version.
pub(super) fn foreign() -> Error {
    Error::new(ErrorKind::ForeignState).detail("a state that this version did not write")
}
