//! Decisions a second, without HTTP, beside Redisson's.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use tokio::{runtime::Runtime, task::JoinSet};
use tower_ratelimit::{Limit, RateLimiter, redis};

use super::Pace;
use crate::{
    contenders::Contender,
    database::Database,
    peers::redisson,
    row::{Contest, Goal::RatioAtLeast, Rounds, Row, figure},
};

const KEYS: usize = 100_000;
const IN_FLIGHT: usize = 64;
const AMPLE: Limit = Limit::per_second(1_000_000);
const KEEP_ALIVE: Duration = Duration::from_secs(600);

pub(super) fn row(pace: Pace) -> Row {
    let turn = Duration::from_millis(pace.pick(2000, 500));
    Row {
        name: String::from("Redisson's format, decisions a second"),
        parameters: format!(
            "{} per second each, {KEYS} keys, {IN_FLIGHT} in flight, all admitted, {} ms a turn",
            AMPLE.permits(),
            turn.as_millis()
        ),
        beside: "tryAcquireAsync of Redisson on the same server, its own defaults",
        needs: &[Contender::Redis, Contender::Redisson],
        rounds: Rounds {
            // The JVM compiles meanwhile.
            warm_up: pace.pick(3, 1),
            counted: pace.pick(7, 3),
        },
        figures: vec![figure("decisions/s", RatioAtLeast(4.0))],
        begin: Box::new(move || Box::new(Fleets::begin(turn))),
    }
}

struct Fleets {
    turn: Duration,
    runtime: Runtime,
    limiters: Arc<[RateLimiter]>,
    next: Arc<AtomicUsize>,
    java: redisson::Flood,
    /// The last to go
    _database: Database,
}

impl Fleets {
    fn begin(turn: Duration) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let database = Database::start();
        let _inside = runtime.enter();
        let store = database.store();
        let mut line = database.line();
        for side in ["ours", "java"] {
            let names: Vec<String> = (0..KEYS).map(|key| name(side, key)).collect();
            for names in names.chunks(10_000) {
                let mut pipeline = redis::pipe();
                for name in names {
                    pipeline
                        .add_command(redisson::set_rate(name, AMPLE, KEEP_ALIVE))
                        .ignore();
                }
                pipeline.exec(&mut line).unwrap();
            }
        }
        let limiters = (0..KEYS).map(|key| RateLimiter::new(&store, &name("ours", key)).unwrap());
        Self {
            turn,
            limiters: limiters.collect(),
            next: Arc::default(),
            java: redisson::Flood::start(database.port(), "goals-java-", KEYS, IN_FLIGHT),
            runtime,
            _database: database,
        }
    }
}

fn name(side: &str, key: usize) -> String {
    format!("goals-{side}-{key:07}")
}

impl Contest for Fleets {
    fn ours(&mut self) -> Vec<f64> {
        let over = Arc::new(AtomicBool::new(false));
        let granted = self.runtime.block_on(async {
            let mut tasks = JoinSet::new();
            for _ in 0..IN_FLIGHT {
                let (limiters, next) = (Arc::clone(&self.limiters), Arc::clone(&self.next));
                let over = Arc::clone(&over);
                tasks.spawn(async move {
                    let mut granted = 0_u64;
                    while !over.load(Relaxed) {
                        let limiter = &limiters[next.fetch_add(1, Relaxed) % KEYS];
                        assert!(limiter.try_acquire().await.unwrap().is_allowed());
                        granted += 1;
                    }
                    granted
                });
            }
            let began = Instant::now();
            tokio::time::sleep(self.turn).await;
            over.store(true, Relaxed);
            let granted: u64 = tasks.join_all().await.into_iter().sum();
            granted as f64 / began.elapsed().as_secs_f64()
        });
        vec![granted]
    }

    fn theirs(&mut self) -> Vec<Option<f64>> {
        vec![Some(self.java.run(self.turn))]
    }
}
