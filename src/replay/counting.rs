//! Decides the requests of a log by the crate's algorithms, for all candidates at once.
//!
//! Until its first refusal, a caller was granted all it asked for. So a log that has no more
//! requests in an interval than the limit refuses none, and one list of times stands for the logs
//! of all candidates; a candidate's own state begins where its limit is first exceeded.

use std::{collections::VecDeque, mem};

use crate::{
    algorithm::{
        self,
        answer::Verdict,
        limiter::{LimiterState, Terms},
    },
    clock::{Now, TICKS},
    demand::Charge,
    error::{ConfigError, bail},
    labels::Labels,
    limit::{Algorithm, Limit, LimitSource},
    list::List,
    name::Name,
};

/// A limit, and what it did.
pub(super) struct Run {
    pub(super) algorithm: Algorithm,
    pub(super) limit: Limit,
    charge: Charge,
    series: usize,
    pub(super) touched: u64,
    pub(super) refused: u64,
}

/// The largest numbers of requests in one interval, or in one window.
struct Series {
    is_window: bool,
    interval: i64,
    /// By caller
    peaks: Vec<u32>,
}

/// The requests of one caller in the present interval or window.
#[derive(Clone, Copy, Default)]
struct Count {
    /// The last tick, of a window.
    end: i64,
    requests: u32,
}

/// A caller that asked for something in the last interval.
struct Active {
    last: i64,
    /// Its requests in the longest interval of a log, oldest first.
    times: VecDeque<i64>,
    counts: List<Count>,
    /// By run
    states: List<Option<Box<LimiterState>>>,
}

#[derive(Default)]
struct Caller {
    /// The runs that have refused it, each a bit.
    touched: u64,
    active: Option<Box<Active>>,
}

/// All runs of one pass over a log.
#[derive(Default)]
pub(super) struct Counting {
    runs: Vec<Run>,
    series: Vec<Series>,
    callers: Vec<Caller>,
    active: Vec<u32>,
    /// The longest interval of a log.
    longest: i64,
    /// For how long after its last request a caller's state matters.
    kept: i64,
    next_sweep: i64,
    /// Set if each run decides by its state alone, from the first request of a caller to its first
    /// refusal.
    by_state_alone: bool,
    pub(super) most_active: usize,
}

impl Counting {
    /// As many runs as a caller has bits for them.
    pub(super) const MOST_RUNS: usize = 64;

    pub(super) fn new(
        limits: &[(Algorithm, Limit)],
        by_state_alone: bool,
    ) -> Result<Self, ConfigError> {
        let mut counting = Self {
            next_sweep: i64::MIN,
            by_state_alone,
            ..Self::default()
        };
        for (algorithm, limit) in limits {
            let is_new = counting.run(*algorithm, limit).is_none();
            if is_new && counting.runs.len() < Self::MOST_RUNS {
                counting.add(*algorithm, *limit)?;
            }
        }
        Ok(counting)
    }

    fn add(&mut self, algorithm: Algorithm, limit: Limit) -> Result<(), ConfigError> {
        if algorithm == Algorithm::Calendar || limit.calendar().is_some() {
            bail!(Limit: "a replay counts {limit} by a rule alone: give it a rules file");
        }
        let stored = limit.stored();
        algorithm.check(stored.rate, stored.interval)?;
        let interval = stored.interval.saturating_mul(TICKS);
        let is_window = algorithm == Algorithm::FixedWindow;
        let known = self.series_of(is_window, interval);
        let series = known.unwrap_or(self.series.len());
        if known.is_none() && !self.by_state_alone {
            self.series.push(Series {
                is_window,
                interval,
                peaks: Vec::new(),
            });
            if !is_window {
                self.longest = self.longest.max(interval);
            }
        }
        let beyond = match algorithm {
            Algorithm::SlidingLog | Algorithm::Calendar => 0,
            Algorithm::FixedWindow => TICKS,
            // The time from permit to permit is rounded up to a microsecond.
            Algorithm::Gcra => stored.rate,
        };
        self.kept = self.kept.max(interval.saturating_add(beyond));
        let name = Name::exact("replay")?.counted_by(algorithm);
        let labels = Labels::unnamed("replay");
        self.runs.push(Run {
            algorithm,
            limit,
            charge: Charge::named(name, LimitSource::Code(limit), labels, 1),
            series,
            touched: 0,
            refused: 0,
        });
        Ok(())
    }

    fn series_of(&self, is_window: bool, interval: i64) -> Option<usize> {
        let mut all = self.series.iter();
        all.position(|it| it.is_window == is_window && it.interval == interval)
    }

    /// Returns what a limit did, if it was among those that were run.
    pub(super) fn run(&self, algorithm: Algorithm, limit: &Limit) -> Option<&Run> {
        let mut runs = self.runs.iter();
        runs.find(|run| run.algorithm == algorithm && run.limit == *limit)
    }

