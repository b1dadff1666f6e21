//! Decides the requests of a log by the crate's algorithms, for all candidate limits at once.
//!
//! Until its first refusal by a candidate, a caller was granted all its requests. So one list of a
//! caller's recent times can stand for the logs of all candidates; a candidate gets a state of its
//! own when the list first exceeds its limit. A pass that verifies has no such list: there each
//! candidate has a state from a caller's first request on.

use std::{collections::VecDeque, mem};

use super::time::SECOND;
use crate::{
    algorithm::{
        self,
        answer::Verdict,
        limiter::{LimiterState, Terms},
    },
    clock::{Now, TICKS},
    demand::LimiterCharge,
    error::ConfigError,
    labels::Labels,
    limit::{Algorithm, Limit, LimitSource},
    list::List,
    name::Name,
};

/// The number of moments that a log is divided into, at most.
const MOMENTS: usize = 120;

/// A limit, and what it did.
pub(super) struct Run {
    algorithm: Algorithm,
    limit: Limit,
    charge: LimiterCharge,
    /// That of its interval, if the pass has series.
    series: usize,
    pub(super) touched: u64,
    pub(super) refused: u64,
}

/// The largest numbers of requests in one interval.
struct Series {
    interval: i64,
    /// By caller
    peaks: Vec<u32>,
}

/// A caller that asked for something in the last interval.
struct Active {
    last: i64,
    /// Its requests in the longest interval, oldest first, if the pass has series.
    times: VecDeque<i64>,
    /// By series, its requests in the present interval.
    counts: List<u32>,
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
    pub(super) runs: Vec<Run>,
    series: Vec<Series>,
    callers: Vec<Caller>,
    active: Vec<u32>,
    /// For how long after its last request a caller's state matters.
    kept: i64,
    next_sweep: i64,
    pub(super) most_active: usize,
    pub(super) moments: Moments,
}

impl Counting {
    /// As many runs as a caller has bits for them.
    pub(super) const MOST_RUNS: usize = 64;

    pub(super) fn new(
        limits: &[(Algorithm, Limit)],
        with_series: bool,
    ) -> Result<Self, ConfigError> {
        let mut counting = Self {
            next_sweep: i64::MIN,
            ..Self::default()
        };
        for (algorithm, limit) in limits {
            let is_new = counting.place(&(*algorithm, *limit)).is_none();
            if is_new && counting.runs.len() < Self::MOST_RUNS {
                counting.add(*algorithm, *limit, with_series)?;
            }
        }
        Ok(counting)
    }

    fn add(
        &mut self,
        algorithm: Algorithm,
        limit: Limit,
        with_series: bool,
    ) -> Result<(), ConfigError> {
        let stored = limit.stored();
        algorithm.check(stored.rate, stored.interval)?;
        let interval = stored.interval.saturating_mul(TICKS);
        let known = self.series_of(&limit);
        let series = known.unwrap_or(self.series.len());
        if known.is_none() && with_series {
            let peaks = Vec::new();
            self.series.push(Series { interval, peaks });
        }
        // A window lasts a millisecond longer, and GCRA rounds the time from permit to permit up to
        // a microsecond.
        let beyond = TICKS.saturating_add(stored.rate);
        self.kept = self.kept.max(interval.saturating_add(beyond));
        let name = Name::exact("replay")?.counted_by(algorithm);
        let labels = Labels::unnamed("replay");
        self.runs.push(Run {
            algorithm,
            limit,
            charge: LimiterCharge::named(name, LimitSource::Code(limit), labels, 1),
            series,
            touched: 0,
            refused: 0,
        });
        Ok(())
    }

    fn series_of(&self, limit: &Limit) -> Option<usize> {
        let interval = limit.stored().interval.saturating_mul(TICKS);
        let mut all = self.series.iter();
        all.position(|series| series.interval == interval)
    }

    /// Returns the place of a limit among those that are run.
    pub(super) fn place(&self, (algorithm, limit): &(Algorithm, Limit)) -> Option<usize> {
        let mut runs = self.runs.iter();
        runs.position(|run| run.algorithm == *algorithm && run.limit == *limit)
    }

    pub(super) fn callers(&self) -> usize {
        self.callers.len()
    }

    /// Returns the largest numbers of requests in the interval of a limit, by caller.
    pub(super) fn peaks_of(&self, limit: &Limit) -> &[u32] {
        let series = self.series_of(limit).and_then(|it| self.series.get(it));
        series.map_or(&[], |series| &series.peaks)
    }

