//! Decides the requests of a log by the crate's algorithms, for all candidate limits at once.
//!
//! Until its first refusal by a candidate, a caller was granted all its requests. So one list of a
//! caller's recent times can stand for the logs of all candidates; a candidate gets a state of its
//! own when the list first exceeds its limit. A pass that verifies has no such list: there each
//! candidate has a state from a caller's first request on.

use std::collections::{HashMap, VecDeque};

use tower_ratelimit::{
    Algorithm, ConfigError, Limit,
    command::{Meter, Metered},
};

use crate::access_log::{SECOND, micros};

/// The number of moments that a log is divided into, at most.
const MOMENTS: usize = 120;

/// A limit, and the algorithm that counts by it.
pub(crate) type CountedLimit = (Algorithm, Limit);

/// A limit, and what it did.
pub(super) struct Run {
    counted: CountedLimit,
    meter: Meter,
    /// That of the limit, in microseconds.
    interval: i64,
    /// The largest numbers of requests in one interval, by caller; none in a pass that verifies.
    peaks: Vec<u32>,
    pub(super) touched: u64,
    pub(super) refused: u64,
}

/// A caller that asked for something in the last interval.
struct Active {
    last: i64,
    /// Its requests in the longest interval, oldest first.
    times: VecDeque<i64>,
    /// By run
    states: Box<[Option<Box<Metered>>]>,
}

/// All runs of one pass over a log.
#[derive(Default)]
pub(super) struct LogPass {
    pub(super) runs: Vec<Run>,
    /// The longest interval that requests are counted in; zero in a pass that verifies.
    longest: i64,
    /// By caller, the runs that have refused it, each a bit.
    touched: Vec<u64>,
    active: HashMap<u32, Box<Active>>,
    /// The time for which a caller's state is kept after its last request.
    kept: i64,
    next_sweep: i64,
    /// The most active callers before the last sweep.
    most_active: usize,
    pub(super) moments: Moments,
}

impl LogPass {
    /// As many runs as a caller has bits for them.
    pub(super) const MOST_RUNS: usize = 64;

    /// # Errors
    ///
    /// Returns an error if an algorithm cannot count by its limit.
    pub(super) fn new(limits: &[CountedLimit], verifies: bool) -> Result<Self, ConfigError> {
        let mut pass = Self {
            next_sweep: i64::MIN,
            ..Self::default()
        };
        for counted in limits {
            if pass.index(counted).is_some() || pass.runs.len() == Self::MOST_RUNS {
                continue;
            }
            let (algorithm, limit) = *counted;
            let interval = micros(limit.interval());
            // A window lasts a millisecond longer, and GCRA rounds the time from permit to permit
            // up to a microsecond.
            let beyond = i64::try_from(limit.permits()).unwrap_or(i64::MAX);
            let kept = interval.saturating_add(beyond).saturating_add(1000);
            pass.kept = pass.kept.max(kept);
            if !verifies {
                pass.longest = pass.longest.max(interval);
            }
            pass.runs.push(Run {
                counted: *counted,
                meter: Meter::new(algorithm, limit)?,
                interval,
                peaks: Vec::new(),
                touched: 0,
                refused: 0,
            });
        }
        Ok(pass)
    }

    /// Returns the index of a limit among those that are run.
    pub(super) fn index(&self, limit: &CountedLimit) -> Option<usize> {
        self.runs.iter().position(|run| run.counted == *limit)
    }

    pub(super) fn callers(&self) -> usize {
        self.touched.len()
    }

    /// Returns the most callers whose state was held at once: between sweeps none is dropped.
    pub(super) fn most_active(&self) -> usize {
        self.most_active.max(self.active.len())
    }

    /// Returns the largest numbers of requests in the interval of a limit, by caller.
    pub(super) fn peaks_of(&self, limit: &Limit) -> &[u32] {
        let mut runs = self.runs.iter();
        let run = runs.find(|run| run.counted.1.interval() == limit.interval());
        run.map_or(&[], |run| &run.peaks)
    }

