//! Limiters in our own format, of any kind, asked alone, as lists, in joint commands and again,
//! beside the same in memory.
//!
//! What a call decides is held against how the limiters stood before it, and all that it says
//! against how they stand after it. By the server's clock, time passes as what is stored is moved
//! back.

mod answers;
mod calendar;
mod gcra;
mod row;
mod stage;
mod steps;
mod verbs;

use proptest::array::uniform3;

use self::{
    row::{Terms, instant, row, stamp},
    stage::Stage,
    steps::{Again, One, Question, Step, step},
};
use super::*;
use crate::{algorithm::AnyLimiter, values::clock::LATEST_MILLIS};
use kit::unique;

const LIMITERS: usize = 3;

/// Limits of which each limiter has one.
const LIMITS: [Terms; 6] = [
    (5, 1000),
    (3, 1000),
    (5, 400),
    (9, 3000),
    (40, 1000),
    (4, 50),
];

fn kinds(of: &'static [Algorithm]) -> impl Strategy<Value = [Algorithm; LIMITERS]> {
    uniform3(proptest::sample::select(of))
}

/// One of the first so many limits.
fn limit(count: usize) -> impl Strategy<Value = usize> {
    prop_oneof![3 => Just(0), 1 => 0..count]
}

/// Where a caller's clock begins: today, and at both ends of what the format holds.
fn start() -> impl Strategy<Value = i64> {
    proptest::sample::select(vec![START, 1, LATEST_MILLIS.cast_signed() - 100_000])
}

fn live(mut stage: Stage, steps: &[Step]) {
    for step in steps {
        stage.live(step);
    }
    stage.lose_nothing();
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn a_history(
        start in start(),
        kinds in kinds(&[Algorithm::SlidingLog, Algorithm::FixedWindow, Algorithm::Gcra]),
        limits in uniform3(limit(LIMITS.len())),
        steps in proptest::collection::vec(step(), 1..50),
    ) {
        live(Stage::new(kinds, limits, Some(start)), &steps);
    }

    #[test]
    fn a_history_by_the_servers_clock(
        kinds in kinds(&[Algorithm::SlidingLog, Algorithm::FixedWindow]),
        // Not the shortest, as a busy machine may lose as much time between two calls.
        limits in uniform3(limit(5)),
        steps in proptest::collection::vec(step(), 1..50),
    ) {
        live(Stage::new(kinds, limits, None), &steps);
    }
}
