//! Columns of a log in the order of time: [`Rows`].

use std::{
    borrow::Cow,
    collections::BTreeMap,
    io::{BufRead, Read},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::{Serialize, Serializer};

use super::{
    ReplayError,
    format::{Fields, Format},
    time::{self, Resolution},
};

/// The length of the longest line that is read: longer ones are unreadable.
const LONGEST_LINE: u64 = 1 << 16;
/// The number of requests that show how far times are apart.
const FIRST: usize = 4096;
/// The number of lines among which the format is looked for.
const FORMAT_WITHIN: u64 = 100;
/// The number of unreadable lines that are shown, and the characters of each.
const SAMPLES: usize = 3;
const SAMPLE: usize = 100;

/// Reads columns of an access log, in the order of time.
///
/// The formats and the names of columns are those of [`Replay`](super::Replay). `ip`, `method`,
/// `path`, `host` and `status` also find columns by other usual names; method and path are also
/// read from a column `request`, as in the common format.
///
/// # Example
///
/// ```
/// use tower_ratelimit::replay::Rows;
///
/// let log = r#"{"ts": 1791640536.9, "remote_addr": "192.0.2.1", "request": "GET /b HTTP/1.1"}
/// {"ts": 1791640536.1, "remote_addr": "192.0.2.1", "request": "GET /a HTTP/1.1"}"#;
/// let mut paths = Vec::<Box<str>>::new();
/// let rows = Rows::of(["ip", "path"]).optional("status");
/// let read = rows.read(log.as_bytes(), |_time, fields| {
///     paths.push(fields[1].clone().unwrap_or_default());
/// })?;
/// assert_eq!(paths.concat(), "/a/b");
/// assert_eq!((read.requests, read.missing), (2, vec!["status".to_owned()]));
/// # Ok::<_, tower_ratelimit::replay::ReplayError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is read before `read`"]
pub struct Rows {
    /// The time, the duration, and those that are read, each with whether a log may lack it.
    columns: Vec<(String, bool)>,
    /// In microseconds: the unit of the duration, if one is subtracted.
    unit: Option<i64>,
    reorder: Duration,
}

/// The lines that [`Rows::read`] has read, by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RowsRead {
    /// The lines that were read, without empty ones and the header of a CSV file
    pub lines: u64,
    /// The lines that could not be read
    pub unreadable: u64,
    /// The first of these, each with its number, cut and escaped. They may hold addresses
    #[serde(skip)]
    pub samples: Vec<(u64, String)>,
    /// The lines that came too late to be put in order, and were left out
    pub late: u64,
    /// The requests
    pub requests: u64,
    /// The time of the first request since the epoch; `None` if there are none
    pub first_ms: Option<i64>,
    /// The same of the last one
    pub last_ms: Option<i64>,
    /// The resolution of the log's times, such as a second
    #[serde(rename = "resolution_us", serialize_with = "in_micros")]
    pub resolution: Duration,
    /// The optional columns that the log lacks
    #[serde(skip)]
    pub missing: Vec<String>,
    /// The lines of any kind. A further reading reads no more of them: the log may have grown.
    #[serde(skip)]
    pub(super) physical: u64,
}

fn in_micros<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}

