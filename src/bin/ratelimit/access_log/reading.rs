//! Reads the lines of a log, puts them in order, and checks what its columns hold: [`Reading`].

use std::{
    borrow::Cow,
    collections::BTreeMap,
    io::{self, BufRead, Read},
    mem,
    time::Duration,
};

use super::{
    DURATION, Rows, RowsRead,
    format::{Cells, FIELDS, Lack, LogFormat, rival, suggestion},
    kind::{ColumnTally, Kind, is_request, says_nothing},
    time::{self, Resolution, micros},
};

/// The length of the longest line that is read: longer ones are unreadable.
const LONGEST_LINE: usize = 1 << 16;
/// The number of requests that show how far times are apart.
const FIRST: usize = 4096;
/// The number of lines among which the format is looked for.
const FORMAT_WITHIN: usize = 100;
/// The lines by which a column of few addresses is known.
const ENOUGH: u64 = 20;
/// The number of unreadable lines that are shown, and the characters of each.
const SAMPLES: usize = 3;
const SAMPLE: usize = 100;

impl Rows {
    /// Reads this many lines of a log. `keep` takes what matters of a request, by its columns in
    /// their order, of which one that is missing is `None`. `decide` gets the resolution of the
    /// log, and what was kept in the order of time, in microseconds since the epoch.
    ///
    /// # Errors
    ///
    /// Returns an error if the log cannot be read or lacks a column, or if a column is not what its
    /// name says in 95 % of the lines, which only the whole log shows: `decide` was called then.
    pub(crate) fn each<T>(
        &self,
        mut log: impl BufRead,
        lines: u64,
        keep: impl FnMut(&[Option<Cow<'_, str>>]) -> Option<T>,
        mut decide: impl FnMut(Duration, i64, T),
    ) -> Result<RowsRead, String> {
        let columns = self.columns.iter();
        let mut reading = Reading {
            rows: self,
            lines,
            keep,
            format: None,
            header: 0,
            read: RowsRead::default(),
            tallies: columns.map(|(name, _)| ColumnTally::of(name)).collect(),
            waiting: BTreeMap::new(),
            newest: i64::MIN,
            written: Resolution::default(),
            lasted: Resolution::default(),
        };
        let (mut line, mut sample, mut has_begun) = (Vec::new(), Vec::new(), false);
        while sample.len() < FORMAT_WITHIN
            && let Some(text) = reading.next_line(&mut log, &mut line)?
        {
            sample.push(text.into_owned());
        }
        let whole = sample.iter().zip(1..).filter(|(text, _)| is_whole(text));
        let whole = whole.map(|(text, number)| (trimmed(text), number));
        let (shown, numbers): (Vec<_>, Vec<u64>) =
            whole.filter(|(line, _)| is_content(line)).unzip();
        let problem = reading.find_format(shown.iter().zip(numbers));
        if let Some((kind, reason)) = problem {
            return Err(self.unclear(kind, &reason, "", &shown));
        }
        for (text, number) in sample.iter().zip(1..) {
            reading.line(text, number);
        }
        while let Some(text) = reading.next_line(&mut log, &mut line)? {
            reading.line(&text, reading.read.physical);
            has_begun |= reading.waiting.len() >= FIRST;
            if has_begun {
                reading.decide(&mut decide, false);
            }
        }
        reading.decide(&mut decide, true);
        reading.end(&shown)
    }

    /// Returns an error for a column that is not where it seems to be.
    fn unclear(&self, kind: Kind, reason: &str, remedy: &str, sample: &[&str]) -> String {
        // Any column may be called anything.
        let suggestion = (kind != Kind::Any).then(|| suggestion(sample, self));
        format!("{reason}{}{remedy}", suggestion.unwrap_or_default())
    }
}

struct Reading<'a, T, K> {
    rows: &'a Rows,
    /// The lines that are read at most.
    lines: u64,
    /// Takes what matters of a request.
    keep: K,
    format: Option<LogFormat>,
    /// The number of the line that is the header of a CSV file.
    header: u64,
    read: RowsRead,
    /// By column.
    tallies: Vec<ColumnTally>,
    /// The requests of the last while, which later lines may still precede: by their times, and in
    /// the order of their lines.
    waiting: BTreeMap<(i64, u64), T>,
    newest: i64,
    written: Resolution,
    lasted: Resolution,
}

impl<T, K: FnMut(&[Option<Cow<'_, str>>]) -> Option<T>> Reading<'_, T, K> {
    /// Reads one line, if there is one more. Of one that is too long, the beginning.
    fn next_line<'l>(
        &mut self,
        log: &mut impl BufRead,
        line: &'l mut Vec<u8>,
    ) -> Result<Option<Cow<'l, str>>, String> {
        line.clear();
        let mut read = || {
            let read = log.take(LONGEST_LINE as u64).read_until(b'\n', line)?;
            if read == LONGEST_LINE && !line.ends_with(b"\n") {
                log.skip_until(b'\n')?;
            }
            Ok(read)
        };
        let no_more = self.read.physical == self.lines;
        if no_more || read().map_err(|error: io::Error| unread(&error))? == 0 {
            return Ok(None);
        }
        self.read.physical += 1;
        // Most logs are ASCII, which this reads much faster than what mends the rest.
        let text = str::from_utf8(line).map(Cow::Borrowed);
        Ok(Some(text.unwrap_or_else(|_| String::from_utf8_lossy(line))))
    }

    /// Finds the format by the lines that show the most columns. Returns what is missing.
    fn find_format<'l>(&mut self, lines: impl Iterator<Item = (&'l &'l str, u64)>) -> Option<Lack> {
        let mut problem = None;
        for (line, number) in lines {
            match LogFormat::find(line, self.rows) {
                Ok(format) if format.has_header() => {
                    (self.header, self.format) = (number, Some(format));
                    break;
                }
                Ok(format) => {
                    let found = self.format.take();
                    let better = found.filter(|found| found.missing() <= format.missing());
                    self.format = better.or(Some(format));
                }
                Err((kind, reason)) => {
                    problem.get_or_insert((kind, format!("line {number} of the log: {reason}")));
                }
            }
        }
        problem.filter(|_| self.format.is_none())
    }

