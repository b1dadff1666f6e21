//! Plays random histories of the script in a Redis server against the twin.
//!
//! Each history is made from a seed: the first of `TOWER_RATELIMIT_SEED`, and those behind it, as
//! many as `TOWER_RATELIMIT_PACKED` says. One that shows a difference is cut to as few steps as
//! still show one, and printed.

use crate::{
    plan::{Maker, Step},
    world::World,
};
use kit::random::{seed, setting};

/// The steps of a history.
const LENGTH: usize = 120;

/// Plays a history from an empty server. Returns where it shows a difference, and which.
fn play(world: &mut World, steps: &[Step]) -> Result<(), (usize, String)> {
    world.clear();
    for (place, step) in steps.iter().enumerate() {
        world.play(step).map_err(|difference| (place, difference))?;
    }
    Ok(())
}

/// Cuts a history to as few steps as still show a difference.
fn shrink(world: &mut World, mut steps: Vec<Step>, difference: String) -> (Vec<Step>, String) {
    let mut size = steps.len();
    while size > 0 {
        let mut from = 0;
        while from < steps.len() {
            let mut fewer = steps.clone();
            fewer.drain(from..(from + size).min(steps.len()));
            match play(world, &fewer) {
                Err((place, _)) => {
                    fewer.truncate(place + 1);
                    steps = fewer;
                }
                Ok(()) => from += size,
            }
        }
        size /= 2;
    }
    let again = play(world, &steps);
    (steps, again.map_or_else(|(_, it)| it, |()| difference))
}

#[test]
fn the_script_and_the_twin_agree() {
    let mut world = World::new();
    for seed in (seed()..).take(setting("TOWER_RATELIMIT_PACKED", 200)) {
        let mut steps = Maker::history(seed, LENGTH);
        if let Err((place, difference)) = play(&mut world, &steps) {
            steps.truncate(place + 1);
            let (steps, difference) = shrink(&mut world, steps, difference);
            steps.iter().for_each(|step| println!("{step:?}"));
            panic!("TOWER_RATELIMIT_SEED={seed}, step {place}: {difference}");
        }
    }
}
