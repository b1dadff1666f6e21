//! Several tasks over several handles that ask without an end, and keep what they are answered.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    fs::File,
    future::Future,
    io::{BufWriter, Write},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use http::{Request, Response, StatusCode};
use tokio::{runtime::Handle, task::JoinSet};
use tower::{Layer, ServiceExt, service_fn, util::BoxCloneSyncService};
use tower_ratelimit::{
    Decision, Decisions, Error, FailurePolicy, RateLimitLayer, RateLimiter, RedisStore, Rule,
    key::{Constant, Header},
};

use super::{
    answer::{Answer, By, Outcome, failure, outcome},
    guards::{LEASE, PATIENCE},
    lanes::{How, LANES, Lane, Limiter, USERS, identity, rule},
    random::Random,
};

const TASKS_PER_LANE: usize = 2;

/// Far longer than anything here takes on a busy machine.
pub const LONG: Duration = Duration::from_secs(30);

type Http = BoxCloneSyncService<Request<()>, Response<()>, Infallible>;

/// A load, from its first request to its end.
#[derive(Debug)]
pub struct Load {
    pub limiters: Vec<Limiter>,
    pub handles: Vec<RedisStore>,
    counts: Arc<Counts>,
    tasks: JoinSet<()>,
    /// Tasks of others, and those of the runtime's own
    tasks_before: usize,
}

/// What is known of a load while it goes on.
#[derive(Debug)]
struct Counts {
    began: Instant,
    budget: Duration,
    stop: AtomicBool,
    /// Nobody asks, for a while
    idle: AtomicBool,
    /// Milliseconds between two requests of a task, about
    pause: AtomicU64,
    sent: AtomicU64,
    answered: AtomicU64,
    /// What passed the layers, as the service behind them counts
    passed: AtomicU64,
    lanes: [LaneCounts; LANES.len()],
    book: Mutex<Book>,
    wrong: Mutex<BTreeSet<String>>,
    /// By how many microseconds the machine has kept a thread waiting at most that had nothing to do but sleep
    machine: AtomicU64,
}

#[derive(Debug, Default)]
struct LaneCounts {
    by_store: AtomicU64,
    by_policy: AtomicU64,
}

/// Where answers are kept.
#[derive(Debug)]
enum Book {
    Here(Vec<Answer>),
    /// Written by a thread of its own: no request waits for a disk
    There(Option<mpsc::Sender<Answer>>, Option<JoinHandle<()>>),
}

impl Book {
    fn in_file(file: &Path) -> Self {
        let mut file = BufWriter::new(File::create(file).unwrap());
        let (note, noted) = mpsc::channel::<Answer>();
        let writing = thread::spawn(move || {
            for answer in noted {
                file.write_all(answer.write().as_bytes()).unwrap();
            }
            file.flush().unwrap();
        });
        Self::There(Some(note), Some(writing))
    }

    fn note(&mut self, answer: Answer) {
        match self {
            Self::Here(answers) => answers.push(answer),
            Self::There(Some(note), _) => note.send(answer).expect("somebody writes"),
            Self::There(None, _) => panic!("it was closed"),
        }
    }

    /// What it holds, if that is not in a file, which is whole then.
    fn close(&mut self) -> Vec<Answer> {
        match self {
            Self::Here(answers) => std::mem::take(answers),
            Self::There(note, writing) => {
                drop(note.take());
                if let Some(writing) = writing.take() {
                    writing.join().expect("what was answered is written");
                }
                Vec::new()
            }
        }
    }
}

impl Load {
    /// Begins to ask, through each of the handles.
    pub async fn start(
        handles: Vec<RedisStore>,
        prefix: &str,
        budget: Duration,
        seed: u64,
    ) -> Self {
        Self::begin(handles, prefix, budget, seed, Book::Here(Vec::new())).await
    }

