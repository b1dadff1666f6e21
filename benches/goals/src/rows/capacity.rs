//! What a decision costs a busy Redis server in all, by format, algorithm and company: the figures
//! of `src/docs/capacity.md`, and of `benches/fleet/world/cost.rs`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use http::HeaderValue;
use tokio::{runtime::Runtime, task::JoinSet};
use tower_ratelimit::{Algorithm, Limit, RateLimitLayer, RedisStoreBuilder, Rule};

use super::Pace;
use crate::{
    contenders::Contender,
    database::Database,
    requests::{by_user, passes, users},
    row::{Contest, Goal::Reported, Rounds, Row, figure},
};

/// In the longest interval of a rule, so that logs hold what they do in use: nothing is refused.
const PERMITS: u64 = 1_000_000;
const KEYS: usize = 10_000;

/// Who asks at once. Each store is a process of a fleet, with a connection of its own.
#[derive(Clone, Copy)]
pub(super) struct Crowd {
    stores: usize,
    /// Of each store, one request after the other
    callers: usize,
    /// How many keys they have in turn
    pub(super) keys: usize,
    pub(super) name: &'static str,
}

/// A call for each decision
pub(super) const ALONE: Crowd = Crowd {
    stores: 32,
    callers: 1,
    keys: KEYS,
    name: "alone",
};
pub(super) const MANY_KEYS: Crowd = Crowd {
    stores: 4,
    callers: 64,
    keys: KEYS,
    name: "many keys at once",
};
const ONE_KEY: Crowd = Crowd {
    keys: 1,
    name: "one key at once",
    ..MANY_KEYS
};