impl Rows {
    /// Reads these columns, which a log must have.
    pub fn of<'n>(columns: impl IntoIterator<Item = &'n str>) -> Self {
        let none = Self {
            columns: vec![("time".to_owned(), false), (String::new(), true)],
            unit: None,
            reorder: Duration::from_secs(60),
        };
        columns.into_iter().fold(none, Self::column)
    }

    /// Adds a column.
    pub fn column(mut self, column: &str) -> Self {
        self.columns.push((column.to_owned(), false));
        self
    }

    /// Adds a column that a log may lack.
    pub fn optional(mut self, column: &str) -> Self {
        self.columns.push((column.to_owned(), true));
        self
    }

    /// Puts requests in order whose lines are apart by up to this time. Later ones are counted, and
    /// left out. Default: 60 seconds.
    pub fn reorder(mut self, within: Duration) -> Self {
        self.reorder = within;
        self
    }

    /// Names the column of the time. Default: the one that the format has, or a usual name.
    pub fn time_column(self, column: &str) -> Self {
        self.at(0, column)
    }

    /// Subtracts the duration in this column, in numbers of the given unit, because a server writes
    /// a line when its request ends.
    pub fn duration_column(mut self, column: &str, unit: Duration) -> Self {
        self.unit = Some(micros(unit));
        self.at(1, column)
    }

    fn at(mut self, place: usize, column: &str) -> Self {
        self.columns[place] = (column.to_owned(), false);
        self
    }

    /// Returns whether a duration is subtracted.
    pub(super) fn has_durations(&self) -> bool {
        self.unit.is_some()
    }

    /// Reads a log, and calls `each` for every request with its time and its columns, in their
    /// order. A column that is missing in a line is `None`.
    ///
    /// # Errors
    ///
    /// Returns an error if the log cannot be read or lacks a column.
    pub fn read(
        &self,
        log: impl BufRead,
        mut each: impl FnMut(SystemTime, &[Option<Box<str>>]),
    ) -> Result<RowsRead, ReplayError> {
        let keep = |fields: &[Option<Cow<'_, str>>]| {
            let fields = fields.iter().map(|field| field.as_deref().map(Box::from));
            Some(fields.collect::<Box<[Option<Box<str>>]>>())
        };
        let decide = |_, time: i64, fields: Box<[_]>| {
            let apart = Duration::from_micros(time.unsigned_abs());
            let time = match time {
                0.. => UNIX_EPOCH.checked_add(apart),
                _ => UNIX_EPOCH.checked_sub(apart),
            };
            each(time.unwrap_or(UNIX_EPOCH), &fields);
        };
        self.each(log, u64::MAX, keep, decide)
    }

    /// Reads this many lines of a log. `keep` takes what matters of a request, if anything does.
    /// `decide` gets the resolution of the log, and the requests in the order of time, with their
    /// times in microseconds.
    pub(super) fn each<T>(
        &self,
        mut log: impl BufRead,
        lines: u64,
        mut keep: impl FnMut(&[Option<Cow<'_, str>>]) -> Option<T>,
        mut decide: impl FnMut(Duration, i64, T),
    ) -> Result<RowsRead, ReplayError> {
        let mut reading = Reading {
            rows: self,
            format: None,
            problem: None,
            read: RowsRead::default(),
            waiting: BTreeMap::new(),
            newest: i64::MIN,
            written: Resolution::default(),
            lasted: Resolution::default(),
        };
        let (mut line, mut has_begun) = (Vec::new(), false);
        while reading.read.physical < lines && reading.next_line(&mut log, &mut line, &mut keep)? {
            has_begun |= reading.waiting.len() >= FIRST;
            if has_begun {
                reading.decide(&mut decide, false);
            }
        }
        reading.decide(&mut decide, true);
        let mut read = reading.read;
        let Some(format) = reading.format else {
            // A log without lines has no problem.
            return reading
                .problem
                .map_or(Ok(read), |it| Err(ReplayError::Format(it)));
        };
        let columns = self.columns.iter().zip(&format.columns).skip(2);
        let missing = columns.filter(|(_, place)| place.is_none());
        read.missing = missing.map(|((name, _), _)| name.clone()).collect();
        Ok(read)
    }
}

impl RowsRead {
    /// Returns the share of lines that were left out, as they were unreadable or late.
    pub fn lost(&self) -> f64 {
        match self.lines {
            0 => 0.0,
            lines => (self.unreadable + self.late) as f64 / lines as f64,
        }
    }
}

struct Reading<'a, T> {
    rows: &'a Rows,
    format: Option<Format>,
    /// Why no format was found yet.
    problem: Option<String>,
    read: RowsRead,
    /// The requests of the last while, which later lines may still precede: by their times, and in
    /// the order of their lines.
    waiting: BTreeMap<(i64, u64), T>,
    newest: i64,
    written: Resolution,
    lasted: Resolution,
}

