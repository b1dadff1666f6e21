//! What limiters weigh in Redis.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use tokio::runtime::Runtime;
use tower_ratelimit::{Algorithm, Limit, RateLimitLayer, RateLimiter, redis, testing::ManualClock};

use super::Pace;
use crate::{
    contenders::Contender,
    database::Database,
    peers::redisson,
    requests::{by_user, in_turns, passes, users},
    row::{
        Contest,
        Goal::{self, AtMost, Reported},
        Rounds, Row, figure,
    },
};

const PERMITS: usize = 100_000;
const LIVE: Limit = Limit::per_hour(PERMITS as u64);
const AT_ONCE: usize = 64;

/// How a limiter counts, and what it may weigh.
struct Way {
    name: &'static str,
    counting: fn(RateLimiter) -> RateLimiter,
    goal: Goal,
}

const WAYS: [Way; 3] = [
    Way {
        name: "sliding log",
        counting: |limiter| limiter,
        goal: Reported,
    },
    Way {
        name: "sliding log in 1000 slots",
        counting: |limiter| limiter.slots(1000).unwrap(),
        goal: AtMost(150_000.0),
    },
    Way {
        name: "fixed window",
        counting: |limiter| limiter.algorithm(Algorithm::FixedWindow),
        goal: Reported,
    },
];

pub(super) fn rows(pace: Pace) -> impl Iterator<Item = Row> {
    let live = WAYS.into_iter().map(|way| Row {
        name: format!("redis memory, 100,000 live permits, {}", way.name),
        parameters: String::from(
            "one limit of 100,000 per hour, each permit taken for itself, one after the other in that hour",
        ),
        beside: "Redisson's script",
        needs: &[Contender::Redis, Contender::RedissonScript],
        rounds: Rounds::ONCE,
        figures: vec![figure("bytes", way.goal)],
        begin: Box::new(move || Box::new(Live::begin(&way))),
    });
    let idle = Row {
        name: String::from("redis memory, idle limiter"),
        parameters: format!(
            "{IDLE} users, 10 in {} ms each",
            SHORT.interval().as_millis()
        ),
        beside: "Redisson's script, without a keep-alive time, as is usual",
        needs: &[Contender::Redis, Contender::RedissonScript],
        rounds: Rounds::of(0, pace.pick(3, 1)),
        figures: vec![
            figure("bytes per limiter in use", Reported),
            figure("bytes per limiter after its keep-alive", AtMost(0.0)),
        ],
        begin: Box::new(|| Box::new(Idle::begin())),
    };
    live.chain([idle])
}

struct Live {
    runtime: Runtime,
    database: Database,
    /// That of our limiter: an hour passes while its permits are taken.
    clock: ManualClock,
    limiter: RateLimiter,
}

impl Live {
    fn begin(way: &Way) -> Self {
        let runtime = Runtime::new().unwrap();
        let database = Database::start();
        let _inside = runtime.enter();
        let clock = ManualClock::new();
        let store = database.builder().client_clock(clock.clone());
        let store = store.build().unwrap();
        let limiter = RateLimiter::new(&store, "live-ours").unwrap();
        let limiter = (way.counting)(limiter);
        assert!(runtime.block_on(limiter.try_set_rate(LIVE)).unwrap());
        Self {
            runtime,
            database,
            clock,
            limiter,
        }
    }
}

impl Contest for Live {
    fn ours(&mut self) -> Vec<f64> {
        let (limiter, clock) = (self.limiter.clone(), self.clock.clone());
        self.runtime
            .block_on(in_turns(PERMITS, 1, AT_ONCE, move |_| {
                let limiter = limiter.clone();
                clock.advance(LIVE.interval() / PERMITS as u32);
                async move { assert!(limiter.try_acquire().await.unwrap().is_allowed()) }
            }));
        vec![self.database.weight("live-ours") as f64]
    }

    fn theirs(&mut self) -> Vec<Option<f64>> {
        let mut line = self.database.line();
        let text = redisson::script().unwrap_or_else(|missing| panic!("{missing}"));
        redis::cmd("SCRIPT")
            .arg("LOAD")
            .arg(text)
            .exec(&mut line)
            .unwrap();
        let name = "live-java";
        redisson::set_rate(name, LIVE, Duration::ZERO)
            .exec(&mut line)
            .unwrap();
        for _ in 0..PERMITS / 1000 {
            let mut pipeline = redis::pipe();
            for _ in 0..1000 {
                pipeline.add_command(redisson::try_acquire(name));
            }
            let granted: Vec<Option<i64>> = pipeline.query(&mut line).unwrap();
            assert!(granted.iter().all(Option::is_none), "one was refused");
        }
        vec![Some(self.database.weight(name) as f64)]
    }
}

const IDLE: usize = 1000;
const SHORT: Limit = Limit::new(10, Duration::from_millis(2000));
const KEEP_ALIVE: Duration = Duration::from_millis(2500);
/// Longer than anything lives that vanishes at all.
const LONG: Duration = Duration::from_secs(20);

struct Idle {
    runtime: Runtime,
    database: Database,
    layer: RateLimitLayer,
    script: redisson::Script,
}

impl Idle {
    fn begin() -> Self {
        let runtime = Runtime::new().unwrap();
        let database = Database::start();
        let _inside = runtime.enter();
        let layer = RateLimitLayer::new(&database.store(), SHORT.by(by_user()).named("ours"));
        let script =
            runtime.block_on(async { redisson::Script::load(database.connection().await).await });
        Self {
            runtime,
            database,
            layer,
            script,
        }
    }

    fn each(&self, name: &str) -> f64 {
        self.database.weight(name) as f64 / IDLE as f64
    }
}

impl Contest for Idle {
    fn ours(&mut self) -> Vec<f64> {
        let (layer, users) = (self.layer.clone(), users(IDLE));
        self.runtime
            .block_on(in_turns(IDLE, 1, AT_ONCE, move |key| {
                let (layer, users) = (layer.clone(), Arc::clone(&users));
                async move { assert!(passes(&layer, &users[key]).await) }
            }));
        let in_use = self.each(":ours");
        let began = Instant::now();
        // One that stays is weighed as it is.
        while self.each(":ours") > 0.0 && began.elapsed() < LONG {
            thread::sleep(Duration::from_millis(100));
        }
        vec![in_use, self.each(":ours")]
    }

    fn theirs(&mut self) -> Vec<Option<f64>> {
        let mut line = self.database.line();
        for user in &*users(IDLE) {
            let name = java(user.to_str().unwrap());
            redisson::set_rate(&name, SHORT, Duration::ZERO)
                .exec(&mut line)
                .unwrap();
        }
        let (script, users) = (self.script.clone(), users(IDLE));
        self.runtime
            .block_on(in_turns(IDLE, 1, AT_ONCE, move |key| {
                let (script, users) = (script.clone(), Arc::clone(&users));
                async move {
                    let name = java(users[key].to_str().unwrap());
                    assert!(script.try_acquire(&name).await);
                }
            }));
        let in_use = self.each(":java");
        thread::sleep(2 * KEEP_ALIVE);
        vec![Some(in_use), Some(self.each(":java"))]
    }
}

/// A name as long as one of ours.
fn java(user: &str) -> String {
    format!("ratelimit:{{{user}}}:java")
}
