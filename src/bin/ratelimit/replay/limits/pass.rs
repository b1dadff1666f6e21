//! Decides the requests of a log by the crate's algorithms, for all candidate limits at once.
//!
//! Until its first refusal by a candidate, a caller was granted all its requests. So one list of a
//! caller's recent times can stand for the logs of all candidates; a candidate gets a state of its
//! own when the list first exceeds its limit. A pass that verifies has no such list: there each
//! candidate has a state from a caller's first request on.

use std::{collections::VecDeque, mem, time::Duration};

use tower_ratelimit::{
    Algorithm, ConfigError, Limit,
    command::{Meter, Metered},
};

/// In microseconds.
const SECOND: i64 = 1_000_000;
/// The number of moments that a log is divided into, at most.
const MOMENTS: usize = 120;

/// A limit, and the algorithm that counts by it.
pub(crate) type Way = (Algorithm, Limit);

/// A limit, and what it did.
pub(super) struct Run {
    way: Way,
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
    /// By run, its requests in the present interval; none in a pass that verifies.
    counts: Box<[u32]>,
    /// By run
    states: Box<[Option<Box<Metered>>]>,
}

#[derive(Default)]
struct Caller {
    /// The runs that have refused it, each a bit.
    touched: u64,
    active: Option<Box<Active>>,
}

/// All runs of one pass over a log.
#[derive(Default)]
pub(super) struct Pass {
    pub(super) runs: Vec<Run>,
    /// The longest interval that requests are counted in; zero in a pass that verifies.
    longest: i64,
    callers: Vec<Caller>,
    active: Vec<u32>,
    /// The time for which a caller's state is kept after its last request.
    kept: i64,
    next_sweep: i64,
    pub(super) most_active: usize,
    pub(super) moments: Moments,
}

impl Pass {
    /// As many runs as a caller has bits for them.
    pub(super) const MOST_RUNS: usize = 64;

    /// # Errors
    ///
    /// Returns an error if an algorithm cannot count by its limit.
    pub(super) fn new(ways: &[Way], verifies: bool) -> Result<Self, ConfigError> {
        let mut pass = Self {
            next_sweep: i64::MIN,
            ..Self::default()
        };
        for way in ways {
            if pass.place(way).is_none() && pass.runs.len() < Self::MOST_RUNS {
                pass.add(*way, verifies)?;
            }
        }
        Ok(pass)
    }

    fn add(&mut self, way: Way, verifies: bool) -> Result<(), ConfigError> {
        let (algorithm, limit) = way;
        let interval = micros(limit.interval());
        if !verifies {
            self.longest = self.longest.max(interval);
        }
        // A window lasts a millisecond longer, and GCRA rounds the time from permit to permit up to
        // a microsecond.
        let beyond = i64::try_from(limit.permits())
            .unwrap_or(i64::MAX)
            .saturating_add(1000);
        self.kept = self.kept.max(interval.saturating_add(beyond));
        self.runs.push(Run {
            way,
            meter: Meter::new(algorithm, limit)?,
            interval,
            peaks: Vec::new(),
            touched: 0,
            refused: 0,
        });
        Ok(())
    }

    /// Returns the place of a limit among those that are run.
    pub(super) fn place(&self, way: &Way) -> Option<usize> {
        self.runs.iter().position(|run| run.way == *way)
    }

    pub(super) fn callers(&self) -> usize {
        self.callers.len()
    }

    /// Returns the largest numbers of requests in the interval of a limit, by caller.
    pub(super) fn peaks_of(&self, limit: &Limit) -> &[u32] {
        let mut runs = self.runs.iter();
        let run = runs.find(|run| run.way.1.interval() == limit.interval());
        run.map_or(&[], |run| &run.peaks)
    }

    /// Decides a request; times do not fall.
    pub(super) fn request(&mut self, time: i64, caller: u32) {
        self.sweep(time);
        let place = caller as usize;
        if place >= self.callers.len() {
            self.callers.resize_with(place + 1, Caller::default);
        }
        let Some(row) = self.callers.get_mut(place) else {
            return;
        };
        let counted = if self.longest > 0 { self.runs.len() } else { 0 };
        let active = row.active.get_or_insert_with(|| {
            self.active.push(caller);
            self.most_active = self.most_active.max(self.active.len());
            Box::new(Active {
                last: time,
                times: VecDeque::new(),
                counts: vec![0; counted].into(),
                states: self.runs.iter().map(|_| None).collect(),
            })
        });
        active.last = time;
        if counted > 0 {
            active.count(&mut self.runs, place, time, self.longest);
        }
        let [requests, refused @ ..] = self.moments.at(time, self.runs.len()) else {
            return;
        };
        *requests += 1;
        let counted = self.runs.iter_mut().zip(&mut active.states);
        for (place, ((run, state), refused)) in counted.zip(refused).enumerate() {
            let is_touched = row.touched >> place & 1 == 1;
            let requests = active.counts.get(place).copied();
            // All that a pass that verifies is to find.
            if requests.is_none() && is_touched {
                *state = None;
            } else if run.refuses(state, requests, &active.times, time) {
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
    /// Counts a request in the interval of each run.
    fn count(&mut self, runs: &mut [Run], place: usize, time: i64, longest: i64) {
        // As src/algorithm/sliding_log: what is an interval old has expired.
        while self.times.front().is_some_and(|it| *it <= time - longest) {
            self.times.pop_front();
        }
        // By an eighth, where it would double: for most callers this is most of their memory.
        if self.times.len() == self.times.capacity() {
            self.times.reserve_exact(4.max(self.times.len() / 8));
        }
        self.times.push_back(time);
        for (run, count) in runs.iter_mut().zip(&mut self.counts) {
            let oldest = |count: u32| {
                let place = self.times.len().checked_sub(count as usize)?;
                self.times.get(place)
            };
            *count = count.saturating_add(1);
            // Times that are not kept any more have expired, too.
            while oldest(*count).is_none_or(|it| *it <= time - run.interval) {
                *count -= 1;
            }
            if run.peaks.len() <= place {
                run.peaks.resize(place + 1, 0);
            }
            if let Some(peak) = run.peaks.get_mut(place) {
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
    fn refuses(
        &self,
        state: &mut Option<Box<Metered>>,
        requests: Option<u32>,
        times: &VecDeque<i64>,
        time: i64,
    ) -> bool {
        let (algorithm, limit) = self.way;
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

/// Returns a time in microseconds.
fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}
