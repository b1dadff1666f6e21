//! The long run: random faults over a random load, every decision recorded, laws checked when it is
//! over.
//!
//! `tests/run.sh --faults-only` runs it, and a plain `cargo test` does not.
//! `TOWER_RATELIMIT_MINUTES` says for how long (10), `TOWER_RATELIMIT_SEED` with which faults; a
//! run prints its own.

mod faults;
pub mod machine;

use std::collections::BTreeMap;

use super::{
    guards::BUDGET,
    random::setting,
    stage::{EXACT, Expected, Scene, aside},
};
use faults::Fault;
use kit::scene::*;
use machine::Machine;

/// Faults at once cut each connection, and each other one that they cut is replaced at once.
const CUT: usize = 40;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "ten minutes, and the memory that is looked at is that of the whole process"]
async fn random_faults_over_random_load() {
    let run = Duration::from_secs_f64(setting("TOWER_RATELIMIT_MINUTES", 10.0) * 60.0);
    let persistent = ["--appendonly", "yes", "--appendfsync", "always"];
    let soon_busy = ["--lua-time-limit", "50"];
    let args = [&persistent[..], &soon_busy].concat();
    let mut scene = Scene::begin_with("long run", &args, BUDGET).await;
    let mut random = scene.random.clone();
    let (mut times, mut healed) = (BTreeMap::new(), Vec::new());
    let mut machine = Machine::default();
    let began = Instant::now();
    while began.elapsed() < run {
        scene.load.pace(2 + random.below(15));
        let faults = Fault::draw(&mut random);
        for fault in &faults {
            *times.entry(fault.name).or_insert(0) += 1;
            aside(|| (fault.begin)(&mut scene, &mut random));
        }
        tokio::time::sleep(Duration::from_millis(50 + random.below(1200))).await;
        for fault in faults.iter().rev() {
            aside(|| (fault.end)(&mut scene));
        }
        // O5: it panics if they do not.
        healed.push(scene.load.decided(3).await);
        tokio::time::sleep(Duration::from_millis(random.below(400))).await;
        machine.look(began.elapsed(), &scene.proxy);
    }
    scene.healed().await;
    machine.look(run, &scene.proxy);
    healed.sort_unstable();
    println!(
        "{} rounds in {:?}: {times:?}; decisions came from the store again after {:?} in the \
         middle, {:?} at most",
        healed.len(),
        began.elapsed(),
        healed[healed.len() / 2],
        healed[healed.len() - 1]
    );
    let expected = Expected {
        // Whatever was lost.
        over: f64::INFINITY,
        logs_lost: true,
        twice: times.contains_key("twice"),
        ..EXACT
    };
    scene.judge_cut(expected, CUT).await;
    machine.check_flat();
}
