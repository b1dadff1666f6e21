//! The algorithms under test, and what L1 says of each.

use kit::scene::*;

use super::world::{Grant, nanos};

/// Few slots, and many.
pub(crate) const WAYS: [Way; 7] = [
    Way::Log,
    Way::Slots(10),
    Way::Slots(100),
    Way::Window,
    Way::OwnLog,
    Way::OwnWindow,
    Way::Gcra,
];

/// Those that count by the clock of their caller in Redis, too.
pub(crate) const BY_A_CLOCK: [Way; 3] = [Way::Log, Way::OwnLog, Way::Gcra];

/// What the laws say of a way to count.
pub(crate) trait Lawful {
    /// Returns the limiter of this name and limit. No slot is shorter than a millisecond.
    async fn of(self, store: &impl Store, name: &str, limit: Limit) -> RateLimiter;

    /// Returns the longest time until all permits are free, if no other caller takes.
    fn whole(self, limit: Limit) -> Duration;

    /// L1: returns whether these grants keep to the limit.
    fn holds(self, grants: &[Grant], limit: Limit) -> bool;

    /// Returns whether there is room for the last of these grants, by the definition of this kind,
    /// in whole milliseconds.
    fn fits(self, grants: &[Grant], limit: Limit) -> bool;
}

impl Lawful for Way {
    async fn of(self, store: &impl Store, name: &str, limit: Limit) -> RateLimiter {
        match self {
            Self::Slots(slots) if limit.interval() < millis(slots.into()) => {
                Self::Log.named(store, name, limit).await
            }
            way => way.named(store, name, limit).await,
        }
    }

    fn whole(self, limit: Limit) -> Duration {
        let interval = limit.interval();
        match self {
            Self::Log | Self::OwnLog | Self::OwnWindow => interval,
            Self::Slots(_) => interval + (interval / 10).max(millis(1)),
            Self::Window => interval + millis(1),
            Self::Gcra => emission(limit) * u32::try_from(limit.permits()).expect("a few"),
        }
    }

    fn holds(self, grants: &[Grant], limit: Limit) -> bool {
        let (rate, full) = (limit.permits(), fullest(grants, limit.interval()));
        match self {
            Self::Log | Self::OwnLog | Self::Slots(_) => full <= rate,
            Self::Window | Self::OwnWindow => {
                windows(grants, self.whole(limit)).all(|sum| sum <= rate) && full <= 2 * rate
            }
            Self::Gcra => is_paced(grants, limit),
        }
    }

    fn fits(self, grants: &[Grant], limit: Limit) -> bool {
        match self {
            Self::Log | Self::OwnLog | Self::Slots(_) => {
                fullest(grants, limit.interval()) <= limit.permits()
            }
            Self::Window | Self::OwnWindow => {
                windows(grants, self.whole(limit)).last() <= Some(limit.permits())
            }
            Self::Gcra => {
                let next = grants.iter().fold(Duration::ZERO, |arrival, grant| {
                    arrival.max(grant.at) + emission(limit) * grant.permits
                });
                let now = grants.last().expect("a grant").at;
                next <= now + self.whole(limit)
            }
        }
    }
}

/// Returns the time of one permit of GCRA: whole microseconds.
pub(crate) fn emission(limit: Limit) -> Duration {
    Duration::from_micros((nanos(limit.interval()) / 1000).div_ceil(limit.permits()))
}

/// Returns the most permits granted in a window of `interval`: the fullest begins with a grant.
pub(crate) fn fullest(grants: &[Grant], interval: Duration) -> u64 {
    let grants = grants.iter().map(|grant| (grant.at, grant.permits.into()));
    let fullest = kit::windows(grants, interval).into_iter().max();
    fullest.unwrap_or(0).unsigned_abs()
}

/// Returns the permits granted in each fixed window, which begins with its first grant, at the
/// microsecond that this is rounded up to, and lasts so long.
fn windows(grants: &[Grant], lasts: Duration) -> impl Iterator<Item = u64> {
    let lasts = lasts.as_micros();
    let mut windows: Vec<(u128, u64)> = Vec::new();
    for grant in grants {
        match windows.last_mut() {
            Some((end, sum)) if grant.at.as_micros() < *end => *sum += u64::from(grant.permits),
            _ => {
                let began = grant.at.as_nanos().div_ceil(1000);
                windows.push((began + lasts, grant.permits.into()));
            }
        }
    }
    windows.into_iter().map(|(_, sum)| sum)
}

/// GCRA: no more in any time than come free in it, and the burst.
fn is_paced(grants: &[Grant], limit: Limit) -> bool {
    let (rate, interval) = (limit.permits().into(), limit.interval().as_nanos());
    (0..grants.len()).all(|first| {
        let mut sum: u128 = 0;
        grants[first..].iter().all(|last| {
            sum += u128::from(last.permits);
            let time = (last.at - grants[first].at).as_nanos();
            sum.saturating_sub(rate) * interval <= rate * time
        })
    })
}
