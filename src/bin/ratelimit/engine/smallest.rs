//! Finds the smallest limits, and verifies them: [`Search`].

use std::{collections::BTreeMap, time::Duration};

use tower_ratelimit::{Algorithm, Limit};

use super::pass::{Pass, Way};

/// The most limits that one reading tries for one smallest limit.
const TRIED: u64 = 8;

/// The limits whose figures bound those of a limit where times are coarse.
///
/// Two requests that were logged `d` apart came between `d` less one step and `d` and one step
/// apart. A sliding log grants as many requests as can be granted with no more than its permits in
/// an interval. So one with an interval a step shorter refuses no more than the limit really would,
/// and one with an interval a step longer no less. The other algorithms grant at most twice their
/// permits in an interval, and at least as many as a sliding log of their permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    pub(super) algorithm: Algorithm,
    pub(super) interval: Duration,
    /// The resolution of the log, if that is coarse.
    resolution: Option<Duration>,
    /// Set if all times are multiples of the resolution.
    whole: bool,
}

impl Bounds {
    pub(super) fn of(
        algorithm: Algorithm,
        interval: Duration,
        resolution: Duration,
        whole: bool,
    ) -> Self {
        Self {
            algorithm,
            interval,
            resolution: Some(resolution).filter(|it| *it * 20 > interval),
            whole,
        }
    }

    /// Returns the limits to run for this many permits: one that refuses the least, unless none is
    /// sure to refuse, and one that refuses the most.
    pub(super) fn of_permits(&self, permits: u64) -> [Option<Way>; 2] {
        let limit = |permits, interval| Limit::try_new(permits, interval).ok();
        let Some(resolution) = self.resolution else {
            let given = limit(permits, self.interval).map(|limit| (self.algorithm, limit));
            return [given; 2];
        };
        let (times, longer) = match self.algorithm {
            Algorithm::SlidingLog => (1, Duration::ZERO),
            // The time from permit to permit is rounded up to a microsecond.
            Algorithm::Gcra => (2, Duration::from_micros(permits)),
            // A fixed window.
            _ => (2, Duration::from_millis(1)),
        };
        let shorter = self.interval + Duration::from_millis(u64::from(self.whole));
        let shorter = shorter.checked_sub(resolution).map(|it| millis(it, 0));
        let longer = millis(self.interval + resolution + longer, 999);
        let least = shorter.and_then(|it| limit(permits.saturating_mul(times), it));
        let most = limit(permits, longer).or(limit(permits, self.interval));
        [least, most].map(|limit| limit.map(|limit| (Algorithm::SlidingLog, limit)))
    }
}

/// Returns whole milliseconds, after adding microseconds.
fn millis(time: Duration, micros: u64) -> Duration {
    let time = (time + Duration::from_micros(micros)).as_millis();
    Duration::from_millis(u64::try_from(time).unwrap_or(u64::MAX))
}

/// The search for one end of a smallest limit: that of the bound that refuses the least, or the
/// most.
pub(super) struct Search {
    pub(super) bounds: Bounds,
    end: usize,
    callers: u64,
    /// The largest number of callers that it may touch.
    few: u64,
    /// The peaks of all callers, sorted.
    pub(super) peaks: Vec<u32>,
    /// The largest permits that touch too many callers. 0 is no limit, and touches all.
    pub(super) below: u64,
    /// The smallest permits that touch few enough.
    pub(super) permits: u64,
    /// By permits, the callers that runs touched.
    runs: BTreeMap<u64, u64>,
}

impl Search {
    /// Begins with what was counted for a limit of so many permits.
    pub(super) fn new(bounds: Bounds, end: usize, permits: u64, pass: &Pass, share: f64) -> Self {
        let callers = pass.callers() as u64;
        let mut search = Self {
            bounds,
            end,
            callers,
            few: most_of(callers, share),
            peaks: Vec::new(),
            below: 0,
            permits: 1,
            runs: BTreeMap::new(),
        };
        let Some((_, limit)) = search.limit(permits) else {
            return search;
        };
        search.peaks = pass.peaks_of(&limit).to_vec();
        search.peaks.sort_unstable();
        // A sliding log touches the callers whose peak is above its permits. So it touches few
        // enough if it grants the highest peak but those of the callers that it may touch.
        let few = usize::try_from(search.few).unwrap_or(usize::MAX);
        let highest = search.peaks.iter().rev().nth(few);
        let peak = u64::from(highest.copied().unwrap_or(0));
        // The others grant at most twice their permits in an interval, and refuse nothing of a
        // caller that never asks for more than half of them.
        let factor = 1 + u64::from(!search.is_by_peaks());
        let of_one = search.limit(1).map_or(1, |(_, limit)| limit.permits());
        let micros = u64::try_from(bounds.interval.as_micros()).unwrap_or(u64::MAX);
        search.below = u64::div_ceil(peak, of_one * factor).saturating_sub(1);
        search.permits = u64::div_ceil(peak * factor, of_one).clamp(1, micros);
        search
    }

    fn limit(&self, permits: u64) -> Option<Way> {
        let limits = self.bounds.of_permits(permits);
        limits.get(self.end).copied().flatten()
    }

