//! Replays an access log against limits: how many callers and requests each would have refused, and
//! the smallest limit that leaves nearly all callers alone.
//!
//! Requests are decided by the algorithms that also decide in a service. The command `ratelimit`
//! (feature `cli`) is this module on a command line.
//!
//! # What `ratelimit replay --json` prints
//!
//! One object, whose `schema` is 1; it grows when a member changes or goes. Its other members are
//! those of [`Report`], with times since the epoch in `first_ms` and `last_ms`, and the resolution
//! in `resolution_us`. A figure that may be a range is a list of the least and the most.
//!
//! [`Rows`] reads other columns of a log in the same way. The command sends them through rules:
//!
//! - `replay --rules --json`: `lines`, `unreadable`, `late`, `invalid` (lines that HTTP does not
//!   allow), `requests`, `resolution_us`, `refused`, `waited`; `rules` have `rule`, `limit`,
//!   `requests`, `refused`, `shadow_refused`, `without_key`, `callers` (refused ones, also in
//!   shadow) and `approximate` (times are coarser than a twentieth of the interval).
//! - `diff --json`: `changes`, each with `change` (changed, added, gone), `item` and its `fields`,
//!   `old` and `new`. With a log, `log` has the members above but `rules` and `waited`; its
//!   `refused`, and that of each caller in `newly_refused`, `newly_let_through`, `refused_more` and
//!   `refused_less`, is a list of old and new.
//! - `explain --json`: the `result`, by its name in metrics, and the `rules`.
//!
//! # Example
//!
//! ```
//! use tower_ratelimit::{Limit, replay::Replay};
//!
//! let log = r#"192.0.2.1 - - [10/Oct/2026:13:55:36.100 +0000] "GET / HTTP/1.1" 200 5
//! 192.0.2.1 - - [10/Oct/2026:13:55:36.900 +0000] "GET / HTTP/1.1" 200 5
//! 192.0.2.2 - - [10/Oct/2026:13:55:37.000 +0000] "GET / HTTP/1.1" 200 5
//! "#;
//! let report = Replay::by("ip").limit(Limit::per_minute(1)).run(|| Ok(Some(log.as_bytes())))?;
//! assert_eq!(report.requests, 3);
//! assert_eq!(report.candidates[0].touched, 1..=1);
//! # Ok::<_, tower_ratelimit::replay::ReplayError>(())
//! ```

mod counting;
mod error;
mod lines;
mod order;
mod pass;
mod report;
mod rows;
mod smallest;
mod time;

