//! How long one decision takes where nothing else is asked.

use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tower_ratelimit::{
    Limit, RateLimiter, RedisStore,
    redis::{self, aio::MultiplexedConnection},
};

use super::Pace;
use crate::{
    contenders::Contender,
    database::{Database, TIME_LIMIT},
    requests::one_thread,
    row::{Contest, Goal::RatioAtMost, Rounds, Row, figure},
};

const AMPLE: Limit = Limit::per_second(1_000_000);
const PAUSE: Duration = Duration::from_millis(1);

pub(super) fn row(pace: Pace) -> Row {
    let calls = pace.pick(500, 100);
    Row {
        name: String::from("latency"),
        parameters: format!(
            "one at a time, admitted, {calls} calls a turn, a pause of {} ms between two, one thread",
            PAUSE.as_millis()
        ),
        beside: "PING on the same connection",
        needs: &[Contender::Redis],
        rounds: Rounds::of(1, pace.pick(15, 3)),
        figures: vec![
            figure("µs, p50", RatioAtMost(1.7)),
            figure("µs, p99", RatioAtMost(2.0)),
        ],
        begin: Box::new(move || Box::new(Line::begin(calls))),
    }
}

struct Line {
    calls: usize,
    runtime: Runtime,
    connection: MultiplexedConnection,
    limiter: RateLimiter,
    /// The last to go
    _database: Database,
}

impl Line {
    fn begin(calls: usize) -> Self {
        let (runtime, database) = (one_thread(), Database::start());
        let (connection, limiter) = runtime.block_on(async {
            let connection = database.connection().await;
            let store = RedisStore::connection(connection.clone()).deadline(TIME_LIMIT);
            let store = store.build().unwrap();
            let limiter = AMPLE.named("latency").keyed(&store).unwrap().of("all");
            (connection, limiter)
        });
        Self {
            calls,
            runtime,
            connection,
            limiter,
            _database: database,
        }
    }

    /// The middle and the slowest hundredth, in microseconds.
    fn turn(&self, call: impl AsyncFn()) -> [f64; 2] {
        let mut took = self.runtime.block_on(async {
            let mut took = Vec::with_capacity(self.calls);
            for _ in 0..self.calls {
                tokio::time::sleep(PAUSE).await;
                let began = Instant::now();
                call().await;
                took.push(began.elapsed());
            }
            took
        });
        took.sort_unstable();
        let at = |hundredth: usize| took[took.len() * hundredth / 100].as_secs_f64() * 1e6;
        [at(50), at(99)]
    }
}

impl Contest for Line {
    fn ours(&mut self) -> Vec<f64> {
        let turn = self.turn(async || {
            assert!(self.limiter.try_acquire().await.unwrap().is_allowed());
        });
        turn.into()
    }

    fn theirs(&mut self) -> Vec<Option<f64>> {
        let turn = self.turn(async || {
            let mut connection = self.connection.clone();
            let pong: String = redis::cmd("PING")
                .query_async(&mut connection)
                .await
                .unwrap();
            assert_eq!(pong, "PONG");
        });
        turn.map(Some).into()
    }
}
