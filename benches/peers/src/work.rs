//! The work: as many decisions as can be had (closed), or at the times at which they are asked for,
//! whether those before have been answered or not (open).

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use tokio::{runtime::Handle, task::JoinSet};

use crate::{
    contest::{Answer, BoxFuture, Boxed, Guarded, Limit, Peer, User, limit},
    figures::median,
};

/// What all contestants do.
pub(crate) const WORKS: [Work; 5] = [
    Work {
        name: "one hot key, refused",
        process: &[limit(1, 3600)],
        redis: &[limit(1, 3600)],
        users: 1,
        ..Work::ADMITTED
    },
    Work::ADMITTED,
    Work {
        name: "100,000 keys, admitted",
        users: 100_000,
        fresh: false,
        ..Work::ADMITTED
    },
    Work {
        name: "weighted mix, 100 keys",
        process: &[limit(60_000, 60)],
        redis: &[limit(600, 60)],
        users: 100,
        costs: &[1, 1, 5, 1, 1, 20, 1, 1, 5],
        ..Work::ADMITTED
    },
    Work {
        name: "three limits, 1,000 keys",
        process: &[
            limit(1_500_000, 30),
            limit(2_250_000, 45),
            limit(3_000_000, 60),
        ],
        redis: &[limit(30_000, 30), limit(45_000, 45), limit(60_000, 60)],
        users: 1000,
        ..Work::ADMITTED
    },
];

#[derive(Clone, Copy)]
pub(crate) struct Work {
    pub(crate) name: &'static str,
    /// Limits where the state is in the process
    pub(crate) process: &'static [Limit],
    /// Limits where it is in Redis; a token in no less than 1 ms, and no more than 65,535 of them,
    /// which is what some can express.
    pub(crate) redis: &'static [Limit],
    pub(crate) users: usize,
    pub(crate) costs: &'static [u32],
    /// Whether each turn has users that have not asked before
    pub(crate) fresh: bool,
}

impl Work {
    pub(crate) const ADMITTED: Self = Self {
        name: "one hot key, admitted",
        process: &[limit(3_000_000, 60)],
        redis: &[limit(60_000, 60)],
        users: 1,
        costs: &[1],
        fresh: true,
    };
}

/// As many decisions as can be had in this time, and no more than `most`.
#[derive(Clone)]
pub(crate) struct Closed {
    /// The beginning of the names of the users
    pub(crate) prefix: String,
    pub(crate) users: Arc<[User]>,
    pub(crate) costs: &'static [u32],
    pub(crate) in_flight: usize,
    pub(crate) time: Duration,
    pub(crate) most: u64,
}

/// Decisions asked for at random instants, so many a second on average.
#[derive(Clone)]
pub(crate) struct Open {
    pub(crate) prefix: String,
    pub(crate) users: Arc<[User]>,
    pub(crate) rate: usize,
    pub(crate) time: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Turn {
    pub(crate) asked: u64,
    pub(crate) admitted: u64,
    pub(crate) failed: u64,
    pub(crate) seconds: f64,
    pub(crate) latency: Latency,
}

/// In microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Latency {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
}

impl Latency {
    /// Of nanoseconds.
    fn of(mut took: Vec<u32>) -> Self {
        if took.is_empty() {
            return Self::default();
        }
        took.sort_unstable();
        let at = |part: f64| f64::from(took[(took.len() as f64 * part) as usize]) / 1e3;
        Self {
            p50: at(0.5),
            p99: at(0.99),
            p999: at(0.999),
        }
    }
}

impl Latency {
    pub(crate) fn median(turns: impl Iterator<Item = Self> + Clone) -> Self {
        Self::by(turns, median)
    }

    pub(crate) fn least(turns: impl Iterator<Item = Self> + Clone) -> Self {
        let least = |figures: Vec<f64>| figures.into_iter().fold(f64::INFINITY, f64::min);
        Self::by(turns, least)
    }

    fn by(turns: impl Iterator<Item = Self> + Clone, one: impl Fn(Vec<f64>) -> f64) -> Self {
        let of = |figure: fn(Self) -> f64| one(turns.clone().map(figure).collect());
        Self {
            p50: of(|turn| turn.p50),
            p99: of(|turn| turn.p99),
            p999: of(|turn| turn.p999),
        }
    }

    /// Of a line of Redis' `latencystats`: `p50=18.047,p99=40.191,p99.9=97.791`. No numbers where
    /// there is none.
    pub(crate) fn of_redis(line: &str) -> Self {
        let of = |name: &str| {
            let mut figures = line.trim().split(',');
            let figure = figures.find_map(|figure| figure.strip_prefix(name)?.strip_prefix('='));
            figure
                .and_then(|figure| figure.parse().ok())
                .unwrap_or(f64::NAN)
        };
        Self {
            p50: of("p50"),
            p99: of("p99"),
            p999: of("p99.9"),
        }
    }
}

