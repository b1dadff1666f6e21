//! Our own format in Redis: a limiter is one string, which one script reads and writes.
//!
//! `lua/README.md` describes the string, and the head of `lua/packed/decide.lua` a call and its
//! reply. Pure.

mod answers;
pub(crate) mod ban;
pub(crate) mod calendar;
pub(crate) mod call;
pub(crate) mod gcra;
pub(crate) mod log;
pub(crate) mod requests;
pub(crate) mod row;
pub(crate) mod verbs;
pub(crate) mod window;

use std::{io::Write, slice};

use redis::{RedisWrite, Value};

use super::{
    keys::{brackets, suffixed},
    reply::unreadable,
    script::{LazyScript, Script, ScriptCall},
};
use crate::{
    algorithm::answer::{Answer, Each},
    values::{
        charge::PermitId,
        clock::Millis,
        error::{Error, ErrorKind},
        limit::StoredLimit,
        name::{Name, Short},
    },
};

/// The script that decides all, and settles.
pub(crate) static DECIDE: LazyScript =
    LazyScript::new(|| Script::new("packed/decide", &joined("decide.lua")));

/// The files of the script.
macro_rules! fragments {
    ($($name:literal),+) => {
        [$(($name, include_str!(concat!("../../../../lua/packed/", $name)))),+]
    };
}
const FRAGMENTS: [(&str, &str); 30] = fragments![
    "answer.lua",
    "ban.lua",
    "charge.lua",
    "cut_times.lua",
    "decide.lua",
    "find.lua",
    "first.lua",
    "gcra.lua",
    "log.lua",
    "log_write.lua",
    "merge.lua",
    "one_window.lua",
    "prepare.lua",
    "rare.lua",
    "read.lua",
    "records.lua",
    "request.lua",
    "resolve.lua",
    "row.lua",
    "settle.lua",
    "settle_usual.lua",
    "simple.lua",
    "state.lua",
    "tell.lua",
    "usual.lua",
    "usual_gcra.lua",
    "usual_several.lua",
    "walk.lua",
    "window.lua",
    "write.lua"
];

/// Returns the text of a file, in which each line that includes another gives way to that one.
fn joined(name: &str) -> String {
    let text = FRAGMENTS.iter().find(|(file, _)| *file == name);
    let lines = text.map_or("", |(_, text)| text).lines();
    let lines = lines.map(|line| match line.split_once("--- @include ") {
        Some((_, name)) => joined(name),
        None => format!("{line}\n"),
    });
    lines.collect()
}

/// The greatest number that a script counts exactly, and that of a time in ms.
const MOST: i64 = (1 << 53) - 1;
const LATEST: i64 = (1 << 48) - 1;

/// How a limiter stands, in the numbers that its kind has for it.
type PackedStanding = [i64; 3];

/// How a limiter stands, and each of several limits.
type Stands = (PackedStanding, Option<Box<Each>>);

/// What a charge counts by, of one kind. A [`Row`](row::Row) holds one.
pub(crate) trait RowKind {
    /// Writes it.
    fn put(&self, bytes: &mut Short);

    /// Returns the limit that the row says.
    fn limit(&self) -> StoredLimit;

    /// Returns the most permits that a caller can take.
    fn most(&self) -> i64 {
        self.limit().rate
    }

    /// Reads how it stands where there is room.
    fn with_room(&self, first: i64, numbers: &mut Numbers<'_>) -> Result<Stands, Error>;

    /// Reads the same where there is none, for so long: by default of a window, also one of the
    /// calendar. It may have stood so `before`.
    fn without_room(
        &self,
        wait: i64,
        numbers: &mut Numbers<'_>,
        before: Option<PackedStanding>,
    ) -> Result<PackedStanding, Error> {
        let ends_before = before.map_or(0, |[_, ends, _]| ends);
        let left = numbers.next()?;
        Ok([left, if wait > -MOST { -wait } else { ends_before }, 0])
    }

    /// Reads how each of several limits stands, behind a group that has no room.
    fn each(&self, _: &mut Numbers<'_>) -> Result<Option<Box<Each>>, Error> {
        Ok(None)
    }

    /// Returns what is answered to all callers, at a time in us.
    fn answer(&self, now: i64, standing: PackedStanding) -> Answer;

    /// Returns the ms until a caller that needs so many permits has room.
    fn wait(&self, answer: &Answer, standing: PackedStanding, needs: i64) -> i64;
}

/// What the reply says about callers that ask for the same of one limiter.
struct Group {
    granted: usize,
    /// The ms until the first of the others has room, if nothing else is taken.
    wait: i64,
    /// `None` if a ban refuses them.
    standing: Option<Stands>,
}

/// Where a charge by the calendar has no window at the time that counts.
const NO_WINDOW: i64 = 2 - MOST;

/// How many limiters a call can have: each has an index of one byte, and its ban has another.
pub(super) const MOST_TOGETHER: usize = u8::MAX as usize / 2;

/// The flags of a request.
const WAITS: u8 = 1;
const ASKS: u8 = 2;
const BANS: u8 = 4;
const REPORTS: u8 = 8;
const SETTLES: u8 = 16;
/// What a call that only settles what one caller took has instead of the number of rows.
const ONLY_SETTLES: u8 = 255;

/// What a settlement of permits of any callers has for its mark.
const RELEASES: [i64; 2] = [MOST, 0];

/// The flags of a charge.
const SHADOW: u8 = 1;
const HAS_BAN: u8 = 2;
const FETCHES: u8 = 4;

/// Returns the key of a limiter by any algorithm but the calendar, which has
/// [its own](calendar::key). No name of a limiter in Redisson's format ends so.
pub(crate) fn key(name: &Name) -> String {
    suffixed(name, SUFFIX)
}

const SUFFIX: &str = "~";

/// The id of a call's first caller, and the time by which it counts: that of the server, or of the
/// caller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp {
    pub(crate) id: PermitId,
    pub(crate) now: Option<Millis>,
}