impl<T> Reading<'_, T> {
    /// Reads one line, if there is one more.
    fn next_line(
        &mut self,
        log: &mut impl BufRead,
        line: &mut Vec<u8>,
        keep: &mut impl FnMut(&[Option<Cow<'_, str>>]) -> Option<T>,
    ) -> Result<bool, ReplayError> {
        line.clear();
        if log.by_ref().take(LONGEST_LINE).read_until(b'\n', line)? == 0 {
            return Ok(false);
        }
        self.read.physical += 1;
        let is_whole = line.ends_with(b"\n") || (line.len() as u64) < LONGEST_LINE;
        if !is_whole {
            log.skip_until(b'\n')?;
        }
        // Most logs are ASCII, which this reads much faster than what mends the rest.
        let text = str::from_utf8(line);
        let text = text.map_or_else(|_| String::from_utf8_lossy(line), Cow::Borrowed);
        // Editors on other systems write a byte order mark.
        let text = text.trim_start_matches('\u{feff}');
        let text = text.trim_end_matches(['\n', '\r']);
        if text.is_empty() || self.is_header(text)? {
            return Ok(true);
        }
        self.read.lines += 1;
        let format = self.format.as_ref().filter(|_| is_whole);
        let fields = format.and_then(|format| format.read(text));
        let taken = fields.and_then(|fields| self.take(&fields, keep));
        if taken.is_none() {
            self.read.unreadable += 1;
            if self.read.samples.len() < SAMPLES {
                let shown = text.chars().take(SAMPLE).flat_map(char::escape_debug);
                let number = self.read.physical;
                self.read.samples.push((number, shown.collect()));
            }
        }
        Ok(true)
    }

    /// Finds the format, if it is not known yet. Returns whether the line is a header.
    fn is_header(&mut self, text: &str) -> Result<bool, ReplayError> {
        if self.format.is_some() {
            return Ok(false);
        }
        let number = self.read.physical;
        match Format::of(text, &self.rows.columns) {
            Ok(format) => Ok(self.format.insert(format).has_header()),
            Err(reason) => {
                let problem = || format!("line {number} of the log: {reason}");
                let problem = self.problem.get_or_insert_with(problem);
                match number < FORMAT_WITHIN {
                    true => Ok(false),
                    false => Err(ReplayError::Format(problem.clone())),
                }
            }
        }
    }

    /// Takes a request in; `None` if it has no time, or no duration where one is subtracted.
    fn take(
        &mut self,
        fields: &Fields<'_>,
        keep: &mut impl FnMut(&[Option<Cow<'_, str>>]) -> Option<T>,
    ) -> Option<()> {
        let [written, lasted, fields @ ..] = &fields[..] else {
            return None;
        };
        let written = time::read(written.as_deref()?)?;
        let lasted = match (self.rows.unit, lasted.as_deref()) {
            // nginx writes it where no server was asked.
            (None, _) | (_, Some("-" | "")) => 0,
            (Some(unit), lasted) => time::decimal(lasted?, unit)?,
        };
        let started = written.saturating_sub(lasted);
        if started < self.newest.saturating_sub(micros(self.rows.reorder)) {
            self.read.late += 1;
        } else if let Some(kept) = keep(fields) {
            self.written.add(written);
            self.lasted.add(lasted);
            self.newest = self.newest.max(started);
            self.waiting.insert((started, self.read.physical), kept);
        }
        Some(())
    }

    /// Returns the resolution of the starts: where a duration is subtracted, both have one.
    fn resolution(&self) -> Duration {
        let written = self.written.get();
        match self.rows.has_durations() {
            // Few servers are so slow that durations show their resolution: at most seconds.
            true => written + self.lasted.get().min(Duration::from_secs(1)),
            false => written,
        }
    }

    /// Decides the requests that no later line can precede, or all at the end. The first call fixes
    /// the resolution.
    fn decide(&mut self, decide: &mut impl FnMut(Duration, i64, T), at_end: bool) {
        if self.read.resolution.is_zero() {
            self.read.resolution = self.resolution();
        }
        let newest = self.newest.saturating_sub(micros(self.rows.reorder));
        while let Some(next) = self.waiting.first_entry()
            && let (time, _) = *next.key()
            && (at_end || time <= newest)
        {
            let millis = time.div_euclid(1000);
            self.read.first_ms.get_or_insert(millis);
            self.read.last_ms = Some(millis);
            self.read.requests += 1;
            decide(self.read.resolution, time, next.remove());
        }
    }
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}
