//! Plays random histories of the script in a Redis server against the twin.
//!
//! Each history is made from a seed: the first of `TOWER_RATELIMIT_SEED`, and those behind it, as
//! many as `TOWER_RATELIMIT_PACKED` says. One that shows a difference is cut to as few steps as
//! still show one, and printed.

use crate::{
    plan::{Maker, Step},
    world::World,
};
use kit::random::{seed, setting, shrink};

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

#[test]
fn the_script_and_the_twin_agree() {
    let mut world = World::new();
    for seed in (seed()..).take(setting("TOWER_RATELIMIT_PACKED", 200)) {
        let steps = Maker::history(seed, LENGTH);
        if let Err(failure) = play(&mut world, &steps) {
            let (steps, (place, difference)) =
                shrink(steps, failure, |fewer| play(&mut world, fewer));
            steps.iter().for_each(|step| println!("{step:?}"));
            panic!("TOWER_RATELIMIT_SEED={seed}, step {place}: {difference}");
        }
    }
}