    /// As `start`, with the answers in a file, a line each.
    pub async fn start_into(
        file: &Path,
        handles: Vec<RedisStore>,
        prefix: &str,
        budget: Duration,
        seed: u64,
    ) -> Self {
        Self::begin(handles, prefix, budget, seed, Book::in_file(file)).await
    }

    async fn begin(
        handles: Vec<RedisStore>,
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
        let mut load = Self {
            limiters: Limiter::all(prefix),
            handles: handles
                .into_iter()
                .map(|store| store.prefix(prefix))
                .collect(),
            counts,
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
        let asking = match lane.how {
            How::Layer(_) | How::Leased(_) => Asking::Http(service(store, lane, &self.counts)),
            How::Limiter | How::Waiter => {
                let name = format!("{prefix}-{}", lane.name);
                Asking::Limiter(RateLimiter::new(store, &name).unwrap())
            }
        };
        for task in 0..TASKS_PER_LANE {
            let random = Random(seed ^ (((handle * 64 + index * 8 + task) as u64) << 32));
            let caller = Caller {
                counts: Arc::clone(&self.counts),
                asking: asking.clone(),
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

    /// Waits until the store has decided for every lane so many times more, for requests sent from now on.
    pub async fn decided(&self, times: u64) -> Duration {
        self.counted(times, |lane| &lane.by_store, "decided by the store")
            .await
    }

    /// Waits until every lane has met its policy so many times more.
    pub async fn met_policy(&self, times: u64) -> Duration {
        self.counted(times, |lane| &lane.by_policy, "decided by policy")
            .await
    }

    /// Waits until these lanes have met their policy so many times more.
    pub async fn lanes_met_policy(&self, lanes: &[usize], times: u64) -> Duration {
        self.counted_of(lanes, times, |lane| &lane.by_policy, "decided by policy")
            .await
    }

    /// Waits until the store has decided for these lanes so many times more.
    pub async fn lanes_decided(&self, lanes: &[usize], times: u64) -> Duration {
        self.counted_of(lanes, times, |lane| &lane.by_store, "decided by the store")
            .await
    }

    async fn counted(
        &self,
        times: u64,
        count: fn(&LaneCounts) -> &AtomicU64,
        what: &str,
    ) -> Duration {
        let all: Vec<_> = (0..LANES.len()).collect();
        self.counted_of(&all, times, count, what).await
    }

    async fn counted_of(
        &self,
        lanes: &[usize],
        times: u64,
        count: fn(&LaneCounts) -> &AtomicU64,
        what: &str,
    ) -> Duration {
        let began = Instant::now();
        let goals: Vec<_> = (lanes.iter())
            .map(|lane| {
                (
                    *lane,
                    count(&self.counts.lanes[*lane]).load(Ordering::SeqCst) + times,
                )
            })
            .collect();
        for (lane, goal) in goals {
            while count(&self.counts.lanes[lane]).load(Ordering::SeqCst) < goal {
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

    /// Has nobody ask, and waits until all are answered; or lets them go on.
    pub async fn idle(&self, idle: bool) {
        self.counts.idle.store(idle, Ordering::SeqCst);
        let began = Instant::now();
        while idle && !self.all_answered() {
            assert!(began.elapsed() < LONG, "requests are not answered");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// How long each task pauses between two requests, about.
    pub fn pace(&self, millis: u64) {
        self.counts.pause.store(millis, Ordering::SeqCst);
    }

    /// How many requests were answered so far.
    pub fn answered(&self) -> u64 {
        self.counts.answered.load(Ordering::SeqCst)
    }

    fn all_answered(&self) -> bool {
        self.counts.sent.load(Ordering::SeqCst) == self.counts.answered.load(Ordering::SeqCst)
    }

    /// Ends the load, gives back what handles hold and lets go of them: what was answered, as far as it is kept here. Whoever
    /// has the handles too, or what was made of them, must have let go of them before.
    ///
    /// Part of the first oracle and the second: no task panics, none is left, each request was answered once, and behind
    /// the layers were as many as were let through.
    pub async fn end(mut self) -> Ended {
        self.counts.stop.store(true, Ordering::SeqCst);
        while let Some(ended) = self.tasks.join_next().await {
            ended.expect("no task of the load panics");
        }
        for handle in &self.handles {
            let closed = tokio::time::timeout(LONG * 3, handle.close()).await;
            closed.expect("what is to be given back is given back, or given up");
        }
        let lost_receipts = self.handles.iter().map(RedisStore::lost_receipts).sum();
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
        let counts = &self.counts;
        let wrong = std::mem::take(&mut *counts.wrong.lock().unwrap());
        let answers = counts.book.lock().unwrap().close();
        Ended {
            limiters: std::mem::take(&mut self.limiters),
            answers,
            sent: counts.sent.load(Ordering::SeqCst),
            answered: counts.answered.load(Ordering::SeqCst),
            passed: counts.passed.load(Ordering::SeqCst),
            lost_receipts,
            machine: Duration::from_micros(counts.machine.load(Ordering::SeqCst)),
            wrong,
        }
    }
}

/// What is left of a load.
#[derive(Debug)]
pub struct Ended {
    pub limiters: Vec<Limiter>,
    pub answers: Vec<Answer>,
    pub sent: u64,
    pub answered: u64,
    /// What the services behind the layers have seen
    pub passed: u64,
    pub lost_receipts: u64,
    /// How late the machine was at most
    pub machine: Duration,
    /// Answers that no request can have
    pub wrong: BTreeSet<String>,
}

/// How a task asks.
#[derive(Clone)]
enum Asking {
    Http(Http),
    Limiter(RateLimiter),
}

struct Caller {
    counts: Arc<Counts>,
    asking: Asking,
    index: usize,
    random: Random,
}

impl Caller {
    async fn run(mut self) {
        let lane = &LANES[self.index];
        while !self.counts.stop.load(Ordering::SeqCst) {
            if self.counts.idle.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(2)).await;
                continue;
            }
            let user = self.random.below(USERS as u64) as usize;
            let permits = match lane.how {
                How::Limiter => 1 + self.random.below(3) as u32,
                _ => 1,
            };
            let patience = match lane.how {
                How::Waiter => PATIENCE,
                _ => Duration::ZERO,
            };
            self.counts.sent.fetch_add(1, Ordering::SeqCst);
            let sent = self.counts.began.elapsed();
            let outcome = self.ask(lane, user, permits).await;
            let took = self.counts.began.elapsed() - sent;
            if let (Ok(Outcome::Unset), Asking::Limiter(limiter)) = (&outcome, &self.asking) {
                self.set_rate(lane, limiter).await;
            }
            match outcome {
                Ok(outcome) => self.counts.note(&Answer {
                    lane: self.index,
                    user,
                    permits,
                    sent,
                    took,
                    budget: self.counts.budget + patience,
                    outcome,
                }),
                Err(wrong) => {
                    let mut all = self.counts.wrong.lock().unwrap();
                    // The first few tell enough.
                    if all.len() < 5 {
                        all.insert(wrong);
                    }
                }
            }
            self.counts.answered.fetch_add(1, Ordering::SeqCst);
            let pause = self.counts.pause.load(Ordering::SeqCst) * 1000;
            let pause = pause / 2 + self.random.below(pause + 1);
            tokio::time::sleep(Duration::from_micros(pause)).await;
        }
    }

    /// The limit of a `RateLimiter` is lost with the server's data: whoever finds that out sets it anew.
    async fn set_rate(&self, lane: &'static Lane, limiter: &RateLimiter) {
        for allowed in lane.limits() {
            // Fails with the server, and is then tried by the next.
            let _ = limiter.try_set_rate(allowed.limit()).await;
        }
    }

    async fn ask(&self, lane: &'static Lane, user: usize, permits: u32) -> Result<Outcome, String> {
        match (&self.asking, lane.how) {
            (Asking::Http(service), How::Layer(policy) | How::Leased(policy)) => {
                let request = Request::builder().header("x-user", identity(Some(user)));
                let request = request.body(()).unwrap();
                let Ok(answer) = service.clone().oneshot(request).await;
                read(lane, policy, &answer)
            }
            (Asking::Limiter(limiter), How::Waiter) => {
                decided(lane, limiter.try_acquire_for(permits, PATIENCE)).await
            }
            (Asking::Limiter(limiter), _) => decided(lane, limiter.try_acquire_many(permits)).await,
            (Asking::Http(_), _) => Err("no such lane".to_owned()),
        }
    }
}

impl Counts {
    /// A thread of its own, outside of the runtime: what a test or the library does to that is no excuse.
    fn look_at_machine(&self) {
        const NAP: Duration = Duration::from_millis(5);
        while !self.stop.load(Ordering::SeqCst) {
            let began = Instant::now();
            thread::sleep(NAP);
            let late = began.elapsed().saturating_sub(NAP).as_micros() as u64;
            self.machine.fetch_max(late, Ordering::SeqCst);
        }
    }

    fn note(&self, answer: &Answer) {
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

/// A service behind a layer, which counts what comes through.
fn service(store: &RedisStore, lane: &'static Lane, counts: &Arc<Counts>) -> Http {
    let mut rules = Vec::new();
    for (place, allowed) in lane.limits().enumerate() {
        let (limit, name) = (allowed.limit(), rule(lane, place));
        let rule = match allowed.by_user {
            true => Rule::new(&name, limit, Header::new("x-user")),
            false => Rule::new(&name, limit, Constant("all")),
        };
        rules.push(match lane.how {
            How::Leased(policy) => rule.on_failure(policy).lease(LEASE),
            How::Layer(policy) => rule.on_failure(policy),
            How::Limiter | How::Waiter => rule,
        });
    }
    let layer = RateLimitLayer::builder(store).otherwise(rules).build();
    let counts = Arc::clone(counts);
    let inner = service_fn(move |_: Request<()>| {
        counts.passed.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, Infallible>(Response::new(String::new())) }
    });
    let layered = layer.unwrap().layer(inner);
    Http::new(layered.map_response(|answer: Response<_>| answer.map(drop)))
}

/// An HTTP answer says what its one decision says.
fn read(
    lane: &'static Lane,
    policy: FailurePolicy,
    answer: &Response<()>,
) -> Result<Outcome, String> {
    let decisions = answer.extensions().get::<Decisions>();
    if let Some(decisions) = decisions.filter(|decisions| decisions.as_slice().len() != 1) {
        return Err(format!(
            "{} decisions of one layer",
            decisions.as_slice().len()
        ));
    }
    let decision = answer.extensions().get::<Decision>();
    let decision = decision.ok_or("an answer without its decision")?;
    let outcome = outcome(lane, decision)?;
    let expected = match outcome {
        Outcome::Granted(By::Policy) if policy == FailurePolicy::Deny => None,
        Outcome::Granted(_) => Some(StatusCode::OK),
        Outcome::Refused(By::Policy, _) if policy == FailurePolicy::Allow => None,
        Outcome::Refused(By::Policy, _) => Some(StatusCode::SERVICE_UNAVAILABLE),
        Outcome::Refused(..) => Some(StatusCode::TOO_MANY_REQUESTS),
        Outcome::Failed(_) | Outcome::Unset => None,
    };
    match expected {
        Some(status) if status == answer.status() => Ok(outcome),
        _ => Err(format!(
            "{}: {} for {outcome:?} under {policy:?}",
            lane.name,
            answer.status()
        )),
    }
}

/// A limiter's answer, which has no policy.
async fn decided(
    lane: &'static Lane,
    ask: impl Future<Output = Result<Decision, Error>>,
) -> Result<Outcome, String> {
    match ask.await {
        Ok(decision) => outcome(lane, &decision),
        Err(error) => failure(error.kind()),
    }
}
