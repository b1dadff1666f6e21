//! Reads the lines of a log, puts them in order, and checks what its columns hold: [`Reading`].

use std::{
    borrow::Cow,
    collections::BTreeMap,
    io::{BufRead, Read},
    mem,
    time::Duration,
};

use super::{
    ReplayError,
    check::{Kind, Tally, is_request, says_nothing},
    format::{Column, FIELDS, Fields, Format, Lack, OWN, rival, suggestion},
    rows::{Rows, RowsRead},
    time::{self, Resolution},
};

/// The length of the longest line that is read: longer ones are unreadable.
const LONGEST_LINE: u64 = 1 << 16;
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
            header: 0,
            read: RowsRead::default(),
            kinds: self.wanted.kinds(),
            tallies: vec![Tally::default(); self.wanted.columns.len()],
            waiting: BTreeMap::new(),
            newest: i64::MIN,
            written: Resolution::default(),
            lasted: Resolution::default(),
        };
        let (mut line, mut has_begun) = (Vec::new(), false);
        let mut sample = Vec::new();
        while sample.len() < FORMAT_WITHIN
            && reading.read.physical < lines
            && let Some((text, is_whole)) = reading.next_line(&mut log, &mut line)?
        {
            sample.push((text.into_owned(), is_whole));
        }
        let problem = reading.find_format(&sample);
        let whole = sample.iter().filter(|(_, is_whole)| *is_whole);
        let shown = whole.map(|(text, _)| trimmed(text));
        let shown: Vec<_> = shown.filter(|text| is_content(text)).collect();
        if let Some((kind, reason)) = problem {
            return Err(self.unclear(kind, &reason, "", &shown));
        }
        for ((text, is_whole), number) in sample.iter().zip(1..) {
            reading.line((text, *is_whole), number, &mut keep);
        }
        while reading.read.physical < lines
            && let Some(text) = reading.next_line(&mut log, &mut line)?
        {
            let number = reading.read.physical;
            reading.line((&text.0, text.1), number, &mut keep);
            has_begun |= reading.waiting.len() >= FIRST;
            if has_begun {
                reading.decide(&mut decide, false);
            }
        }
        reading.decide(&mut decide, true);
        reading.end(&shown)
    }

    /// Returns an error for a column that is not where it seems to be.
    fn unclear(&self, kind: Kind, reason: &str, remedy: &str, sample: &[&str]) -> ReplayError {
        // Any column may be called anything.
        let suggestion = match kind {
            Kind::Any => String::new(),
            _ => suggestion(sample, &self.wanted),
        };
        ReplayError::Format(format!("{reason}{suggestion}{remedy}"))
    }
}

struct Reading<'a, T> {
    rows: &'a Rows,
    format: Option<Format>,
    /// The number of the line that is the header of a CSV file.
    header: u64,
    read: RowsRead,
    /// By column.
    kinds: Vec<Kind>,
    tallies: Vec<Tally>,
    /// The requests of the last while, which later lines may still precede: by their times, and in
    /// the order of their lines.
    waiting: BTreeMap<(i64, u64), T>,
    newest: i64,
    written: Resolution,
    lasted: Resolution,
}

/// A line, and whether it is whole, or the beginning of one that is too long.
type Text<T> = (T, bool);

