//! What limiters weigh in Redis.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use tokio::runtime::Runtime;
use tower_ratelimit::{
    Algorithm, Limit, RateLimitLayer, RateLimiter, RedisStore, redis, testing::ManualClock,
};

use super::Pace;
use crate::{
    contenders::Contender,
    database::Database,
    peers::redisson,
    requests::{by_user, in_turns, passes, users},
    row::{Contest, Goal::AtMost, Rounds, Row, figure},
};

const AT_ONCE: usize = 64;

/// Limiters that count so, with as many grants, and what one may weigh.
type Kept = (&'static str, Algorithm, usize, f64);

const KEPT: [Kept; 4] = [
    ("log, 1 grant", Algorithm::SlidingLog, 1, 160.0),
    ("log, 10 grants", Algorithm::SlidingLog, 10, 500.0),
    ("log, 1,000 grants", Algorithm::SlidingLog, 1000, 30_000.0),
    ("GCRA, 1 grant", Algorithm::Gcra, 1, 170.0),
];
/// Of our limits: the grants are of its half.
const DAILY: Limit = Limit::per_day(2000);

const PERMITS: usize = 100_000;
const LIVE: Limit = Limit::per_hour(PERMITS as u64);

pub(super) fn rows(pace: Pace) -> impl Iterator<Item = Row> {
    let kept = KEPT.into_iter().map(|(name, algorithm, grants, most)| Row {
        name: format!("redis memory, {name}"),
        parameters: format!(
            "a rule of {} per day, of which a permit is taken every 43 s",
            DAILY.permits()
        ),
        beside: "Redisson's script, as many at one moment",
        needs: &[Contender::Redis, Contender::RedissonScript],
        rounds: Rounds::ONCE,
        figures: vec![figure("bytes", AtMost(most))],
        begin: Box::new(move || {
            let memory = Memory::begin(|store| {
                let rule = DAILY.by(by_user()).named("ours").algorithm(algorithm);
                RateLimitLayer::new(store, rule)
                    .limiter("ours", ["user-0000000"])
                    .unwrap()
            });
            Box::new((memory, DAILY, grants))
        }),
    });
    let slots = Row {
        name: String::from("Redisson's format, memory in 1000 slots"),
        parameters: String::from(
            "one limit of 100,000 per hour, each permit taken for itself, one after the other in that hour",
        ),
        beside: "Redisson's script",
        needs: &[Contender::Redis, Contender::RedissonScript],
        rounds: Rounds::ONCE,
        figures: vec![figure("bytes", AtMost(150_000.0))],
        begin: Box::new(|| {
            let memory = Memory::begin(|store| {
                let limiter = RateLimiter::new(store, "ours").unwrap();
                limiter.slots(1000).unwrap()
            });
            let set = memory.limiter.try_set_rate(LIVE);
            assert!(memory.runtime.block_on(set).unwrap());
            Box::new((memory, LIVE, PERMITS))
        }),
    };
    let idle = Row {
        name: String::from("redis memory, idle limiter"),
        parameters: format!(
            "{IDLE} users, 10 in {} ms each",
            SHORT.interval().as_millis()
        ),
        beside: "Redisson's script, without a keep-alive time, as is usual",
        needs: &[Contender::Redis, Contender::RedissonScript],
        rounds: Rounds::of(0, pace.pick(3, 1)),
        figures: vec![figure("bytes when it has expired", AtMost(0.0))],
        begin: Box::new(|| Box::new(Idle::begin())),
    };
    kept.chain([idle, slots])
}

/// A limiter whose permits are taken while a clock moves on.
struct Memory {
    runtime: Runtime,
    database: Database,
    clock: ManualClock,
    limiter: RateLimiter,
}

impl Memory {
    fn begin(limiter: impl FnOnce(&RedisStore) -> RateLimiter) -> Self {
        let runtime = Runtime::new().unwrap();
        let database = Database::start();
        let inside = runtime.enter();
        let clock = ManualClock::new();
        let store = database.builder().client_clock(clock.clone());
        let limiter = limiter(&store.build().unwrap());
        drop(inside);
        Self {
            runtime,
            database,
            clock,
            limiter,
        }
    }
}

/// With a limit, and how many permits are taken.
impl Contest for (Memory, Limit, usize) {
    fn ours(&mut self) -> Vec<f64> {
        let (memory, limit, grants) = (&self.0, self.1, self.2);
        let step = limit.interval() / limit.permits() as u32;
        let (limiter, clock) = (memory.limiter.clone(), memory.clock.clone());
        let turn = in_turns(grants, 1, 1, move |_| {
            let limiter = limiter.clone();
            clock.advance(step);
            async move { assert!(limiter.try_acquire().await.unwrap().is_allowed()) }
        });
        memory.runtime.block_on(turn);
        vec![memory.database.weight("ours") as f64]
    }

    fn theirs(&mut self) -> Vec<Option<f64>> {
        let (memory, limit, grants) = (&self.0, self.1, self.2);
        let mut line = memory.database.line();
        let text = redisson::script().unwrap_or_else(|missing| panic!("{missing}"));
        redis::cmd("SCRIPT")
            .arg("LOAD")
            .arg(text)
            .exec(&mut line)
            .unwrap();
        let name = "java";
        redisson::set_rate(name, limit, Duration::ZERO)
            .exec(&mut line)
            .unwrap();
        // Each has an id of its own.
        let calls: Vec<_> = (0..grants).map(|_| redisson::try_acquire(name)).collect();
        for calls in calls.chunks(1000) {
            let mut pipeline = redis::pipe();
            for call in calls {
                pipeline.add_command(call.clone());
            }
            let granted: Vec<Option<i64>> = pipeline.query(&mut line).unwrap();
            assert!(granted.iter().all(Option::is_none), "one was refused");
        }
        vec![Some(memory.database.weight(name) as f64)]
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
        let began = Instant::now();
        // One that stays is weighed as it is.
        while self.each(":ours") > 0.0 && began.elapsed() < LONG {
            thread::sleep(Duration::from_millis(100));
        }
        vec![self.each(":ours")]
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
        thread::sleep(2 * KEEP_ALIVE);
        vec![Some(self.each(":java"))]
    }
}

/// A name as long as one of ours.
fn java(user: &str) -> String {
    format!("ratelimit:{{{user}}}:java")
}
