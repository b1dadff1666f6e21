//! One limit for Java and Rust, tested with the real Redisson: `tests/run.sh --redisson`, see
//! `README.md` beside this.

#![cfg(test)]
#![allow(
    unreachable_pub,
    clippy::cast_possible_truncation,
    clippy::unreachable,
    reason = "modules are for the suite alone; a test fails by panicking"
)]

mod case;
mod chosen;
mod deviations;
mod fleet;
mod java_side;
mod model;
mod oracle;
mod orders;
mod pages;
mod prepare;
mod raw;
mod rust_side;
mod said;
mod sequence;
mod snippets;
mod tool;
mod worker;

use std::time::Instant;

use self::{case::Case, model::Generation, sequence::Stage};
use kit::random::{seed, setting};

/// Fewer steps need not show every deviation.
const ENOUGH: u64 = 10_000;

#[test]
fn java_and_rust_share_a_limit() {
    let versions = oracle::versions();
    let steps = setting("TOWER_RATELIMIT_STEPS", ENOUGH);
    println!("Redisson {versions:?}, {steps} steps");
    let seed = seed();
    let mut stage = Stage::new(&versions);
    let began = Instant::now();
    let mut cases = 0;
    for case in Case::fixed(stage.generations()) {
        stage.must_pass(&case);
    }
    let fixed = stage.steps;
    while stage.steps < fixed + steps {
        let case = Case::random(seed.wrapping_add(cases), stage.generations());
        stage.must_pass(&case);
        cases += 1;
    }
    println!(
        "{} steps in {cases} cases without a difference, {:?}; wanted deviations:",
        stage.steps,
        began.elapsed()
    );
    stage.tally.print();
    // The newest version alone has all that the list speaks of.
    if stage.steps >= ENOUGH && stage.generations().contains(&Generation::KeepsAlive) {
        let missing = stage.tally.missing();
        assert!(missing.is_empty(), "no step has shown these: {missing:?}");
    }
}

/// Lowered rates, permits given back, scores ahead of the time: Java beside them neither throws nor
/// loses permits.
#[test]
fn a_java_peer_is_not_disturbed() {
    let seed = seed();
    let steps = setting("TOWER_RATELIMIT_STEPS", ENOUGH).div_ceil(5);
    let mut stage = Stage::new(&oracle::versions());
    let mut cases = 0;
    for case in Case::idle(stage.generations()) {
        stage.must_pass(&case);
    }
    while stage.steps < steps {
        let case = Case::peer(seed.wrapping_add(cases), stage.generations());
        stage.must_pass(&case);
        cases += 1;
    }
    println!("{} steps in {cases} cases", stage.steps);
}
