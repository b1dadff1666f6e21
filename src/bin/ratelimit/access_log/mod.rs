//! Columns of a log in the order of time: [`Rows`].

mod address;
mod format;
mod kind;
mod reading;
mod time;

use std::time::Duration;

use serde::{Serialize, Serializer};

pub(crate) use self::{
    address::{counted_as, ip_of, shown_caller},
    kind::says_nothing,
    reading::unread,
    time::{SECOND, micros},
};

/// The columns that are read of every log: the time, which no log may lack, the duration where the
/// user names one, and what shows whether a line is a request.
pub(crate) const OWN: [&str; 5] = ["time", DURATION, "method", "path", "status"];
/// The column that is subtracted, because a server writes a line when its request ends.
const DURATION: &str = "duration";

/// How an access log is read, in the order of time: which columns, and where they are.
///
/// A log is in the common or combined format, also behind a virtual host, as JSON lines, as CSV or
/// the W3C's extended format with a header, or words with blanks between them; which one, its first
/// lines show. Times are those of common logs, of RFC 3339 or 1123, or numbers since the epoch of
/// 10, 13, 16 or 19 digits. Lines that cannot be read are counted, and so are those that hold no
/// request. A column that does not hold what its name says in 95 % of the lines is an error.
///
/// `ip`, `method`, `path`, `host` and `status` also find columns by other usual names; method and
/// path are also read from a column `request`, as in the common format. A common or combined log
/// has `ip`, `user`, `request`, `status`, `bytes`, `referer` and `agent`. Words without a header
/// have numbers, counted from 1, or the names before their equals signs. In JSON, `user.id` is a
/// member of the member `user`, and a list is what was sent in several lines of a header.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    /// Those of [`OWN`], and those that are read, each with whether a log may lack it.
    columns: Vec<(String, bool)>,
    /// By column, where the user says that it is: its name or number in the log, two of these with
    /// a plus between them, or `-` for one that the log does not have. The number is the unit of a
    /// duration, in nanoseconds; for other columns it has no meaning.
    pub(crate) places: Vec<(String, String, i64)>,
    /// The words before each line, by blanks, which another program has put there.
    pub(crate) skip: usize,
    /// Requests whose lines are apart by up to this time are put in order. Later ones are counted,
    /// and left out.
    pub(crate) reorder: Duration,
}

/// The lines that were read, by kind.
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
    pub(crate) physical: u64,
}

fn in_micros<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_i64(micros(*time))
}

fn as_map<S: Serializer>(pairs: &[(String, String)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(pairs.iter().map(|(name, place)| (name, place)))
}

impl Rows {
    /// Reads these columns, which a log must have.
    pub(crate) fn of<'n>(columns: impl IntoIterator<Item = &'n str>) -> Self {
        let none = Self {
            columns: OWN.map(|name| (name.to_owned(), name != "time")).to_vec(),
            places: Vec::new(),
            skip: 0,
            reorder: Duration::from_secs(60),
        };
        let columns = columns.into_iter();
        columns.fold(none, |rows, column| rows.column(column, false))
    }

    /// Adds a column, which a log may lack if it is optional.
    pub(crate) fn column(mut self, column: &str, optional: bool) -> Self {
        self.columns.push((column.to_owned(), optional));
        self
    }

    /// Returns the unit of the duration, in nanoseconds, if one is subtracted.
    pub(crate) fn unit(&self) -> Option<i64> {
        let duration = self.placed(DURATION);
        duration.and_then(|(_, place, unit)| (place != "-").then_some(*unit))
    }

    fn needs(&self, column: &str) -> bool {
        self.columns.iter().any(|(name, _)| name == column)
    }

    /// Returns where the user says that a column is.
    fn placed(&self, column: &str) -> Option<&(String, String, i64)> {
        self.places.iter().rev().find(|(name, ..)| name == column)
    }
}

impl RowsRead {
    /// Returns the share of lines that were left out, as they were unreadable or late.
    pub(crate) fn lost(&self) -> f64 {
        (self.unreadable + self.late) as f64 / self.lines.max(1) as f64
    }
}
