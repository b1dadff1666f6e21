//! One reading of a log: [`Pass`].

use std::{
    borrow::Cow,
    collections::{HashMap, hash_map::RandomState},
    fmt::Write,
    hash::{BuildHasher, BuildHasherDefault, Hasher},
    io::{BufRead, Read},
    net::{IpAddr, SocketAddr},
};

use super::{
    error::ReplayError,
    lines::{Columns, Fields, Format, Request},
    order::Reorder,
    time::{Resolution, SECOND},
};
use crate::name::{IPV6_PREFIX, spell};

/// The length of the longest line that is read: longer ones are unreadable.
const LONGEST_LINE: u64 = 1 << 16;
/// The number of requests that show how far times are apart.
const FIRST: usize = 4096;
/// The number of lines among which the format is looked for.
const FORMAT_WITHIN: u64 = 100;
/// The number of unreadable lines that are shown, and the characters of each.
const SAMPLES: usize = 3;
const SAMPLE: usize = 100;

/// What was read, and what was not.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) lines: u64,
    pub(super) unreadable: u64,
    pub(super) samples: Vec<(u64, String)>,
    pub(super) late: u64,
    pub(super) without_caller: u64,
    pub(super) requests: u64,
    /// The times of the first and the last request.
    pub(super) span: Option<(i64, i64)>,
    /// In microseconds; of the first requests, and so never too fine.
    pub(super) resolution: i64,
    /// By column, whether the log has it.
    pub(super) found: Vec<bool>,
    /// Lines of any kind, up to which a further pass reads.
    physical: u64,
}

/// Two keyed hashes of a key.
type Digest = (u64, u64);

/// The hasher of digests, which need no further hash.
#[derive(Default)]
struct Digested(u64);

impl Hasher for Digested {
    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, part: u64) {
        self.0 ^= part;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The callers of a log, each with a number. Two keyed hashes of 64 bits stand for its key, so that
/// memory does not grow with the length of keys.
pub(super) struct Callers {
    numbers: HashMap<Digest, u32, BuildHasherDefault<Digested>>,
    secrets: [RandomState; 2],
    /// By number, if keys are shown.
    names: Option<Vec<Box<str>>>,
}

impl Callers {
    pub(super) fn new(show_keys: bool) -> Self {
        Self {
            numbers: HashMap::default(),
            secrets: [RandomState::new(), RandomState::new()],
            names: show_keys.then(Vec::new),
        }
    }

    /// Returns the number of the caller in the first column.
    pub(super) fn caller(&mut self, fields: &Fields<'_>) -> Option<u32> {
        let caller = fields.first()?.as_deref()?.trim();
        match caller {
            "" | "-" => None,
            _ => Some(match address(caller) {
                Some(address) => self.number(&address),
                None => self.number(caller),
            }),
        }
    }

    fn number(&mut self, caller: &str) -> u32 {
        let [first, second] = &self.secrets;
        let digest = (first.hash_one(caller), second.hash_one(caller));
        let next = u32::try_from(self.numbers.len()).unwrap_or(u32::MAX);
        let number = *self.numbers.entry(digest).or_insert(next);
        if number == next
            && let Some(names) = &mut self.names
        {
            names.push(caller.into());
        }
        number
    }

    pub(super) fn count(&self) -> usize {
        self.numbers.len()
    }

    /// Returns the keys of callers, or their digests, in the same order.
    pub(super) fn names_of(&self, numbers: &[u32]) -> Vec<String> {
        let digests: HashMap<u32, Digest> = match &self.names {
            Some(_) => HashMap::new(),
            None => {
                let all = self
                    .numbers
                    .iter()
                    .map(|(digest, number)| (*number, *digest));
                all.filter(|(number, _)| numbers.contains(number)).collect()
            }
        };
        let name = |number: &u32| match &self.names {
            Some(names) => names
                .get(*number as usize)
                .map(|name| name.escape_debug().collect()),
            None => digests
                .get(number)
                .map(|(first, _)| format!("{first:016x}")),
        };
        numbers
            .iter()
            .map(|it| name(it).unwrap_or_default())
            .collect()
    }
}

/// The settings of a reading.
pub(super) struct Pass<'a> {
    pub(super) columns: &'a Columns,
    /// In microseconds.
    pub(super) reorder: i64,
    /// The lines of an earlier pass, if there was one: the log may have grown.
    pub(super) before: Option<&'a Tally>,
}

impl Pass<'_> {
    /// Reads a log. `keep` takes what matters of a request, if anything does; `decide` gets that
    /// in the order of time, with the resolution of the log, in microseconds, and the time.
    pub(super) fn run<T: Ord>(
        &self,
        mut log: impl BufRead,
        mut keep: impl FnMut(&Fields<'_>) -> Option<T>,
        mut decide: impl FnMut(i64, i64, T) -> Result<(), ReplayError>,
    ) -> Result<Tally, ReplayError> {
        let mut reading = Reading {
            pass: self,
            format: None,
            problem: None,
            tally: Tally::default(),
            order: Reorder::new(self.reorder),
            resolution: Resolution::default(),
            durations: Resolution::default(),
        };
        let mut line = Vec::new();
        let mut has_begun = false;
        while reading.next_line(&mut log, &mut line, &mut keep)? {
            if !has_begun && reading.order.count() >= FIRST {
                has_begun = true;
                reading.find_resolution();
            }
            if has_begun {
                reading.decide(&mut decide, false)?;
            }
        }
        if let (Some(problem), None) = (reading.problem.take(), &reading.format) {
            return Err(problem);
        }
        if !has_begun {
            reading.find_resolution();
        }
        reading.decide(&mut decide, true)?;
        let format = reading.format.iter();
        reading.tally.found = format.flat_map(Format::found).collect();
        Ok(reading.tally)
    }
}

