//! Replays an access log against limits: how many callers and requests each would have refused, and
//! the smallest limit that leaves nearly all callers alone.
//!
//! Requests are decided by the algorithms that also decide in a service. All figures assume that
//! callers would have sent the same requests after a refusal. [`Rows`] reads columns of a log in
//! the same way, for the commands that send them through rules.

mod callers;
mod check;
mod error;
mod format;
mod pass;
mod reading;
mod report;
mod rows;
mod smallest;
mod time;
mod words;

use std::{
    borrow::Cow,
    cmp::Reverse,
    io::{self, BufRead},
    time::Duration,
};

use tower_ratelimit::{Algorithm, Limit, command::Meter};

use self::{
    callers::Callers,
    pass::{Pass, Run, Way},
    smallest::{Bounds, Search},
};
pub(crate) use self::{
    callers::{counted_as, ip_of},
    error::ReplayError,
    report::{Busiest, Candidate, Figure, Moment, Report, SmallestLimit},
    rows::{Rows, RowsRead},
};

/// The most limits of one replay.
const MOST_LIMITS: usize = 16;
/// The number of callers in a report.
const BUSIEST: usize = 10;

/// The settings of a replay.
///
/// A log is read in the common or combined format, also behind a virtual host, as JSON lines, as
/// CSV or the W3C's extended format with a header, or as words with blanks between them; which one,
/// its first lines show. Times are those of common logs, of RFC 3339 or 1123, or numbers since the
/// epoch of 10, 13, 16 or 19 digits. Lines that cannot be read are counted, and so are those that
/// hold no request. A column that does not hold what its name says in 95 % of the lines is an
/// error.
#[derive(Clone, Debug)]
#[must_use = "nothing is read before `run`"]
pub(crate) struct Replay {
    rows: Rows,
    limits: Vec<Way>,
    share: f64,
    show_keys: bool,
}

impl Replay {
    /// Counts requests by the first of these columns, or by what [`run_by`](Self::run_by) makes of
    /// them: `ip` is the address, whatever the log calls it, and others have their names.
    ///
    /// A common or combined log has `ip`, `user`, `request`, `status`, `bytes`, `referer` and
    /// `agent`. Words without a header have numbers, counted from 1, or the names before their
    /// equals signs. In JSON, `user.id` is a member of the member `user`, and a list is what was
    /// sent in several lines of a header. An address counts as
    /// [`PeerIp`](tower_ratelimit::key::PeerIp) counts it.
    pub(crate) fn of(rows: Rows) -> Self {
        Self {
            rows,
            limits: Vec::new(),
            share: 0.001,
            show_keys: false,
        }
    }

    /// Adds a limit, counted by this algorithm.
    pub(crate) fn limit(mut self, algorithm: Algorithm, limit: Limit) -> Self {
        self.limits.push((algorithm, limit));
        self
    }

    /// Looks for the smallest limit that touches fewer than this share of callers. Default: 0.001.
    pub(crate) fn share(mut self, share: f64) -> Self {
        self.share = share;
        self
    }

    /// Shows callers by their keys. Default: by digests, with a secret that each run draws.
    pub(crate) fn show_keys(mut self) -> Self {
        self.show_keys = true;
        self
    }

    /// Reads the log that `open` returns, and decides its requests.
    ///
    /// Once for all limits; again to verify the smallest ones, and a few times to find them unless
    /// a sliding log counts. `open` returns `None` if the log cannot be read once more.
    ///
    /// # Errors
    ///
    /// Returns an error if a setting cannot be used, or if the log cannot be read or lacks a
    /// column.
    pub(crate) fn run<R: BufRead>(
        &self,
        open: impl FnMut() -> io::Result<Option<R>>,
    ) -> Result<Report, ReplayError> {
        self.run_by(open, |fields| fields.first()?.as_deref().map(Cow::Borrowed))
    }

