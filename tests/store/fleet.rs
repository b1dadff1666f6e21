//! Several processes on one limiter, through it and through layers: they never get more than the
//! limit, by what the server saw.

use kit::{Worker, ledger::Ledger, monitor::Watch, scene::*};

const PROCESSES: usize = 4;
const TASKS_PER_PROCESS: usize = 4;
const RUN: Duration = secs(4);
/// Between two calls of a task: together they ask far more often than the limit allows.
const PAUSE: Duration = millis(4);
const RATE: i64 = 50;
const INTERVAL: i64 = 500;

/// Runs as the test, and in each process that it starts as a worker.
#[test]
fn several_processes_have_one_limit() {
    if let Some(job) = Worker::job() {
        let (url, name) = job.split_once(' ').unwrap();
        return Worker::report(runtime().block_on(worker(url, name)));
    }

    let server = RedisServer::start();
    let limit = Limit::new(RATE as u64, millis(INTERVAL as u64));
    let limiter = runtime().block_on(limited(&store(&server.url()), limit));
    let ledger = Arc::<Mutex<Ledger>>::default();
    let reading = Arc::clone(&ledger);
    let watch = Watch::open(&server, move |_, seen| reading.lock().unwrap().read(seen));
    let job = format!("{} {}", server.url(), limiter.name());
    let test = "fleet::several_processes_have_one_limit";
    let workers = [(); PROCESSES].map(|()| Worker::start(test, &job));
    let received: i64 = workers.into_iter().map(Worker::result).sum();
    watch.catch_up();

    let ledger = ledger.lock().unwrap();
    println!("{received} permits");
    assert!(received > RATE, "the limit is not saturated");
    // Redisson reads the clock before the call queues, and admits 11 to 14 in a window of 10.
    let logs: Vec<_> = ledger.logs().collect();
    assert_eq!(logs, [kit::companion(limiter.name(), "permits")]);
    let fullest = ledger.fullest_window(logs[0], INTERVAL);
    assert!(fullest <= RATE, "{fullest} of {RATE}");
    // By the processes, and in the log.
    assert_eq!(ledger.kept(logs[0]), received);
}

/// How much of what was asked for is granted shows where each is asked for.
fn store(url: &str) -> RedisStore {
    let store = patient(url).deny_cache(Duration::ZERO);
    store.build().unwrap()
}

/// Asks for one to five permits until the run is over. Every decision is the server's.
async fn worker(url: &str, name: &str) -> i64 {
    let store = store(url);
    let limiter = RateLimiter::new(&store, name).unwrap();
    let cost = |parts: &http::request::Parts| parts.uri.path()[1..].parse().unwrap();
    let layer = layer_of(&store, Rule::shared(name).cost_by(cost));
    let began = Instant::now();
    // For longer on a slow machine: all of them together have more than the limit once.
    let share = RATE / (PROCESSES * TASKS_PER_PROCESS) as i64;
    let mut tasks = JoinSet::new();
    for task in 0..TASKS_PER_PROCESS {
        let (limiter, layer) = (limiter.clone(), layer.clone());
        tasks.spawn(async move {
            let (mut granted, mut call) = (0, task as u32);
            while began.elapsed() < RUN || granted <= share {
                assert!(began.elapsed() < LONG, "{granted} granted, of {share}");
                call += 1;
                let permits = 1 + call % 5;
                let decision = if call % 2 == 0 {
                    limiter.try_acquire_many(permits).await.unwrap()
                } else {
                    decide(&layer, asking(&format!("GET /{permits}"), &[])).await
                };
                assert_eq!(decision.source(), Source::Store, "{decision:?}");
                if decision.is_allowed() {
                    granted += i64::from(permits);
                }
                tokio::time::sleep(PAUSE).await;
            }
            granted
        });
    }
    tasks.join_all().await.into_iter().sum()
}