    /// Takes in one line.
    fn line(&mut self, text: &str, number: u64) {
        let line = trimmed(text);
        if line.is_empty() || self.take_header(line, number) {
            return;
        }
        self.read.lines += 1;
        let format = self.format.as_ref().filter(|_| is_whole(text));
        let fields = format.and_then(|format| format.read(line));
        let taken = fields.and_then(|fields| self.take(&fields, number));
        if taken.is_none() {
            self.read.unreadable += 1;
            if self.read.samples.len() < SAMPLES {
                let shown = line.chars().take(SAMPLE).flat_map(char::escape_debug);
                self.read.samples.push((number, shown.collect()));
            }
        }
    }

    /// Reads a line if it is a header, which rotation may have put anywhere. Returns whether it is.
    fn take_header(&mut self, line: &str, number: u64) -> bool {
        let has_header = self.format.as_ref().is_some_and(LogFormat::has_header);
        if has_header && line.starts_with(FIELDS) && number > self.header {
            self.format = LogFormat::find(line, self.rows).ok().or(self.format.take());
        }
        number == self.header || (has_header && line.starts_with('#'))
    }

    /// Takes a request in; `None` if it has no time, or no duration where one is subtracted.
    fn take(&mut self, fields: &Cells<'_>, number: u64) -> Option<()> {
        let [written, lasted, ..] = &fields[..] else {
            return None;
        };
        let is_request = self.check(fields);
        let written = written.as_deref()?;
        let time = time::read(written);
        self.tallies[0].add(written, time.is_some());
        let written = time?;
        let lasted = match (self.rows.unit(), lasted.as_deref()) {
            (None, _) => 0,
            // nginx writes it where no server was asked.
            (_, Some(text)) if says_nothing(text) => 0,
            (Some(unit), lasted) => time::duration(lasted?, unit)?,
        };
        let started = written.saturating_sub(lasted);
        if !is_request {
            self.read.invalid += 1;
        } else if started < self.newest.saturating_sub(micros(self.rows.reorder)) {
            self.read.late += 1;
        } else if let Some(kept) = (self.keep)(fields) {
            self.written.add(written);
            self.lasted.add(lasted);
            self.newest = self.newest.max(started);
            self.waiting.insert((started, number), kept);
        }
        Some(())
    }

