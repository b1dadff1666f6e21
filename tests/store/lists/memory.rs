//! Random lists from several threads at once, against what each limiter must have left.

use kit::{
    random::{Random, seed},
    scene::*,
};
use std::sync::Barrier;
use tower_ratelimit::AllOf;

use super::world::left;

const LIMITERS: usize = 5;
const THREADS: usize = 4;

/// Up to three limiters, in any order: their numbers, and all of them together.
fn list(limiters: &[RateLimiter], random: &mut Random) -> (Vec<usize>, AllOf) {
    let mut which: Vec<_> = (0..limiters.len()).collect();
    while which.len() > 1 && (which.len() > 3 || random.one_in(3)) {
        which.remove(random.below(which.len() as u64) as usize);
    }
    let by = random.below(which.len() as u64) as usize;
    which.rotate_left(by);
    let all = RateLimiter::all(which.iter().map(|limiter| &limiters[*limiter]));
    (which, all.unwrap())
}

/// Asks for some lists; returns the permits that it keeps of each limiter.
async fn work(random: &mut Random, limiters: &[RateLimiter]) -> [u64; LIMITERS] {
    let mut kept = [0; LIMITERS];
    for _ in 0..8 {
        let (which, all) = list(limiters, random);
        let costs: Vec<_> = which.iter().map(|_| 1 + random.below(3) as u32).collect();
        match all.try_acquire_each(&costs).await.unwrap() {
            Decision::Allow(grant) if random.one_in(4) => all.give_back(&grant),
            Decision::Allow(_) => {
                for (limiter, permits) in which.iter().zip(costs) {
                    kept[*limiter] += u64::from(permits);
                }
            }
            Decision::Deny(_) => {}
        }
    }
    kept
}

/// Nothing expires, so the number left afterwards is exact, and shows whether a list was charged in
/// part or a limiter admitted too much.
#[test]
fn no_list_is_charged_in_part() {
    let (mut random, store, together) = (Random(seed()), MemoryStore::new(), Barrier::new(THREADS));
    for _ in 0..400 {
        let rates = [(); LIMITERS].map(|()| 4 + random.below(12));
        let limiters = rates.map(|rate| {
            let limiter = limited(&store, Limit::per_hour(rate));
            runtime().block_on(limiter)
        });
        let seeds = [(); THREADS].map(|()| random.draw());
        let kept = thread::scope(|scope| {
            let worker = |seed| {
                let (limiters, together) = (&limiters, &together);
                scope.spawn(move || {
                    let runtime = runtime();
                    together.wait();
                    runtime.block_on(work(&mut Random(seed), limiters))
                })
            };
            seeds.map(worker).map(|worker| worker.join().unwrap())
        });
        let kept: [u64; LIMITERS] =
            std::array::from_fn(|limiter| kept.iter().map(|kept| kept[limiter]).sum());
        let left = runtime().block_on(left(&limiters));
        let all: Vec<_> = left
            .iter()
            .zip(kept)
            .map(|(left, kept)| left + kept)
            .collect();
        assert_eq!(all, rates, "{kept:?} are kept");
    }
}
