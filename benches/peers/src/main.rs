//! This crate beside its peers: the same work on the same Redis in one run. See `../../HOW.md`.

mod checks;
mod contest;
#[allow(dead_code, reason = "shared with the goals, which use all of it")]
#[path = "../../goals/src/database.rs"]
mod database;
#[path = "../../shared/figures.rs"]
mod figures;
#[path = "../../shared/machine.rs"]
mod machine;
mod measure;
mod peers;
mod table;
mod work;

use std::{env, process::Command, time::Duration};

use crate::{
    contest::Limit,
    database::Database,
    machine::locked,
    measure::{Figures, Load, Side},
    peers::Entry,
    table::{Checks, Shown},
    work::{WORKS, Work},
};

const HELP: &str = "\
Measures tower-ratelimit beside its peers; benches/peers.sh prepares what that needs.

  --quick        few and short turns: shows that everything runs, and says nothing about speed
  --only WORD    only contestants whose names contain it; may be repeated
  --correctness  correctness alone
  --json FILE    writes all figures into it
";

struct Pace {
    rounds: usize,
    /// Turns at each offered load: more, as a stall of the machine decides the p99 of a turn
    loads: usize,
    /// A turn where the state is in the process, and where it is in Redis
    turns: [Duration; 2],
    open: (&'static [usize], Duration),
    keys: usize,
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    match arguments[..] {
        ["--ask", name, url, label, permits, seconds, user] => {
            let (permits, seconds) = (permits.parse().unwrap(), seconds.parse().unwrap());
            let limit = Limit { permits, seconds };
            print!(
                "{}",
                runtime.block_on(checks::ask(&named(name), url, label, limit, user))
            );
        }
        ["--weigh", name, keys] => {
            let bytes = runtime.block_on(weigh(named(name), keys.parse().unwrap()));
            print!("{bytes}");
            std::process::exit(0);
        }
        _ => {
            let (mut only, mut quick, mut correctness, mut file) = (vec![], false, false, None);
            let mut rest = arguments.iter();
            while let Some(argument) = rest.next() {
                match *argument {
                    "--help" => return print!("{HELP}"),
                    "--quick" => quick = true,
                    "--correctness" => correctness = true,
                    "--only" => only.extend(rest.next()),
                    "--json" => file = rest.next(),
                    _ => {
                        eprint!("{argument} is none of these:\n\n{HELP}");
                        std::process::exit(2);
                    }
                }
            }
            let (text, json) = runtime.block_on(compare(quick, correctness, &only));
            print!("{text}");
            if let Some(file) = file {
                std::fs::write(file, format!("{json:#}\n")).unwrap();
            }
            // Some peers have tasks and threads that never end.
            std::process::exit(0);
        }
    }
}

fn named(name: &str) -> Entry {
    peers::all()
        .into_iter()
        .find(|entry| entry.name == name)
        .expect("a contestant's name")
}

async fn compare(quick: bool, alone: bool, only: &[&str]) -> (String, serde_json::Value) {
    let millis = Duration::from_millis;
    let pace = if quick {
        Pace {
            rounds: 1,
            loads: 1,
            turns: [millis(30), millis(100)],
            open: (&[1_000, 4_000], millis(300)),
            keys: 1_000,
        }
    } else {
        Pace {
            rounds: 5,
            loads: 7,
            turns: [millis(300), millis(600)],
            open: (&[2_000, 8_000, 16_000, 32_000, 64_000], millis(1000)),
            keys: 20_000,
        }
    };
    checks::quiet_panics();
    let wanted =
        |entry: &Entry| only.is_empty() || only.iter().any(|word| entry.name.contains(word));
    let (mut entries, mut missing) = (Vec::new(), Vec::new());
    for entry in peers::all().into_iter().filter(wanted) {
        match (entry.missing)() {
            None => entries.push(entry),
            Some(why) => missing.push((entry.name, why)),
        }
    }
    let kind = match (quick, alone || !only.is_empty()) {
        (true, _) => "A quick run: it shows that everything runs, and says nothing about speed.",
        (_, true) => "A part of a run.",
        _ => "A whole run.",
    };
    let about = about(kind, &entries);
    let database = server();
    let mut all: Vec<_> = entries.iter().map(|entry| Shown::of(*entry)).collect();
    if !alone {
        figures(&mut all, &pace, &database).await;
    }
    eprintln!("correctness");
    correctness(&mut all, &entries, &database).await;
    let text = format!("{about}\n\n{}", table::markdown(&all, &missing, !alone));
    let json = table::json(&about, &all);
    (text, json)
}

/// Speed, cost and memory
async fn figures(all: &mut [Shown], pace: &Pace, database: &Database) {
    for work in &WORKS {
        eprintln!("{}", work.name);
        turns(all, work, pace, database).await;
    }
    eprintln!("latency by offered load");
    loads(all, pace, database).await;
    eprintln!("expiry");
    expiry(all, pace, database).await;
}

impl Shown {
    fn of(entry: Entry) -> Self {
        Self {
            entry,
            works: Vec::new(),
            open: Vec::new(),
            bytes: None,
            expiry: None,
            checks: None,
        }
    }
}

/// All contestants in turns; each begins a round every so often.
async fn turns(all: &mut [Shown], work: &Work, pace: &Pace, database: &Database) {
    let work = &Work {
        users: work.users.min(5 * pace.keys),
        ..*work
    };
    let mut sides = Vec::new();
    for (at, shown) in all.iter_mut().enumerate() {
        let able =
            (shown.entry.keyed || work.users == 1) && (shown.entry.weighs || work.costs == [1]);
        if !able {
            sides.push(None);
            continue;
        }
        let side = Side::new(shown.entry, at, work, database).await;
        if !work.fresh {
            shown.bytes = weighed(&shown.entry, work.users);
            side.ask_all().await;
        }
        sides.push(Some(side));
    }
    let mut figures: Vec<Vec<Figures>> = vec![Vec::new(); sides.len()];
    for round in 0..=pace.rounds {
        for turn in 0..sides.len() {
            let at = (round + turn) % sides.len();
            let Some(side) = &mut sides[at] else {
                continue;
            };
            let time = pace.turns[usize::from(side.entry.on_redis())];
            let turn = side.turn(work, time, database).await;
            // The first is for scripts, connections and the JVM.
            if round > 0 {
                figures[at].push(turn);
            }
        }
    }
    for (shown, figures) in all.iter_mut().zip(figures) {
        shown
            .works
            .push((!figures.is_empty()).then(|| Figures::median(&figures)));
    }
    database.cli(&["FLUSHALL"]);
}

async fn loads(all: &mut [Shown], pace: &Pace, database: &Database) {
    let work = Work {
        users: 1_000,
        ..Work::ADMITTED
    };
    let (rates, time) = pace.open;
    let mut sides = Vec::new();
    for (at, shown) in all
        .iter_mut()
        .enumerate()
        .filter(|(_, shown)| shown.entry.on_redis())
    {
        let side = Side::new(shown.entry, at, &work, database).await;
        side.ask_all().await;
        side.open(rates[0], time / 2).await;
        sides.push((shown, side));
    }
    for rate in rates {
        // Who has not kept up with a load is not asked for a greater one.
        sides.retain(|(shown, _)| shown.open.last().is_none_or(Load::kept_up));
        let mut turns = vec![Vec::new(); sides.len()];
        for round in 0..pace.loads {
            for turn in 0..sides.len() {
                let at = (round + turn) % sides.len();
                turns[at].push(sides[at].1.open_turn(*rate, time, database).await);
            }
        }
        for ((shown, _), turns) in sides.iter_mut().zip(turns) {
            shown.open.push(Load::of(*rate, &turns));
        }
    }
    drop(sides);
    database.cli(&["FLUSHALL"]);
}

async fn expiry(all: &mut [Shown], pace: &Pace, database: &Database) {
    let mut begun = Vec::new();
    for shown in all.iter() {
        begun.push(checks::Expiry::begin(&shown.entry, database, pace.keys).await);
    }
    tokio::time::sleep(Duration::from_secs(checks::Expiry::SECONDS + 1)).await;
    for (shown, begun) in all.iter_mut().zip(begun) {
        shown.expiry = Some(begun.end(database).await);
    }
}

async fn correctness(all: &mut [Shown], entries: &[Entry], database: &Database) {
    let (url, on_redis) = (database.url(), |entry: &&Entry| entry.on_redis());
    let shared: Vec<Entry> = entries.iter().filter(on_redis).copied().collect();
    let mut dropped = checks::dropped(&shared, database).await.into_iter();
    // What only waits goes on at once; a flood is alone.
    let mut waiting = Vec::new();
    for &entry in entries {
        let url = url.clone();
        waiting.push(tokio::spawn(async move {
            (
                checks::waits(&entry, &url).await,
                checks::left(&entry, &url).await,
                checks::inner(&entry, &url).await,
                checks::clock(&entry, &url).await,
            )
        }));
    }
    let mut waited = Vec::new();
    for waiting in waiting {
        waited.push(waiting.await.unwrap());
    }
    for ((shown, entry), (waits, left, inner, clock)) in all.iter_mut().zip(entries).zip(waited) {
        let dropped = if entry.on_redis() {
            dropped.next()
        } else {
            None
        };
        shown.checks = Some(Checks {
            over: checks::over(entry, &url).await,
            waits,
            dropped: dropped.unwrap_or_else(|| String::from("–")),
            left,
            inner,
            clock,
        });
    }
}

/// Bytes that a key takes where nothing else is.
fn weighed(entry: &Entry, keys: usize) -> Option<f64> {
    let program = env::current_exe().unwrap();
    let output = Command::new(program)
        .args(["--weigh", entry.name, &keys.to_string()])
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap().parse().ok()
}

/// In a process and on a server that nobody else has filled or will.
async fn weigh(entry: Entry, keys: usize) -> f64 {
    // By a limit of many a second, a bucket is full and its key gone before the last has come.
    let work = Work {
        redis: const { &[contest::limit(100, 3600)] },
        users: keys,
        ..Work::ADMITTED
    };
    let database = server();
    let side = Side::new(entry, 0, &work, &database).await;
    let held = || {
        if entry.on_redis() {
            measure::memory(&database)
        } else {
            measure::resident()
        }
    };
    let before = held();
    let admitted = side.ask_all().await.admitted;
    (held() - before) / admitted as f64
}

fn server() -> Database {
    let module = env::var("PEERS_REDIS_CELL");
    let with: Vec<&str> = module
        .iter()
        .flat_map(|file| ["--loadmodule", file])
        .collect();
    Database::start_with(&with)
}

fn about(kind: &str, entries: &[Entry]) -> String {
    let mut packages: Vec<_> = entries
        .iter()
        .map(|entry| (entry.package, entry.version))
        .collect();
    packages.sort_unstable();
    packages.dedup();
    let versions = packages.into_iter().map(|(package, version)| {
        let version = version.or_else(|| locked(include_str!("../Cargo.lock"), package));
        format!("{package} {}", version.expect("a version"))
    });
    let versions = versions.collect::<Vec<_>>().join(", ");
    format!("{kind} {}; {versions}.", machine::place())
}