    /// Decides a request; times do not fall.
    pub(super) fn request(&mut self, time: i64, caller: u32) {
        self.sweep(time);
        let place = caller as usize;
        if place >= self.callers.len() {
            self.callers.resize_with(place + 1, Caller::default);
            let series = self.series.iter_mut();
            series.for_each(|it| it.peaks.resize(place + 1, 0));
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
                counts: self.series.iter().map(|_| 0).collect(),
                states: self.runs.iter().map(|_| None).collect(),
            })
        });
        active.last = time;
        active.count(&mut self.series, place, time);
        let [requests, refused @ ..] = self.moments.at(time, self.runs.len()) else {
            return;
        };
        *requests += 1;
        let counted = self.runs.iter_mut().zip(&mut active.states);
        for (place, ((run, state), refused)) in counted.zip(refused).enumerate() {
            let is_touched = row.touched >> place & 1 == 1;
            let requests = active.counts.get(run.series).copied();
            // All that a pass without series is to find.
            if requests.is_none() && is_touched {
                *state = None;
            } else if run.decides(state, requests, &active.times, time) {
                run.refused += 1;
                run.touched += u64::from(!is_touched);
                row.touched |= 1 << place;
                *refused += 1;
            }
        }
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
    /// Adds a request to the series, in which the caller has a place.
    fn count(&mut self, all: &mut [Series], place: usize, time: i64) {
        let Some(longest) = all.iter().map(|series| series.interval).max() else {
            return;
        };
        // As src/algorithm/sliding_log: what is an interval old has expired.
        while self.times.front().is_some_and(|it| *it <= time - longest) {
            self.times.pop_front();
        }
        // By an eighth, where it would double: for most callers this is most of their memory.
        if self.times.len() == self.times.capacity() {
            self.times.reserve_exact(4.max(self.times.len() / 8));
        }
        self.times.push_back(time);
        for (series, count) in all.iter_mut().zip(&mut self.counts) {
            let oldest = |count: u32| {
                let place = self.times.len().checked_sub(count as usize)?;
                self.times.get(place)
            };
            *count = count.saturating_add(1);
            // Times that are not kept any more have expired, too.
            while oldest(*count).is_none_or(|it| *it <= time - series.interval) {
                *count -= 1;
            }
            if let Some(peak) = series.peaks.get_mut(place) {
                *peak = (*peak).max(*count);
            }
        }
    }
}

/// The course of a replay: the requests of each moment, and the refusals of each run.
#[derive(Default)]
pub(super) struct Moments {
    /// In microseconds: the start of the first one, and how long each is.
    pub(super) start: i64,
    pub(super) width: i64,
    pub(super) counts: Vec<Vec<u64>>,
}

impl Moments {
    /// Returns the counts at a time; times do not fall.
    fn at(&mut self, time: i64, runs: usize) -> &mut [u64] {
        if self.counts.is_empty() {
            self.width = SECOND;
            self.start = time - time.rem_euclid(SECOND);
        }
        while (time - self.start) / self.width >= MOMENTS as i64 {
            self.width *= 2;
            let pairs = self.counts.chunks(2).map(|pair| {
                let sum = |place| pair.iter().filter_map(|it: &Vec<u64>| it.get(place)).sum();
                (0..=runs).map(sum).collect()
            });
            self.counts = pairs.collect();
        }
        let place = usize::try_from((time - self.start) / self.width).unwrap_or(0);
        if place >= self.counts.len() {
            self.counts.resize(place + 1, vec![0; runs + 1]);
        }
        self.counts.get_mut(place).map_or(&mut [], |counts| counts)
    }
}

impl Run {
    /// Decides a request, and returns whether it is refused. `requests` of `times` are in the
    /// interval, if they were counted.
    fn decides(
        &self,
        state: &mut Option<Box<LimiterState>>,
        requests: Option<u32>,
        times: &VecDeque<i64>,
        time: i64,
    ) -> bool {
        let is_log = self.algorithm == Algorithm::SlidingLog;
        let is_few = requests.is_some_and(|it| u64::from(it) <= self.limit.permits());
        if state.is_none() && is_log && is_few {
            return false;
        }
        let state = state.get_or_insert_with(|| {
            let mut state = algorithm::new(self.algorithm);
            let before = requests.filter(|_| is_log).unwrap_or(0) as usize;
            for granted in times.iter().rev().take(before).skip(1).rev() {
                self.refuses(&mut state, *granted);
            }
            state
        });
        self.refuses(state, time)
    }

    fn refuses(&self, state: &mut LimiterState, time: i64) -> bool {
        let answer = state.acquire_one(&self.charge, Terms::HERE, false, Now::at(time));
        // The limit was checked, so there is an answer.
        answer.is_ok_and(|answer| answer.verdict == Verdict::Refused)
    }
}
