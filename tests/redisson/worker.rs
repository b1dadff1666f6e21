//! A Rust process of the fleet: this test binary, started once more.

use std::{
    env,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::runtime::Builder;
use tower_ratelimit::{Clock, RateLimiter, SystemClock};

use crate::scene::patient;

/// What a worker is told: address, name, until when.
const ORDERS: &str = "TOWER_RATELIMIT_WORKER";
/// Askers of one process.
const TASKS: u32 = 8;

#[derive(Debug)]
pub struct Worker(Child);

impl Worker {
    /// Saturates a limiter until a moment, in milliseconds since the epoch.
    pub fn start(url: &str, name: &str, until: i64) -> Self {
        let child = Command::new(env::current_exe().unwrap())
            .args([
                "--exact",
                "worker::rust_process",
                "--ignored",
                "--nocapture",
            ])
            .env(ORDERS, format!("{url} {name} {until}"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self(child)
    }

    /// How many calls it made, when it has ended.
    pub fn calls(mut self) -> u64 {
        let output = std::io::read_to_string(self.0.stdout.take().unwrap()).unwrap();
        assert!(
            self.0.wait().unwrap().success(),
            "a Rust process failed:\n{output}"
        );
        let calls = output
            .lines()
            .find_map(|line| line.split_once("calls: ")?.1.parse().ok());
        calls.unwrap_or_else(|| panic!("a Rust process did not count:\n{output}"))
    }
}

#[test]
#[ignore = "a process that the fleet starts, not a test"]
fn rust_process() {
    let orders = env::var(ORDERS).expect("started by the fleet only");
    let mut orders = orders.split(' ');
    let mut next = || orders.next().unwrap();
    let (url, name) = (next(), next());
    let until = Duration::from_millis(next().parse().unwrap());
    // Every refusal is to be the script's.
    let store = patient(url).client_clock(SystemClock);
    let store = store.deny_cache(Duration::ZERO);
    let limiter = RateLimiter::new(&store.build().unwrap(), name).unwrap();
    let calls = Arc::new(AtomicU64::new(0));
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut askers = Vec::new();
        for number in 0..TASKS {
            let (limiter, calls) = (limiter.clone(), Arc::clone(&calls));
            askers.push(tokio::spawn(async move {
                while SystemClock.now() < until {
                    let _ = limiter.try_acquire_many(1 + number % 3).await.unwrap();
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            }));
        }
        for asker in askers {
            asker.await.unwrap();
        }
    });
    println!("calls: {}", calls.load(Ordering::Relaxed));
}
