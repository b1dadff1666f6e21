//! One call that finds 100,000 permits expired in a log of Redisson's format, which has an entry
//! for each.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::runtime::Runtime;
use tower_ratelimit::{Limit, RateLimiter, redis};

use super::Pace;
use crate::{
    contenders::Contender,
    database::Database,
    peers::redisson,
    row::{
        Contest,
        Goal::{AtMost, Reported},
        Rounds, Row, figure,
    },
};

const EXPIRED: u64 = 100_000;
const AFTERWARDS: usize = 100;
const INTERVAL: Duration = Duration::from_secs(60);

pub(super) fn rows(pace: Pace) -> [Row; 2] {
    let rounds = Rounds::of(1, pace.pick(9, 3));
    [
        Row {
            name: String::from("Redisson's format, 100,000 expired"),
            parameters: format!(
                "each a member, one call, {} s, server clock",
                INTERVAL.as_secs()
            ),
            beside: "Redisson's script on the same state",
            needs: &[Contender::Redis, Contender::RedissonScript],
            rounds,
            figures: vec![
                figure("ms of Redis, the whole log expired", AtMost(1.0)),
                figure("ms of Redis, all but the newest", AtMost(1.0)),
                figure("ms of Redis, the dearest of the next 100", AtMost(0.2)),
                figure("ms of Redis, all 100 together", Reported),
            ],
            begin: Box::new(|| Box::new(Logs::begin())),
        },
        Row {
            name: String::from("floor, Redisson's format, 100,000 expired"),
            parameters: String::from(
                "all but the newest, scripts of only the commands that a decision needs",
            ),
            beside: "EVALSHA of `return 1` with the same keys and arguments",
            needs: &[Contender::Redis, Contender::RedissonScript],
            rounds,
            figures: [
                "ms of Redis, the first call",
                "ms of Redis, the dearest of the next 100",
                "ms of Redis, all 100 together",
            ]
            .map(|name| figure(name, Reported))
            .to_vec(),
            begin: Box::new(|| Box::new(Commands::begin())),
        },
    ]
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
const FLOOR: &str = "expiry-floor";

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
    fn call(&self, take: impl FnOnce(&Self)) -> f64 {
        let before = self.database.scripts();
        take(self);
        (self.database.scripts() - before).cost as f64 / 1000.0
    }

    /// The four figures.
    fn turn(&mut self, name: &str, take: impl Fn(&Self)) -> [f64; 4] {
        self.fill(name, false);
        let whole = self.call(&take);
        let [first, dearest, sum] = self.all_but_the_newest(name, |logs, _| take(logs));
        [whole, first, dearest, sum]
    }

    /// The first call, the dearest of those after it, and all of these together.
    fn all_but_the_newest(&mut self, name: &str, mut take: impl FnMut(&Self, u64)) -> [f64; 3] {
        self.fill(name, true);
        let first = self.call(|logs| take(logs, 0));
        let next = (1..=AFTERWARDS as u64).map(|call| self.call(|logs| take(logs, call)));
        let next: Vec<f64> = next.collect();
        let dearest = next.iter().copied().fold(0.0, f64::max);
        [first, dearest, next.into_iter().sum()]
    }
}

/// The commands of one call that finds many expired, and looks at no answer.
const COMMANDS: &str = "
local call = redis.call
local time = call('TIME')
local now = time[1] .. string.sub('00000' .. time[2], -6, -4)
local value, log = KEYS[2], KEYS[3]
call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime')
call('GET', value)
call('ZCARD', log)
call('ZRANGE', log, '0', '1', 'WITHSCORES')
call('ZCOUNT', log, '-inf', string.format('%d', now - 60000))
call('ZRANGE', log, '0', '100')
call('ZADD', log, 'NX', now, ARGV[2])
call('ZREMRANGEBYRANK', log, '0', '100')
call('ZRANGE', log, '0', '0', 'WITHSCORES')
call('INCRBY', value, '100')
call('PTTL', value)
return '1099511627775 0'
";

/// The same state, and only the commands of a decision.
struct Commands {
    logs: Logs,
    ours: String,
    bare: String,
}

impl Commands {
    fn begin() -> Self {
        let mut logs = Logs::begin();
        let mut load = |script| {
            let mut load = redis::cmd("SCRIPT");
            load.arg("LOAD").arg(script).query(&mut logs.line).unwrap()
        };
        let (ours, bare) = (load(COMMANDS), load("return 1"));
        Self { logs, ours, bare }
    }

    fn turn(&mut self, hash: &str) -> Vec<f64> {
        let mut line = self.logs.database.line();
        let keys = [
            FLOOR.to_owned(),
            redisson::companion(FLOOR, "value"),
            redisson::companion(FLOOR, "permits"),
        ];
        let turn = self.logs.all_but_the_newest(FLOOR, |_, id| {
            let mut call = redis::cmd("EVALSHA");
            call.arg(hash).arg(3).arg(&keys);
            call.arg("code 1099511627776 60000 0 3600000");
            call.arg(member((1 << 32) + id)).exec(&mut line).unwrap();
        });
        turn.into()
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

impl Contest for Commands {
    fn ours(&mut self) -> Vec<f64> {
        self.turn(&self.ours.clone())
    }

    fn theirs(&mut self) -> Vec<Option<f64>> {
        let turn = self.turn(&self.bare.clone());
        turn.into_iter().map(Some).collect()
    }
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