/// A contestant that can be asked, and measured.
pub(crate) trait Contestant: Send + Sync {
    fn ask<'a>(&'a self, user: &'a User, cost: u32) -> BoxFuture<'a, Answer>;

    fn closed(self: Arc<Self>, work: Closed) -> BoxFuture<'static, Turn>;

    fn open(self: Arc<Self>, load: Open) -> BoxFuture<'static, Latency>;

    /// The process that decides.
    fn process(&self) -> u32 {
        std::process::id()
    }

    /// See [`Peer::around`].
    fn around(&self, _: Guarded) -> Option<Boxed> {
        None
    }
}

impl<P: Peer> Contestant for P {
    fn ask<'a>(&'a self, user: &'a User, cost: u32) -> BoxFuture<'a, Answer> {
        Box::pin(self.decide(user, cost))
    }

    fn closed(self: Arc<Self>, work: Closed) -> BoxFuture<'static, Turn> {
        Box::pin(closed(self, work))
    }

    fn open(self: Arc<Self>, load: Open) -> BoxFuture<'static, Latency> {
        Box::pin(open(self, load))
    }

    fn around(&self, inner: Guarded) -> Option<Boxed> {
        Peer::around(self, inner)
    }
}

async fn closed<P: Peer>(peer: Arc<P>, work: Closed) -> Turn {
    // Few look at the clock: it takes a fifth of the time of the fastest decision.
    let every = if work.in_flight < 8 { 16 } else { 2 };
    let share = work.most / work.in_flight as u64;
    let began = Instant::now();
    let end = began + work.time;
    let mut tasks = JoinSet::new();
    for task in 0..work.in_flight {
        let (peer, work) = (Arc::clone(&peer), work.clone());
        tasks.spawn(async move {
            let (mut turn, mut took) = (Turn::default(), Vec::new());
            while turn.asked < share {
                let at = task + turn.asked as usize * work.in_flight;
                let now = (turn.asked % every == 0).then(Instant::now);
                if now.is_some_and(|now| now >= end) {
                    break;
                }
                let user = &work.users[at % work.users.len()];
                match peer.decide(user, work.costs[at % work.costs.len()]).await {
                    Answer::Admitted => turn.admitted += 1,
                    Answer::Refused(_) => {}
                    Answer::Failed => turn.failed += 1,
                }
                took.extend(now.map(|now| now.elapsed().as_nanos() as u32));
                turn.asked += 1;
            }
            (turn, took)
        });
    }
    let (mut all, mut latencies) = (Turn::default(), Vec::new());
    for (turn, took) in tasks.join_all().await {
        all.asked += turn.asked;
        all.admitted += turn.admitted;
        all.failed += turn.failed;
        latencies.extend(took);
    }
    all.seconds = began.elapsed().as_secs_f64();
    all.latency = Latency::of(latencies);
    all
}

async fn open<P: Peer>(peer: Arc<P>, load: Open) -> Latency {
    let count = load.rate * load.time.as_millis() as usize / 1000;
    let took: Arc<[AtomicU32]> = (0..count).map(|_| AtomicU32::new(u32::MAX)).collect();
    let done = Arc::new(AtomicUsize::new(0));
    let (spawner, slots, answered) = (Handle::current(), Arc::clone(&took), Arc::clone(&done));
    // A thread of its own sleeps more exactly than a runtime's timer, which has whole milliseconds.
    let generator = thread::spawn(move || {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut due = Instant::now();
        for at in 0..count {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let uniform = (random >> 11) as f64 / (1_u64 << 53) as f64;
            due += Duration::from_secs_f64(-(1.0 - uniform).ln() / load.rate as f64);
            thread::sleep(due.saturating_duration_since(Instant::now()));
            let (peer, users) = (Arc::clone(&peer), Arc::clone(&load.users));
            let (slots, answered) = (Arc::clone(&slots), Arc::clone(&answered));
            spawner.spawn(async move {
                peer.decide(&users[random as usize % users.len()], 1).await;
                // From when it was due: a late start counts as latency, too.
                let nanos = due.elapsed().as_nanos().min(u32::MAX.into());
                slots[at].store(nanos as u32, Relaxed);
                answered.fetch_add(1, Relaxed);
            });
        }
    });
    // What is not answered by then counts as four seconds.
    let end = Instant::now() + load.time + Duration::from_secs(4);
    while done.load(Relaxed) < count && Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    generator.join().unwrap();
    Latency::of(took.iter().map(|nanos| nanos.load(Relaxed)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_own_account_is_read() {
        let line = "p50=18.047,p99=40.191,p99.9=97.791\r";
        let Latency { p50, p99, p999 } = Latency::of_redis(line);
        assert_eq!([p50, p99, p999], [18.047, 40.191, 97.791]);
        assert!(Latency::of_redis("").p99.is_nan());
    }
}
