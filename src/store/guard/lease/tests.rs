//! Several processes on one limiter: the pure one, behind a store that can be left alone at any point of a call.

use std::{
    cell::RefCell,
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
};

use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};

use super::*;
use crate::{
    clock::{ManualClock, millis},
    decision::{PermitId, Source},
    limit::{Limit, LimitSource},
    list::List,
    store::{
        RuleTag,
        call::{self, Ask, Caller, Counts, Take},
        window::Limiter,
    },
};

/// What all processes share.
#[derive(Debug)]
struct Server {
    limiter: Mutex<Limiter>,
    clock: ManualClock,
    calls: AtomicU64,
    /// Permits that were asked for ahead.
    ahead: Mutex<Vec<u32>>,
}

/// A connection to it.
#[derive(Clone, Debug)]
struct Connection(Arc<Server>);

impl Connection {
    fn limiter(&self) -> MutexGuard<'_, Limiter> {
        self.0.limiter.lock().unwrap()
    }

    fn now(&self) -> i64 {
        millis(&self.0.clock).cast_signed()
    }

    fn decide(&self, run: &[Acquire]) -> Vec<Decision> {
        self.0.calls.fetch_add(1, Ordering::Relaxed);
        let callers: Vec<_> = run
            .iter()
            .map(|acquire| Caller {
                waits: acquire.patience.is_some(),
                takes: List::one(Take {
                    permits: acquire.first.permits,
                    id: acquire.first.id,
                    shadow: false,
                    lead: acquire.first.lead,
                }),
            })
            .collect();
        let ask = Ask {
            limit: run[0].first.limit,
            rewrite: true,
            exact: run[0].remaining,
            resendable: true,
            own_clock: true,
        };
        let ahead = run.iter().filter(|acquire| acquire.first.lead > 0);
        self.0
            .ahead
            .lock()
            .unwrap()
            .extend(ahead.map(|acquire| acquire.first.permits));
        let limiter = &mut *self.limiter();
        let limiters = std::iter::once((limiter as &mut dyn Counts, ask));
        let answers = call::acquire(limiters, &callers, self.now()).unwrap();
        let answers = run.iter().zip(answers.iter());
        answers
            .map(|(acquire, answer)| acquire.decision(&[*answer]))
            .collect()
    }
}