use std::{
    cmp::Reverse,
    io::{self, BufRead},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use self::{
    counting::{Counting, Run},
    lines::{Column, Columns, Fields},
    pass::{Callers, Pass, Tally},
    smallest::{Bounds, Search},
};
pub use self::{
    error::ReplayError,
    report::{Busiest, Candidate, Report, SmallestLimit},
    rows::{Rows, RowsRead},
};
use crate::limit::{Algorithm, Limit};

/// The most limits of one replay.
const MOST_LIMITS: usize = 16;
/// The number of callers in a report.
const BUSIEST: usize = 10;

/// The settings of a replay.
///
/// A log is read in the common or combined format, as JSON lines, or as CSV with a header; which
/// one, its first lines show. Times are those of common logs, of RFC 3339, or numbers since the
/// epoch. Lines that cannot be read are counted.
#[derive(Clone, Debug)]
#[must_use = "nothing is read before `run`"]
pub struct Replay {
    columns: Columns,
    limits: Vec<(Algorithm, Limit)>,
    share: f64,
    reorder: Duration,
    show_keys: bool,
}

impl Replay {
    /// Counts requests by a column: `ip` is the address, whatever the log calls it, and others have
    /// their names.
    ///
    /// A common or combined log has `ip`, `user`, `request`, `status`, `bytes`, `referer` and
    /// `agent`, and numbers, counted from 1, for columns behind these. In JSON, `user.id` is a
    /// member of the member `user`. An address counts as [`PeerIp`](crate::key::PeerIp) counts it.
    pub fn by(column: &str) -> Self {
        Self {
            columns: Columns {
                fields: vec![Column {
                    name: column.to_owned(),
                    optional: false,
                }],
                time: None,
                duration: None,
            },
            limits: Vec::new(),
            share: 0.001,
            reorder: Duration::from_secs(60),
            show_keys: false,
        }
    }

    /// Adds a limit, counted by a sliding log.
    pub fn limit(self, limit: Limit) -> Self {
        self.limit_by(Algorithm::SlidingLog, limit)
    }

    /// Adds a limit, counted by this algorithm.
    pub fn limit_by(mut self, algorithm: Algorithm, limit: Limit) -> Self {
        self.limits.push((algorithm, limit));
        self
    }

    /// Looks for the smallest limit that touches fewer than this share of callers. Default: 0.001.
    pub fn share(mut self, share: f64) -> Self {
        self.share = share;
        self
    }

    /// Puts requests in order whose lines are apart by up to this time. Later ones are counted, and
    /// left out. Default: 60 seconds.
    pub fn reorder(mut self, within: Duration) -> Self {
        self.reorder = within;
        self
    }

    /// Names the column of the time. Default: the one that the format has, or a usual name.
    pub fn time_column(mut self, column: &str) -> Self {
        self.columns.time = Some(column.to_owned());
        self
    }

    /// Subtracts the duration in this column, in numbers of the given unit, because a server writes
    /// a line when its request ends.
    pub fn duration_column(mut self, column: &str, unit: Duration) -> Self {
        self.columns.duration = Some((column.to_owned(), micros(unit)));
        self
    }

    /// Shows callers by their keys. Default: by digests, by a secret that each run makes anew.
    pub fn show_keys(mut self) -> Self {
        self.show_keys = true;
        self
    }

    /// Reads the log that `open` returns, and decides its requests.
    ///
    /// Once for all limits; again to verify the smallest ones, and a few times to find them if GCRA
    /// counts. `open` returns `None` if the log cannot be read once more.
    ///
    /// # Errors
    ///
    /// Returns an error if a setting cannot be used, if the log cannot be read or lacks a column,
    /// or if its times are too coarse for an algorithm other than the sliding log.
    pub fn run<R: BufRead>(
        &self,
        mut open: impl FnMut() -> io::Result<Option<R>>,
    ) -> Result<Report, ReplayError> {
        self.check()?;
        let Some(log) = open()? else {
            return Err(ReplayError::Setting("there is no log to read".to_owned()));
        };
        let mut bounds = Vec::new();
        let begin = |resolution| {
            bounds = self.bounds(resolution)?;
            let limits: Vec<_> = bounds.iter().flat_map(Bounds::limits).collect();
            Ok(Counting::new(&limits, false)?)
        };
        let mut callers = Callers::new(self.show_keys);
        let (tally, counting) = self.count(log, None, &mut callers, begin)?;
        let mut report = self.report(&bounds, &tally, &callers, &counting);
        let mut search = Search::new(&bounds, &counting, self.share);
        while let Some(limits) = search.next()
            && let Some(log) = open()?
        {
            let begin = |_| Ok(Counting::new(&limits, true)?);
            let mut callers = Callers::new(false);
            let (_, counting) = self.count(log, Some(&tally), &mut callers, begin)?;
            search.found(&counting);
        }
        report.smallest = search.into_limits();
        Ok(report)
    }

    fn check(&self) -> Result<(), ReplayError> {
        let (count, share) = (self.limits.len(), self.share);
        let reason = if !(1..=MOST_LIMITS).contains(&count) {
            format!("a replay takes 1 to {MOST_LIMITS} limits, not {count}")
        } else if !(0.0..=1.0).contains(&share) {
            format!("a share of callers is from 0 to 1, not {share}")
        } else {
            return Ok(());
        };
        Err(ReplayError::Setting(reason))
    }

    /// Reads a log, and has its requests decided by what `begin` makes for its resolution.
    fn count(
        &self,
        log: impl BufRead,
        before: Option<&Tally>,
        callers: &mut Callers,
        begin: impl FnOnce(i64) -> Result<Counting, ReplayError>,
    ) -> Result<(Tally, Counting), ReplayError> {
        let pass = Pass {
            columns: &self.columns,
            reorder: micros(self.reorder),
            before,
        };
        let (mut begin, mut counting) = (Some(begin), None::<Counting>);
        let keep = |fields: &Fields<'_>| callers.caller(fields);
        let tally = pass.run(log, keep, |resolution, time, caller| {
            if let Some(begin) = begin.take() {
                counting = Some(begin(resolution)?);
            }
            if let Some(counting) = &mut counting {
                counting.request(caller, time);
            }
            Ok(())
        })?;
        let counting = match (counting, begin) {
            (Some(counting), _) => counting,
            (None, Some(begin)) => begin(tally.resolution)?,
            (None, None) => Counting::new(&[], false)?,
        };
        Ok((tally, counting))
    }

    /// Returns the limits that bound each candidate where times are so many microseconds apart.
    fn bounds(&self, resolution: i64) -> Result<Vec<Bounds>, ReplayError> {
        let exact_starts = self.columns.duration.is_none();
        let limits = self.limits.iter();
        let bounds = limits.map(|(by, limit)| Bounds::of(*by, *limit, resolution, exact_starts));
        bounds.collect()
    }

    fn report(
        &self,
        bounds: &[Bounds],
        tally: &Tally,
        callers: &Callers,
        counting: &Counting,
    ) -> Report {
        let candidates = bounds.iter().map(|it| {
            let least = it
                .least
                .and_then(|least| counting.run(it.algorithm, &least));
            let most = counting.run(it.algorithm, &it.most);
            let figure = |of: fn(&Run) -> u64| least.map_or(0, of)..=most.map_or(0, of);
            Candidate {
                limit: it.given,
                algorithm: it.algorithm,
                touched: figure(|run| run.touched),
                refused: figure(|run| run.refused),
            }
        });
        Report {
            lines: tally.lines,
            unreadable: tally.unreadable,
            samples: tally.samples.clone(),
            late: tally.late,
            without_caller: tally.without_caller,
            requests: tally.requests,
            callers: callers.count() as u64,
            span: tally
                .span
                .map(|(first, last)| (system_time(first), system_time(last))),
            resolution: Duration::from_micros(tally.resolution.unsigned_abs()),
            started: self.columns.duration.is_some(),
            candidates: candidates.collect(),
            smallest: Vec::new(),
            busiest: busiest(bounds, callers, counting),
            most_active: counting.most_active as u64,
        }
    }
}

/// Returns the callers with the most requests that the first limit counts at once.
fn busiest(bounds: &[Bounds], callers: &Callers, counting: &Counting) -> Vec<Busiest> {
    let first = bounds.first();
    let peaks = first.map_or(&[][..], |it| counting.peaks_of(it.algorithm, &it.most));
    let mut most: Vec<_> = peaks.iter().zip(0u32..).collect();
    most.sort_unstable_by_key(|(peak, number)| (Reverse(**peak), *number));
    most.truncate(BUSIEST);
    let numbers: Vec<_> = most.iter().map(|(_, number)| *number).collect();
    let names = callers.names_of(&numbers).into_iter();
    let busiest = names.zip(&most).map(|(caller, (peak, _))| Busiest {
        caller,
        most: u64::from(**peak),
    });
    busiest.collect()
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

fn system_time(micros: i64) -> SystemTime {
    let apart = Duration::from_micros(micros.unsigned_abs());
    let time = match micros {
        0.. => UNIX_EPOCH.checked_add(apart),
        _ => UNIX_EPOCH.checked_sub(apart),
    };
    time.unwrap_or(UNIX_EPOCH)
}
