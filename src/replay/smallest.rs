//! Finds the smallest limits, and verifies them: [`Search`].

use std::{collections::BTreeMap, ops::RangeInclusive, time::Duration};

use super::{
    counting::{Counting, Run},
    error::ReplayError,
    report::SmallestLimit,
};
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
    algorithm: Algorithm,
    given: Limit,
    /// `None` if no two requests are surely in one interval.
    least: Option<Limit>,
    most: Limit,
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

    /// Returns what to run for it: the one that refuses most first, and the other if it differs.
    pub(super) fn limits(&self) -> impl Iterator<Item = (Algorithm, Limit)> {
        let least = self.least.filter(|least| *least != self.most);
        let limits = [Some(self.most), least].into_iter().flatten();
        limits.map(|limit| (self.algorithm, limit))
    }

    /// Returns the least and the most of a figure of its runs, which are the next ones.
    pub(super) fn runs<'r>(
        &self,
        runs: &mut impl Iterator<Item = &'r Run>,
    ) -> (Option<&'r Run>, Option<&'r Run>) {
        let most = runs.next();
        let least = match self.least {
            None => None,
            Some(least) if least == self.most => most,
            Some(_) => runs.next(),
        };
        (least, most)
    }
}

/// Returns the interval in whole milliseconds, rounded up.
fn in_millis(interval: Duration) -> Duration {
    let micros = u64::try_from(interval.as_micros()).unwrap_or(u64::MAX);
    Duration::from_millis(micros.div_ceil(1000))
}

/// The search for the smallest limit of each algorithm and interval.
pub(super) struct Search {
    share: f64,
    callers: u64,
    goals: Vec<Goal>,
}

/// One limit that is searched for.
struct Goal {
    algorithm: Algorithm,
    interval: Duration,
    /// The limits that are still to be found or verified: for the least of a range, and the most.
    ends: Vec<End>,
}

/// One end of a range of permits.
struct End {
    /// A limit of the interval to count by; `None` where nothing is certain, and one is enough.
    limit: Option<Limit>,
    algorithm: Algorithm,
    /// Known to touch too many; 0 is no limit, and would touch all.
    below: u64,
    /// Known to touch few enough, or believed so.
    permits: u64,
    /// By permits, what was counted.
    believed: BTreeMap<u64, u64>,
    /// The same, by runs.
    run: BTreeMap<u64, u64>,
}

impl Search {
    pub(super) fn new(bounds: &[Bounds], counting: &Counting, share: f64) -> Self {
        let callers = counting.callers() as u64;
        let mut search = Self {
            share,
            callers,
            goals: Vec::new(),
        };
        for bounds in bounds {
            let (algorithm, interval) = (bounds.algorithm, bounds.given.interval());
            let is_known = |it: &Goal| it.algorithm == algorithm && it.interval == interval;
            if search.goals.iter().any(is_known) {
                continue;
            }
            let mut ends = vec![search.end(algorithm, bounds.least, counting)];
            if bounds.least != Some(bounds.most) {
                ends.push(search.end(algorithm, Some(bounds.most), counting));
            }
            search.goals.push(Goal {
                algorithm,
                interval,
                ends,
            });
        }
        search
    }

    fn end(&self, algorithm: Algorithm, limit: Option<Limit>, counting: &Counting) -> End {
        let mut end = End {
            limit: limit.filter(|_| self.callers > 0),
            algorithm,
            below: 0,
            permits: 1,
            believed: BTreeMap::from([(0, self.callers), (1, 0)]),
            run: BTreeMap::new(),
        };
        let Some(limit) = end.limit else {
            return end;
        };
        let mut peaks: BTreeMap<u32, u64> = BTreeMap::new();
        for peak in counting.peaks_of(algorithm, &limit) {
            *peaks.entry(*peak).or_default() += 1;
        }
        end.believed = BTreeMap::from([(0, self.callers)]);
        // A caller is touched if its peak is above the limit.
        let mut above = 0;
        for (peak, count) in peaks.iter().rev() {
            end.permits = u64::from(*peak);
            end.below = end.permits.saturating_sub(1);
            end.believed.insert(end.permits, above);
            above += count;
            end.believed.insert(end.below, above);
            if !is_few(above, self.callers, self.share) {
                break;
            }
        }
        if algorithm == Algorithm::Gcra {
            end.widen(&limit);
        }
        end
    }

    /// Returns the limits that the next reading is to run, if there is anything left to find or to
    /// verify.
    pub(super) fn next(&self) -> Option<Vec<(Algorithm, Limit)>> {
        let limits: Vec<_> = self.ends().flat_map(End::tried).collect();
        (!limits.is_empty()).then_some(limits)
    }