    /// Decides a request; times do not fall.
    pub(super) fn request(&mut self, time: i64, caller: u32) {
        self.sweep(time);
        let index = caller as usize;
        let counts = self.longest > 0;
        if index >= self.touched.len() {
            self.touched.resize(index + 1, 0);
            let counted = self.runs.iter_mut().filter(|_| counts);
            counted.for_each(|run| run.peaks.resize(index + 1, 0));
        }
        let active = self.active.entry(caller).or_insert_with(|| {
            Box::new(Active {
                last: time,
                times: VecDeque::new(),
                states: self.runs.iter().map(|_| None).collect(),
            })
        });
        active.last = time;
        if counts {
            active.remember(time, self.longest);
        }
        let [requests, refused @ ..] = self.moments.at(time, self.runs.len()) else {
            return;
        };
        *requests += 1;
        let (touched, times) = (&mut self.touched[index], &active.times);
        let decided = self.runs.iter_mut().zip(&mut active.states).zip(refused);
        for (bit, ((run, state), refused)) in decided.enumerate() {
            let is_touched = *touched >> bit & 1 == 1;
            let requests = counts.then(|| run.count(index, times, time));
            // All that a pass that verifies is to find.
            if requests.is_none() && is_touched {
                *state = None;
            } else if run.refuses(state, requests, times, time) {
                run.refused += 1;
                run.touched += u64::from(!is_touched);
                *touched |= 1 << bit;
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
        self.most_active = self.most_active();
        self.active.retain(|_, it| time - it.last <= self.kept);
    }
}

impl Active {
    /// Adds the time of a request to those of the longest interval.
    fn remember(&mut self, time: i64, longest: i64) {
        // As src/algorithm/sliding_log: what is an interval old has expired.
        while self.times.front().is_some_and(|it| *it <= time - longest) {
            self.times.pop_front();
        }
        // By an eighth, where it would double: for most callers this is most of their memory.
        if self.times.len() == self.times.capacity() {
            self.times.reserve_exact(4.max(self.times.len() / 8));
        }
        self.times.push_back(time);
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
                let sum = |index| pair.iter().filter_map(|it: &Vec<u64>| it.get(index)).sum();
                (0..=runs).map(sum).collect()
            });
            self.counts = pairs.collect();
        }
        let index = usize::try_from((time - self.start) / self.width).unwrap_or(0);
        if index >= self.counts.len() {
            self.counts.resize(index + 1, vec![0; runs + 1]);
        }
        &mut self.counts[index]
    }
}

impl Run {
    /// Returns how many of the times of a caller are in the interval that ends now.
    fn count(&mut self, index: usize, times: &VecDeque<i64>, time: i64) -> u32 {
        let expired = times.partition_point(|it| *it <= time - self.interval);
        let requests = u32::try_from(times.len() - expired).unwrap_or(u32::MAX);
        self.peaks[index] = self.peaks[index].max(requests);
        requests
    }

    /// Decides a request, and returns whether it is refused. `requests` of `times` are in the
    /// interval, if they were counted.
    fn refuses(
        &self,
        state: &mut Option<Box<Metered>>,
        requests: Option<u32>,
        times: &VecDeque<i64>,
        time: i64,
    ) -> bool {
        let (algorithm, limit) = self.counted;
        let is_log = algorithm == Algorithm::SlidingLog;
        let is_few = requests.is_some_and(|it| u64::from(it) <= limit.permits());
        if state.is_none() && is_log && is_few {
            return false;
        }
        let state = state.get_or_insert_with(|| {
            let mut state = Box::new(self.meter.begin());
            let before = requests.filter(|_| is_log).unwrap_or(0) as usize;
            for granted in times.iter().rev().take(before).skip(1).rev() {
                self.meter.refuses(&mut state, *granted);
            }
            state
        });
        self.meter.refuses(state, time)
    }
}
