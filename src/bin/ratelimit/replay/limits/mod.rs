//! Replays an access log against limits: how many callers and requests each would have refused, and
//! the smallest limit that leaves nearly all callers alone.
//!
//! Requests are decided by the algorithms that also decide in a service. All figures assume that
//! callers would have sent the same requests after a refusal. [`Rows`] reads columns of a log in
//! the same way, for the commands that send them through rules.

mod callers;
mod pass;
mod report;
mod smallest;

use std::{
    borrow::Cow,
    cmp::Reverse,
    io::{self, BufRead},
    time::Duration,
};

use self::{
    callers::Callers,
    pass::LogPass,
    smallest::{LimitBounds, Smallest},
};
pub(crate) use self::{
    pass::CountedLimit,
    report::{Busiest, Candidate, Figure, Moment, Report, SmallestLimit},
    smallest::Search,
};
use crate::access_log::{OWN, Rows, RowsRead, unread};

/// The most limits of one replay.
const MOST_LIMITS: usize = 16;
/// The number of callers in a report.
const BUSIEST: usize = 10;

/// The settings of a replay.
#[derive(Clone, Debug)]
pub(crate) struct Replay {
    /// Requests are counted by the first column behind those of every log, or by what
    /// [`run`](Self::run) is told.
    pub(crate) rows: Rows,
    pub(crate) limits: Vec<CountedLimit>,
    /// The smallest limit is the one that touches fewer than this share of callers.
    pub(crate) share: f64,
    /// Set if callers are shown by their keys. Otherwise by digests, with a secret that each run
    /// draws.
    pub(crate) show_keys: bool,
}

