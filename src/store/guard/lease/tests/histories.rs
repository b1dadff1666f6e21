//! Tests random histories of several processes against the laws, and how evenly they share an
//! exhausted limit.

use std::cell::RefCell;

use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};

use super::*;

/// A step, and the process that makes it.
#[derive(Clone, Debug)]
enum Step {
    Pause(u64),
    /// So many permits so many times, by this process
    Take(usize, u32, u8),
    /// Left by its caller after so many polls
    Abandon(usize, u32, usize),
    /// One of the grants, and what is kept of it
    Settle(usize, u32),
    EndAll(usize),
}

const PROCESSES: usize = 4;

type Input = (u64, u64, Vec<Step>);

fn input() -> impl Strategy<Value = Input> {
    let process = || 0..PROCESSES;
    let step = prop_oneof![
        6 => prop_oneof![Just(0u64), 1u64..20, 80u64..120, 900u64..1200].prop_map(Step::Pause),
        16 => (process(), prop_oneof![4 => Just(1u32), 1 => 2u32..6], 1u8..12)
            .prop_map(|(process, permits, times)| Step::Take(process, permits, times)),
        2 => (process(), 1u32..4, 0usize..3)
            .prop_map(|(process, permits, polls)| Step::Abandon(process, permits, polls)),
        4 => (0usize..200, 0u32..8).prop_map(|(which, keep)| Step::Settle(which, keep)),
        1 => process().prop_map(Step::EndAll),
    ];
    let rate = prop_oneof![1u64..30, 100u64..500];
    let interval = prop_oneof![Just(5u64), Just(500), Just(1000), Just(10_000)];
    (rate, interval, proptest::collection::vec(step, 1..80))
}

/// A grant that a caller holds.
#[derive(Clone, Debug)]
struct Held {
    at: u64,
    permits: u32,
    receipt: Charge,
    process: usize,
    settled: bool,
}

async fn live(&(rate, interval, ref steps): &Input, leased: &RefCell<u64>) {
    let limit = Limit::new(rate, Duration::from_millis(interval));
    let world = World::new(limit, TENTH, PROCESSES);
    let mut held: Vec<Held> = Vec::new();
    let mut debt: Vec<(u64, u32)> = Vec::new();
    for step in steps {
        match *step {
            Step::Pause(millis) => {
                world.advance(millis);
                world.settle_down().await;
            }
            Step::Take(process, permits, times) => {
                for _ in 0..times {
                    let decision = world.takes(process, permits);
                    *leased.borrow_mut() += u64::from(decision.source() == Source::Lease);
                    if let Decision::Allow(grant) = &decision {
                        held.push(Held {
                            at: world.now(),
                            permits,
                            receipt: grant.charges()[0].clone(),
                            process,
                            settled: false,
                        });
                        // L1: the window that ends here.
                        let is_in = |grant: &&Held| grant.at + interval > world.now();
                        let window = held.iter().filter(is_in);
                        let window: u64 = window.map(|grant| u64::from(grant.permits)).sum();
                        assert!(window <= rate, "{window} of {rate} at {step:?}");
                    }
                }
            }
            Step::Abandon(process, permits, polls) => {
                if let Some(Decision::Allow(grant)) = world.ask(process, permits, polls) {
                    world.processes[process].settle(grant.charges()[0].clone(), 0);
                }
            }
            Step::Settle(which, keep) if !held.is_empty() => {
                let at = which % held.len();
                let grant = &mut held[at];
                if mem::replace(&mut grant.settled, true) {
                    continue;
                }
                world.processes[grant.process].settle(grant.receipt.clone(), keep);
                if keep > grant.permits {
                    debt.push((world.now(), keep - grant.permits));
                }
                grant.permits = grant.permits.min(keep);
            }
            Step::Settle(..) => {}
            Step::EndAll(process) => world.end(process),
        }
    }
    (0..PROCESSES).for_each(|process| world.end(process));
    // The permits in use are exactly those that callers have: an entry lives as long as its grant
    // and a lease.
    let available = world.available();
    let ahead = interval / 10;
    let held = held.iter().map(|grant| (grant.at, grant.permits));
    let held: Vec<_> = held.chain(debt.iter().copied()).collect();
    let used = |lives: u64| {
        let live = held.iter().filter(|(at, _)| at + lives > world.now());
        live.map(|(_, permits)| i64::from(*permits)).sum::<i64>()
    };
    let in_use = i64::try_from(rate).unwrap() - available;
    let possible = used(interval)..=used(interval + ahead);
    assert!(possible.contains(&in_use), "{in_use} of {possible:?}");
    // L5.
    world.advance(interval + ahead);
    assert_eq!(world.available(), i64::try_from(rate).unwrap());
}

#[test]
fn histories_of_several_processes_are_lawful() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let leased = RefCell::new(0);
    let config = Config {
        cases: Config::default().cases.max(300),
        failure_persistence: None,
        ..Config::default()
    };
    let outcome = TestRunner::new(config).run(&input(), |input| {
        runtime.block_on(live(&input, &leased));
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    // Without these there would be nothing to see.
    assert!(*leased.borrow() > 5_000, "{leased:?}");
}

/// Several processes that all want more than there is.
#[tokio::test]
#[allow(clippy::print_stdout, reason = "what is measured is to be seen")]
async fn a_saturated_limit_is_used_and_shared() {
    for (rate, processes) in [(100u64, 4usize), (1000, 4), (10_000, 8)] {
        let world = World::new(Limit::new(rate, SECOND), TENTH, processes);
        let mut granted = vec![0u64; processes];
        const ROUNDS: u64 = if cfg!(inside) { 2000 } else { 600 };
        // Twice of what there is, in rounds of 5 ms.
        let wanted = (rate * 2 / 200 / processes as u64).max(1);
        for round in 0..ROUNDS {
            world.advance(5);
            world.settle_down().await;
            for turn in 0..processes {
                // In each round another process is first.
                let process = (turn + round as usize) % processes;
                for _ in 0..wanted {
                    granted[process] += u64::from(world.takes(process, 1).is_allowed());
                }
            }
        }
        let intervals = ROUNDS * 5 / 1000;
        let all: u64 = granted.iter().sum();
        let utilisation = all as f64 / (rate * intervals) as f64;
        let mean = all as f64 / processes as f64;
        let least = *granted.iter().min().unwrap() as f64 / mean;
        let most = *granted.iter().max().unwrap() as f64 / mean;
        println!(
            "{rate} a second, {processes} processes: {utilisation:.3} used, shares {least:.2} to \
             {most:.2} of the mean, {:.4} calls per request",
            world.calls() as f64 / (ROUNDS * wanted * processes as u64) as f64
        );
        // Never more in any window; so the first is all that can come on top.
        assert!(all <= rate * (intervals + 1));
        assert!(utilisation > 0.7, "{utilisation}");
        assert!(least > 0.5, "{granted:?}");
    }
}
