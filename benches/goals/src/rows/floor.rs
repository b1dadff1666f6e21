//! What one decision costs Redis, beside a script that only returns, called with the same keys and
//! arguments.

use std::{sync::Arc, time::Duration};

use http::HeaderValue;
use tokio::runtime::Runtime;
use tower_ratelimit::{Algorithm, Limit, RateLimitLayer, redis};

use super::Pace;
use crate::{
    commands::{
        self, ADMITTED_GCRA, BATCH_OF_12, BATCH_OF_64, BATCH_OF_64_BY_GCRA, LIST, LONE_EXPIRED,
        LONE_IN_USE, REFUSED_GCRA, RUN, SEVERAL,
    },
    contenders::Contender,
    database::Database,
    requests::{by_user, in_turns, passes, users},
    row::{Contest, Goal, Rounds, Row, figure},
};
use kit::Reply;

const KEYS: usize = 100;
const TIMES: usize = 10;
const AT_ONCE: usize = 10;

const SPENT: Limit = Limit::per_day(1);
/// One in a microsecond: the most that every way of counting can tell apart.
const AMPLE: Limit = Limit::new(60_000_000, Duration::from_secs(60));

const WAYS: [(&str, Algorithm); 3] = [
    ("sliding log", Algorithm::SlidingLog),
    ("fixed window", Algorithm::FixedWindow),
    ("GCRA", Algorithm::Gcra),
];

pub(super) fn rows(pace: Pace) -> impl Iterator<Item = Row> {
    let kinds = WAYS.into_iter().flat_map(|(name, algorithm)| {
        [
            (name, algorithm, "refused", SPENT),
            (name, algorithm, "admitted", AMPLE),
        ]
    });
    kinds.map(move |(name, algorithm, verdict, limit)| Row {
        name: format!("server cost, {name}, {verdict}"),
        parameters: format!(
            "{} in {} s, server clock, {KEYS} keys, {} calls a turn, {AT_ONCE} in flight",
            limit.permits(),
            limit.interval().as_secs(),
            KEYS * TIMES
        ),
        beside: "EVALSHA of `return 1` with the same keys and arguments",
        needs: &[Contender::Redis],
        rounds: Rounds::of(2, pace.pick(41, 5)),
        figures: vec![figure("µs of Redis per decision", Goal::Reported)],
        begin: Box::new(move || Box::new(Calls::begin(algorithm, limit))),
    })
}

/// Of only the commands that a decision cannot do without, in the place of the layer.
pub(super) fn commands(pace: Pace) -> impl Iterator<Item = Row> {
    let kinds = [
        LONE_IN_USE,
        LONE_EXPIRED,
        RUN,
        BATCH_OF_12,
        BATCH_OF_64,
        BATCH_OF_64_BY_GCRA,
        LIST,
        SEVERAL,
        REFUSED_GCRA,
        ADMITTED_GCRA,
    ];
    kinds.into_iter().map(move |kind| Row {
        name: format!("floor, commands alone, {}", kind.name),
        parameters: format!(
            "a script of only the commands that a decision needs, {} decisions a call, {KEYS} calls a turn, one at a time",
            kind.callers
        ),
        beside: "EVALSHA of `return 1` with the same keys and arguments",
        needs: &[Contender::Redis],
        rounds: Rounds::of(2, pace.pick(41, 5)),
        figures: vec![figure("µs of Redis per decision", Goal::Reported)],
        begin: Box::new(move || Box::new(Commands::begin(kind))),
    })
}

struct Commands {
    runtime: Runtime,
    database: Database,
    connection: redis::aio::MultiplexedConnection,
    kind: commands::Calls,
    ours: String,
    bare: String,
}

impl Commands {
    fn begin(kind: commands::Calls) -> Self {
        let (runtime, database) = (Runtime::new().unwrap(), Database::start());
        let mut connection = runtime.block_on(database.connection());
        Self {
            ours: runtime.block_on(kind.load(&mut connection, false)),
            bare: runtime.block_on(kind.load(&mut connection, true)),
            runtime,
            database,
            connection,
            kind,
        }
    }

