//! A small histogram of call durations, for percentiles: [`Durations`].

use std::time::Duration;

const SHORTEST: Duration = Duration::from_micros(10);
const STEP: f64 = 1.25;
/// Up to a minute.
const PLACES: usize = 72;

/// Counts durations in places: the longest of each is a quarter longer than that of the one before.
#[derive(Clone, Debug)]
pub(super) struct Durations([u32; PLACES]);

impl Default for Durations {
    fn default() -> Self {
        Self([0; PLACES])
    }
}

impl Durations {
    pub(super) fn add(&mut self, duration: Duration) {
        let times = duration.as_secs_f64() / SHORTEST.as_secs_f64();
        // Below the shortest it is negative, and becomes zero.
        let place = (times.ln() / STEP.ln()).ceil() as usize;
        if let Some(count) = self.0.get_mut(place.min(PLACES - 1)) {
            *count = count.saturating_add(1);
        }
    }

    /// Adds what others have counted.
    #[cfg(feature = "page")]
    pub(super) fn add_all(&mut self, others: &Self) {
        for (count, more) in self.0.iter_mut().zip(others.0) {
            *count = count.saturating_add(more);
        }
    }

    /// Returns a percentile: the time that this many of a hundred took at most; `None` without any.
    pub(super) fn percentile(&self, of_hundred: u64) -> Option<Duration> {
        let all: u64 = self.0.iter().map(|count| u64::from(*count)).sum();
        let mut left = all - all * (100 - of_hundred.min(100)) / 100;
        (all > 0).then_some(())?;
        let place = self.0.iter().position(|count| {
            left = left.saturating_sub((*count).into());
            left == 0
        })?;
        Some(limit_of(place))
    }
}

/// Returns the longest duration of a place.
fn limit_of(place: usize) -> Duration {
    let exponent = i32::try_from(place).unwrap_or(i32::MAX);
    SHORTEST.mul_f64(STEP.powi(exponent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_place_that_it_fits() {
        for micros in [0, 9, 10, 11, 999, 1_000, 50_000, 3_600_000_000] {
            let mut durations = Durations::default();
            let duration = Duration::from_micros(micros);
            durations.add(duration);
            let found = durations.percentile(99).unwrap();
            let most = duration.mul_f64(1.26).max(SHORTEST);
            assert!(
                found >= duration.min(limit_of(PLACES - 1)) && found <= most,
                "{micros}"
            );
        }
    }

    #[test]
    fn a_percentile_is_that_of_all() {
        let mut durations = Durations::default();
        assert_eq!(durations.percentile(50), None);
        (1..=100).for_each(|millis| durations.add(Duration::from_millis(millis)));
        for (of_hundred, millis) in [(50, 50), (99, 99), (100, 100)] {
            let found = durations.percentile(of_hundred).unwrap().as_millis();
            assert!((millis..=millis * 126 / 100).contains(&found), "{found}");
        }
    }
}
