//! What plots show: this crate alone, over the rate, the size of a log and the number of keys.

use std::{
    fs,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use http::HeaderValue;
use tokio::{runtime::Runtime, task::JoinSet};
use tower::Layer;
use tower_ratelimit::{Algorithm, Limit, RateLimitLayer, Rule, Source, testing::ManualClock};

use crate::{
    database::Database,
    figures::median,
    governor,
    in_process::{AMPLE, Asker, FASTEST, asker, memory},
    machine::place,
    plot::Plot,
    requests::{by_user, decide, in_turns, nothing, one_thread, passes, users},
    rows::in_process::chunk,
};

const FOLDER: &str = "benches/plots";
const ROUNDS: usize = 5;

/// A plot: its names of file, title, axis below and axis beside, and what measures it.
type Kind = ([&'static str; 4], fn() -> Figures);
type Figures = (Vec<String>, Vec<(f64, Vec<Option<f64>>)>);

const KINDS: [Kind; 4] = [
    (
        [
            "latency",
            "Latency under load: 10,000 users, all admitted by one Redis",
            "decisions offered a second (evenly; open loop)",
            "ms from when a decision was due to its answer",
        ],
        latency,
    ),
    (
        [
            "rate",
            "What Redis pays for a decision, by rate: 10,000 users, all admitted",
            "decisions offered a second (evenly; open loop)",
            "µs of processor time of redis-server",
        ],
        rate,
    ),
    (
        [
            "log",
            "What a decision costs Redis, by permits in use: one call at a time",
            "permits in use (each taken for itself)",
            "µs of the script (INFO commandstats)",
        ],
        log,
    ),
    (
        [
            "keys",
            "What the layer adds to a request in memory, by users who ask in turn",
            "users",
            "ns added to an admitted request (one thread)",
        ],
        keys,
    ),
];

pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    KINDS.into_iter().map(|([name, ..], _)| name)
}

/// Measures a plot, and writes its figures and its picture.
pub(crate) fn measure(name: &str) {
    let known = KINDS.into_iter().find(|([known, ..], _)| *known == name);
    let ([name, title, below, beside], figures) = known.expect("a name of `names`");
    let measured = place();
    let (lines, rows) = figures();
    let plot = Plot {
        title: title.to_owned(),
        measured,
        below: below.to_owned(),
        beside: beside.to_owned(),
        lines,
        rows,
    };
    fs::create_dir_all(FOLDER).unwrap();
    fs::write(format!("{FOLDER}/{name}.csv"), plot.text()).unwrap();
    fs::write(format!("{FOLDER}/{name}.svg"), plot.svg()).unwrap();
}

/// Three digits say enough.
fn rounded(figure: f64) -> f64 {
    format!("{figure:.2e}").parse().expect("a number")
}

fn middle(figures: Vec<f64>) -> Option<f64> {
    Some(rounded(median(figures)))
}

/// What was seen of decisions that were due evenly.
struct Load {
    /// In milliseconds
    took: [f64; 3],
    /// Of redis-server, in microseconds
    busy: f64,
}

const RATES: [u32; 9] = [
    500, 1000, 2000, 5000, 10_000, 15_000, 20_000, 25_000, 30_000,
];

fn latency() -> Figures {
    let lines = ["p50", "p99", "p99.9"].map(str::to_owned).to_vec();
    let row = |rate: u32| {
        let took = offered(rate).map(|load| load.took);
        let figures = [0, 1, 2].map(|place| took.map(|it| rounded(it[place])));
        (f64::from(rate), figures.into())
    };
    (lines, RATES.map(row).into())
}

fn rate() -> Figures {
    let row = |rate: u32| {
        let busy = offered(rate).map(|load| rounded(load.busy));
        (f64::from(rate), vec![busy])
    };
    (vec![String::from("sliding log")], RATES.map(row).into())
}

/// Decisions are due one after the other, whether those before them are answered or not. None where
/// there are more than Redis answers: then others decide.
fn offered(rate: u32) -> Option<Load> {
    const SECONDS: u32 = 4;
    let database = Database::start();
    let runtime = Runtime::new().unwrap();
    let _inside = runtime.enter();
    let rule = Limit::per_minute(1 << 40).by(by_user());
    let layer = RateLimitLayer::new(&database.store(), rule);
    let users = users(10_000);
    runtime.block_on(async {
        for user in &users[..64] {
            assert!(passes(&layer, user).await);
        }
    });
    let (before, began) = (database.busy(), Instant::now());
    let mut tasks = JoinSet::new();
    for place in 0..rate * SECONDS {
        let due = began + Duration::from_secs(1) * place / rate;
        if let Some(early) = due.checked_duration_since(Instant::now()) {
            thread::sleep(early);
        }
        let (layer, user) = (layer.clone(), users[place as usize % users.len()].clone());
        tasks.spawn(async move {
            let source = decide(&layer, &user).await.source();
            (source == Source::Store).then(|| due.elapsed())
        });
    }
    let took = runtime.block_on(tasks.join_all());
    let busy = (database.busy() - before).as_secs_f64() * 1e6 / took.len() as f64;
    let mut took: Vec<_> = took.into_iter().collect::<Option<_>>()?;
    took.sort_unstable();
    let at = |thousandth: usize| took[took.len() * thousandth / 1000].as_secs_f64() * 1e3;
    let took = [at(500), at(990), at(999)];
    Some(Load { took, busy })
}

/// Permits are taken evenly within the interval, by a clock that is moved.
fn log() -> Figures {
    const INTERVAL: Duration = Duration::from_secs(86_400);
    /// A name, the settings of a rule, and whether what is measured is admitted.
    type Way = (&'static str, fn(Rule) -> Rule, bool);
    let kinds: [Way; 6] = [
        ("sliding log admitted", |rule| rule, true),
        ("sliding log refused", |rule| rule, false),
        ("1000 slots admitted", |rule| rule.slots(1000), true),
        (
            "fixed window admitted",
            |rule| rule.algorithm(Algorithm::FixedWindow),
            true,
        ),
        (
            "GCRA admitted",
            |rule| rule.algorithm(Algorithm::Gcra),
            true,
        ),
        (
            "GCRA refused",
            |rule| rule.algorithm(Algorithm::Gcra),
            false,
        ),
    ];
    let rows = [10, 100, 1000, 10_000, 100_000].map(|used: usize| {
        let figures = kinds.iter().map(|(name, set, admitted)| {
            let round = |_| {
                // The calls that are measured add a tenth at most.
                let (keys, times) = ((2000 / used).clamp(1, 200), (used / 10).clamp(1, 200));
                let clock = ManualClock::new();
                let (database, runtime) = (Database::start(), Runtime::new().unwrap());
                let _inside = runtime.enter();
                let mut store = database.builder().client_clock(clock.clone());
                if name.contains("slots") {
                    store = store.redisson();
                }
                let store = store.build().unwrap();
                let permits = if *admitted { 3 * used } else { used };
                let rule = Limit::new(permits as u64, INTERVAL).by(by_user());
                let layer = RateLimitLayer::new(&store, set(rule));
                let users = users(keys);
                let ask = |key: usize| {
                    let (layer, users): (_, Arc<[HeaderValue]>) = (layer.clone(), users.clone());
                    async move { passes(&layer, &users[key]).await }
                };
                // By GCRA permits return meanwhile: as many more are taken at the end.
                for _ in 0..used {
                    clock.advance(INTERVAL / 2 / u32::try_from(used).unwrap());
                    for key in 0..keys {
                        assert!(runtime.block_on(ask(key)));
                    }
                }
                for key in (0..keys).filter(|_| !admitted) {
                    while runtime.block_on(ask(key)) {}
                }
                let (layer, users) = (layer.clone(), users.clone());
                let expected = *admitted;
                let turn = in_turns(keys, times, 1, move |key| {
                    let (layer, users) = (layer.clone(), users.clone());
                    async move { assert_eq!(passes(&layer, &users[key]).await, expected) }
                });
                database.cost(keys * times, || runtime.block_on(turn))
            };
            let rounds = if used > 10_000 { 1 } else { ROUNDS };
            middle((0..rounds).map(round).collect())
        });
        (used as f64, figures.collect())
    });
    (
        kinds.map(|(name, ..)| name.to_owned()).to_vec(),
        rows.into(),
    )
}

fn keys() -> Figures {
    let lines = ["sliding log", "GCRA", "tower_governor"]
        .map(str::to_owned)
        .to_vec();
    let rows = [1, 10, 100, 1000, 10_000, 100_000, 1_000_000].map(|keys| {
        let runtime = one_thread();
        let _inside = runtime.enter();
        let layer = governor::layer(u32::MAX, Duration::from_nanos(1));
        let ok = http::StatusCode::OK;
        let mut all: [Asker; 4] = [
            asker(nothing(), keys, ok),
            memory(AMPLE, Algorithm::SlidingLog, keys, |layer| layer),
            memory(FASTEST, Algorithm::Gcra, keys, |layer| layer),
            asker(layer.layer(nothing()), keys, ok),
        ];
        for asker in &mut all {
            (0..asker.before).for_each(|_| _ = (asker.ask)());
        }
        let mut took = [const { Vec::new() }; 4];
        for _ in 0..2000 {
            for (asker, took) in all.iter_mut().zip(&mut took) {
                took.push(chunk(asker));
            }
        }
        let [bare, rest @ ..] = took.map(|it| middle(it).expect("a number"));
        (keys as f64, rest.map(|it| Some(rounded(it - bare))).into())
    });
    (lines, rows.into())
}
