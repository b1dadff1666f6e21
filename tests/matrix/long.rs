//! The long run: random faults over a random load, every decision recorded, laws checked when it is
//! over.
//!
//! `tests/run.sh --faults-only` runs it, and a plain `cargo test` does not.
//! `TOWER_RATELIMIT_MINUTES` says for how long (10), `TOWER_RATELIMIT_SEED` with which faults; a
//! run prints its own.

mod faults;
pub mod machine;
mod record;

use std::collections::BTreeMap;

use super::{
    after::{all_is_free, losses_are_noticed},
    book::Book,
    guards::{BUDGET, guarded},
    lanes::Limiter,
    load::Load,
    oracles::{self, Tally},
    random::{Random, seed, setting},
    stage::{aside, patient},
};
use faults::{Afflicted, Fault};
use kit::{monitor::time_of, proxy::Proxy, scene::*};
use machine::{Machine, all_closed};
use record::Record;

const HANDLES: usize = 2;

/// Faults at once cut each connection, and each other one that they cut is replaced at once.
const CUT: usize = 40;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "ten minutes, and the memory that is looked at is that of the whole process"]
async fn random_faults_over_random_load() {
    let run = Duration::from_secs_f64(setting("TOWER_RATELIMIT_MINUTES", 10.0) * 60.0);
    let seed = seed();
    let mut random = Random(seed);
    let persistent = ["--appendonly", "yes", "--appendfsync", "always"];
    let server = aside(|| RedisServer::start_with(&persistent));
    let proxy = Proxy::start(server.address());
    let handles = (0..HANDLES).map(|_| RedisStore::builder(proxy.url()));
    let handles = handles.map(|store| guarded(store, BUDGET)).collect();
    let record = Record::begin();
    let watch = aside(|| record.watch(&server));
    let prefix = unique("long");
    let book = Book::in_file(&record.answers());
    let load = Load::start(handles, &prefix, BUDGET, seed, book);
    load.decided(5).await;

    let limiters = load.limiters.clone();
    let mut world = Afflicted::new(server, proxy, limiters, &record, watch);
    let (mut times, mut healed) = (BTreeMap::new(), Vec::new());
    let mut machine = Machine::default();
    let began = Instant::now();
    while began.elapsed() < run {
        load.pace(2 + random.below(15));
        let faults = Fault::draw(&mut random);
        for fault in &faults {
            *times.entry(fault.name).or_insert(0) += 1;
            aside(|| (fault.begin)(&mut world, &mut random));
        }
        tokio::time::sleep(Duration::from_millis(50 + random.below(1200))).await;
        for fault in faults.iter().rev() {
            aside(|| (fault.end)(&mut world));
        }
        // O5: it panics if they do not.
        healed.push(load.decided(3).await);
        tokio::time::sleep(Duration::from_millis(random.below(400))).await;
        machine.look(began.elapsed(), &world.proxy);
    }
    let answered = load.answered();
    println!(
        "{} rounds in {:?}, {answered} requests: {times:?}",
        healed.len(),
        began.elapsed()
    );
    healed.sort_unstable();
    println!(
        "decisions came from the store again after {:?} in the middle, {:?} at most",
        healed[healed.len() / 2],
        healed[healed.len() - 1]
    );
    machine.look(run, &world.proxy);

    let ended = load.end().await;
    let Afflicted {
        server,
        proxy,
        watch,
        ..
    } = world;
    aside(|| watch.catch_up());
    let mut tally = Tally::of(&ended, Duration::ZERO);
    record.each_answer(|answer| tally.see(&answer));
    tally.check_times();
    tally.check_counts(&ended);
    let by_share = tally.check_shares();
    let banned = tally.check_bans();
    let ledger = record.ledger();
    // As in row 24.
    let came_twice = times.contains_key("twice");
    ledger.check_books(came_twice);
    oracles::never_over(&ledger, &ended.limiters);
    let shows = |it: &&Limiter| !(came_twice && it.is_own_log());
    tally.check_received(&ledger, ended.limiters.iter().filter(shows));
    let most = oracles::few_connections(&proxy.came(), HANDLES, CUT);
    let direct = patient(RedisStore::builder(server.url()).prefix(&prefix));
    let value = |key: &str| server.command(&["GET", key]);
    let now = || time_of(&server);
    losses_are_noticed(&direct, &ended.limiters).await;
    all_is_free(&direct, &ended.limiters, Duration::ZERO, now, value).await;
    all_closed(&proxy).await;
    machine.check_flat();
    println!(
        "{} answers, {} by policy; p99 and longest {:?} of {BUDGET:?}; {} permits granted, \
         {by_share} more by shares, {banned} requests banned; {} receipts lost; at most {most} connections in a second",
        tally.answers,
        tally.by_policy,
        tally.measured(),
        ledger.granted_permits(),
        ended.lost_receipts,
    );
}
