//! Runs several tasks over several store handles, which send requests and keep the responses.

use kit::scene::*;
use std::{
    collections::{BTreeSet, HashMap},
    ffi::OsString,
    fs, mem,
};

use tokio::runtime::Handle;

use super::{
    answer::Answer,
    caller::{Asking, Caller, service},
    lanes::{How, LANES, Limiter},
    observed::{self, Observed},
    random::Random,
    record::Book,
};

const TASKS_PER_LANE: usize = 2;

/// A load, from its first request to its end.
#[derive(Debug)]
pub struct Load {
    pub limiters: Vec<Limiter>,
    pub handles: Vec<RedisStore>,
    counts: Arc<Counts>,
    pub observed: Arc<Observed>,
    tasks: JoinSet<()>,
    /// Tasks of others, and those of the runtime's own
    tasks_before: usize,
}

/// The counters of a load while it goes on.
#[derive(Debug)]
pub struct Counts {
    pub began: Instant,
    pub budget: Duration,
    pub stop: AtomicBool,
    /// Set while no requests are sent
    pub idle: AtomicBool,
    /// Milliseconds between two requests of a task, about
    pub pause: AtomicU64,
    pub sent: AtomicU64,
    pub answered: AtomicU64,
    /// The requests that passed the layers, as counted by the inner service
    pub passed: AtomicU64,
    lanes: [LaneCounts; LANES.len()],
    book: Mutex<Book>,
    pub wrong: Mutex<BTreeSet<String>>,
    /// The longest delay of a thread by the machine, in microseconds: one that only slept, or
    /// within a second one that had work
    machine: AtomicU64,
}

#[derive(Debug, Default)]
struct LaneCounts {
    by_store: AtomicU64,
    by_policy: AtomicU64,
}

impl Load {
    /// Begins to ask, through each of the handles.
    pub fn start(
        handles: Vec<RedisStoreBuilder>,
        prefix: &str,
        budget: Duration,
        seed: u64,
        book: Book,
    ) -> Self {
        let counts = Arc::new(Counts {
            began: Instant::now(),
            budget,
            stop: AtomicBool::new(false),
            idle: AtomicBool::new(false),
            pause: AtomicU64::new(8),
            sent: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            passed: AtomicU64::new(0),
            lanes: Default::default(),
            book: Mutex::new(book),
            wrong: Mutex::default(),
            machine: AtomicU64::new(0),
        });
        let looking = Arc::clone(&counts);
        thread::spawn(move || looking.look_at_machine());
        let observed = Arc::new(Observed::default());
        let open = |store: RedisStoreBuilder| {
            let store = store.prefix(prefix).observe(observed.clone());
            store.build().unwrap()
        };
        let mut load = Self {
            limiters: Limiter::all(prefix),
            handles: handles.into_iter().map(open).collect(),
            counts,
            observed: observed.clone(),
            tasks: JoinSet::new(),
            tasks_before: Handle::current().metrics().num_alive_tasks(),
        };
        for handle in 0..load.handles.len() {
            for lane in 0..LANES.len() {
                load.spawn(handle, lane, prefix, seed);
            }
        }
        load
    }

    fn spawn(&mut self, handle: usize, index: usize, prefix: &str, seed: u64) {
        let lane = &LANES[index];
        let store = &self.handles[handle];
        let asking = if lane.is_http() {
            Asking::Http(service(store, lane, &self.counts))
        } else {
            let name = format!("{prefix}-{}", lane.name);
            Asking::Limiter(match (lane.how, lane.limits().next()) {
                (How::Calendar, Some(allowed)) => {
                    allowed.daily().named(lane.name).single(store).unwrap()
                }
                _ => RateLimiter::new(store, &name).unwrap(),
            })
        };
        for task in 0..TASKS_PER_LANE {
            let random = Random(seed ^ (((handle * 128 + index * 8 + task) as u64) << 32));
            let caller = Caller {
                counts: Arc::clone(&self.counts),
                asking: asking.clone(),
                handle,
                index,
                random,
            };
            self.tasks.spawn(caller.run());
        }
    }

    /// Since it began.
    pub fn now(&self) -> Duration {
        self.counts.began.elapsed()
    }

    /// Waits until the store has decided this many more times for every lane, for requests sent
    /// from now on.
    pub async fn decided(&self, times: u64) -> Duration {
        let all: Vec<_> = (0..LANES.len()).collect();
        self.lanes_decided(&all, times).await
    }

    /// Waits until every lane has met its policy so many times more, except that of the calendar:
    /// its refusals write nothing, and it is refused most of the time.
    pub async fn met_policy(&self, times: u64) -> Duration {
        let lanes: Vec<_> = (0..LANES.len())
            .filter(|lane| LANES[*lane].how != How::Calendar)
            .collect();
        self.lanes_met_policy(&lanes, times).await
    }

    /// Waits until these lanes have met their policy so many times more.
    pub async fn lanes_met_policy(&self, lanes: &[usize], times: u64) -> Duration {
        self.counted(lanes, times, |lane| &lane.by_policy, "decided by policy")
            .await
    }

    /// Waits until the store has decided for these lanes so many times more.
    pub async fn lanes_decided(&self, lanes: &[usize], times: u64) -> Duration {
        self.counted(lanes, times, |lane| &lane.by_store, "decided by the store")
            .await
    }