    pub(super) fn callers(&self) -> usize {
        self.callers.len()
    }

    /// Returns the largest numbers of requests that a limit counts, by caller.
    pub(super) fn peaks_of(&self, algorithm: Algorithm, limit: &Limit) -> &[u32] {
        let interval = limit.stored().interval.saturating_mul(TICKS);
        let series = self.series_of(algorithm == Algorithm::FixedWindow, interval);
        let series = series.and_then(|place| self.series.get(place));
        series.map_or(&[], |series| &series.peaks)
    }

    /// Decides a request; times do not fall.
    pub(super) fn request(&mut self, caller: u32, time: i64) {
        self.sweep(time);
        let place = caller as usize;
        if place >= self.callers.len() {
            self.callers.resize_with(place + 1, Caller::default);
        }
        let Some(row) = self.callers.get_mut(place) else {
            return;
        };
        let active = row.active.get_or_insert_with(|| {
            self.active.push(caller);
            self.most_active = self.most_active.max(self.active.len());
            Box::new(Active {
                last: time,
                times: VecDeque::new(),
                counts: self.series.iter().map(|_| Count::default()).collect(),
                states: self.runs.iter().map(|_| None).collect(),
            })
        });
        active.last = time;
        if self.longest > 0 {
            active.add(time, self.longest);
        }
        for (series, count) in self.series.iter_mut().zip(&mut active.counts) {
            count.add(series, &active.times, time);
            if place >= series.peaks.len() {
                series.peaks.resize(place + 1, 0);
            }
            if let Some(peak) = series.peaks.get_mut(place) {
                *peak = (*peak).max(count.requests);
            }
        }
        let mut touched = row.touched;
        for (place, (run, state)) in self.runs.iter_mut().zip(&mut active.states).enumerate() {
            let bit = 1 << place;
            if self.by_state_alone && touched & bit != 0 {
                *state = None;
                continue;
            }
            let requests = active.counts.get(run.series).map_or(0, |it| it.requests);
            if state.is_none()
                && run.algorithm == Algorithm::SlidingLog
                && !self.by_state_alone
                && u64::from(requests) <= run.limit.permits()
            {
                continue;
            }
            let before = active.times.iter().rev().take(requests as usize).skip(1);
            let state = state.get_or_insert_with(|| run.state(before.rev().copied()));
            if run.refuses(state, time) {
                run.refused += 1;
                touched |= bit;
            }
        }
        for (place, run) in self.runs.iter_mut().enumerate() {
            run.touched += ((touched & !row.touched) >> place) & 1;
        }
        row.touched = touched;
    }

    /// Drops the states of callers that had none in use any more.
    fn sweep(&mut self, time: i64) {
        if time < self.next_sweep {
            return;
        }
        self.next_sweep = time.saturating_add((self.kept / 2).max(1));
        let mut active = mem::take(&mut self.active);
        active.retain(|caller| {
            let Some(row) = self.callers.get_mut(*caller as usize) else {
                return false;
            };
            row.active.take_if(|it| time - it.last > self.kept);
            row.active.is_some()
        });
        self.active = active;
    }
}

impl Active {
    fn add(&mut self, time: i64, longest: i64) {
        let expired = |oldest: &i64| *oldest <= time - longest;
        while self.times.front().is_some_and(expired) {
            self.times.pop_front();
        }
        self.times.push_back(time);
    }
}

impl Count {
    fn add(&mut self, series: &Series, times: &VecDeque<i64>, time: i64) {
        if series.is_window {
            // As src/algorithm/fixed_window.rs: it lasts a millisecond longer than the interval.
            if self.requests == 0 || time > self.end {
                *self = Self {
                    end: time + series.interval + TICKS - 1,
                    requests: 0,
                };
            }
            self.requests = self.requests.saturating_add(1);
            return;
        }
        self.requests = self.requests.saturating_add(1);
        // As src/algorithm/sliding_log: what is an interval old has expired. Times that are not
        // kept any more have, too.
        let is_live = |requests: u32| {
            let place = times.len().checked_sub(requests as usize);
            let oldest = place.and_then(|place| times.get(place));
            oldest.is_some_and(|oldest| *oldest > time - series.interval)
        };
        while self.requests > 1 && !is_live(self.requests) {
            self.requests -= 1;
        }
    }
}

impl Run {
    /// Returns a state in which these requests were granted.
    fn state(&self, granted: impl Iterator<Item = i64>) -> Box<LimiterState> {
        let mut state = algorithm::new(self.algorithm);
        if self.algorithm == Algorithm::SlidingLog {
            for time in granted {
                self.refuses(&mut state, time);
            }
        }
        state
    }

    fn refuses(&self, state: &mut LimiterState, time: i64) -> bool {
        let answer = state.acquire_one(&self.charge, Terms::HERE, false, Now::at(time));
        // The limit was checked, so there is an answer.
        answer.is_ok_and(|answer| answer.verdict == Verdict::Refused)
    }
}
