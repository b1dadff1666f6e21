//! The smallest limits, between bounds where times are coarse: [`LimitBounds`], [`Search`],
//! [`Smallest`].

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tower_ratelimit::{Algorithm, Limit};

use super::pass::{CountedLimit, LogPass};

/// The limits whose figures bound those of a limit where times are coarse.
///
/// Two requests that were logged `d` apart came between `d` less one step and `d` and one step
/// apart. A sliding log grants as many requests as can be granted with no more than its permits in
/// an interval. So one with an interval a step shorter refuses no more than the limit really would,
/// and one with an interval a step longer no less. The other algorithms grant at most twice their
/// permits in an interval, and at least as many as a sliding log of their permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LimitBounds {
    pub(super) algorithm: Algorithm,
    pub(super) interval: Duration,
    /// The resolution of the log.
    pub(super) resolution: Duration,
    /// Set if all times are multiples of it.
    pub(super) whole: bool,
}

impl LimitBounds {
    /// Returns the limits to run for this many permits: one that refuses the least, unless none is
    /// sure to refuse, and one that refuses the most.
    pub(super) fn of_permits(&self, permits: u64) -> [Option<CountedLimit>; 2] {
        let limit = |permits, interval| Limit::try_new(permits, interval).ok();
        if self.resolution * 20 <= self.interval {
            let given = limit(permits, self.interval).map(|limit| (self.algorithm, limit));
            return [given; 2];
        }
        let (times, longer) = match self.algorithm {
            Algorithm::SlidingLog => (1, Duration::ZERO),
            // The time from permit to permit is rounded up to a microsecond.
            Algorithm::Gcra => (2, Duration::from_micros(permits)),
            // A fixed window.
            _ => (2, Duration::from_millis(1)),
        };
        let shorter = self.interval + Duration::from_millis(u64::from(self.whole));
        let shorter = shorter.checked_sub(self.resolution).map(|it| millis(it, 0));
        let longer = millis(self.interval + self.resolution + longer, 999);
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

/// The most limits between both ends that one reading tries.
const TRIED: u32 = 8;

/// The search for the smallest permits that touch fewer than a share of callers.
pub(crate) struct Search {
    pub(crate) callers: u64,
    /// The largest number of callers that it may touch.
    pub(super) few: u64,
    /// The largest permits that touch too many callers. 0 is no limit, and touches all.
    pub(crate) below: u64,
    /// The smallest permits that touch few enough.
    pub(crate) permits: u64,
    /// By permits, the callers that runs touched; `None` if there can be no such limit.
    runs: BTreeMap<u64, Option<u64>>,
}

impl Search {
    /// Begins between no permits and so many.
    pub(crate) fn new(callers: u64, share: f64, permits: u64) -> Self {
        Self {
            callers,
            few: most_of(callers, share),
            below: 0,
            permits,
            runs: BTreeMap::new(),
        }
    }

    /// Returns the permits that the next reading is to try, if there is anything left to find or to
    /// verify: both ends, and some at equal ratios between them.
    pub(crate) fn tried(&self) -> BTreeSet<u64> {
        let (low, high) = (self.below, self.permits);
        let (least, ratio) = (low.max(1) as f64, high as f64 / low.max(1) as f64);
        let share = |part: u32| f64::from(part) / f64::from(TRIED + 1);
        let between = (1..=TRIED).map(|part| (least * ratio.powf(share(part))) as u64);
        let between = between.filter(|it| low < *it && *it < high);
        let all = between.chain([low, high]);
        all.filter(|it| !self.is_known(*it)).collect()
    }

    /// Takes how many callers a run has touched; `None` if there can be no limit of so many
    /// permits, nor of fewer.
    pub(crate) fn found(&mut self, permits: u64, touched: Option<u64>) {
        self.runs.insert(permits, touched);
        if touched.is_some_and(|touched| touched <= self.few) {
            self.permits = self.permits.min(permits);
        } else {
            self.below = self.below.max(permits);
        }
    }

    /// Returns whether no permits are left between both ends.
    pub(crate) fn is_found(&self) -> bool {
        self.callers > 0 && self.below + 1 == self.permits
    }

    /// Returns whether a run has shown what it touches, or none is needed.
    pub(super) fn is_known(&self, permits: u64) -> bool {
        self.callers == 0 || permits == 0 || self.runs.contains_key(&permits)
    }

    /// Returns the callers that it touches, if that is known.
    pub(crate) fn touched(&self, permits: u64) -> Option<u64> {
        match permits {
            0 => Some(self.callers),
            permits => self.runs.get(&permits).copied().flatten(),
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

/// The search for one end of a smallest limit: that of the bound that refuses the least, or the
/// most.
pub(super) struct Smallest {
    pub(super) bounds: LimitBounds,
    end: usize,
    /// The peaks of all callers, sorted.
    pub(super) peaks: Vec<u32>,
    pub(super) search: Search,
}

impl Smallest {
    /// Begins with what was counted for a limit of so many permits.
    pub(super) fn new(
        bounds: LimitBounds,
        end: usize,
        permits: u64,
        pass: &LogPass,
        share: f64,
    ) -> Self {
        let mut smallest = Self {
            bounds,
            end,
            peaks: Vec::new(),
            search: Search::new(pass.callers() as u64, share, 1),
        };
        let Some((_, limit)) = smallest.limit(permits) else {
            // Nothing is sure to be refused.
            smallest.search.found(1, Some(0));
            return smallest;
        };
        smallest.peaks = pass.peaks_of(&limit).to_vec();
        smallest.peaks.sort_unstable();
        // A sliding log touches the callers whose peak is above its permits. So it touches few
        // enough if it grants the highest peak but those of the callers that it may touch.
        let few = usize::try_from(smallest.search.few).unwrap_or(usize::MAX);
        let highest = smallest.peaks.iter().rev().nth(few);
        let peak = u64::from(highest.copied().unwrap_or(0));
        // The others grant at most twice their permits in an interval, and refuse nothing of a
        // caller that never asks for more than half of them.
        let factor = 1 + u64::from(!smallest.is_by_peaks());
        let of_one = smallest.limit(1).map_or(1, |(_, limit)| limit.permits());
        let micros = u64::try_from(bounds.interval.as_micros()).unwrap_or(u64::MAX);
        smallest.search.below = u64::div_ceil(peak, of_one * factor).saturating_sub(1);
        smallest.search.permits = u64::div_ceil(peak * factor, of_one).clamp(1, micros);
        smallest
    }

    fn limit(&self, permits: u64) -> Option<CountedLimit> {
        self.bounds.of_permits(permits)[self.end]
    }

    /// Returns the limits that the next reading is to run, each with its permits.
    pub(super) fn tried(&self) -> impl Iterator<Item = (u64, CountedLimit)> {
        let tried = self.search.tried().into_iter();
        tried.filter_map(|permits| Some((permits, self.limit(permits)?)))
    }

    /// Takes what the runs of [`tried`](Self::tried) have found.
    pub(super) fn found(&mut self, pass: &LogPass) {
        for (permits, limit) in self.tried().collect::<Vec<_>>() {
            // One that was not run has its turn in the next reading.
            if let Some(index) = pass.index(&limit) {
                self.search.found(permits, Some(pass.runs[index].touched));
            }
        }
    }

    /// Returns whether it is as small as can be.
    pub(super) fn is_found(&self) -> bool {
        self.search.is_found() && (self.is_by_peaks() || self.search.is_known(self.search.permits))
    }

    /// Returns whether peaks alone show what each limit touches: those of a sliding log do, except
    /// where it bounds GCRA, as its interval grows with the permits.
    fn is_by_peaks(&self) -> bool {
        let is_gcra = self.bounds.algorithm == Algorithm::Gcra;
        let by_log = |(algorithm, _)| algorithm == Algorithm::SlidingLog && !is_gcra;
        self.limit(1).is_none_or(by_log)
    }

    pub(super) fn is_verified(&self) -> bool {
        let ends = [self.search.below, self.search.permits];
        ends.iter().all(|permits| self.search.is_known(*permits))
    }

    /// Returns the callers that it touches, by a run or by their peaks.
    pub(super) fn touched(&self, permits: u64) -> u64 {
        let by_peaks = || {
            let limit = self.limit(permits);
            let limit = limit.map_or(u64::MAX, |(_, limit)| limit.permits());
            let at_most = self.peaks.partition_point(|it| u64::from(*it) <= limit);
            (self.peaks.len() - at_most) as u64
        };
        self.search.touched(permits).unwrap_or_else(by_peaks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let bounds = LimitBounds {
                algorithm,
                interval: Duration::from_millis(interval),
                resolution: Duration::from_secs(1),
                whole,
            };
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
}