    /// Does the same, and counts a request by what `caller` returns for its columns.
    ///
    /// # Errors
    ///
    /// Returns an error as [`run`](Self::run) does.
    pub(crate) fn run_by<R: BufRead>(
        &self,
        mut open: impl FnMut() -> io::Result<Option<R>>,
        mut caller: impl for<'f> FnMut(&'f [Option<Cow<'f, str>>]) -> Option<Cow<'f, str>>,
    ) -> Result<Report, ReplayError> {
        self.check()?;
        let mut count = |log: R, lines, limits: &dyn Fn(Duration) -> Vec<_>, verifies| {
            let (mut callers, mut pass) = (Callers::default(), None);
            let keep = |fields: &[Option<Cow<'_, str>>]| callers.number(caller(fields).as_deref());
            let decide = |resolution, time, caller| {
                let begin = || Pass::new(&limits(resolution), verifies);
                if let Ok(pass) = pass.get_or_insert_with(begin) {
                    pass.request(time, caller);
                }
            };
            let read = self.rows.each(log, lines, keep, decide)?;
            Ok::<_, ReplayError>((read, callers, pass.transpose()?.unwrap_or_default()))
        };
        let Some(log) = open()? else {
            return Err(ReplayError::Setting("there is no log to read".to_owned()));
        };
        let limits = |resolution| self.ends(resolution).flatten().flatten().collect();
        let (read, callers, pass) = count(log, u64::MAX, &limits, false)?;
        if callers.missing > 0 && callers.count() == 0 {
            let reason = "no request has a caller: the column that is counted by says nothing";
            return Err(ReplayError::Format(reason.to_owned()));
        }
        let mut searches: Vec<[Search; 2]> = Vec::new();
        for (bounds, (_, limit)) in self.bounds(read.resolution).zip(&self.limits) {
            if searches.iter().all(|[search, _]| search.bounds != bounds) {
                let search = |end| Search::new(bounds, end, limit.permits(), &pass, self.share);
                searches.push([0, 1].map(search));
            }
        }
        loop {
            let tried = searches.iter().flatten().flat_map(Search::tried);
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

    fn check(&self) -> Result<(), ReplayError> {
        let (count, share) = (self.limits.len(), self.share);
        let reason = if !(1..=MOST_LIMITS).contains(&count) {
            format!("a replay takes 1 to {MOST_LIMITS} limits, not {count}")
        } else if !(0.0..=1.0).contains(&share) {
            format!("a share of callers is from 0 to 1, not {share}")
        } else {
            for (algorithm, limit) in &self.limits {
                Meter::new(*algorithm, *limit)?;
            }
            return Ok(());
        };
        Err(ReplayError::Setting(reason))
    }

    /// Returns the bounds of each limit where times are so far apart.
    fn bounds(&self, resolution: Duration) -> impl Iterator<Item = Bounds> {
        let whole = !self.rows.has_durations();
        let limits = self.limits.iter();
        limits.map(move |(by, limit)| Bounds::of(*by, limit.interval(), resolution, whole))
    }

    /// Returns the limits that bound the figures of each limit.
    fn ends(&self, resolution: Duration) -> impl Iterator<Item = [Option<Way>; 2]> {
        let given = self.bounds(resolution).zip(&self.limits);
        given.map(|(bounds, (_, limit))| bounds.of_permits(limit.permits()))
    }

    fn report(
        &self,
        read: RowsRead,
        callers: &Callers,
        pass: &Pass,
        smallest: Vec<SmallestLimit>,
    ) -> Report {
        let ends = self.ends(read.resolution);
        let ends = ends.map(|ends| ends.map(|limit| pass.place(&limit?)));
        let ends: Vec<_> = ends.collect();
        let run = |of: fn(&Run) -> u64, ends: &[Option<usize>; 2]| {
            ends.map(|place| place.map_or(0, |it| of(&pass.runs[it])))
        };
        let candidates = self.limits.iter().zip(&ends);
        let candidates = candidates.map(|((algorithm, limit), ends)| Candidate {
            limit: *limit,
            algorithm: *algorithm,
            touched: run(|run| run.touched, ends),
            refused: run(|run| run.refused, ends),
        });
        let moments = &pass.moments;
        let starts = (0..).map(|place| (moments.start + place * moments.width).div_euclid(1000));
        let moments = starts.zip(&moments.counts).map(|(from_ms, counts)| {
            let count = |place: usize| counts.get(place).copied().unwrap_or(0);
            let refused =
                |ends: &[Option<usize>; 2]| ends.map(|it| it.map_or(0, |it| count(it + 1)));
            Moment {
                from_ms,
                requests: count(0),
                refused: ends.iter().map(refused).collect(),
            }
        });
        Report {
            without_caller: callers.missing,
            callers: callers.count(),
            durations_subtracted: self.rows.has_durations(),
            candidates: candidates.collect(),
            smallest,
            busiest: self.busiest(&read, callers, pass),
            most_active: pass.most_active as u64,
            moments: moments.collect(),
            read,
        }
    }

    /// Returns the callers with the most requests in the interval of the first limit.
    fn busiest(&self, read: &RowsRead, callers: &Callers, pass: &Pass) -> Vec<Busiest> {
        let ends = self.ends(read.resolution).next().unwrap_or_default();
        let [least, all] = ends.map(|it| it.map_or(&[][..], |(_, limit)| pass.peaks_of(&limit)));
        let mut most: Vec<_> = all.iter().zip(0u32..).collect();
        most.sort_unstable_by_key(|(peak, number)| (Reverse(**peak), *number));
        most.truncate(BUSIEST);
        let numbers: Vec<_> = most.iter().map(|(_, number)| *number).collect();
        let names = callers.names_of(&numbers, self.show_keys).into_iter();
        let busiest = names.zip(&most).map(|(caller, (peak, number))| {
            let least = least.get(*number as usize).copied().unwrap_or(1);
            let most = [least, **peak].map(u64::from);
            Busiest { caller, most }
        });
        busiest.collect()
    }
}

/// Returns what the searches for both ends have found.
fn smallest(ends: &[Search; 2]) -> SmallestLimit {
    let figure = |of: fn(&Search) -> u64| {
        let mut ends = ends.each_ref().map(of);
        ends.sort_unstable();
        ends
    };
    let [_, most] = ends;
    let is_found = ends.iter().all(Search::is_found);
    let equal = most.peaks.chunk_by(|one, other| one == other);
    let peaks = equal.map(|peaks| (u64::from(peaks[0]), peaks.len() as u64));
    SmallestLimit {
        algorithm: most.bounds.algorithm,
        interval: most.bounds.interval,
        permits: is_found.then(|| figure(|it| it.permits)),
        touched: figure(|it| it.touched(it.permits)),
        touched_by_one_less: figure(|it| it.touched(it.below)),
        verified: is_found && ends.iter().all(Search::is_verified),
        peaks: peaks.collect(),
    }
}