    /// Returns the resolution of the starts: where a duration is subtracted, both have one.
    fn resolution(&self) -> Duration {
        // Few servers are so slow that durations show their resolution: at most seconds.
        let lasted = self.lasted.get().min(Duration::from_secs(1));
        let lasted = self.rows.unit().map(|_| lasted);
        self.written.get() + lasted.unwrap_or_default()
    }

    /// Counts what the columns of a line hold. Returns whether it is a request.
    fn check(&mut self, fields: &Cells<'_>) -> bool {
        let ([_, _, method, path, status, ..], Some(format)) = (&fields[..], &self.format) else {
            return false;
        };
        let lacks = |index: usize| format.columns[index].is_none();
        let method = method.as_deref().or(lacks(2).then_some("GET"));
        let target = path.as_deref().or(lacks(3).then_some("/"));
        let is_request = method.zip(target).is_some_and(is_request);
        // What a server has refused may be anything.
        let refused = status.as_deref().is_some_and(|it| it.starts_with('4'));
        // The time is read once.
        for (field, tally) in fields.iter().zip(&mut self.tallies).skip(1) {
            let kind = tally.kind;
            let of_request = matches!(kind, Kind::Method | Kind::Path);
            match field.as_deref().filter(|text| !says_nothing(text)) {
                Some(text) if of_request && (is_request || !refused) => tally.add(text, is_request),
                Some(text) if !of_request => tally.add(text, kind.holds(text)),
                _ => {}
            }
        }
        is_request
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

    /// Returns what was read, or an error if a column is not what its name says.
    fn end(mut self, sample: &[&str]) -> Result<RowsRead, String> {
        let (mut read, rows) = (mem::take(&mut self.read), self.rows);
        // A log without lines has no problem.
        let Some(format) = &self.format else {
            return Ok(read);
        };
        let lines = read.lines - read.unreadable;
        let columns = format.columns.iter().zip(&rows.columns);
        for ((column, (name, optional)), tally) in columns.zip(&self.tallies) {
            // One that says nothing in any line is as good as none, unless the user named it.
            let is_named = name == DURATION;
            let is_silent = *optional && !is_named && lines > 0 && tally.said == 0;
            let Some(column) = column.as_ref().filter(|_| !is_silent) else {
                read.missing.extend((!is_named).then(|| name.clone()));
                continue;
            };
            let name = column.word.map_or(&**name, |_| "request");
            if let Some(reason) = tally.mistake(name, &column.place, lines) {
                let remedy = column.remedy(name);
                return Err(rows.unclear(tally.kind, &reason, &remedy, sample));
            }
            if read.columns.iter().all(|(it, _)| it != name) {
                read.columns.push((name.to_owned(), column.place.clone()));
            }
        }
        let mut addresses = read.columns.iter().filter(|(name, _)| name == "ip");
        if read.lines > ENOUGH
            && let Some((_, place)) = addresses.next()
            && let Some(reason) = rival(sample, rows, place)
        {
            return Err(reason);
        }
        // What is counted by comes first.
        read.columns.sort_by_key(|(name, _)| Kind::of(name));
        if !read.missing.is_empty() {
            read.hint = suggestion(sample, rows);
        }
        Ok(read)
    }
}

/// Returns the text of an error of a log that cannot be read.
pub(crate) fn unread(error: &io::Error) -> String {
    format!("the log cannot be read: {error}")
}

/// Returns whether a line is none that is too long.
fn is_whole(line: &str) -> bool {
    line.len() < LONGEST_LINE || line.ends_with('\n')
}

/// Returns whether a line is no comment, as headers have them around the names.
fn is_content(line: &str) -> bool {
    !line.is_empty() && (!line.starts_with('#') || line.starts_with(FIELDS))
}

fn trimmed(line: &str) -> &str {
    // Editors on other systems write a byte order mark.
    let line = line.trim_start_matches('\u{feff}');
    line.trim_end_matches(['\n', '\r'])
}
