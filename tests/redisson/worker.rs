//! A Rust process of the fleet.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use tokio::runtime::Builder;
use tower_ratelimit::{Clock, RateLimiter, SystemClock};

use kit::{Worker, scene::patient};

/// Callers of one process.
const TASKS: u32 = 8;

/// Starts a process that saturates a limiter until a moment, in milliseconds since the epoch, and
/// ends with the number of its calls.
pub fn start(url: &str, name: &str, until: i64) -> Worker {
    Worker::start("worker::rust_process", &format!("{url} {name} {until}"))
}

#[test]
#[ignore = "a process that the fleet starts, not a test"]
fn rust_process() {
    let job = Worker::job().expect("started by the fleet only");
    let mut job = job.split(' ');
    let mut next = || job.next().unwrap();
    let (url, name) = (next(), next());
    let until = Duration::from_millis(next().parse().unwrap());
    // Every refusal is to be the script's.
    let store = patient(url).client_clock(SystemClock);
    let store = store.deny_cache(Duration::ZERO);
    let limiter = RateLimiter::new(&store.build().unwrap(), name).unwrap();
    let calls = Arc::new(AtomicI64::new(0));
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut callers = Vec::new();
        for number in 0..TASKS {
            let (limiter, calls) = (limiter.clone(), Arc::clone(&calls));
            callers.push(tokio::spawn(async move {
                // Once where it starts that late.
                loop {
                    let _ = limiter.try_acquire_many(1 + number % 3).await.unwrap();
                    calls.fetch_add(1, Ordering::Relaxed);
                    if SystemClock.now() >= until {
                        break;
                    }
                }
            }));
        }
        for caller in callers {
            caller.await.unwrap();
        }
    });
    Worker::report(calls.load(Ordering::Relaxed));
}
