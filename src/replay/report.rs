//! The report of a replay.

use std::{
    fmt,
    ops::RangeInclusive,
    time::{Duration, SystemTime},
};

use crate::limit::{Algorithm, Limit};

/// The result of [`Replay::run`](super::Replay::run). `Display` prints it on a page.
///
/// A figure is a range where the log's times are coarser than a twentieth of the interval: the true
/// one is in it, and both ends are the same where it is known.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Report {
    /// The lines that were read, without empty ones and the header of a CSV file
    pub lines: u64,
    /// The lines that could not be read
    pub unreadable: u64,
    /// The first of these, each with its number, cut and escaped. They may hold addresses
    pub samples: Vec<(u64, String)>,
    /// The lines that came too late to be put in order, and were left out
    pub late: u64,
    /// The lines without a caller, which no limit counts
    pub without_caller: u64,
    /// The requests that were decided
    pub requests: u64,
    /// The callers that they came from
    pub callers: u64,
    /// The times of the first and the last request; `None` if there are none
    pub span: Option<(SystemTime, SystemTime)>,
    /// How far the log's times are apart
    pub resolution: Duration,
    /// Set if the duration of each request was subtracted
    pub started: bool,
    /// What each limit would have done, in the order in which they were added
    pub candidates: Vec<Candidate>,
    /// The smallest limit for each algorithm and interval among them
    pub smallest: Vec<SmallestLimit>,
    /// The callers with the most requests in one interval of the first limit, the first ten
    pub busiest: Vec<Busiest>,
    /// The most callers whose state was held at once
    pub most_active: u64,
}

/// What one limit would have done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Candidate {
    /// The limit
    pub limit: Limit,
    /// The algorithm that counted
    pub algorithm: Algorithm,
    /// The callers of whose requests at least one would have been refused
    pub touched: RangeInclusive<u64>,
    /// The requests that would have been refused
    pub refused: RangeInclusive<u64>,
}

/// The smallest limit that touches fewer callers than the given share.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SmallestLimit {
    /// The algorithm
    pub algorithm: Algorithm,
    /// The interval
    pub interval: Duration,
    /// Its permits; `None` if there was no request, or if GCRA would need a second reading
    pub permits: Option<RangeInclusive<u64>>,
    /// The callers that it touches
    pub touched: RangeInclusive<u64>,
    /// The same for one permit less; all of them where no permit would be left
    pub touched_by_one_less: RangeInclusive<u64>,
    /// Set if runs of these limits and of one permit less touched as many callers
    pub verified: bool,
}

/// A caller with many requests.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Busiest {
    /// A digest by a secret of this run, unless keys are shown
    pub caller: String,
    /// Its largest number of requests in one interval
    pub most: u64,
}

impl Report {
    /// Returns the share of lines that were not replayed, as they were unreadable or late.
    pub fn lost(&self) -> f64 {
        match self.lines {
            0 => 0.0,
            lines => (self.unreadable + self.late) as f64 / lines as f64,
        }
    }

    /// Returns whether a figure is a range.
    fn is_coarse(&self) -> bool {
        let steps = |limit: &Limit| self.resolution * 20 > limit.interval();
        self.candidates.iter().any(|it| steps(&it.limit))
    }

    /// Returns the candidates as they are printed, behind the head of the table.
    pub(super) fn table(&self) -> Vec<[String; 4]> {
        let share = |figure: &RangeInclusive<u64>, of: u64| {
            let percent = |count: &u64| 100.0 * *count as f64 / of.max(1) as f64;
            let (least, most) = (percent(figure.start()), percent(figure.end()));
            let up_to = if least == most { "" } else { "up to " };
            format!("{} ({up_to}{most:.2} %)", range(figure))
        };
        let head = ["limit", "algorithm", "callers touched", "requests refused"];
        let candidates = self.candidates.iter().map(|it| {
            [
                it.limit.to_string(),
                it.algorithm.word().to_owned(),
                share(&it.touched, self.callers),
                share(&it.refused, self.requests),
            ]
        });
        [head.map(str::to_owned)]
            .into_iter()
            .chain(candidates)
            .collect()
    }

    /// Returns a sentence for each smallest limit.
    pub(super) fn conclusions(&self) -> Vec<String> {
        let conclusion = |it: &SmallestLimit| {
            let limit = format!(
                "Smallest {} limit in {:?}",
                it.algorithm.word(),
                it.interval
            );
            let Some(permits) = it.permits.as_ref().map(range) else {
                let reason = match self.requests {
                    0 => "there are no requests",
                    _ => "it is searched for in further readings, and this log was read once",
                };
                return format!("{limit}: unknown: {reason}.");
            };
            let (touched, less) = (range(&it.touched), range(&it.touched_by_one_less));
            let verified = match it.verified {
                true => "verified by runs of both",
                false => "not verified by a run",
            };
            format!(
                "{limit}: {permits} permits touch {touched} callers, one less {less} ({verified})."
            )
        };
        self.smallest.iter().map(conclusion).collect()
    }

    /// Returns the sentences that the figures are to be read with.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = vec![format!("Times are {:?} apart.", self.resolution)];
        if self.is_coarse() {
            notes.push(
                "That is coarse, so figures are ranges. To log milliseconds, write the time as \
                 [$msec] in nginx, as [%{msec}t] in Apache."
                    .to_owned(),
            );
        }
        if !self.started {
            notes.push(
                "They are when a request was logged, which is mostly its end: name the column of \
                 its duration to subtract it."
                    .to_owned(),
            );
        }
        notes.push(
            "All figures assume that callers would have sent the same requests after a refusal."
                .to_owned(),
        );
        for (count, what) in [
            (self.unreadable, "unreadable"),
            (self.late, "too late to be put in order, and left out"),
            (self.without_caller, "without a caller, and not limited"),
        ] {
            if count > 0 {
                notes.push(format!("{count} of {} lines: {what}.", self.lines));
            }
        }
        notes.push(format!(
            "At most {} callers were held at once.",
            self.most_active
        ));
        notes
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} requests of {} callers\n",
            self.requests, self.callers
        )?;
        write_table(f, &self.table())?;
        writeln!(f, "\n{}", self.conclusions().join("\n"))?;
        if !self.busiest.is_empty() {
            writeln!(f, "\nMost requests in one interval of the first limit:")?;
            let rows = self.busiest.iter();
            let rows = rows.map(|it| [it.caller.clone(), it.most.to_string()]);
            write_table(f, &rows.collect::<Vec<_>>())?;
        }
        writeln!(f, "\n{}", self.notes().join("\n"))
    }
}

/// Writes rows in columns: text to the left.
fn write_table<const N: usize>(f: &mut fmt::Formatter<'_>, rows: &[[String; N]]) -> fmt::Result {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: [usize; N] = std::array::from_fn(width);
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            line.push_str(&format!("{cell:width$}  "));
        }
        writeln!(f, "{}", line.trim_end())?;
    }
    Ok(())
}

/// The text of a figure.
pub(super) fn range(figure: &RangeInclusive<u64>) -> String {
    match figure.start() == figure.end() {
        true => figure.start().to_string(),
        false => format!("{} to {}", figure.start(), figure.end()),
    }
}