    fn ends(&self) -> impl Iterator<Item = &End> {
        self.goals.iter().flat_map(|goal| &goal.ends)
    }

    /// Takes what the runs of [`next`](Self::next) have found.
    pub(super) fn found(&mut self, counting: &Counting) {
        let (callers, share) = (self.callers, self.share);
        let mut runs = counting.runs().iter();
        for end in self.goals.iter_mut().flat_map(|goal| &mut goal.ends) {
            for run in runs.by_ref().take(end.tried().len()) {
                let permits = run.limit.permits();
                end.run.insert(permits, run.touched);
                if end.algorithm != Algorithm::Gcra {
                    continue;
                }
                if is_few(run.touched, callers, share) {
                    end.permits = end.permits.min(permits);
                } else {
                    end.below = end.below.max(permits);
                }
            }
        }
    }

    pub(super) fn into_limits(self) -> Vec<SmallestLimit> {
        let callers = self.callers;
        self.goals.iter().map(|goal| goal.found(callers)).collect()
    }
}

impl Goal {
    fn found(&self, callers: u64) -> SmallestLimit {
        let figure = |of: fn(&End) -> u64| {
            let figures = || self.ends.iter().map(of);
            figures().min().unwrap_or(0)..=figures().max().unwrap_or(0)
        };
        let is_found = callers > 0 && self.ends.iter().all(End::is_found);
        let permits: Option<RangeInclusive<u64>> = is_found.then(|| figure(|end| end.permits));
        SmallestLimit {
            algorithm: self.algorithm,
            interval: self.interval,
            permits,
            touched: figure(|end| end.touched(end.permits)),
            touched_by_one_less: figure(|end| end.touched(end.below)),
            verified: is_found && self.ends.iter().all(End::is_verified),
        }
    }
}

impl End {
    /// Takes the smallest limit of a sliding log as a hint for GCRA.
    ///
    /// In one interval GCRA grants at most twice its permits, and it refuses nothing of a caller
    /// that never asks for more than half of them.
    fn widen(&mut self, limit: &Limit) {
        let micros = u64::try_from(limit.interval().as_micros()).unwrap_or(u64::MAX);
        self.below /= 2;
        self.permits = self.permits.saturating_mul(2).min(micros);
        self.believed.retain(|permits, _| *permits == 0);
    }

    /// Returns the limits that the next reading is to run for it.
    fn tried(&self) -> Vec<(Algorithm, Limit)> {
        let Some(limit) = self.limit else {
            return Vec::new();
        };
        let step = ((self.permits.saturating_sub(self.below)) / (TRIED + 1)).max(1);
        let between = (1..=TRIED).map(|place| self.below.saturating_add(place * step));
        let between = between.filter(|permits| *permits < self.permits);
        let all = between.chain([self.below, self.permits]);
        let new = all.filter(|permits| *permits > 0 && !self.run.contains_key(permits));
        new.map(|permits| (self.algorithm, limit.with_permits(permits)))
            .collect()
    }

    /// Returns whether it is as small as can be.
    fn is_found(&self) -> bool {
        self.below + 1 == self.permits && self.is_known(self.permits)
    }

    fn is_known(&self, permits: u64) -> bool {
        self.believed.contains_key(&permits) || self.run.contains_key(&permits)
    }

    /// Returns whether runs have touched as many as is believed.
    fn is_verified(&self) -> bool {
        let agrees = |permits: &u64| match self.believed.get(permits) {
            None => self.run.contains_key(permits),
            Some(touched) => self.run.get(permits) == Some(touched),
        };
        let limits = [self.below, self.permits];
        let limits = limits.iter().filter(|permits| **permits > 0);
        self.limit.is_none() || limits.into_iter().all(agrees)
    }

    fn touched(&self, permits: u64) -> u64 {
        let touched = self.run.get(&permits).or(self.believed.get(&permits));
        touched.copied().unwrap_or(0)
    }
}

/// Returns whether so many are fewer than a share of the callers, or none.
fn is_few(touched: u64, callers: u64, share: f64) -> bool {
    // In billionths, so that a tenth of a percent of 1000 is 1.
    const WHOLE: f64 = 1e9;
    let share = (share * WHOLE).round() as u128;
    touched == 0 || u128::from(touched) * (WHOLE as u128) < share * u128::from(callers)
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
            assert_eq!(
                is_few(touched, callers, share),
                few,
                "{touched} of {callers}"
            );
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
