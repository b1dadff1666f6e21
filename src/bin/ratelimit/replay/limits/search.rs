//! Finds the smallest permits that touch few enough callers: [`Search`].

use std::collections::{BTreeMap, BTreeSet};

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
}
