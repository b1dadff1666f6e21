//! Tests leases of several processes on one limiter: the pure algorithm, behind a store whose calls
//! can be dropped at any point.

mod changes;
mod expiry;
mod histories;
mod table;
mod world;

use self::world::{World, done, poll, receipt};
use super::*;
use crate::store::guard::scripted::*;

const SECOND: Duration = Duration::from_secs(1);
const TENTH: Duration = Duration::from_millis(100);

#[tokio::test]
async fn what_is_left_and_when_it_is_whole_is_told_as_without_a_lease() {
    let world = World::of_one();
    for request in 0..100 {
        let decision = world.takes(0, 1);
        let state = decision.charges()[0].standing;
        assert_eq!(state.remaining, Some(999 - request), "{decision:?}");
        assert!(state.reset_after <= SECOND + TENTH);
        assert!(state.reset_after >= SECOND);
    }
    world.advance(40);
    let decision = world.takes(0, 1);
    assert_eq!(decision.source(), Source::Lease);
    let reset = decision.charges()[0].standing.reset_after;
    // The entry's, which ends the lease.
    assert_eq!(reset, SECOND + TENTH - Duration::from_millis(40));
}

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
async fn nothing_is_handed_out_at_the_end_or_after() {
    let world = World::of_one();
    world.warm(0);
    world.advance(99);
    assert_eq!(world.takes(0, 1).source(), Source::Lease);
    world.advance(1);
    assert_eq!(world.takes(0, 1).source(), Source::Store);
    // Of a clock that was set back it is not known.
    world.warm(0);
    let earlier = world.clock.now() - Duration::from_millis(1);
    world.clock.set(earlier);
    assert_eq!(world.takes(0, 1).source(), Source::Store);
}

#[tokio::test]
async fn a_lease_that_is_used_up_costs_no_settlement() {
    let world = World::new(Limit::new(1_000_000, SECOND), TENTH, 1);
    world.warm(0);
    while world.takes(0, 1).source() == Source::Lease {}
    let before = world.available();
    world.end(0);
    assert!(world.available() > before, "the lease that came after it");
    let limiter = world.server.limiter.lock().unwrap();
    let entries = limiter.state.log.entries().count();
    assert!(entries > 3, "{entries}");
}

/// The id of a call needs entropy; a grant out of a lease gets one of its own without it, by which
/// its extra charge is distinguished from that of another grant.
#[tokio::test]
async fn callers_without_an_id_are_charged_more_each() {
    let world = World::of_one();
    world.warm(0);
    let mut demand = world.acquire(1);
    demand.identify(PermitId::NONE);
    let taken = || world.processes[0].table.take(&mut demand.clone()).unwrap();
    let granted = [(); 2].map(|()| receipt(&Decision::Allow(taken())));
    let before = world.available();
    for receipt in granted {
        world.processes[0].settle(receipt.clone(), 6);
        // As a receipt that is sent once more.
        world.processes[0].settle(receipt, 6);
    }
    assert_eq!(world.available(), before - 2 * 5);
}

#[tokio::test]
async fn one_at_a_time_asks_for_a_lease() {
    let world = World::of_one();
    let _ = world.takes(0, 1);
    let (first, second) = (world.acquire(1), world.acquire(1));
    let mut asking = pin!(world.processes[0].acquire(&first));
    assert!(poll(asking.as_mut(), 1).is_none());
    let _ = done(world.processes[0].acquire(&second));
    assert_eq!(world.ahead().len(), 0);
    let _ = done(asking);
    assert_eq!(world.ahead().len(), 1);
    assert_eq!(world.takes(0, 1).source(), Source::Lease);
}

#[tokio::test]
async fn a_caller_who_waits_goes_before_those_to_come() {
    let world = World::of_one();
    world.warm(0);
    for _ in 0..8 {
        let _ = world.takes(0, 1);
    }
    let waits = |permits| Demand {
        max_wait: Some(MaxWait::ENDLESS),
        ..world.acquire(permits)
    };
    let lease = &world.processes[0];
    // Out of the lease as anybody, at once or in the line.
    let decisions = [
        Decision::Allow(lease.table.take(&mut waits(1)).unwrap()),
        done(lease.acquire(&waits(1))),
    ];
    let sources = decisions.iter().map(Decision::source);
    assert!(sources.eq([Source::Lease; 2]));
    // Nothing is kept that was taken ahead while one waits.
    world.end(0);
    world.advance(200);
    let rest = u32::try_from(world.available() - 150).unwrap();
    let _ = world.takes(0, rest);
    world.advance(200);
    let _ = world.takes(0, 1);
    let asked = world.ahead().len();
    let mut run: Vec<_> = (0..60).map(|_| world.acquire(1)).collect();
    run.push(waits(200));
    let decisions = done(lease.acquire_run(&run, false));
    assert!(!decisions[60].is_allowed());
    assert_eq!(world.ahead().len(), asked + 1);
    assert!(world.leased().is_none());
    assert_eq!(world.available(), 150 - 1 - 60);
}

