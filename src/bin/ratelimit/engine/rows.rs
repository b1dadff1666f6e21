//! Columns of a log in the order of time: [`Rows`].

use std::{
    borrow::Cow,
    io::BufRead,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::{Serialize, Serializer};

use super::{
    ReplayError,
    format::{OWN, Wanted},
};

/// Reads columns of an access log, in the order of time.
///
/// The formats and the names of columns are those of [`Replay`](super::Replay). `ip`, `method`,
/// `path`, `host` and `status` also find columns by other usual names; method and path are also
/// read from a column `request`, as in the common format. Lines whose method or path is none are
/// no requests.
#[derive(Clone, Debug)]
#[must_use = "nothing is read before `read`"]
pub(crate) struct Rows {
    /// Those of `OWN`, and those that are read.
    pub(super) wanted: Wanted,
    /// In nanoseconds: the unit of the duration, if one is subtracted.
    pub(super) unit: Option<i64>,
    pub(super) reorder: Duration,
}

/// The lines that [`Rows::read`] has read, by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct RowsRead {
    /// The lines that were read, without empty ones and the header of a CSV file
    pub(crate) lines: u64,
    /// The lines that could not be read
    pub(crate) unreadable: u64,
    /// The first of these, each with its number, cut and escaped. They may hold addresses
    #[serde(skip)]
    pub(crate) samples: Vec<(u64, String)>,
    /// The lines that came too late to be put in order, and were left out
    pub(crate) late: u64,
    /// The lines that hold no valid request of HTTP, such as `"-" 408`, and were left out
    pub(crate) invalid: u64,
    /// The requests
    pub(crate) requests: u64,
    /// The time of the first request since the epoch; `None` if there are none
    pub(crate) first_ms: Option<i64>,
    /// The same of the last one
    pub(crate) last_ms: Option<i64>,
    /// The resolution of the log's times, such as a second
    #[serde(rename = "resolution_us", serialize_with = "in_micros")]
    pub(crate) resolution: Duration,
    /// Each column by its name, and where it was found
    #[serde(serialize_with = "as_map")]
    pub(crate) columns: Vec<(String, String)>,
    /// The optional columns that the log lacks, or that say nothing in any line
    #[serde(skip)]
    pub(crate) missing: Vec<String>,
    /// Where they may be, by what the first lines hold; empty if none is missing
    #[serde(skip)]
    pub(crate) hint: String,
    /// The lines of any kind. A further reading reads no more of them: the log may have grown.
    #[serde(skip)]
    pub(super) physical: u64,
}

fn in_micros<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}

fn as_map<S: Serializer>(pairs: &[(String, String)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(pairs.iter().map(|(name, place)| (name, place)))
}

impl Rows {
    /// Reads these columns, which a log must have.
    pub(crate) fn of<'n>(columns: impl IntoIterator<Item = &'n str>) -> Self {
        let none = Self {
            wanted: Wanted {
                columns: OWN.map(|(name, it)| (name.to_owned(), it)).to_vec(),
                places: Vec::new(),
                skip: 0,
            },
            unit: None,
            reorder: Duration::from_secs(60),
        };
        columns.into_iter().fold(none, Self::column)
    }

    /// Adds a column.
    pub(crate) fn column(mut self, column: &str) -> Self {
        self.wanted.columns.push((column.to_owned(), false));
        self
    }

    /// Adds a column that a log may lack.
    pub(crate) fn optional(mut self, column: &str) -> Self {
        self.wanted.columns.push((column.to_owned(), true));
        self
    }

    /// Puts requests in order whose lines are apart by up to this time. Later ones are counted, and
    /// left out. Default: 60 seconds.
    pub(crate) fn reorder(mut self, within: Duration) -> Self {
        self.reorder = within;
        self
    }

    /// Says where a column is: its name or number in the log, two of these with a plus between them
    /// for a time that stands in two, or `-` for a column that the log does not have.
    pub(crate) fn place(mut self, column: &str, place: &str) -> Self {
        self.wanted
            .places
            .push((column.to_owned(), place.to_owned()));
        self
    }

    /// Leaves out so many words before each line, by blanks, which another program has put there.
    pub(crate) fn skip_fields(mut self, words: usize) -> Self {
        self.wanted.skip = words;
        self
    }

    /// Subtracts the duration in this column, in numbers of the given unit or with units of their
    /// own, because a server writes a line when its request ends.
    pub(crate) fn duration_column(mut self, column: &str, unit: Duration) -> Self {
        self.unit = Some(i64::try_from(unit.as_nanos()).unwrap_or(i64::MAX));
        self.wanted.columns[1] = ("duration".to_owned(), false);
        self.place("duration", column)
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
    /// Returns an error if the log cannot be read or lacks a column, or if a column is not what its
    /// name says in 95 % of the lines, which only the whole log shows: `each` was called then.
    pub(crate) fn read(
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
}

impl RowsRead {
    /// Returns the share of lines that were left out, as they were unreadable or late.
    pub(crate) fn lost(&self) -> f64 {
        match self.lines {
            0 => 0.0,
            lines => (self.unreadable + self.late) as f64 / lines as f64,
        }
    }
}
