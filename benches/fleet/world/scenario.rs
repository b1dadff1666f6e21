//! What is simulated: the fleet, its traffic and what happens to it.

use std::time::Duration;

use crate::values::limit::Algorithm;

/// A fleet, its limit and its traffic.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// What its row is for.
    pub name: &'static str,
    pub processes: usize,
    /// So many keys have each the limit.
    pub keys: u64,
    /// Requests by Zipf's law: the exponent.
    pub zipf: f64,
    /// Requests a second, of all processes.
    pub rate: f64,
    pub limit: u64,
    pub interval: Duration,
    pub algorithm: Algorithm,
    /// None with 0.
    pub slots: u32,
    pub lease: Option<Duration>,
    /// The nodes of a Cluster; 1 is a single Redis.
    pub nodes: usize,
    /// A whole number of intervals.
    pub seconds: u64,
    pub trouble: Trouble,
    /// What is broken on purpose, to see that it is found.
    pub broken: Option<Broken>,
}

/// What happens to the processes meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Nothing
    Calm,
    /// Every fifth dies at its own moment, without a word, and is there again half a second later
    Crashes,
    /// In the second quarter of the time a fifth of them sends into the void
    Partition,
    /// One after the other is closed and replaced
    Deploy,
}

/// A store that does not do what its callers rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// Each hundredth grant is not counted
    Store,
    /// Permits that are fetched ahead count from now on, and not from the end of the lease
    Lease,
    /// A reply is handed to two callers: each fiftieth refusal arrives as the last grant
    Reply,
}

impl Scenario {
    /// A single Redis, one key, no lease, and nothing happens.
    pub const PLAIN: Self = Self {
        name: "",
        processes: 10,
        keys: 1,
        zipf: 1.0,
        rate: 100_000.0,
        limit: 50_000,
        interval: Duration::from_secs(1),
        algorithm: Algorithm::SlidingLog,
        slots: 0,
        lease: None,
        nodes: 1,
        seconds: 4,
        trouble: Trouble::Calm,
        broken: None,
    };

    /// The most permits that one interval can have, by the law of the algorithm.
    pub(super) fn bound(&self) -> usize {
        let times = match self.algorithm {
            Algorithm::SlidingLog => 1,
            _ => 2,
        };
        usize::try_from(self.limit).map_or(usize::MAX, |limit| times * limit)
    }

    /// The permits that the limit of one key allows in all of the time. GCRA begins with a burst.
    pub(super) fn allowed(&self) -> u64 {
        let intervals = Duration::from_secs(self.seconds).as_millis() / self.interval.as_millis();
        let burst = u64::from(self.algorithm == Algorithm::Gcra);
        self.limit * (intervals as u64 + burst)
    }
}