/// It is fetched by the same id with the next call, which its receipt could follow.
#[tokio::test]
async fn what_an_unsent_command_would_have_fetched_is_not_given_back() {
    let world = World::of_one();
    let _ = world.takes(0, 1);
    let (run, lease) = ([world.acquire(1)], &world.processes[0]);
    let answered = poll(lease.acquire_joint(&[&run]), 9).unwrap();
    assert!(matches!(
        answered[..],
        [Answered::Apart { was_sent: false }]
    ));
    assert_eq!(world.server.settled.load(Ordering::Relaxed), 0);
    assert!(world.ahead().is_empty());
    assert!(world.run(&run)[0].is_allowed());
    assert_eq!(world.ahead().len(), 1);
    assert!(world.leased().is_some());
}

/// A command may wait for others when its callers leave.
#[tokio::test]
async fn what_a_lease_served_to_callers_that_all_left_is_given_back() {
    let world = World::of_one();
    world.warm(0);
    let count = || std::iter::from_fn(|| world.leased()).collect::<Vec<_>>();
    let granted = count();
    assert!(granted.len() > 1);
    let lease = &world.processes[0];
    for decision in &granted {
        lease.settle(receipt(decision), 0);
    }
    let run = [world.acquire(1)];
    let served = lease.begin(&run);
    assert!(matches!(served, Begun::Served(_)));
    drop(served);
    assert_eq!(count().len(), granted.len());
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
    let ahead = world.ahead();
    assert!(ahead.iter().all(|permits| *permits <= 12), "{ahead:?}");
    assert!(ahead.len() > 2, "{ahead:?}");
}

#[tokio::test]
async fn what_is_given_back_is_handed_out_however_often() {
    let world = World::new(Limit::new(1_000_000, SECOND), TENTH, 1);
    let taken = world.warm(0);
    for _ in 0..5000 {
        let decision = world.takes(0, 1);
        assert_eq!(decision.source(), Source::Lease);
        let receipt = receipt(&decision);
        world.processes[0].settle(receipt.clone(), 0);
        // By any copy, once.
        world.processes[0].settle(receipt, 0);
    }
    assert_eq!(world.ahead(), [4]);
    // Also the last of them.
    let last = std::iter::from_fn(|| world.leased()).last();
    world.processes[0].settle(receipt(&last.unwrap()), 0);
    assert!(world.leased().is_some());
    assert!(world.leased().is_none());
    world.end(0);
    assert_eq!(world.available(), 1_000_000 - taken - 3);
}

/// The record for an outage has what the store counts of a lease, until it has ended and after.
#[tokio::test]
async fn a_lease_is_recorded_as_the_store_counts_it() {
    for (used, before, after) in [(0, 0, 0), (3, 0, 0), (3, 1, 0), (3, 0, 2), (3, 1, 1)] {
        let world = World::of_one();
        // The calls of the other grants are recorded by the stack.
        let by_calls = world.warm(0) - 1;
        let is_as_in_store = |when: &str| {
            let recorded = i64::from(world.processes[0].recent.count(&world.name));
            let in_store = 1000 - world.available() - by_calls;
            assert_eq!(recorded, in_store, "{when}: {used}, {before}, {after}");
        };
        is_as_in_store("at the beginning");
        let taken = std::iter::from_fn(|| world.leased()).take(used);
        let mut taken: Vec<_> = taken.map(|decision| receipt(&decision)).collect();
        assert_eq!(taken.len(), used);
        let rest = taken.split_off(before);
        let give_back = |receipt| world.processes[0].settle(receipt, 0);
        taken.into_iter().for_each(give_back);
        is_as_in_store("in hand");
        world.end(0);
        is_as_in_store("at the end");
        rest.into_iter().take(after).for_each(give_back);
        is_as_in_store("after it");
    }
}

/// More names than the table has room for: each replaces another, whose lease is still in use.
#[tokio::test]
async fn a_limiter_that_is_evicted_gives_its_lease_back() {
    const MOST: usize = 32;
    let mut world = World::new(Limit::new(u64::from(u32::MAX), SECOND), TENTH, 1);
    let own: Arc<dyn Clock> = Arc::new(world.clock.clone());
    let table = LeaseTable::new(MOST, StoreClock { own: Some(own) });
    Arc::get_mut(&mut world.processes[0]).unwrap().table = table;
    for limiter in 0..500 {
        world.name = Name::exact(&format!("hot{limiter}")).unwrap();
        for _ in 0..2 {
            let _ = world.takes(0, 1);
        }
    }
    let (asked, out) = (world.ahead().len(), world.processes[0].table.count());
    assert!(
        asked > 10 * MOST && (1..=2 * MOST).contains(&out),
        "{out} of {asked}"
    );
    let taken = i64::from(u32::MAX) - world.available();
    assert_eq!(taken, 1000 + 4 * i64::try_from(out).unwrap());
}

#[tokio::test]
async fn callers_of_a_run_are_served_out_of_one_lease() {
    let world = World::of_one();
    world.warm(0);
    let run: Vec<_> = (0..64).map(|_| world.acquire(1)).collect();
    let before = world.calls();
    let decisions = world.run(&run);
    assert!(!decisions.is_empty() && decisions.len() < 64);
    let is_leased = |decision: &Decision| decision.source() == Source::Lease;
    assert!(decisions.iter().all(is_leased));
    assert_eq!(world.calls(), before, "their turn is yet to come");
    let rest = &run[decisions.len()..];
    let decisions = world.run(rest);
    assert_eq!(decisions.len(), rest.len());
    assert_eq!(world.calls(), before + 1);
}
