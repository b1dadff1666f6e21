//! Columns of a log in the order of time: [`Rows`].

use std::{
    io::BufRead,
    time::{Duration, SystemTime},
};

use super::{
    ReplayError,
    lines::{Column, Columns, Fields},
    micros,
    pass::Pass,
    system_time,
};

/// Reads columns of an access log, in the order of time.
///
/// It reads the formats that [`Replay`](super::Replay) reads, and names columns alike. `ip`,
/// `method`, `path`, `host` and `status` stand for the usual names of these; method and path also
/// for those in a column `request`, as in the common format.
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
    columns: Columns,
    reorder: Duration,
}

/// What [`Rows::read`] has read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RowsRead {
    /// The lines that were read, without empty ones and the header of a CSV file
    pub lines: u64,
    /// The lines that could not be read
    pub unreadable: u64,
    /// The first of these, each with its number, cut and escaped. They may hold addresses
    pub samples: Vec<(u64, String)>,
    /// The lines that came too late to be put in order, and were left out
    pub late: u64,
    /// The requests
    pub requests: u64,
    /// The times of the first and the last request; `None` if there are none
    pub span: Option<(SystemTime, SystemTime)>,
    /// How far the log's times are apart
    pub resolution: Duration,
    /// The optional columns that the log lacks
    pub missing: Vec<String>,
}

impl Rows {
    /// Reads these columns, which a log must have.
    pub fn of<'n>(columns: impl IntoIterator<Item = &'n str>) -> Self {
        let columns = columns.into_iter();
        let none = Self {
            columns: Columns {
                fields: Vec::new(),
                time: None,
                duration: None,
            },
            reorder: Duration::from_secs(60),
        };
        columns.fold(none, Self::column)
    }

    /// Adds a column.
    pub fn column(self, column: &str) -> Self {
        self.and(column, false)
    }

    /// Adds a column that a log may lack.
    pub fn optional(self, column: &str) -> Self {
        self.and(column, true)
    }

    fn and(mut self, name: &str, optional: bool) -> Self {
        let name = name.to_owned();
        self.columns.fields.push(Column { name, optional });
        self
    }

    /// Puts requests in order whose lines are apart by up to this time: see
    /// [`Replay::reorder`](super::Replay::reorder).
    pub fn reorder(mut self, within: Duration) -> Self {
        self.reorder = within;
        self
    }

    /// Names the column of the time: see [`Replay::time_column`](super::Replay::time_column).
    pub fn time_column(mut self, column: &str) -> Self {
        self.columns.time = Some(column.to_owned());
        self
    }

    /// Subtracts a duration: see [`Replay::duration_column`](super::Replay::duration_column).
    pub fn duration_column(mut self, column: &str, unit: Duration) -> Self {
        self.columns.duration = Some((column.to_owned(), micros(unit)));
        self
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
        let pass = Pass {
            columns: &self.columns,
            reorder: micros(self.reorder),
            before: None,
        };
        let keep = |fields: &Fields<'_>| {
            let fields = fields.iter().map(|field| field.as_deref().map(Box::from));
            Some(fields.collect::<Box<[Option<Box<str>>]>>())
        };
        let tally = pass.run(log, keep, |_, time, fields| {
            each(system_time(time), &fields);
            Ok(())
        })?;
        let columns = self.columns.fields.iter().zip(&tally.found);
        let missing = columns.filter(|(_, found)| !**found);
        Ok(RowsRead {
            lines: tally.lines,
            unreadable: tally.unreadable,
            samples: tally.samples,
            late: tally.late,
            requests: tally.requests,
            span: tally
                .span
                .map(|(first, last)| (system_time(first), system_time(last))),
            resolution: Duration::from_micros(tally.resolution.unsigned_abs()),
            missing: missing.map(|(column, _)| column.name.clone()).collect(),
        })
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
