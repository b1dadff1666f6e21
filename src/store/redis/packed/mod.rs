//! Our own format in Redis: a limiter is one string, which one script reads and writes.
//!
//! `lua/README.md` describes the string, and the head of `lua/packed/decide.lua` a call and its
//! reply. So far limits by GCRA and by the calendar have it. Pure.

pub(crate) mod ban;
pub(crate) mod calendar;
pub(crate) mod gcra;
mod line;
pub(crate) mod requests;
pub(crate) mod row;
pub(crate) mod verbs;

use std::{iter, slice};

use redis::Value;

use super::wire::{
    format::suffixed,
    script::{Loaded, Script, ScriptCall},
    unreadable,
};
use crate::{
    charge::{Charge, PermitId},
    clock::Millis,
    error::{Error, ErrorKind},
    name::Name,
    store::guard::deny_cache::bans::Carried,
};

/// The script that decides all, and settles.
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

/// How a limiter stands, in the two numbers that its kind has for it.
type Standing = [i64; 2];

/// Where a charge by the calendar has no window at the time that counts.
const NO_WINDOW: i64 = 2 - MOST;

/// Returns how many limiters like this one a call can have. Here each has a place of one byte, and
/// its ban has another.
pub(super) fn most_together(charge: &Charge) -> usize {
    match charge.of().counting.algorithm.is_own() {
        true => usize::from(u8::MAX) / 2,
        false => usize::MAX,
    }
}

/// The flags of a request.
const WAITS: u8 = 1;
const ASKS: u8 = 2;
const SETTLES: u8 = 4;
const BANS: u8 = 8;

/// The flags of a charge.
const SHADOW: u8 = 1;
const HAS_BAN: u8 = 2;

/// Returns the key of a limiter. No name of a limiter in Redisson's format ends so.
pub(crate) fn key(name: &Name) -> String {
    suffixed(name, "~")
}

/// The id of a call, and the time by which it counts: that of the server, or of the caller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp {
    pub(crate) id: PermitId,
    pub(crate) now: Option<Millis>,
}

/// The argument of a call, which tells the time. Each limiter has a key and a row, at the same
/// place. Behind them each ban has both.
pub(crate) struct Argument(Vec<u8>);

impl Argument {
    /// Begins one with so many rows.
    fn new(Stamp { id, now }: Stamp, rows: usize) -> Self {
        let mut bytes = Vec::with_capacity(80);
        bytes.extend_from_slice(&id.0[..8]);
        // Zero stands for the server's clock.
        let now = now.map_or(0, |now| i64::try_from(now).unwrap_or(i64::MAX).max(1));
        Self(bytes).number(now, 6).bytes(&[byte(rows), 1])
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
    fn charge(self, place: usize, flags: u8, permits: u32) -> Self {
        let place = byte(place + 1);
        let argument = self.bytes(&[place, place, flags]);
        argument.number(permits.into(), 4)
    }

    /// Makes the call that leaves a caller so many of the permits that it took of the only limiter,
    /// which are found by two numbers of its kind.
    fn settle(
        self,
        caller: PermitId,
        name: &Name,
        [took, keep]: [u32; 2],
        mark: Standing,
    ) -> ScriptCall {
        let request = self.request(1, Some((caller, 0)), 1, SETTLES);
        let argument = request.charge(0, 0, keep).number(took.into(), 4);
        let argument = mark
            .iter()
            .fold(argument, |it, number| it.number(*number, 7));
        argument.call(iter::once(key(name)), 0)
    }

    /// Writes the ban of a charge, whose key and row are at this place.
    fn ban(self, place: usize, carried: Carried) -> Self {
        let place = byte(place + 1);
        let argument = self.bytes(&[place, place]).number(carried.number.into(), 4);
        argument.number(i64::try_from(carried.age).unwrap_or(i64::MAX), 6)
    }

    /// Makes the call of these keys, which decides for so many callers, if it is not a verb.
    fn call(&self, keys: impl ExactSizeIterator<Item = String>, callers: usize) -> ScriptCall {
        let mut command = DECIDE.start(keys.len(), 1);
        for key in keys {
            command.arg(key);
        }
        command.arg(&self.0);
        ScriptCall::new(&DECIDE, command, callers, true)
    }

    /// Makes the call of a verb, which may be sent again.
    fn verb(&self, keys: impl ExactSizeIterator<Item = String>) -> ScriptCall {
        ScriptCall {
            once: false,
            ..self.call(keys, 0)
        }
    }
}

fn byte(number: usize) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}

/// Reads the number of so many bytes at a place.
fn number_at(bytes: &[u8], at: usize, width: usize) -> i64 {
    let mut number = [0; 8];
    let read = bytes.get(at..at + width).unwrap_or_default();
    number
        .iter_mut()
        .zip(read)
        .for_each(|(to, byte)| *to = *byte);
    i64::from_le_bytes(number)
}

/// The numbers of a reply, behind the time.
struct Numbers<'r>(slice::Iter<'r, Value>);

impl<'r> Numbers<'r> {
    /// Returns those of a reply, and the time by which it counted in us.
    fn of(reply: &'r Value) -> Result<(Self, i64), Error> {
        let Value::Array(numbers) = reply else {
            return Err(unreadable());
        };
        match &**numbers {
            [Value::Int(micros @ 0..=MOST), rest @ ..] => Ok((Self(rest.iter()), *micros)),
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

/// Reads the reply to a call that settles or releases: the permits that are free again.
pub(crate) fn freed(reply: &Value) -> Result<i64, Error> {
    let (mut numbers, _) = Numbers::of(reply)?;
    let freed = numbers.next()?;
    numbers.end()?;
    Ok(if freed == NO_WINDOW { 0 } else { freed })
}

/// Returns the error of a state that is not ours, or of a later version.
pub(super) fn foreign() -> Error {
    Error::new(ErrorKind::ForeignState).detail("a state that this version did not write")
}
