//! Several processes on one limiter: they never get more than the limit, and a refused call found
//! no room. Both are checked offline on what the server saw; how much of a limit is used is
//! printed, as that is the machine's as well.

use crate::record::Record;
use kit::{Worker, monitor::Watch, scene::*};

const PROCESSES: usize = 4;
const TASKS_PER_PROCESS: usize = 4;
const RUN: Duration = secs(4);
/// Between two calls of a task: together they ask far more often than any limit here allows.
const PAUSE: Duration = millis(4);

/// The work of each process.
#[derive(Clone, Copy, Debug)]
enum How {
    /// One permit a call
    Limiter,
    /// One to five permits a call
    Many,
    Layer,
}

#[test]
fn fifty_in_half_a_second() {
    fleet("fifty_in_half_a_second", How::Limiter, 50, 500);
}

#[test]
fn calls_for_several_permits() {
    fleet("calls_for_several_permits", How::Many, 50, 500);
}

#[test]
fn behind_a_layer() {
    fleet("behind_a_layer", How::Layer, 60, 700);
}

/// Runs as the test, and in each process that it starts as a worker.
fn fleet(test: &str, how: How, rate: u64, interval: u64) {
    let limit = Limit::new(rate, millis(interval));
    if let Some(job) = Worker::job() {
        let (url, name) = job.split_once(' ').unwrap();
        return Worker::report(worker(url, name, how, limit));
    }

    let server = RedisServer::start();
    let name = unique("orders");
    set_rate(&server, &name, limit);
    let record = Arc::<Mutex<Record>>::default();
    let reading = Arc::clone(&record);
    let watch = Watch::open(&server, move |_, seen| reading.lock().unwrap().read(seen));
    let (test_name, job) = (format!("fleet::{test}"), format!("{} {name}", server.url()));
    let workers = [(); PROCESSES].map(|()| Worker::start(&test_name, &job));
    let received: i64 = workers.into_iter().map(Worker::result).sum();
    watch.catch_up();
    let record = record.lock().unwrap();

    let (rate, interval) = (rate as i64, interval as i64);
    let asked: i64 = record.calls().map(|call| call.permits).sum();
    let grants: Vec<_> = record.calls().filter(|call| call.granted).collect();
    let granted: i64 = grants.iter().map(|call| call.permits).sum();
    let (first, last) = (record.calls().next(), record.calls().last());
    let millis = last.unwrap().at - first.unwrap().at;
    let ideal = record.ideal(rate, interval);
    let by_time = (rate * millis) as f64 / interval as f64;
    assert!(granted > rate, "the limit is not saturated");
    println!(
        "{test}: {PROCESSES} processes, {} calls in {millis} ms; granted {granted} permits of \
         {asked} asked for; {:.3} of what was possible, {:.3} of the rate over the time",
        record.calls().count(),
        granted as f64 / ideal as f64,
        granted as f64 / by_time,
    );
    // By the processes, and by the server.
    assert_eq!(received, granted);
    // The server's clock is read when the permits are taken. Redisson reads it before the call
    // queues, and admits 11 to 14 in a window of 10.
    let sorted = grants.is_sorted_by_key(|grant| grant.at);
    assert!(sorted, "scores in the order in which permits were taken");
    let mut logged = 0;
    for log in record.grants.logs() {
        record.check_never_over(log, rate, interval);
        logged += record.grants.kept(log);
    }
    // In the log, and by the server.
    assert_eq!(logged, granted);
    // There was room for none of them.
    assert_eq!(record.refused_in_vain(rate, interval), []);
}

#[tokio::main(flavor = "current_thread")]
async fn set_rate(server: &RedisServer, name: &str, limit: Limit) {
    let limiter = RateLimiter::new(&patient(&server.url()), name).unwrap();
    assert!(limiter.try_set_rate(limit).await.unwrap());
}

fn patient(url: &str) -> RedisStore {
    // How much of what was asked for is granted shows where each is asked for.
    let store = kit::scene::patient(url).deny_cache(Duration::ZERO);
    store.build().unwrap()
}

/// Asks until the run is over. Every decision is the server's.
#[tokio::main(flavor = "current_thread")]
async fn worker(url: &str, name: &str, how: How, limit: Limit) -> i64 {
    let store = patient(url);
    let limiter = RateLimiter::new(&store, name).unwrap();
    // As the record of the server's commands reads Redisson's format.
    let rule = limit.by(Constant("all")).named(name);
    let in_redisson = RedisStore::builder(url).redisson();
    let in_redisson = patiently(in_redisson).build().unwrap();
    let layer = RateLimitLayer::new(&in_redisson, rule);
    let began = Instant::now();
    // For longer on a slow machine: all of them together have more than the limit once.
    let share = i64::try_from(limit.permits()).unwrap() / (PROCESSES * TASKS_PER_PROCESS) as i64;
    let mut tasks = JoinSet::new();
    for task in 0..TASKS_PER_PROCESS {
        let (limiter, layer) = (limiter.clone(), layer.clone());
        tasks.spawn(async move {
            let mut granted = 0;
            let mut call = task as u32;
            while began.elapsed() < RUN || granted <= share {
                assert!(began.elapsed() < LONG, "{granted} granted, of {share}");
                call += 1;
                let permits = match how {
                    How::Limiter | How::Layer => 1,
                    How::Many => 1 + call % 5,
                };
                let decision = match how {
                    How::Limiter | How::Many => limiter.try_acquire_many(permits).await.unwrap(),
                    How::Layer => decide(&layer, Request::new(())).await,
                };
                let here = [Source::FailurePolicy, Source::Local];
                assert!(!here.contains(&decision.source()), "{decision:?}");
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
