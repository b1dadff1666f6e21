//! One call that finds 100,000 permits expired.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::runtime::Runtime;
use tower_ratelimit::{Limit, RateLimiter, redis};

use super::Pace;
use crate::{
    contenders::Contender,
    database::Database,
    peers::redisson,
    row::{
        Contest, Figure,
        Goal::{AtMost, Reported},
        Rounds, Row,
    },
};

const EXPIRED: u64 = 100_000;
const AFTERWARDS: usize = 100;
const INTERVAL: Duration = Duration::from_secs(60);

pub(super) fn rows(pace: Pace) -> [Row; 1] {
    [Row {
        name: String::from("100,000 permits expired"),
        parameters: format!(
            "each a member, one call, {} s, server clock",
            INTERVAL.as_secs()
        ),
        beside: "Redisson's script on the same state",
        needs: &[Contender::Redis, Contender::RedissonScript],
        rounds: Rounds {
            warm_up: 1,
            counted: pace.pick(9, 3),
        },
        figures: vec![
            Figure {
                name: "ms of Redis, the whole log expired",
                goal: AtMost(1.0),
            },
            Figure {
                name: "ms of Redis, all but the newest",
                goal: AtMost(1.0),
            },
            Figure {
                name: "ms of Redis, the dearest of the next 100",
                goal: AtMost(0.2),
            },
            Figure {
                name: "ms of Redis, all 100 together",
                goal: Reported,
            },
        ],
        begin: Box::new(|| Box::new(Logs::begin())),
    }]
}

struct Logs {
    runtime: Runtime,
    database: Database,
    line: redis::Connection,
    limiter: RateLimiter,
    script: redisson::Script,
}

const OURS: &str = "expiry-ours";
const JAVA: &str = "expiry-java";

impl Logs {
    fn begin() -> Self {
        let runtime = Runtime::new().unwrap();
        let database = Database::start();
        let _inside = runtime.enter();
        let script =
            runtime.block_on(async { redisson::Script::load(database.connection().await).await });
        Self {
            line: database.line(),
            limiter: RateLimiter::new(&database.store(), OURS).unwrap(),
            script,
            database,
            runtime,
        }
    }

    /// A limiter all of whose permits are taken: so many too long ago, and perhaps one just now.
    fn fill(&mut self, name: &str, newest: bool) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let now = now.as_millis() as u64;
        let long_ago = now - 2 * INTERVAL.as_millis() as u64;
        let log = redisson::companion(name, "permits");
        let value = redisson::companion(name, "value");
        let limit = Limit::new(EXPIRED + u64::from(newest), INTERVAL);
        let mut pipeline = redis::pipe();
        pipeline
            .del(&[name, &value, &log])
            .ignore()
            .add_command(redisson::set_rate(name, limit, Duration::ZERO))
            .ignore()
            .set(&value, 0)
            .ignore();
        let ids: Vec<u64> = (0..EXPIRED).collect();
        for ids in ids.chunks(1000) {
            let members: Vec<(u64, Vec<u8>)> = ids
                .iter()
                .map(|id| (long_ago + id / 10, member(*id)))
                .collect();
            pipeline.zadd_multiple(&log, &members).ignore();
        }
        if newest {
            pipeline.zadd(&log, member(EXPIRED), now).ignore();
        }
        pipeline.exec(&mut self.line).unwrap();
    }

    /// Milliseconds of one call that takes a permit.
    fn call(&self, take: impl Fn(&Self)) -> f64 {
        let before = self.database.scripts();
        take(self);
        (self.database.scripts() - before).cost as f64 / 1000.0
    }

    /// The four figures.
    fn turn(&mut self, name: &str, take: impl Fn(&Self)) -> [f64; 4] {
        self.fill(name, false);
        let whole = self.call(&take);
        self.fill(name, true);
        let first = self.call(&take);
        let next: Vec<f64> = (0..AFTERWARDS).map(|_| self.call(&take)).collect();
        let dearest = next.iter().copied().fold(0.0, f64::max);
        [whole, first, dearest, next.into_iter().sum()]
    }
}

/// As Redisson packs one permit.
fn member(id: u64) -> Vec<u8> {
    let mut member = vec![16];
    member.extend(id.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    member.extend(id.to_le_bytes());
    member.extend(1_u32.to_le_bytes());
    member
}

impl Contest for Logs {
    fn ours(&mut self) -> Vec<f64> {
        let turn = self.turn(OURS, |logs| {
            let decision = logs.runtime.block_on(logs.limiter.try_acquire());
            assert!(decision.unwrap().is_allowed());
        });
        turn.into()
    }

    fn theirs(&mut self) -> Vec<Option<f64>> {
        let turn = self.turn(JAVA, |logs| {
            assert!(logs.runtime.block_on(logs.script.try_acquire(JAVA)));
        });
        turn.map(Some).into()
    }
}
