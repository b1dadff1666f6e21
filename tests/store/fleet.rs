//! Several processes on one limiter, through it and through layers: they never get more than the
//! limit, and a refused call found no room. Both are checked offline on what the server saw.

use crate::record::Record;
use kit::{Worker, monitor::Watch, scene::*};

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
    let record = Arc::<Mutex<Record>>::default();
    let reading = Arc::clone(&record);
    let watch = Watch::open(&server, move |_, seen| reading.lock().unwrap().read(seen));
    let job = format!("{} {}", server.url(), limiter.name());
    let test = "fleet::several_processes_have_one_limit";
    let workers = [(); PROCESSES].map(|()| Worker::start(test, &job));
    let received: i64 = workers.into_iter().map(Worker::result).sum();
    watch.catch_up();
    let record = record.lock().unwrap();

    let grants: Vec<_> = record.calls().filter(|call| call.granted).collect();
    let granted: i64 = grants.iter().map(|call| call.permits).sum();
    println!("{granted} permits by {} calls", record.calls().count());
    assert!(granted > RATE, "the limit is not saturated");
    // By the processes, and by the server.
    assert_eq!(received, granted);
    // The server's clock is read when the permits are taken. Redisson reads it before the call
    // queues, and admits 11 to 14 in a window of 10.
    let sorted = grants.is_sorted_by_key(|grant| grant.at);
    assert!(sorted, "scores in the order in which permits were taken");
    let logs: Vec<_> = record.grants.logs().collect();
    assert_eq!(logs, [kit::companion(limiter.name(), "permits")]);
    record.check_never_over(logs[0], RATE, INTERVAL);
    // In the log, and by the server.
    assert_eq!(record.grants.kept(logs[0]), granted);
    // There was room for none of them.
    assert_eq!(record.refused_in_vain(RATE, INTERVAL), []);
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
                    let request = Request::get(format!("/{permits}")).body(());
                    decide(&layer, request.unwrap()).await
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
