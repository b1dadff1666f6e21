//! A small histogram of call durations, for percentiles: [`Durations`].

use std::time::Duration;

/// The longest duration of the first bucket.
const SHORTEST: Duration = Duration::from_micros(10);
/// The longest duration of a bucket, as a multiple of that of the one before.
const STEP: f64 = 1.25;
/// Up to a minute.
const BUCKETS: usize = 72;

/// Counts durations, each in the first bucket that it fits into.
#[derive(Clone, Debug)]
pub(super) struct Durations([u32; BUCKETS]);

impl Default for Durations {
    fn default() -> Self {
        Self([0; BUCKETS])
    }
}

impl Durations {
    pub(super) fn add(&mut self, duration: Duration) {
        let times = duration.as_secs_f64() / SHORTEST.as_secs_f64();
        // Below the shortest it is negative, and becomes zero.
        let bucket = (times.ln() / STEP.ln()).ceil() as usize;
        if let Some(count) = self.0.get_mut(bucket.min(BUCKETS - 1)) {
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
        let bucket = self.0.iter().position(|count| {
            left = left.saturating_sub((*count).into());
            left == 0
        })?;
        (all > 0).then(|| longest_of(bucket))
    }
}

fn longest_of(bucket: usize) -> Duration {
    SHORTEST.mul_f64(STEP.powf(bucket as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_bucket_that_it_fits() {
        for micros in [0, 9, 10, 11, 999, 1_000, 50_000, 3_600_000_000] {
            let mut durations = Durations::default();
            let duration = Duration::from_micros(micros);
            durations.add(duration);
            let found = durations.percentile(99).unwrap();
            let most = duration.mul_f64(1.26).max(SHORTEST);
            assert!(
                found >= duration.min(longest_of(BUCKETS - 1)) && found <= most,
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