/// Pending once.
async fn pause() {
    let mut paused = false;
    poll_fn(|_| {
        if std::mem::replace(&mut paused, true) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

impl Decide for Connection {
    async fn acquire(&self, acquire: &Acquire) -> Result<Decision, Error> {
        let mut decisions = self.acquire_run(slice::from_ref(acquire)).await?;
        Ok(decisions.remove(0))
    }

    async fn acquire_run(&self, run: &[Acquire]) -> Result<Vec<Decision>, Error> {
        pause().await;
        let decisions = self.decide(run);
        pause().await;
        Ok(decisions)
    }

    async fn manage(&self, _: &Name, op: &Op) -> Result<Outcome, Error> {
        pause().await;
        if let Op::SetRate { limit, keep, .. } = op {
            self.limiter().set_rate(*limit, *keep, self.now());
        }
        pause().await;
        Ok(Outcome::Changed(true))
    }

    fn give_back(&self, receipt: Receipt, keep: u32) {
        self.limiter().settle(&receipt, keep, self.now()).unwrap();
    }
}

struct World {
    server: Arc<Server>,
    processes: Vec<Leasing<Connection>>,
    clock: ManualClock,
    name: Name,
    tag: Arc<RuleTag>,
    ids: std::cell::Cell<u64>,
}

impl World {
    fn new(limit: Limit, lease: Duration, processes: usize) -> Self {
        let clock = ManualClock::new();
        let server = Arc::new(Server {
            limiter: Mutex::default(),
            clock: clock.clone(),
            calls: AtomicU64::new(0),
            ahead: Mutex::default(),
        });
        server.limiter.lock().unwrap().try_set_rate(limit.stored());
        let process = || {
            let own: Arc<dyn Clock> = Arc::new(clock.clone());
            let connection = Connection(Arc::clone(&server));
            Leasing::new(connection, Some(Arc::clone(&own)), own, Lines::default())
        };
        let tag = RuleTag::new("hot", false);
        tag.leases(lease);
        Self {
            processes: std::iter::repeat_with(process).take(processes).collect(),
            server,
            clock,
            name: Name::exact("hot").unwrap(),
            tag,
            ids: std::cell::Cell::new(0),
        }
    }

    fn acquire(&self, permits: u32) -> Acquire {
        self.ids.set(self.ids.get() + 1);
        let mut id = [7; 16];
        id[..8].copy_from_slice(&self.ids.get().to_be_bytes());
        Acquire {
            first: Charge {
                name: self.name.clone(),
                rule: Arc::clone(&self.tag),
                limit: LimitSource::Store,
                permits,
                id: PermitId(id),
                shadow: false,
                lead: 0,
            },
            rest: Vec::new(),
            on_failure: None,
            remaining: true,
            patience: None,
        }
    }

    /// Asks as a store does, the front first, and gives back if nobody hears the answer after so many looks.
    fn ask(&self, process: usize, permits: u32, polls: usize) -> Option<Decision> {
        let leasing = &self.processes[process];
        let acquire = self.acquire(permits);
        if let Some(decision) = leasing.take(&acquire) {
            return Some(decision);
        }
        let decision = poll(leasing.acquire(&acquire), polls);
        if decision.is_none() {
            leasing.give_back(acquire.first.receipt(), 0);
        }
        decision.map(Result::unwrap)
    }

    fn takes(&self, process: usize, permits: u32) -> Decision {
        self.ask(process, permits, 9).unwrap()
    }

    /// Asks until the process has a lease.
    fn warm(&self, process: usize) {
        for _ in 0..3 {
            self.takes(process, 1);
        }
        assert_eq!(self.takes(process, 1).source(), Source::Lease);
    }

    fn advance(&self, millis: u64) {
        self.clock.advance(Duration::from_millis(millis));
    }

    fn now(&self) -> u64 {
        millis(&self.clock)
    }

    fn calls(&self) -> u64 {
        self.server.calls.load(Ordering::Relaxed)
    }

    fn available(&self) -> i64 {
        let mut limiter = self.server.limiter.lock().unwrap();
        limiter
            .available(self.now().cast_signed(), PermitId([0; 16]))
            .unwrap()
    }

    /// Has the tasks in the background do what is due.
    async fn settle_down(&self) {
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
    }
}

fn poll<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    for _ in 0..polls {
        let polled = future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        if let Poll::Ready(output) = polled {
            return Some(output);
        }
    }
    None
}

fn receipt(decision: &Decision) -> Receipt {
    match decision {
        Decision::Allow(grant) => grant.receipts[0].clone(),
        Decision::Deny(_) => panic!("{decision:?}"),
    }
}

const SECOND: Duration = Duration::from_secs(1);
const TENTH: Duration = Duration::from_millis(100);

#[tokio::test]
async fn a_hot_limiter_is_seldom_asked_about() {
    let world = World::new(Limit::new(1_000_000, SECOND), TENTH, 1);
    let mut leased = 0;
    for request in 0..10_000 {
        if request % 100 == 0 {
            world.advance(1);
        }
        leased += u64::from(world.takes(0, 1).source() == Source::Lease);
    }
    assert!(leased > 9_900, "{leased}");
    assert!(world.calls() < 25, "{}", world.calls());
    assert_eq!(leased + world.calls(), 10_000);
}

#[tokio::test]
async fn what_is_left_and_when_it_is_whole_is_told_as_without_a_lease() {
    let world = World::new(Limit::new(1000, SECOND), TENTH, 1);
    for request in 0..100 {
        let decision = world.takes(0, 1);
        let state = &decision.limits()[0];
        assert_eq!(state.remaining(), Some(999 - request), "{decision:?}");
        assert!(state.reset_after() <= SECOND + TENTH);
        assert!(state.reset_after() >= SECOND);
    }
    world.advance(40);
    let decision = world.takes(0, 1);
    assert_eq!(decision.source(), Source::Lease);
    let reset = decision.limits()[0].reset_after();
    // The entry's, which ends the lease.
    assert_eq!(reset, SECOND + TENTH - Duration::from_millis(40));
}

#[tokio::test]
async fn nothing_is_handed_out_at_the_end_or_after() {
    let world = World::new(Limit::new(1000, SECOND), TENTH, 1);
    world.warm(0);
    world.advance(99);
    assert_eq!(world.takes(0, 1).source(), Source::Lease);
    world.advance(1);
    assert_eq!(world.takes(0, 1).source(), Source::Store);
    // Set back, nobody knows.
    world.warm(0);
    world
        .clock
        .set(world.clock.now() - Duration::from_millis(1));
    assert_eq!(world.takes(0, 1).source(), Source::Store);
}

#[tokio::test]
async fn what_is_unused_is_given_back_at_the_end_though_nobody_asks() {
    let world = World::new(Limit::new(1000, SECOND), TENTH, 1);
    world.warm(0);
    assert!(world.available() < 996);
    world.settle_down().await;
    world.advance(99);
    world.settle_down().await;
    assert!(world.available() < 996);
    world.advance(1);
    world.settle_down().await;
    assert_eq!(world.available(), 996);
    assert_eq!(world.processes[0].keeper.watched_leases(), 0);
    // And again, by another task.
    world.advance(2000);
    world.warm(0);
    world.settle_down().await;
    world.advance(100);
    world.settle_down().await;
    assert_eq!(world.available(), 996);
}

#[tokio::test]
async fn a_store_that_is_dropped_or_closed_gives_back() {
    let mut world = World::new(Limit::new(1000, SECOND), TENTH, 2);
    world.warm(0);
    world.warm(1);
    world.processes[0].end_all();
    world.processes.pop();
    assert_eq!(world.available(), 992);
    assert_eq!(world.takes(0, 1).source(), Source::Store);
}

#[tokio::test]
async fn a_lease_that_is_used_up_costs_no_settlement() {
    let world = World::new(Limit::new(1_000_000, SECOND), TENTH, 1);
    world.warm(0);
    while world.takes(0, 1).source() == Source::Lease {}
    let before = world.available();
    world.processes[0].end_all();
    assert!(world.available() > before, "the lease that came after it");
    let entries = world.server.limiter.lock().unwrap().log.entries().count();
    assert!(entries > 3, "{entries}");
}

#[tokio::test]
async fn a_change_by_this_store_ends_the_lease() {
    let limit = Limit::new(1000, SECOND);
    let reset = Op::SetRate {
        limit: limit.stored(),
        keep: false,
        existing: false,
    };
    let world = World::new(limit, TENTH, 2);
    let [ours, other] = &world.processes[..] else {
        panic!()
    };
    world.warm(0);
    poll(ours.manage(&world.name, &reset), 9).unwrap().unwrap();
    assert_eq!(world.takes(0, 1).source(), Source::Store);
    ours.end_all();
    assert_eq!(world.available(), 999);

    // One that was asked for before the end of the change, and is heard of after it.
    world.warm(0);
    while world.ask(0, 1, 0).is_some() {}
    let acquire = world.acquire(1);
    {
        let mut asking = pin!(ours.acquire(&acquire));
        for _ in 0..2 {
            assert!(
                asking
                    .as_mut()
                    .poll(&mut Context::from_waker(Waker::noop()))
                    .is_pending()
            );
        }
        poll(ours.manage(&world.name, &reset), 9).unwrap().unwrap();
        poll(asking, 9).unwrap().unwrap();
    }
    assert!(world.server.ahead.lock().unwrap().len() > 1);
    assert!(ours.take(&world.acquire(1)).is_none());
    assert_eq!(world.available(), 1000);

    // By another store it lasts until its end, and no longer.
    poll(ours.acquire(&world.acquire(1)), 9);
    world.warm(0);
    poll(other.manage(&world.name, &reset), 9).unwrap().unwrap();
    let mut excess = 0;
    while world.takes(0, 1).source() == Source::Lease {
        excess += 1;
    }
    let most = *world.server.ahead.lock().unwrap().iter().max().unwrap();
    assert!((1..=most).contains(&excess), "{excess} of {most}");
}

#[tokio::test]
async fn another_limit_in_force_ends_the_lease() {
    let world = World::new(Limit::new(1000, SECOND), TENTH, 2);
    world.warm(0);
    let op = Op::SetRate {
        limit: Limit::new(500, SECOND).stored(),
        keep: true,
        existing: true,
    };
    poll(world.processes[1].manage(&world.name, &op), 9)
        .unwrap()
        .unwrap();
    // More than the lease has: so that the store is asked.
    world.takes(0, 100);
    assert!(world.processes[0].take(&world.acquire(1)).is_none());
    assert_eq!(world.available(), 500 - 104);
}

#[tokio::test]
async fn a_grant_out_of_a_lease_is_settled_once_and_exactly() {
    let world = World::new(Limit::new(100_000, SECOND), TENTH, 1);
    for _ in 0..7 {
        world.takes(0, 10);
    }
    let lease = &world.processes[0];
    let [a, b, c] = [4, 3, 5].map(|permits| {
        let decision = world.takes(0, permits);
        assert_eq!(decision.source(), Source::Lease);
        receipt(&decision)
    });
    let used = 70 + 12;
    // Into the lease, once.
    lease.give_back(a.clone(), 1);
    lease.give_back(a, 1);
    // More is an entry of its own.
    lease.give_back(b, 10);
    lease.end_all();
    assert_eq!(world.available(), 100_000 - used + 3 - 7);
    // Out of the store, once.
    lease.give_back(c.clone(), 2);
    lease.give_back(c, 2);
    assert_eq!(world.available(), 100_000 - used + 3 - 7 + 3);
    world.advance(1100);
    assert_eq!(world.available(), 100_000);
}

#[tokio::test]
async fn what_is_given_back_is_handed_out_again() {
    let world = World::new(Limit::new(1000, SECOND), TENTH, 1);
    world.warm(0);
    let mut last = None;
    while let Some(decision) = world.processes[0].take(&world.acquire(1)) {
        last = Some(receipt(&decision));
    }
    world.processes[0].give_back(last.unwrap(), 0);
    assert!(world.processes[0].take(&world.acquire(1)).is_some());
    assert!(world.processes[0].take(&world.acquire(1)).is_none());
}

#[tokio::test]
async fn a_caller_who_waits_goes_before_those_to_come() {
    let world = World::new(Limit::new(1000, SECOND), TENTH, 1);
    world.warm(0);
    let waits = |permits| Acquire {
        patience: Some(crate::store::Patience::Endless),
        ..world.acquire(permits)
    };
    let lease = &world.processes[0];
    // Served out of the lease in its turn, but not past those who wait.
    assert!(lease.take(&waits(1)).is_none());
    let decision = poll(lease.acquire(&waits(1)), 9).unwrap().unwrap();
    assert_eq!(decision.source(), Source::Lease);
    // Who needs more gets what is in hand to be free for all.
    let decision = poll(lease.acquire(&waits(996)), 9);
    assert!(!decision.unwrap().unwrap().is_allowed());
    assert_eq!(world.available(), 995);
    let asked = world.server.ahead.lock().unwrap().len();
    for _ in 0..4 {
        let run = [world.acquire(1), waits(1)];
        let decisions = poll(lease.acquire_run(&run), 9).unwrap().unwrap();
        assert_eq!(decisions.len(), 2);
    }
    assert_eq!(world.server.ahead.lock().unwrap().len(), asked);
}

#[tokio::test]
async fn near_exhaustion_nothing_is_taken_ahead() {
    let world = World::new(Limit::new(100, SECOND), TENTH, 2);
    let mut granted = 0;
    for turn in 0..200 {
        granted += u64::from(world.takes(turn % 2, 1).is_allowed());
    }
    // What was taken ahead is used up, and none of the last few was.
    assert_eq!(granted, 100);
    let ahead = world.server.ahead.lock().unwrap();
    assert!(ahead.iter().all(|permits| *permits <= 12), "{ahead:?}");
    assert!(ahead.len() > 2, "{ahead:?}");
}

#[tokio::test]
async fn callers_of_a_run_are_served_out_of_one_lease() {
    let world = World::new(Limit::new(1000, SECOND), TENTH, 1);
    world.warm(0);
    let run: Vec<_> = (0..64).map(|_| world.acquire(1)).collect();
    let before = world.calls();
    let decisions = poll(world.processes[0].acquire_run(&run), 9)
        .unwrap()
        .unwrap();
    assert!(!decisions.is_empty() && decisions.len() < 64);
    assert!(
        decisions
            .iter()
            .all(|decision| decision.source() == Source::Lease)
    );
    assert_eq!(world.calls(), before, "their turn is yet to come");
    let rest = &run[decisions.len()..];
    let decisions = poll(world.processes[0].acquire_run(rest), 9)
        .unwrap()
        .unwrap();
    assert_eq!(decisions.len(), rest.len());
    assert_eq!(world.calls(), before + 1);
}

/// What happens, in which of the processes.
#[derive(Clone, Debug)]
enum Step {
    Pause(u64),
    Take {
        process: usize,
        permits: u32,
        times: u8,
    },
    /// Left alone after so many looks
    Abandon {
        process: usize,
        permits: u32,
        polls: usize,
    },
    Settle {
        which: usize,
        keep: u32,
    },
    EndAll(usize),
}

const PROCESSES: usize = 4;

type Input = (u64, u64, Vec<Step>);

fn input() -> impl Strategy<Value = Input> {
    let process = || 0..PROCESSES;
    let step = prop_oneof![
        6 => prop_oneof![Just(0u64), 1u64..20, 80u64..120, 900u64..1200].prop_map(Step::Pause),
        16 => (process(), prop_oneof![4 => Just(1u32), 1 => 2u32..6], 1u8..12)
            .prop_map(|(process, permits, times)| Step::Take { process, permits, times }),
        2 => (process(), 1u32..4, 0usize..3)
            .prop_map(|(process, permits, polls)| Step::Abandon { process, permits, polls }),
        4 => (0usize..200, 0u32..8).prop_map(|(which, keep)| Step::Settle { which, keep }),
        1 => process().prop_map(Step::EndAll),
    ];
    let rate = prop_oneof![1u64..30, 100u64..500];
    let interval = prop_oneof![Just(5u64), Just(500), Just(1000), Just(10_000)];
    (rate, interval, proptest::collection::vec(step, 1..80))
}

/// What somebody has.
#[derive(Clone, Debug)]
struct Held {
    at: u64,
    permits: u32,
    receipt: Receipt,
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
            Step::Take {
                process,
                permits,
                times,
            } => {
                for _ in 0..times {
                    let decision = world.takes(process, permits);
                    *leased.borrow_mut() += u64::from(decision.source() == Source::Lease);
                    if let Decision::Allow(grant) = &decision {
                        held.push(Held {
                            at: world.now(),
                            permits,
                            receipt: grant.receipts[0].clone(),
                            process,
                            settled: false,
                        });
                        // L1: the window that ends here.
                        let window = held
                            .iter()
                            .filter(|grant| grant.at + interval > world.now());
                        let window: u64 = window.map(|grant| u64::from(grant.permits)).sum();
                        assert!(window <= rate, "{window} of {rate} at {step:?}");
                    }
                }
            }
            Step::Abandon {
                process,
                permits,
                polls,
            } => {
                if let Some(Decision::Allow(grant)) = world.ask(process, permits, polls) {
                    world.processes[process].give_back(grant.receipts[0].clone(), 0);
                }
            }
            Step::Settle { which, keep } if !held.is_empty() => {
                let at = which % held.len();
                let grant = &mut held[at];
                if std::mem::replace(&mut grant.settled, true) {
                    continue;
                }
                world.processes[grant.process].give_back(grant.receipt.clone(), keep);
                if keep > grant.permits {
                    debt.push((world.now(), keep - grant.permits));
                }
                grant.permits = grant.permits.min(keep);
            }
            Step::Settle { .. } => {}
            Step::EndAll(process) => world.processes[process].end_all(),
        }
    }
    world.processes.iter().for_each(Leasing::end_all);
    // Nothing is in use but what somebody has, and all of that: an entry lives as long as its grant and a lease.
    let available = world.available();
    let ahead = interval / 10;
    let held = held.iter().map(|grant| (grant.at, grant.permits));
    let held: Vec<_> = held.chain(debt.iter().copied()).collect();
    let used = |lives: u64| {
        let live = held.iter().filter(|(at, _)| at + lives > world.now());
        live.map(|(_, permits)| i64::from(*permits)).sum::<i64>()
    };
    let in_use = i64::try_from(rate).unwrap() - available;
    assert!(in_use >= used(interval), "{in_use} of {}", used(interval));
    assert!(
        in_use <= used(interval + ahead),
        "{in_use} of {}",
        used(interval + ahead)
    );
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
        cases: Config::default().cases.max(600),
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
    assert!(*leased.borrow() > 10_000, "{leased:?}");
}

/// Several processes that all want more than there is.
#[tokio::test]
async fn a_saturated_limit_is_used_and_shared() {
    for (rate, processes) in [(100u64, 4usize), (1000, 4), (10_000, 8)] {
        let world = World::new(Limit::new(rate, SECOND), TENTH, processes);
        let mut granted = vec![0u64; processes];
        const ROUNDS: u64 = 2000;
        // Twice of what there is, in rounds of 5 ms.
        let wanted = (rate * 2 / 200 / processes as u64).max(1);
        for round in 0..ROUNDS {
            world.advance(5);
            world.settle_down().await;
            for turn in 0..processes {
                // Nobody is always the first.
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
            "{rate} a second, {processes} processes: {utilisation:.3} used, shares {least:.2} to {most:.2} of the mean, \
             {:.4} calls per request",
            world.calls() as f64 / (ROUNDS * wanted * processes as u64) as f64
        );
        // Never more in any window; so the first is all that can come on top.
        assert!(all <= rate * (intervals + 1));
        assert!(utilisation > 0.7, "{utilisation}");
        assert!(least > 0.5, "{granted:?}");
    }
}