struct Reading<'a, T> {
    pass: &'a Pass<'a>,
    format: Option<Format>,
    /// Why no format was found yet.
    problem: Option<ReplayError>,
    tally: Tally,
    order: Reorder<T>,
    resolution: Resolution,
    /// That of durations, which is added.
    durations: Resolution,
}

impl<T: Ord> Reading<'_, T> {
    /// Reads one line, if there is one more.
    fn next_line(
        &mut self,
        log: &mut impl BufRead,
        line: &mut Vec<u8>,
        keep: &mut impl FnMut(&Fields<'_>) -> Option<T>,
    ) -> Result<bool, ReplayError> {
        let before = self.pass.before;
        if before.is_some_and(|before| self.tally.physical >= before.physical) {
            return Ok(false);
        }
        line.clear();
        if log.by_ref().take(LONGEST_LINE).read_until(b'\n', line)? == 0 {
            return Ok(false);
        }
        self.tally.physical += 1;
        let is_whole = line.ends_with(b"\n") || (line.len() as u64) < LONGEST_LINE;
        if !is_whole {
            log.skip_until(b'\n')?;
        }
        // Most logs are ASCII, which this reads much faster than what mends the rest.
        let text = match str::from_utf8(line) {
            Ok(text) => Cow::Borrowed(text),
            Err(_) => String::from_utf8_lossy(line),
        };
        let text = text.trim_end_matches(['\n', '\r']);
        // Editors on other systems write a byte order mark.
        let text = match self.tally.physical {
            1 => text.strip_prefix('\u{feff}').unwrap_or(text),
            _ => text,
        };
        if text.is_empty() || self.is_header(text)? {
            return Ok(true);
        }
        self.tally.lines += 1;
        let format = self.format.as_ref().filter(|_| is_whole);
        match format.and_then(|format| format.read(text)) {
            Some(request) => self.take(&request, keep),
            None => self.reject(text),
        }
        Ok(true)
    }

    /// Finds the format, if it is not known yet. Returns whether the line is a header.
    fn is_header(&mut self, text: &str) -> Result<bool, ReplayError> {
        if self.format.is_some() {
            return Ok(false);
        }
        match Format::of(text, self.pass.columns) {
            Ok(format) => {
                let is_header = format.has_header();
                self.format = Some(format);
                return Ok(is_header);
            }
            Err(reason) => {
                let number = self.tally.physical;
                let problem = ReplayError::Format(format!("line {number} of the log: {reason}"));
                self.problem.get_or_insert(problem);
            }
        }
        match self.problem.take() {
            Some(problem) if self.tally.physical >= FORMAT_WITHIN => Err(problem),
            problem => {
                self.problem = problem;
                Ok(false)
            }
        }
    }

    fn reject(&mut self, text: &str) {
        self.tally.unreadable += 1;
        if self.tally.samples.len() < SAMPLES {
            let mut shown = String::new();
            for character in text.chars().take(SAMPLE) {
                // Writing into a string cannot fail.
                let _ = write!(shown, "{}", character.escape_debug());
            }
            self.tally.samples.push((self.tally.physical, shown));
        }
    }

    fn take(&mut self, request: &Request<'_>, keep: &mut impl FnMut(&Fields<'_>) -> Option<T>) {
        let started = request.written.saturating_sub(request.lasted);
        if self.order.is_late(started) {
            self.tally.late += 1;
            return;
        }
        let Some(kept) = keep(&request.fields) else {
            self.tally.without_caller += 1;
            return;
        };
        self.resolution.add(request.written);
        self.durations.add(request.lasted);
        self.order.push(started, kept);
    }

    /// Finds the resolution of the starts: where a duration is subtracted, both have one.
    fn find_resolution(&mut self) {
        self.tally.resolution = self.resolution.micros();
        if self.pass.columns.duration.is_some() {
            // Few servers are so slow that durations show their resolution: at most seconds.
            self.tally.resolution += self.durations.micros().min(SECOND);
        }
    }

    fn decide(
        &mut self,
        decide: &mut impl FnMut(i64, i64, T) -> Result<(), ReplayError>,
        at_end: bool,
    ) -> Result<(), ReplayError> {
        while let Some((time, request)) = self.order.next(at_end) {
            let (first, _) = self.tally.span.unwrap_or((time, time));
            self.tally.span = Some((first, time));
            self.tally.requests += 1;
            decide(self.tally.resolution, time, request)?;
        }
        Ok(())
    }
}

/// Returns the text under which an address counts, without a port; `None` for an IPv4 address,
/// which counts as it is, and for what is no address.
fn address(caller: &str) -> Option<String> {
    // Most keys that are no address begin with a letter that no address has.
    let first = caller.bytes().next()?;
    if !(first.is_ascii_hexdigit() || matches!(first, b':' | b'[')) {
        return None;
    }
    let address = match caller.parse() {
        Ok(IpAddr::V4(_)) => return None,
        Ok(address) => address,
        Err(_) => caller.parse::<SocketAddr>().ok()?.ip(),
    };
    Some(spell(address, IPV6_PREFIX).to_string())
}
