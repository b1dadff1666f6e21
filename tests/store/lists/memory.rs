//! Random lists from several threads at once, against what each limiter must have left.

use kit::{
    random::{Random, seed},
    scene::*,
};
use std::{collections::HashSet, sync::Barrier};

use tokio::runtime::{Builder, Runtime};

use super::fleet::list;

const LIMITERS: usize = 5;
const THREADS: u64 = 4;
const ROUNDS: usize = 400;

/// The grants of one caller from one limiter.
#[derive(Clone, Copy, Debug)]
struct Taken {
    limiter: usize,
    at: u64,
    permits: u64,
}

/// Calls at one instant; returns what it keeps.
fn work(random: &mut Random, limiters: &[RateLimiter], runtime: &Runtime, now: u64) -> Vec<Taken> {
    let mut kept = Vec::new();
    for _ in 0..random.below(8) {
        let (which, all) = list(limiters, random);
        let costs: Vec<_> = which.iter().map(|_| 1 + random.below(3) as u32).collect();
        let waits = random.one_in(5);
        runtime.block_on(async {
            if waits {
                // Polled once and dropped: whatever it has taken or may yet take is given back.
                let mut call = pin!(all.acquire_many(costs[0]));
                let _ = call
                    .as_mut()
                    .poll(&mut Context::from_waker(Waker::noop()))
                    .map(|grant| all.give_back(&grant.unwrap()));
                return;
            }
            let taken = which.iter().zip(&costs).map(|(limiter, permits)| Taken {
                limiter: *limiter,
                at: now,
                permits: u64::from(*permits),
            });
            match all.try_acquire_each(&costs).await.unwrap() {
                Decision::Allow(grant) if random.one_in(4) => all.give_back(&grant),
                Decision::Allow(_) => kept.extend(taken),
                Decision::Deny(_) => {}
            }
        });
    }
    kept
}

/// Time stands still in each round, so the number left afterwards is exact, and shows whether a
/// list was charged in part or a limiter admitted too much.
#[test]
fn no_list_is_charged_in_part() {
    let seed = seed();
    let mut random = Random(seed);
    let (store, clock) = MemoryStore::builder().build_manual();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let intervals = [100, 100, 250, 600, 1000];
    let rates: Vec<_> = (0..LIMITERS).map(|_| 4 + random.below(12)).collect();
    let limit = |limiter: usize| Limit::new(rates[limiter], millis(intervals[limiter]));
    let limiters: Vec<_> = (0..LIMITERS)
        .map(|limiter| RateLimiter::new(&store, &format!("limiter-{limiter}")).unwrap())
        .collect();
    for (number, limiter) in limiters.iter().enumerate() {
        assert!(
            runtime
                .block_on(limiter.try_set_rate(limit(number)))
                .unwrap()
        );
    }

    let mut record: Vec<Taken> = Vec::new();
    let mut seen = HashSet::new();
    let (mut now, mut granted) = (0, 0);
    let left = |limiter: usize| {
        let left = limiters[limiter].available_permits();
        runtime.block_on(left).unwrap()
    };
    // Longer where chance has left one of them always full, or never.
    let each = |seen: &HashSet<_>| seen.len() == 2 * LIMITERS;
    for round in 0..20 * ROUNDS {
        if round >= ROUNDS && each(&seen) {
            break;
        }
        let together = Barrier::new(THREADS as usize);
        let seeds: Vec<_> = (0..THREADS).map(|_| random.draw()).collect();
        let kept: Vec<_> = thread::scope(|scope| {
            let workers: Vec<_> = (seeds.iter())
                .map(|seed| {
                    let (limiters, together) = (&limiters, &together);
                    scope.spawn(move || {
                        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
                        together.wait();
                        work(&mut Random(*seed), limiters, &runtime, now)
                    })
                })
                .collect();
            workers
                .into_iter()
                .flat_map(|worker| worker.join().unwrap())
                .collect()
        });
        granted += kept.len();
        record.extend(kept);
        for limiter in 0..LIMITERS {
            let live: u64 = (record.iter())
                .filter(|taken| taken.limiter == limiter && taken.at + intervals[limiter] > now)
                .map(|taken| taken.permits)
                .sum();
            let expected = rates[limiter].checked_sub(live);
            assert_eq!(Some(left(limiter)), expected, "seed {seed}, round {round}");
            seen.insert((limiter, live == rates[limiter]));
        }
        if random.one_in(40) {
            // An operator resets one limiter: its grants are forgotten, those of the others are
            // not.
            let reset = random.below(LIMITERS as u64) as usize;
            let changed = limiters[reset].reset_rate(limit(reset));
            assert!(runtime.block_on(changed).unwrap());
            record.retain(|taken| taken.limiter != reset);
        }
        let pause = random.below(90);
        clock.advance(millis(pause));
        now += pause;
    }
    assert!(granted > ROUNDS, "{granted}");
    assert!(
        each(&seen),
        "seed {seed}: not each limiter was full, and not"
    );
    clock.advance(millis(1100));
    for (limiter, rate) in rates.iter().enumerate() {
        assert_eq!(left(limiter), *rate, "seed {seed}");
    }
}
