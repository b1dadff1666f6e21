//! What one decision on the sliding log in Redisson's format costs Redis, beside its own script.

use std::{sync::Arc, time::Duration};

use http::HeaderValue;
use tokio::runtime::Runtime;
use tower_ratelimit::{Limit, RateLimitLayer, SystemClock};

use super::Pace;
use crate::{
    contenders::Contender,
    database::Database,
    peers::redisson,
    requests::{by_user, in_turns, passes, users},
    row::{Contest, Goal::RatioAtMost, Rounds, Row, figure},
};

const KEYS: usize = 50;
const TIMES: usize = 10;
const AT_ONCE: usize = 10;

const SPENT: Limit = Limit::per_day(10);
const AMPLE: Limit = Limit::per_minute(1 << 40);

/// What a row has of its own: a name, a limit, whether the clock is the client's, whether remaining
/// is read, and the goal.
type Kind = (&'static str, Limit, bool, bool, f64);

const KINDS: [Kind; 6] = [
    ("refused, client clock", SPENT, true, false, 0.60),
    ("admitted, client clock", AMPLE, true, false, 0.65),
    ("refused, server clock", SPENT, false, false, 0.65),
    ("admitted, server clock", AMPLE, false, false, 0.75),
    ("refused, server clock, exact", SPENT, false, true, 0.70),
    ("admitted, server clock, exact", AMPLE, false, true, 0.90),
];

pub(super) fn rows(pace: Pace) -> impl Iterator<Item = Row> {
    KINDS.into_iter().map(move |(name, limit, client_clock, exact, goal)| Row {
        name: format!("Redisson's format, {name}"),
        parameters: format!(
            "sliding log, {} in {} s, keep-alive, {KEYS} keys, {} calls a turn, {AT_ONCE} in flight, remaining {}",
            limit.permits(),
            limit.interval().as_secs(),
            KEYS * TIMES,
            if exact { "read" } else { "not read" },
        ),
        beside: "Redisson's script, called likewise",
        needs: &[Contender::Redis, Contender::RedissonScript],
        rounds: Rounds::of(2, pace.pick(41, 5)),
        figures: vec![figure("µs of Redis per decision", RatioAtMost(goal))],
        begin: Box::new(move || Box::new(Decisions::begin(limit, client_clock, exact))),
    })
}

struct Decisions {
    runtime: Runtime,
    database: Database,
    users: Arc<[HeaderValue]>,
    layer: RateLimitLayer,
    script: redisson::Script,
    names: Arc<[String]>,
    /// Those of a log that has room; where it has none, none after the first turn.
    granted: bool,
    turns: [usize; 2],
}

impl Decisions {
    fn begin(limit: Limit, client_clock: bool, exact: bool) -> Self {
        let runtime = Runtime::new().unwrap();
        let database = Database::start();
        let _inside = runtime.enter();
        let mut store = database.builder().redisson();
        if client_clock {
            store = store.client_clock(SystemClock);
        }
        let layer = RateLimitLayer::builder(&store.build().unwrap())
            .otherwise(limit.by(by_user()).named("ours"))
            .count_remaining(exact)
            .build()
            .unwrap();
        let users = users(KEYS);
        let names: Arc<[String]> = users
            .iter()
            .map(|user| format!("ratelimit:{{{}}}:java", user.to_str().unwrap()))
            .collect();
        let script = runtime.block_on(async {
            let mut connection = database.connection().await;
            let keep_alive = (2 * limit.interval()).max(Duration::from_secs(60));
            for name in &*names {
                let set_rate = redisson::set_rate(name, limit, keep_alive);
                set_rate.exec_async(&mut connection).await.unwrap();
            }
            redisson::Script::load(connection).await
        });
        Self {
            runtime,
            database,
            users,
            layer,
            script,
            names,
            granted: limit == AMPLE,
            turns: [0; 2],
        }
    }

    /// What a decision must be by now.
    fn expected(&mut self, side: usize) -> bool {
        self.turns[side] += 1;
        // Ten of ten are taken in the first turn.
        self.granted || self.turns[side] == 1
    }
}

impl Contest for Decisions {
    fn ours(&mut self) -> Vec<f64> {
        let expected = self.expected(0);
        let (layer, users) = (self.layer.clone(), Arc::clone(&self.users));
        let turn = in_turns(KEYS, TIMES, AT_ONCE, move |key| {
            let (layer, users) = (layer.clone(), Arc::clone(&users));
            async move { assert_eq!(passes(&layer, &users[key]).await, expected) }
        });
        vec![
            self.database
                .cost(KEYS * TIMES, || self.runtime.block_on(turn)),
        ]
    }

    fn theirs(&mut self) -> Vec<Option<f64>> {
        let expected = self.expected(1);
        let (script, names) = (self.script.clone(), Arc::clone(&self.names));
        let turn = in_turns(KEYS, TIMES, AT_ONCE, move |key| {
            let (script, names) = (script.clone(), Arc::clone(&names));
            async move { assert_eq!(script.try_acquire(&names[key]).await, expected) }
        });
        let cost = self
            .database
            .cost(KEYS * TIMES, || self.runtime.block_on(turn));
        vec![Some(cost)]
    }
}