impl<T> Reading<'_, T> {
    /// Reads one line, if there is one more.
    fn next_line<'l>(
        &mut self,
        log: &mut impl BufRead,
        line: &'l mut Vec<u8>,
    ) -> Result<Option<Text<Cow<'l, str>>>, ReplayError> {
        line.clear();
        if log.by_ref().take(LONGEST_LINE).read_until(b'\n', line)? == 0 {
            return Ok(None);
        }
        self.read.physical += 1;
        let is_whole = line.ends_with(b"\n") || (line.len() as u64) < LONGEST_LINE;
        if !is_whole {
            log.skip_until(b'\n')?;
        }
        // Most logs are ASCII, which this reads much faster than what mends the rest.
        let text = str::from_utf8(line);
        let text = text.map_or_else(|_| String::from_utf8_lossy(line), Cow::Borrowed);
        Ok(Some((text, is_whole)))
    }

    /// Finds the format by the lines that show the most columns. Returns what is missing.
    fn find_format(&mut self, sample: &[Text<String>]) -> Option<Lack> {
        let mut problem = None;
        for ((text, is_whole), number) in sample.iter().zip(1..) {
            let text = trimmed(text);
            if !*is_whole || !is_content(text) {
                continue;
            }
            match Format::of(text, &self.rows.wanted) {
                Ok(format) => {
                    let missing = format.missing();
                    let before = self.format.as_ref().map_or(usize::MAX, Format::missing);
                    let has_header = format.has_header();
                    if has_header || missing < before {
                        self.format = Some(format);
                    }
                    if has_header {
                        self.header = number;
                        break;
                    }
                }
                Err((kind, reason)) => {
                    let reason = format!("line {number} of the log: {reason}");
                    problem.get_or_insert((kind, reason));
                }
            }
        }
        problem.filter(|_| self.format.is_none())
    }

    /// Takes in one line.
    fn line(
        &mut self,
        (text, is_whole): Text<&str>,
        number: u64,
        keep: &mut impl FnMut(&[Option<Cow<'_, str>>]) -> Option<T>,
    ) {
        let line = trimmed(text);
        if line.is_empty() || self.is_header(line, number) {
            return;
        }
        self.read.lines += 1;
        let format = self.format.as_ref().filter(|_| is_whole);
        let fields = format.and_then(|format| format.read(line));
        let taken = fields.and_then(|fields| self.take(&fields, number, keep));
        if taken.is_none() {
            self.read.unreadable += 1;
            if self.read.samples.len() < SAMPLES {
                let shown = line.chars().take(SAMPLE).flat_map(char::escape_debug);
                self.read.samples.push((number, shown.collect()));
            }
        }
    }

    /// Returns whether a line is a header, which rotation may have put anywhere.
    fn is_header(&mut self, line: &str, number: u64) -> bool {
        let has_header = self.format.as_ref().is_some_and(Format::has_header);
        if has_header && line.starts_with(FIELDS) && number > self.header {
            self.format = Format::of(line, &self.rows.wanted)
                .ok()
                .or(self.format.take());
        }
        number == self.header || (has_header && line.starts_with('#'))
    }

    /// Takes a request in; `None` if it has no time, or no duration where one is subtracted.
    fn take(
        &mut self,
        fields: &Fields<'_>,
        number: u64,
        keep: &mut impl FnMut(&[Option<Cow<'_, str>>]) -> Option<T>,
    ) -> Option<()> {
        let (own, fields) = fields.split_at_checked(OWN.len())?;
        let [written, lasted, ..] = own else {
            return None;
        };
        let is_request = self.check(own, fields);
        let written = written.as_deref()?;
        let time = time::read(written);
        if let Some(tally) = self.tallies.first_mut() {
            tally.add(written, time.is_some());
        }
        let written = time?;
        let lasted = match (self.rows.unit, lasted.as_deref()) {
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
        } else if let Some(kept) = keep(fields) {
            self.written.add(written);
            self.lasted.add(lasted);
            self.newest = self.newest.max(started);
            self.waiting.insert((started, number), kept);
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

    /// Counts what the columns of a line hold. Returns whether it is a request.
    fn check(&mut self, own: &[Option<Cow<'_, str>>], others: &[Option<Cow<'_, str>>]) -> bool {
        let [.., method, path, status] = own else {
            return false;
        };
        let Some(Format { columns, .. }) = &self.format else {
            return false;
        };
        let has = |place: usize| columns.get(place).is_some_and(Option::is_some);
        let target = if has(3) { path.as_deref() } else { Some("/") };
        let method = if has(2) {
            method.as_deref()
        } else {
            Some("GET")
        };
        let is_request = method.zip(target).is_some_and(is_request);
        // What a server has refused may be anything.
        let refused = status.as_deref().is_some_and(|it| it.starts_with('4'));
        // The time is read once.
        let fields = own.iter().chain(others).zip(&self.kinds);
        for ((field, kind), tally) in fields.zip(&mut self.tallies).skip(1) {
            let kind = *kind;
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
    fn end(mut self, sample: &[&str]) -> Result<RowsRead, ReplayError> {
        let (mut read, wanted) = (mem::take(&mut self.read), &self.rows.wanted);
        // A log without lines has no problem.
        let Some(format) = &self.format else {
            return Ok(read);
        };
        let lines = read.lines - read.unreadable;
        for (place, column) in format.columns.iter().enumerate() {
            let name = &wanted.columns[place].0;
            match column {
                Some(column) if !self.is_silent(place, lines) => {
                    let name = column.word.map_or(&**name, |_| "request");
                    if let Some(reason) = self.mistake(place, name, column, lines) {
                        let remedy = column.remedy(name, format);
                        let kind = self.kinds[place];
                        return Err(self.rows.unclear(kind, &reason, &remedy, sample));
                    }
                    if read.columns.iter().all(|(it, _)| it != name) {
                        read.columns.push((name.to_owned(), column.shown.clone()));
                    }
                }
                _ if place >= OWN.len() => read.missing.push(name.clone()),
                _ => {}
            }
        }
        if read.lines > ENOUGH
            && let Some(reason) = rival(sample, wanted)
        {
            return Err(ReplayError::Format(reason));
        }
        // What is counted by comes first.
        read.columns.sort_by_key(|(name, _)| Kind::of(name).place());
        if !read.missing.is_empty() {
            read.hint = suggestion(sample, wanted);
        }
        Ok(read)
    }

    /// Returns whether an optional column says nothing in any line, and is as good as none.
    fn is_silent(&self, place: usize, lines: u64) -> bool {
        let (_, optional) = self.rows.wanted.columns[place];
        optional && lines > 0 && self.tallies[place].said == 0
    }

    /// Returns why a column is not what its name says, if that is so.
    fn mistake(&self, place: usize, name: &str, column: &Column, lines: u64) -> Option<String> {
        let tally = &self.tallies[place];
        let is_silent = match self.kinds[place] {
            Kind::Any => false,
            // Figures of few of the requests would look like those of all.
            Kind::Address => tally.said * 2 < lines,
            _ => tally.said == 0 && lines > 0,
        };
        let is_good = tally.is_good() && !is_silent;
        (!is_good).then(|| tally.error(name, &column.shown, lines))
    }
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

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}