impl Replay {
    /// Reads the log that `open` returns, and counts each request by what `caller` returns for its
    /// columns.
    ///
    /// Once for all limits; again to verify the smallest ones, and a few times to find them unless
    /// a sliding log counts. `open` returns `None` if the log cannot be read once more.
    ///
    /// # Errors
    ///
    /// Returns an error if a limit cannot be used, or if the log cannot be read or lacks a column.
    pub(crate) fn run<R: BufRead>(
        &self,
        mut open: impl FnMut() -> io::Result<Option<R>>,
        mut caller: impl for<'f> FnMut(&'f [Option<Cow<'f, str>>]) -> Option<Cow<'f, str>>,
    ) -> Result<Report, String> {
        self.check()?;
        let mut open = || open().map_err(|error| unread(&error));
        let mut count = |log: R, lines, limits: &dyn Fn(Duration) -> Vec<_>, verifies| {
            let (mut callers, mut pass) = (Callers::default(), None);
            let keep = |fields: &[Option<Cow<'_, str>>]| callers.number(caller(fields).as_deref());
            let decide = |resolution, time, caller| {
                let begin = || LogPass::new(&limits(resolution), verifies);
                if let Ok(pass) = pass.get_or_insert_with(begin) {
                    pass.request(time, caller);
                }
            };
            let read = self.rows.each(log, lines, keep, decide)?;
            let pass = pass.transpose().map_err(|error| error.to_string())?;
            Ok::<_, String>((read, callers, pass.unwrap_or_default()))
        };
        let log = open()?.ok_or("there is no log to read")?;
        let limits = |resolution| self.ends(resolution).flatten().flatten().collect();
        let (read, callers, pass) = count(log, u64::MAX, &limits, false)?;
        if callers.missing > 0 && callers.count() == 0 {
            let reason = "no request has a caller: the column that is counted by says nothing";
            return Err(reason.to_owned());
        }
        let mut searches: Vec<[Smallest; 2]> = Vec::new();
        for (bounds, (_, limit)) in self.bounds(read.resolution).zip(&self.limits) {
            if searches.iter().all(|[search, _]| search.bounds != bounds) {
                let of = |end| Smallest::new(bounds, end, limit.permits(), &pass, self.share);
                searches.push([0, 1].map(of));
            }
        }
        loop {
            let tried = searches.iter().flatten().flat_map(Smallest::tried);
            let limits: Vec<_> = tried.map(|(_, limit)| limit).collect();
            if limits.is_empty() {
                break;
            }
            let Some(log) = open()? else { break };
            let (_, _, pass) = count(log, read.physical, &|_| limits.clone(), true)?;
            let all = searches.iter_mut().flatten();
            all.for_each(|search| search.found(&pass));
        }
        let smallest = searches.iter().map(smallest).collect();
        Ok(self.report(read, &callers, &pass, smallest))
    }

    fn check(&self) -> Result<(), String> {
        let count = self.limits.len();
        if !(1..=MOST_LIMITS).contains(&count) {
            let most = format!("1 to {MOST_LIMITS} limits");
            return Err(format!("a replay takes {most}, not {count}"));
        }
        let checked = LogPass::new(&self.limits, false);
        checked.map(|_| ()).map_err(|error| error.to_string())
    }

    /// Returns the bounds of each limit where times are so far apart.
    fn bounds(&self, resolution: Duration) -> impl Iterator<Item = LimitBounds> {
        let whole = self.rows.unit().is_none();
        self.limits.iter().map(move |(by, limit)| LimitBounds {
            algorithm: *by,
            interval: limit.interval(),
            resolution,
            whole,
        })
    }

    /// Returns the limits that bound the figures of each limit.
    fn ends(&self, resolution: Duration) -> impl Iterator<Item = [Option<CountedLimit>; 2]> {
        let given = self.bounds(resolution).zip(&self.limits);
        given.map(|(bounds, (_, limit))| bounds.of_permits(limit.permits()))
    }

    fn report(
        &self,
        read: RowsRead,
        callers: &Callers,
        pass: &LogPass,
        smallest: Vec<SmallestLimit>,
    ) -> Report {
        let ends = self.ends(read.resolution);
        let ends = ends.map(|ends| ends.map(|limit| pass.index(&limit?)));
        let ends: Vec<_> = ends.collect();
        let figure = |of: &dyn Fn(usize) -> u64, ends: &[Option<usize>; 2]| {
            ends.map(|index| index.map_or(0, of))
        };
        let candidates = self.limits.iter().zip(&ends);
        let candidates = candidates.map(|((algorithm, limit), ends)| Candidate {
            limit: *limit,
            algorithm: *algorithm,
            touched: figure(&|index| pass.runs[index].touched, ends),
            refused: figure(&|index| pass.runs[index].refused, ends),
        });
        let moments = &pass.moments;
        let starts = (0..).map(|index| (moments.start + index * moments.width).div_euclid(1000));
        let moments = starts.zip(&moments.counts).map(|(from_ms, counts)| {
            let refused = |ends| figure(&|index| counts[index + 1], ends);
            Moment {
                from_ms,
                requests: counts[0],
                refused: ends.iter().map(refused).collect(),
            }
        });
        Report {
            without_caller: callers.missing,
            callers: callers.count(),
            durations_subtracted: self.rows.unit().is_some(),
            candidates: candidates.collect(),
            smallest,
            busiest: self.busiest(&read, callers, pass),
            most_active: pass.most_active() as u64,
            moments: moments.collect(),
            read,
        }
    }

    /// Returns the callers with the most requests in the interval of the first limit.
    fn busiest(&self, read: &RowsRead, callers: &Callers, pass: &LogPass) -> Vec<Busiest> {
        let ends = self.ends(read.resolution).next().unwrap_or_default();
        let [least, all] = ends.map(|it| it.map_or(&[][..], |(_, limit)| pass.peaks_of(&limit)));
        let mut most: Vec<_> = all.iter().zip(0u32..).collect();
        most.sort_unstable_by_key(|(peak, number)| (Reverse(**peak), *number));
        let busiest = most.into_iter().take(BUSIEST).map(|(peak, number)| {
            let least = least.get(number as usize).copied().unwrap_or(1);
            let caller = callers.name_of(number, self.show_keys);
            let most = [least, *peak].map(u64::from);
            Busiest { caller, most }
        });
        busiest.collect()
    }
}

/// Returns the column that requests are counted by, if no other is meant.
pub(crate) fn first<'f>(fields: &'f [Option<Cow<'f, str>>]) -> Option<Cow<'f, str>> {
    fields.get(OWN.len())?.as_deref().map(Cow::Borrowed)
}

/// Returns what the searches for both ends have found.
fn smallest(ends: &[Smallest; 2]) -> SmallestLimit {
    let figure = |of: fn(&Smallest) -> u64| {
        let mut ends = ends.each_ref().map(of);
        ends.sort_unstable();
        ends
    };
    let [_, most] = ends;
    let is_found = ends.iter().all(Smallest::is_found);
    let equal = most.peaks.chunk_by(|one, other| one == other);
    let peaks = equal.map(|peaks| (u64::from(peaks[0]), peaks.len() as u64));
    SmallestLimit {
        algorithm: most.bounds.algorithm,
        interval: most.bounds.interval,
        permits: is_found.then(|| figure(|it| it.search.permits)),
        touched: figure(|it| it.touched(it.search.permits)),
        touched_by_one_less: figure(|it| it.touched(it.search.below)),
        verified: is_found && ends.iter().all(Smallest::is_verified),
        peaks: peaks.collect(),
    }
}
