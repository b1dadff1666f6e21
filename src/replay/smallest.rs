//! Finds the smallest limits, and verifies them: [`Search`].

use std::{collections::BTreeMap, ops::RangeInclusive, time::Duration};

use super::{counting::Counting, error::ReplayError, report::SmallestLimit};
use crate::limit::{Algorithm, Limit};

/// The most limits that one reading tries for one smallest limit.
const TRIED: u64 = 8;

/// A limit, and the limits that bound what it does where times are coarse.
///
/// Two requests whose times are `d` apart were less than `d` and one step apart, and more than `d`
/// less one. What a shorter interval by a step refuses, the limit refuses, and a longer interval
/// refuses all that it does: a sliding log grants as many requests as can be granted.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    pub(super) algorithm: Algorithm,
    pub(super) given: Limit,
    /// `None` if no two requests are surely in one interval.
    pub(super) least: Option<Limit>,
    pub(super) most: Limit,
}

impl Bounds {
    /// `whole` is set if all times are multiples of the resolution, which is in microseconds.
    pub(super) fn of(
        algorithm: Algorithm,
        given: Limit,
        resolution: i64,
        whole: bool,
    ) -> Result<Self, ReplayError> {
        let resolution = Duration::from_micros(resolution.unsigned_abs());
        let (interval, permits) = (given.interval(), given.permits());
        let mut bounds = Self {
            algorithm,
            given,
            least: Some(given),
            most: given,
        };
        if resolution * 20 <= interval {
            return Ok(bounds);
        }
        if algorithm != Algorithm::SlidingLog {
            let name = algorithm.word();
            return Err(ReplayError::Coarse(format!(
                "the log's times are {resolution:?} apart, too coarse to count {given} by {name}: \
                 that needs a twentieth of the interval; a sliding log has ranges"
            )));
        }
        let by = |interval: Duration| Limit::try_new(permits, in_millis(interval)).ok();
        let step = Duration::from_millis(u64::from(whole));
        let shorter = (interval + step).checked_sub(resolution);
        bounds.least = shorter.and_then(by);
        bounds.most = by(interval + resolution).unwrap_or(given);
        Ok(bounds)
    }

    /// Returns what to run for it.
    pub(super) fn limits(&self) -> impl Iterator<Item = (Algorithm, Limit)> {
        let limits = [Some(self.most), self.least].into_iter().flatten();
        limits.map(|limit| (self.algorithm, limit))
    }
}

/// Returns the interval in whole milliseconds, rounded up.
fn in_millis(interval: Duration) -> Duration {
    let micros = u64::try_from(interval.as_micros()).unwrap_or(u64::MAX);
    Duration::from_millis(micros.div_ceil(1000))
}

/// The search for the smallest limit of each algorithm and interval.
pub(super) struct Search {
    callers: u64,
    /// The most callers that a smallest limit may touch.
    few: u64,
    /// By the limit that was given first, the limits that are still to be found or verified: for
    /// the least of a range and the most.
    goals: Vec<(Bounds, [End; 2])>,
}

/// One end of a range of permits.
struct End {
    algorithm: Algorithm,
    /// A limit of the interval to count by.
    limit: Limit,
    /// Touches too many; 0 is no limit, and would touch all.
    below: u64,
    /// Touches few enough.
    permits: u64,
    /// By permits, the callers touched, and whether a run has shown it.
    touched: BTreeMap<u64, (u64, bool)>,
}

impl Search {
    pub(super) fn new(bounds: &[Bounds], counting: &Counting, share: f64) -> Self {
        let callers = counting.callers() as u64;
        let mut search = Self {
            callers,
            few: most_of(callers, share),
            goals: Vec::new(),
        };
        for it in bounds {
            let is_known = |(known, _): &(Bounds, _)| {
                known.algorithm == it.algorithm && known.given.interval() == it.given.interval()
            };
            if !search.goals.iter().any(is_known) {
                let ends = [it.least, Some(it.most)];
                let ends = ends.map(|limit| search.end(it, limit, counting));
                search.goals.push((*it, ends));
            }
        }
        search
    }

    fn end(&self, bounds: &Bounds, limit: Option<Limit>, counting: &Counting) -> End {
        let mut end = End {
            algorithm: bounds.algorithm,
            limit: limit.unwrap_or(bounds.most),
            below: 0,
            permits: 1,
            touched: BTreeMap::from([(0, (self.callers, true))]),
        };
        // Where nothing is certain, one permit is enough.
        if limit.is_none() || self.callers == 0 {
            end.touched.insert(1, (0, true));
            return end;
        }
        let mut peaks: BTreeMap<u32, u64> = BTreeMap::new();
        for peak in counting.peaks_of(end.algorithm, &end.limit) {
            *peaks.entry(*peak).or_default() += 1;
        }
        // A caller is touched if its peak is above the limit.
        let mut above = 0;
        for (peak, count) in peaks.iter().rev() {
            end.permits = u64::from(*peak);
            end.below = end.permits.saturating_sub(1);
            end.touched.insert(end.permits, (above, false));
            above += count;
            if above > self.few {
                break;
            }
        }
        end.touched.entry(end.below).or_insert((above, false));
        if end.algorithm == Algorithm::Gcra {
            end.widen();
        }
        end
    }