/// A way to count: its name, whether it is in Redisson's format, and its rules.
type Way = (&'static str, bool, fn() -> Vec<Rule>);

const LOG: Way = ("sliding log", false, || {
    vec![Limit::per_second(PERMITS).by(by_user())]
});
const JOINED: [Way; 4] = [
    LOG,
    ("GCRA", false, || by(Algorithm::Gcra)),
    ("fixed window", false, || by(Algorithm::FixedWindow)),
    ("calendar", false, || {
        vec![Limit::daily(1 << 40).by(by_user())]
    }),
];
/// Those of Redisson's format, which joins callers of one key alone.
const REDISSON: [Way; 3] = [
    ("Redisson's log", true, LOG.2),
    ("Redisson's log in slots", true, || {
        vec![LOG.2().remove(0).slots(100)]
    }),
    ("Redisson's window", true, || by(Algorithm::FixedWindow)),
];
const LISTS: [Way; 2] = [
    ("list of three limits", false, || {
        let rule = |name| LOG.2().remove(0).named(name);
        ["a", "b", "c"].map(rule).into()
    }),
    ("three limits of a rule", false, || {
        let shorter = [(4, 250), (7, 500)]
            .map(|(tenths, ms)| Limit::new(PERMITS / 10 * tenths, Duration::from_millis(ms)));
        let longest = Limit::per_second(PERMITS);
        vec![shorter.into_iter().fold(longest, Limit::and).by(by_user())]
    }),
];
const SETTLED: [Way; 2] = [
    ("a grant and its correction", false, || {
        vec![LOG.2().remove(0).charge_if(|_| false)]
    }),
    ("a place in flight and its end", false, || {
        vec![Limit::in_flight(1000, Duration::from_secs(1)).by(by_user())]
    }),
];

fn by(algorithm: Algorithm) -> Vec<Rule> {
    vec![LOG.2().remove(0).algorithm(algorithm)]
}

pub(super) fn rows(pace: Pace) -> impl Iterator<Item = Row> {
    let of = |crowd| move |way| (way, crowd);
    let joined = [ALONE, MANY_KEYS, ONE_KEY].map(|crowd| JOINED.map(of(crowd)));
    let redisson = [ALONE, ONE_KEY].map(|crowd| REDISSON.map(of(crowd)));
    let kinds = joined.into_iter().flatten();
    let kinds = kinds.chain(redisson.into_iter().flatten());
    let turn = Duration::from_millis(pace.pick(500, 100));
    let settled = [ALONE, MANY_KEYS, ONE_KEY].map(|crowd| SETTLED.map(of(crowd)));
    kinds
        .chain(LISTS.map(of(ALONE)))
        .chain(settled.into_iter().flatten())
        .map(move |(way, crowd)| Row {
            name: format!("capacity, {}, {}", way.0, crowd.name),
            parameters: format!("{}, {} ms a turn", crowd.about(), turn.as_millis()),
            beside: "the sliding log, alone",
            needs: &[Contender::Redis],
            rounds: Rounds::of(2, pace.pick(9, 1)),
            figures: vec![
                figure("µs of processor of Redis a decision", Reported),
                figure("of these in scripts, by its own account", Reported),
                figure("decisions a command", Reported),
            ],
            begin: Box::new(move || Box::new(Sides::begin(turn, way, crowd))),
        })
}

/// A way to count, and the one that all are measured beside.
struct Sides {
    turn: Duration,
    runtime: Runtime,
    sides: [(Database, Asking); 2],
}

impl Sides {
    fn begin(turn: Duration, way: Way, crowd: Crowd) -> Self {
        let runtime = runtime();
        let _inside = runtime.enter();
        let side = |(_, redisson, rules): Way, crowd: Crowd| {
            let database = Database::start();
            let asking = Asking::begin(crowd, rules, users(crowd.keys), || {
                let store = database.builder();
                if redisson { store.redisson() } else { store }
            });
            (database, asking)
        };
        Self {
            turn,
            sides: [side(way, crowd), side(LOG, ALONE)],
            runtime,
        }
    }

    fn turn(&self, side: usize) -> [f64; 3] {
        let (database, asking) = &self.sides[side];
        let (busy, scripts) = (database.busy(), database.scripts());
        let decisions = asking.turn(&self.runtime, self.turn) as f64;
        let (busy, scripts) = (database.busy() - busy, database.scripts() - scripts);
        [
            busy.as_secs_f64() * 1e6 / decisions,
            scripts.cost as f64 / decisions,
            decisions / scripts.calls as f64,
        ]
    }
}

impl Contest for Sides {
    fn ours(&mut self) -> Vec<f64> {
        self.turn(0).into()
    }

    fn theirs(&mut self) -> Vec<Option<f64>> {
        self.turn(1).map(Some).into()
    }
}

pub(super) fn runtime() -> Runtime {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build().unwrap()
}

impl Crowd {
    pub(super) fn about(&self) -> String {
        format!(
            "{} connections with {} callers each, keys: {}, all admitted",
            self.stores, self.callers, self.keys
        )
    }
}

/// A crowd with its layers.
pub(super) struct Asking {
    crowd: Crowd,
    layers: Vec<RateLimitLayer>,
    users: Arc<[HeaderValue]>,
}

impl Asking {
    pub(super) fn begin(
        crowd: Crowd,
        rules: fn() -> Vec<Rule>,
        users: Arc<[HeaderValue]>,
        store: impl Fn() -> RedisStoreBuilder,
    ) -> Self {
        let layer = |_| RateLimitLayer::builder(&store().build().unwrap()).otherwise(rules());
        Self {
            crowd,
            layers: (0..crowd.stores)
                .map(|at| layer(at).build().unwrap())
                .collect(),
            users,
        }
    }

    /// All ask for so long, each again as soon as it is answered. Returns the number of decisions.
    pub(super) fn turn(&self, runtime: &Runtime, time: Duration) -> u64 {
        let over = Arc::new(AtomicBool::new(false));
        let all = self.crowd.stores * self.crowd.callers;
        let callers = (0..all).map(|caller| {
            let layer = self.layers[caller % self.layers.len()].clone();
            let (users, over) = (Arc::clone(&self.users), Arc::clone(&over));
            async move {
                let mut asked = 0;
                let keys = (caller..).step_by(all).map(|key| key % users.len());
                for key in keys.take_while(|_| !over.load(Relaxed)) {
                    assert!(passes(&layer, &users[key]).await);
                    asked += 1;
                }
                asked
            }
        });
        let asked = runtime.block_on(async {
            let callers: JoinSet<_> = callers.collect();
            tokio::time::sleep(time).await;
            over.store(true, Relaxed);
            callers.join_all().await
        });
        // What was granted last is corrected in the background.
        thread::sleep(Duration::from_millis(50));
        asked.into_iter().sum()
    }
}