    async fn counted(
        &self,
        lanes: &[usize],
        times: u64,
        count: fn(&LaneCounts) -> &AtomicU64,
        what: &str,
    ) -> Duration {
        let began = Instant::now();
        let counted = |lane: usize| count(&self.counts.lanes[lane]).load(Ordering::SeqCst);
        let goals: Vec<_> = lanes.iter().map(|lane| counted(*lane) + times).collect();
        for (&lane, goal) in lanes.iter().zip(goals) {
            while counted(lane) < goal {
                assert!(
                    began.elapsed() < LONG,
                    "{}: not {what} {times} times more in {LONG:?}; wrong: {:?}",
                    LANES[lane].name,
                    self.counts.wrong.lock().unwrap()
                );
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
        began.elapsed()
    }

    /// Pauses the load and waits until all requests are answered; or resumes it.
    pub async fn idle(&self, idle: bool) {
        self.counts.idle.store(idle, Ordering::SeqCst);
        until("requests are answered", async || {
            !idle || self.all_answered()
        })
        .await;
    }

    /// Sets the approximate pause of each task between two requests.
    pub fn pace(&self, millis: u64) {
        self.counts.pause.store(millis, Ordering::SeqCst);
    }

    /// Returns the longest delay by the machine so far.
    pub fn machine(&self) -> Duration {
        Duration::from_micros(self.counts.machine.load(Ordering::SeqCst))
    }

    fn all_answered(&self) -> bool {
        self.counts.sent.load(Ordering::SeqCst) == self.counts.answered.load(Ordering::SeqCst)
    }

    /// Ends the load, releases what handles hold, and drops them. Returns the responses that were
    /// kept here. All other clones of the handles must have been dropped before.
    ///
    /// Checks part of the first oracle and of the second: no task panics, none is left, each
    /// request was answered once, and the inner services received as many as were admitted.
    pub async fn end(mut self) -> Ended {
        self.counts.stop.store(true, Ordering::SeqCst);
        while let Some(ended) = self.tasks.join_next().await {
            ended.expect("no task of the load panics");
        }
        for handle in &self.handles {
            let closed = tokio::time::timeout(LONG * 3, handle.close()).await;
            closed.expect("what is to be given back is given back, or given up");
        }
        let lost_receipts = self
            .handles
            .iter()
            .map(|store| store.health().lost_receipts)
            .sum();
        self.handles.clear();
        let began = Instant::now();
        let tasks = || Handle::current().metrics().num_alive_tasks();
        while tasks() > self.tasks_before {
            assert!(
                began.elapsed() < LONG,
                "{} tasks are left, and {} were there before",
                tasks(),
                self.tasks_before
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let machine = self.machine();
        let counts = &self.counts;
        let wrong = mem::take(&mut *counts.wrong.lock().unwrap());
        let answers = counts.book.lock().unwrap().close();
        Ended {
            limiters: mem::take(&mut self.limiters),
            answers,
            observed: self.observed.of_lanes(),
            sent: counts.sent.load(Ordering::SeqCst),
            answered: counts.answered.load(Ordering::SeqCst),
            passed: counts.passed.load(Ordering::SeqCst),
            lost_receipts,
            machine,
            wrong,
        }
    }
}

/// The results of a load.
#[derive(Debug)]
pub struct Ended {
    pub limiters: Vec<Limiter>,
    pub answers: Vec<Answer>,
    /// What observers have seen
    pub observed: observed::Counts,
    pub sent: u64,
    pub answered: u64,
    /// The requests that the inner services received
    pub passed: u64,
    pub lost_receipts: u64,
    /// The longest delay by the machine
    pub machine: Duration,
    /// Answers that no request can have
    pub wrong: BTreeSet<String>,
}

impl Counts {
    /// Runs in a thread of its own, outside of the runtime, so that delays of the runtime do not
    /// count here.
    fn look_at_machine(&self) {
        const NAP: Duration = Duration::from_millis(5);
        const LOOK: Duration = Duration::from_secs(1);
        let (mut looked, mut waits) = (Instant::now(), waits_for_a_core());
        while !self.stop.load(Ordering::SeqCst) {
            let began = Instant::now();
            thread::sleep(NAP);
            let late = began.elapsed().saturating_sub(NAP).as_micros() as u64;
            self.machine.fetch_max(late, Ordering::SeqCst);
            // Linux prefers a thread that naps: those that work wait longer.
            if looked.elapsed() >= LOOK {
                let before = mem::replace(&mut waits, waits_for_a_core());
                let grown = waits.iter().map(|(thread, wait)| {
                    wait.saturating_sub(before.get(thread).copied().unwrap_or_default())
                });
                let late = grown.max().unwrap_or_default() / 1000;
                self.machine.fetch_max(late, Ordering::SeqCst);
                looked = Instant::now();
            }
        }
    }

    pub fn note(&self, answer: &Answer) {
        let lane = &self.lanes[answer.lane];
        if answer.by_store() {
            lane.by_store.fetch_add(1, Ordering::SeqCst);
        }
        if answer.by_policy() {
            lane.by_policy.fetch_add(1, Ordering::SeqCst);
        }
        self.book.lock().unwrap().note(*answer);
    }
}

/// For how many nanoseconds each thread of this process could have run and had no core, as Linux
/// counts them.
fn waits_for_a_core() -> HashMap<OsString, u64> {
    let threads = fs::read_dir("/proc/self/task").unwrap().flatten();
    let wait = |thread: fs::DirEntry| {
        // It may have ended by now.
        let stat = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        let wait = stat.split(' ').nth(1)?.parse().ok()?;
        Some((thread.file_name(), wait))
    };
    threads.filter_map(wait).collect()
}