    /// Returns the limits that the next reading is to run, if there is anything left to find or to
    /// verify.
    pub(super) fn next(&self) -> Option<Vec<(Algorithm, Limit)>> {
        let ends = self.goals.iter().flat_map(|(_, ends)| ends);
        let limits: Vec<_> = ends.flat_map(End::tried).collect();
        (!limits.is_empty()).then_some(limits)
    }

    /// Takes what the runs of [`next`](Self::next) have found.
    pub(super) fn found(&mut self, counting: &Counting) {
        for end in self.goals.iter_mut().flat_map(|(_, ends)| ends) {
            for (algorithm, limit) in end.tried() {
                // One that had no place has its turn in the next reading.
                let Some(run) = counting.run(algorithm, &limit) else {
                    continue;
                };
                let permits = limit.permits();
                end.touched.insert(permits, (run.touched, true));
                if run.touched <= self.few {
                    end.permits = end.permits.min(permits);
                } else {
                    end.below = end.below.max(permits);
                }
            }
        }
    }

    pub(super) fn into_limits(self) -> Vec<SmallestLimit> {
        let smallest = self.goals.iter().map(|(bounds, ends)| {
            let figure = |of: fn(&End) -> u64| {
                let [least, most] = ends.each_ref().map(of);
                least.min(most)..=least.max(most)
            };
            let is_found = self.callers > 0 && ends.iter().all(End::is_found);
            let permits: Option<RangeInclusive<u64>> = is_found.then(|| figure(|end| end.permits));
            SmallestLimit {
                algorithm: bounds.algorithm,
                interval: bounds.given.interval(),
                permits,
                touched: figure(|end| end.touched(end.permits).0),
                touched_by_one_less: figure(|end| end.touched(end.below).0),
                verified: is_found && ends.iter().all(End::is_verified),
            }
        });
        smallest.collect()
    }
}

impl End {
    /// Takes the smallest limit of a sliding log as a hint for GCRA.
    ///
    /// In one interval GCRA grants at most twice its permits, and it refuses nothing of a caller
    /// that never asks for more than half of them.
    fn widen(&mut self) {
        let micros = u64::try_from(self.limit.interval().as_micros()).unwrap_or(u64::MAX);
        self.below /= 2;
        self.permits = self.permits.saturating_mul(2).min(micros);
        self.touched.retain(|permits, _| *permits == 0);
    }

    /// Returns the limits that the next reading is to run for it.
    fn tried(&self) -> Vec<(Algorithm, Limit)> {
        let step = ((self.permits.saturating_sub(self.below)) / (TRIED + 1)).max(1);
        let between = (1..=TRIED).map(|place| self.below.saturating_add(place * step));
        let between = between.filter(|permits| *permits < self.permits);
        let all = between.chain([self.below, self.permits]);
        let new = all.filter(|permits| !self.touched(*permits).1);
        new.map(|permits| (self.algorithm, self.limit.with_permits(permits)))
            .collect()
    }

    /// Returns whether it is as small as can be.
    fn is_found(&self) -> bool {
        self.below + 1 == self.permits && self.touched.contains_key(&self.permits)
    }

    fn is_verified(&self) -> bool {
        self.touched(self.below).1 && self.touched(self.permits).1
    }

    /// Returns the callers touched, and whether a run has shown it.
    fn touched(&self, permits: u64) -> (u64, bool) {
        self.touched.get(&permits).copied().unwrap_or_default()
    }
}

/// Returns how many are fewer than a share of the callers, at most.
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
        let (log, second) = (Algorithm::SlidingLog, 1_000_000);
        let limit = |millis| Limit::new(5, Duration::from_millis(millis));
        for (interval, resolution, whole, least, most) in [
            (60_000, second, true, Some(60_000), 60_000),
            (20_000, second, true, Some(20_000), 20_000),
            (10_000, second, true, Some(9001), 11_000),
            (10_000, second, false, Some(9000), 11_000),
            (1000, second, true, Some(1), 2000),
            (1000, second, false, None, 2000),
            (500, second, true, None, 1500),
        ] {
            let bounds = Bounds::of(log, limit(interval), resolution, whole).unwrap();
            let row = format!("{interval} by {resolution}");
            assert_eq!(bounds.least, least.map(limit), "{row}");
            assert_eq!(bounds.most, limit(most), "{row}");
        }
        let gcra = Bounds::of(Algorithm::Gcra, limit(1000), second, true);
        assert!(matches!(gcra, Err(ReplayError::Coarse(_))));
    }
}