    fn turn(&mut self, hash: &str) -> f64 {
        let (kind, line) = (self.kind, &mut self.connection);
        self.runtime.block_on(kind.prepare(line, KEYS));
        let calls: Vec<_> = (0..KEYS).map(|call| kind.call(hash, call)).collect();
        let turn = async {
            for call in calls {
                let _: redis::Value = call.query_async(line).await.unwrap();
            }
        };
        self.database
            .cost(KEYS * kind.callers, || self.runtime.block_on(turn))
    }
}

impl Contest for Commands {
    fn ours(&mut self) -> Vec<f64> {
        vec![self.turn(&self.ours.clone())]
    }

    fn theirs(&mut self) -> Vec<Option<f64>> {
        vec![Some(self.turn(&self.bare.clone()))]
    }
}

struct Calls {
    runtime: Runtime,
    database: Database,
    users: Arc<[HeaderValue]>,
    layer: RateLimitLayer,
    connection: redis::aio::MultiplexedConnection,
    /// A call of `return 1`
    bare: Arc<redis::Cmd>,
}

impl Calls {
    fn begin(algorithm: Algorithm, limit: Limit) -> Self {
        let runtime = Runtime::new().unwrap();
        let database = Database::start();
        let _inside = runtime.enter();
        let rule = limit.by(by_user()).named("goal").algorithm(algorithm);
        let layer = RateLimitLayer::builder(&database.store())
            .otherwise(rule)
            .build()
            .unwrap();
        let users = users(KEYS);
        let (bare, connection) = runtime.block_on(async {
            // The first brings the script, the second is as all others are.
            passes(&layer, &users[0]).await;
            database.cli(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
            passes(&layer, &users[0]).await;
            database.cli(&["CONFIG", "SET", "slowlog-log-slower-than", "-1"]);
            (bare(&database), database.connection().await)
        });
        Self {
            runtime,
            database,
            users,
            layer,
            connection,
            bare: Arc::new(bare),
        }
    }
}

/// The last call that the server has noted down, with a script that only returns in the place of
/// its own.
fn bare(database: &Database) -> redis::Cmd {
    let Reply::Array(entries) = database.command(&["SLOWLOG", "GET", "16"]) else {
        panic!("no slow log");
    };
    let call = entries.into_iter().find_map(|entry| match entry {
        Reply::Array(mut fields) if fields.len() > 3 => match fields.swap_remove(3) {
            Reply::Array(words) => words
                .into_iter()
                .map(|word| match word {
                    Reply::Bulk(bytes) => Some(bytes),
                    _ => None,
                })
                .collect::<Option<Vec<_>>>()
                .filter(|words| words[0].eq_ignore_ascii_case(b"EVALSHA")),
            _ => None,
        },
        _ => None,
    });
    let mut call = call.expect("an EVALSHA").into_iter();
    let mut bare = redis::cmd("EVALSHA");
    bare.arg(database.cli(&["SCRIPT", "LOAD", "return 1"]));
    call.by_ref().take(2).for_each(drop);
    call.for_each(|word| {
        bare.arg(word);
    });
    bare
}

impl Contest for Calls {
    fn ours(&mut self) -> Vec<f64> {
        let (layer, users) = (self.layer.clone(), Arc::clone(&self.users));
        let turn = in_turns(KEYS, TIMES, AT_ONCE, move |key| {
            let (layer, users) = (layer.clone(), Arc::clone(&users));
            async move {
                passes(&layer, &users[key]).await;
            }
        });
        vec![
            self.database
                .cost(KEYS * TIMES, || self.runtime.block_on(turn)),
        ]
    }

    fn theirs(&mut self) -> Vec<Option<f64>> {
        let (connection, bare) = (self.connection.clone(), Arc::clone(&self.bare));
        let turn = in_turns(KEYS, TIMES, AT_ONCE, move |_| {
            let (mut connection, bare) = (connection.clone(), Arc::clone(&bare));
            async move {
                let one: i64 = bare.query_async(&mut connection).await.unwrap();
                assert_eq!(one, 1);
            }
        });
        let cost = self
            .database
            .cost(KEYS * TIMES, || self.runtime.block_on(turn));
        vec![Some(cost)]
    }
}