    /// Returns the number of callers whose peak is above this.
    fn above(&self, peak: u64) -> u64 {
        let at_most = self.peaks.partition_point(|it| u64::from(*it) <= peak);
        (self.peaks.len() - at_most) as u64
    }

    /// Returns the limits that the next reading is to run, if there is anything left to find or to
    /// verify.
    pub(super) fn tried(&self) -> impl Iterator<Item = (u64, Way)> {
        let step = (self.permits.saturating_sub(self.below) / (TRIED + 1)).max(1);
        let between = (1..=TRIED).map(move |place| self.below.saturating_add(place * step));
        let between = between.filter(|permits| *permits < self.permits);
        let all = between.chain([self.below, self.permits]);
        let new = all.filter(|permits| !self.is_known(*permits));
        new.filter_map(|permits| Some((permits, self.limit(permits)?)))
    }

    /// Takes what the runs of [`tried`](Self::tried) have found.
    pub(super) fn found(&mut self, pass: &Pass) {
        for (permits, limit) in self.tried().collect::<Vec<_>>() {
            // One that had no place has its turn in the next reading.
            let Some(place) = pass.place(&limit) else {
                continue;
            };
            let touched = pass.runs[place].touched;
            self.runs.insert(permits, touched);
            match touched <= self.few {
                true => self.permits = self.permits.min(permits),
                false => self.below = self.below.max(permits),
            }
        }
    }

    /// Returns whether it is as small as can be.
    pub(super) fn is_found(&self) -> bool {
        let is_run = self.runs.contains_key(&self.permits);
        self.callers > 0 && self.below + 1 == self.permits && (self.is_by_peaks() || is_run)
    }

    /// Returns whether peaks alone show what each limit touches: those of a sliding log do, except
    /// where it bounds GCRA, as its interval grows with the permits.
    fn is_by_peaks(&self) -> bool {
        let is_gcra = self.bounds.algorithm == Algorithm::Gcra;
        let by_log = |(algorithm, _)| algorithm == Algorithm::SlidingLog && !is_gcra;
        self.limit(1).is_none_or(by_log)
    }

    pub(super) fn is_verified(&self) -> bool {
        self.is_known(self.below) && self.is_known(self.permits)
    }

    /// Returns whether a run has shown what it touches, or none is needed.
    fn is_known(&self, permits: u64) -> bool {
        let is_plain = self.callers == 0 || permits == 0 || self.limit(permits).is_none();
        is_plain || self.runs.contains_key(&permits)
    }

    /// Returns the callers that it touches, by a run or by their peaks.
    pub(super) fn touched(&self, permits: u64) -> u64 {
        match (permits, self.runs.get(&permits), self.limit(permits)) {
            (0, _, _) => self.callers,
            (_, Some(touched), _) => *touched,
            (_, None, Some((_, limit))) => self.above(limit.permits()),
            // Nothing is sure to be refused.
            (_, None, None) => 0,
        }
    }
}

/// Returns the largest number of callers that is less than this share of them.
fn most_of(callers: u64, share: f64) -> u64 {
    // In billionths, so that a tenth of a percent of 1000 is 1.
    const WHOLE: f64 = 1e9;
    let share = (share * WHOLE).round() as u128 * u128::from(callers);
    u64::try_from(share.saturating_sub(1) / WHOLE as u128).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_than_a_share_is_exact() {
        for (touched, callers, share, few) in [
            (0, 10, 0.0, true),
            (1, 1000, 0.001, false),
            (1, 1001, 0.001, true),
            (49, 50_000, 0.001, true),
            (50, 50_000, 0.001, false),
            (2, 10, 0.3, true),
            (3, 10, 0.3, false),
        ] {
            let most = most_of(callers, share);
            assert_eq!(touched <= most, few, "{touched} of {callers}");
        }
    }

    #[test]
    fn coarse_times_bound_an_interval() {
        use Algorithm::{FixedWindow, Gcra, SlidingLog};
        let limit = |permits, millis| Limit::new(permits, Duration::from_millis(millis));
        for (algorithm, interval, whole, least, most) in [
            (SlidingLog, 60_000, true, Some((5, 60_000)), (5, 60_000)),
            (Gcra, 20_000, true, Some((5, 20_000)), (5, 20_000)),
            (SlidingLog, 10_000, true, Some((5, 9001)), (5, 11_000)),
            (SlidingLog, 10_000, false, Some((5, 9000)), (5, 11_000)),
            (SlidingLog, 1000, true, Some((5, 1)), (5, 2000)),
            (SlidingLog, 1000, false, None, (5, 2000)),
            (SlidingLog, 500, true, None, (5, 1500)),
            (FixedWindow, 10_000, true, Some((10, 9001)), (5, 11_001)),
            (Gcra, 10_000, true, Some((10, 9001)), (5, 11_001)),
        ] {
            let second = Duration::from_secs(1);
            let bounds = Bounds::of(algorithm, Duration::from_millis(interval), second, whole);
            let by = if interval < 20_000 {
                SlidingLog
            } else {
                algorithm
            };
            let expected = [least, Some(most)];
            let expected = expected.map(|it| it.map(|(permits, at)| (by, limit(permits, at))));
            assert_eq!(
                bounds.of_permits(5),
                expected,
                "{algorithm:?} in {interval}"
            );
        }
    }
}