/// Makes the call of a script for keys that begin with names, each with its end. It must not be
/// sent twice.
fn sent_once(
    script: &'static Script,
    keys: &[(&Name, &str)],
    argument: &[u8],
    callers: usize,
) -> ScriptCall {
    let mut command = script.start(keys.len(), 1);
    for (name, suffix) in keys {
        let mut key = command.writer_for_next_arg();
        let [open, close] = brackets(name).map(str::as_bytes);
        for piece in [open, name.as_bytes(), close, suffix.as_bytes()] {
            // Writing to memory cannot fail.
            let _ = key.write_all(piece);
        }
    }
    command.arg(argument);
    ScriptCall {
        script,
        command,
        once: true,
        callers,
    }
}

/// Writes a number in so many bytes: 4, where it must fit, or 6 or 7, where one that does not fit
/// becomes the nearest that does.
fn put_number(bytes: &mut Short, number: i64, width: usize) {
    let number = number.clamp(0, if width < 7 { LATEST } else { MOST });
    bytes.push(&number.to_le_bytes()[..width]);
}

/// Reads the number that stands in `width` bytes from `at` on.
fn number_at(bytes: &[u8], at: usize, width: usize) -> i64 {
    let mut number = [0; 8];
    let read = bytes.get(at..at + width).unwrap_or_default();
    number
        .iter_mut()
        .zip(read)
        .for_each(|(to, byte)| *to = *byte);
    i64::from_le_bytes(number)
}

/// The numbers of a reply, or of a part of it, without the time.
pub(crate) struct Numbers<'r> {
    rest: slice::Iter<'r, Value>,
    /// If each request begins with how many it has, how many are left when the present one ends.
    left_then: Option<usize>,
}

impl<'r> Numbers<'r> {
    /// Returns those of a reply, and the time by which it counted in us.
    fn with_time(reply: &'r Value) -> Result<(Self, i64), Error> {
        let Value::Array(numbers) = reply else {
            return Err(unreadable());
        };
        match &**numbers {
            [Value::Int(micros @ 0..=MOST), rest @ ..] => {
                let (rest, left_then) = (rest.iter(), None);
                Ok((Self { rest, left_then }, *micros))
            }
            _ => Err(unreadable()),
        }
    }

    /// Returns those of a reply to a lone call.
    fn alone(reply: &'r Value) -> Result<Self, Error> {
        let rest = match reply {
            Value::Int(_) => slice::from_ref(reply).iter(),
            Value::Array(numbers) => numbers.iter(),
            _ => return Err(unreadable()),
        };
        let left_then = None;
        Ok(Self { rest, left_then })
    }

    /// Takes those of the next requests, each of which begins with how many it has; `None` if there
    /// are not as many.
    fn of_requests(&mut self, requests: usize) -> Option<Self> {
        let all = self.rest.as_slice();
        for _ in 0..requests {
            let Some(Value::Int(count)) = self.rest.next() else {
                return None;
            };
            let rest = self.rest.as_slice().get(usize::try_from(*count).ok()?..);
            self.rest = rest?.iter();
        }
        let (taken, _) = all.split_at(all.len() - self.rest.len());
        Some(Self {
            rest: taken.iter(),
            left_then: Some(taken.len()),
        })
    }

    /// Begins the next request. It is an error if the one before has more or fewer numbers than
    /// were read.
    fn begin(&mut self) -> Result<(), Error> {
        let Some(left) = self.left_then else {
            return Ok(());
        };
        let count = self.rest.next();
        let left_then = match count {
            Some(Value::Int(count)) if self.rest.len() + 1 == left => {
                let count = usize::try_from(*count).ok();
                count.and_then(|count| self.rest.len().checked_sub(count))
            }
            _ => None,
        };
        self.left_then = Some(left_then.ok_or_else(unreadable)?);
        Ok(())
    }

    /// Reads the next number. Nil stands for a request whose state is foreign.
    fn next(&mut self) -> Result<i64, Error> {
        match self.rest.next() {
            Some(Value::Int(number)) if number.abs_diff(0) <= MOST.abs_diff(0) => Ok(*number),
            Some(Value::Nil) => Err(foreign()),
            _ => Err(unreadable()),
        }
    }

    /// Checks that all were read.
    fn end(&mut self) -> Result<(), Error> {
        self.rest.next().map_or(Ok(()), |_| Err(unreadable()))
    }
}

/// Returns the permits left and the ms that a group with room says with them, by a limit of this
/// rate whose interval is so long.
fn left_and(
    number: i64,
    numbers: &mut Numbers<'_>,
    rate: i64,
    interval: i64,
) -> Result<[i64; 2], Error> {
    let unit = interval + 1;
    // One number, where that can be counted exactly.
    let said = if (rate + 1).saturating_mul(unit) <= MOST {
        [number.div_euclid(unit), number.rem_euclid(unit)]
    } else {
        [number, numbers.next()?]
    };
    if said.iter().all(|number| *number >= 0) {
        Ok(said)
    } else {
        Err(unreadable())
    }
}

/// Reads the reply to a call that settles or releases: the permits that are free again.
pub(crate) fn freed(reply: &Value) -> Result<i64, Error> {
    let mut numbers = Numbers::alone(reply)?;
    let freed = numbers.next()?;
    numbers.end()?;
    Ok(if freed == NO_WINDOW { 0 } else { freed })
}

/// Returns the error of a state that is not ours, or of a later version.
pub(super) fn foreign() -> Error {
    Error::new(ErrorKind::ForeignState).detail("a state that this version did not write")
}
