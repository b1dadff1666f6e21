//! Several processes on one limiter: the pure one, behind a store whose calls can be dropped at any
//! point.

mod changes;
mod expiry;
mod histories;
mod table;
mod world;

use std::{
    future::Future,
    pin::pin,
    task::{Context, Waker},
};

use self::world::{World, poll, receipt};
use super::*;
use crate::{
    decision::Source,
    limit::{Algorithm, Limit, LimitSource},
};

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
        let state = &decision.states()[0];
        assert_eq!(state.remaining(), Some(999 - request), "{decision:?}");
        assert!(state.reset_after() <= SECOND + TENTH);
        assert!(state.reset_after() >= SECOND);
    }
    world.advance(40);
    let decision = world.takes(0, 1);
    assert_eq!(decision.source(), Source::Lease);
    let reset = decision.states()[0].reset_after();
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
    assert_eq!(world.takes(0, 1).source(), Source::Lease);
    world
        .clock
        .set(world.clock.now() - Duration::from_millis(1));
    assert_eq!(world.takes(0, 1).source(), Source::Store);
}

#[tokio::test]
async fn what_is_unused_is_given_back_at_the_end_though_nobody_asks() {
    let world = World::new(Limit::new(1000, SECOND), TENTH, 1);
    let taken = world.warm(0);
    assert!(world.available() < 1000 - taken);
    world.settle_down().await;
    world.advance(99);
    world.settle_down().await;
    assert!(world.available() < 1000 - taken);
    world.advance(1);
    world.settle_down().await;
    assert_eq!(world.available(), 1000 - taken);
    assert_eq!(world.processes[0].count(), 0);
    // And again, by another task.
    world.advance(2000);
    let taken = world.warm(0);
    world.settle_down().await;
    world.advance(100);
    world.settle_down().await;
    assert_eq!(world.available(), 1000 - taken);
}

#[tokio::test]
async fn a_store_that_is_dropped_or_closed_gives_back() {
    let mut world = World::new(Limit::new(1000, SECOND), TENTH, 2);
    let taken = world.warm(0) + world.warm(1);
    world.processes[0].end_first(usize::MAX);
    world.processes.pop();
    assert_eq!(world.available(), 1000 - taken);
    assert_eq!(world.takes(0, 1).source(), Source::Store);
}

#[tokio::test]
async fn a_lease_that_is_used_up_costs_no_settlement() {
    let world = World::new(Limit::new(1_000_000, SECOND), TENTH, 1);
    world.warm(0);
    while world.takes(0, 1).source() == Source::Lease {}
    let before = world.available();
    world.processes[0].end_first(usize::MAX);
    assert!(world.available() > before, "the lease that came after it");
    let entries = world
        .server
        .limiter
        .lock()
        .unwrap()
        .state
        .log
        .entries()
        .count();
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
    ours.end_first(usize::MAX);
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
        let _ = poll(asking, 9).unwrap().unwrap();
    }
    assert!(world.server.ahead.lock().unwrap().len() > 1);
    assert!(ours.table.take(&world.acquire(1)).is_none());
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
    let taken = world.warm(0);
    let op = Op::SetRate {
        limit: Limit::new(500, SECOND).stored(),
        keep: true,
        existing: true,
    };
    poll(world.processes[1].manage(&world.name, &op), 9)
        .unwrap()
        .unwrap();
    // More than the lease has: so that the store is asked.
    let _ = world.takes(0, 100);
    assert!(world.processes[0].table.take(&world.acquire(1)).is_none());
    assert_eq!(world.available(), 500 - 100 - taken);
}

#[tokio::test]
async fn a_grant_out_of_a_lease_is_settled_once_and_exactly() {
    let world = World::new(Limit::new(100_000, SECOND), TENTH, 1);
    for _ in 0..7 {
        let _ = world.takes(0, 10);
    }
    let lease = &world.processes[0];
    let [a, b, c] = [4, 3, 5].map(|permits| {
        let decision = world.takes(0, permits);
        assert_eq!(decision.source(), Source::Lease);
        receipt(&decision)
    });
    let used = 70 + 12;
    // Into the lease, once.
    lease.settle(a.clone(), 1);
    lease.settle(a, 1);
    // More is an entry of its own.
    lease.settle(b, 10);
    lease.end_first(usize::MAX);
    assert_eq!(world.available(), 100_000 - used + 3 - 7);
    // Out of the store, once.
    lease.settle(c.clone(), 2);
    lease.settle(c, 2);
    assert_eq!(world.available(), 100_000 - used + 3 - 7 + 3);
    world.advance(1100);
    assert_eq!(world.available(), 100_000);
}

/// The id of a call needs entropy; a grant out of a lease gets one of its own without it, by which
/// its extra charge is told from that of another grant.
#[tokio::test]
async fn callers_without_an_id_are_charged_more_each() {
    let world = World::new(Limit::new(1000, SECOND), TENTH, 1);
    world.warm(0);
    let mut acquire = world.acquire(1);
    acquire.identify(crate::receipt::PermitId::NONE);
    let granted = [(); 2].map(|()| receipt(&world.processes[0].table.take(&acquire).unwrap()));
    let before = world.available();
    for receipt in granted {
        world.processes[0].settle(receipt.clone(), 6);
        // As a receipt that is sent once more.
        world.processes[0].settle(receipt, 6);
    }
    assert_eq!(world.available(), before - 2 * 5);
}

#[tokio::test]
async fn what_is_given_back_is_handed_out_again() {
    let world = World::new(Limit::new(1000, SECOND), TENTH, 1);
    world.warm(0);
    let mut last = None;
    while let Some(decision) = world.processes[0].table.take(&world.acquire(1)) {
        last = Some(receipt(&decision));
    }
    world.processes[0].settle(last.unwrap(), 0);
    assert!(world.processes[0].table.take(&world.acquire(1)).is_some());
    assert!(world.processes[0].table.take(&world.acquire(1)).is_none());
}

#[tokio::test]
async fn what_is_used_late_comes_back_late() {
    let world = World::new(Limit::new(100, SECOND), TENTH, 1);
    let _ = world.takes(0, 1);
    let _ = world.takes(0, 1);
    let [ahead] = world.server.ahead.lock().unwrap()[..] else {
        panic!("one lease");
    };
    world.advance(99);
    for _ in 0..ahead {
        assert_eq!(world.takes(0, 1).source(), Source::Lease);
    }
    world.advance(400);
    world.processes[0].end_first(usize::MAX);
    let rest = u32::try_from(world.available()).unwrap();
    assert!(world.takes(0, rest).is_allowed());
    // What the first two took is free, and what was used at 99 is not.
    world.advance(501);
    assert_eq!(world.available(), 2);
    assert!(world.takes(0, 2).is_allowed());
    world.advance(99);
    assert!(!world.takes(0, 1).is_allowed());
    world.advance(1);
    assert_eq!(world.available(), i64::from(ahead));
}

#[tokio::test]
async fn one_at_a_time_asks_for_a_lease() {
    let world = World::new(Limit::new(1000, SECOND), TENTH, 1);
    let _ = world.takes(0, 1);
    let (first, second) = (world.acquire(1), world.acquire(1));
    let mut asking = pin!(world.processes[0].acquire(&first));
    let mut context = Context::from_waker(Waker::noop());
    assert!(asking.as_mut().poll(&mut context).is_pending());
    let _ = poll(world.processes[0].acquire(&second), 9)
        .unwrap()
        .unwrap();
    assert_eq!(world.server.ahead.lock().unwrap().len(), 0);
    let _ = poll(asking, 9).unwrap().unwrap();
    assert_eq!(world.server.ahead.lock().unwrap().len(), 1);
    assert_eq!(world.takes(0, 1).source(), Source::Lease);
}

#[tokio::test]
async fn a_caller_who_waits_goes_before_those_to_come() {
    let world = World::new(Limit::new(1000, SECOND), TENTH, 1);
    let mut taken = world.warm(0) + 8;
    for _ in 0..8 {
        let _ = world.takes(0, 1);
    }
    let waits = |permits| Acquire {
        max_wait: Some(crate::demand::MaxWait::ENDLESS),
        ..world.acquire(permits)
    };
    let lease = &world.processes[0];
    // Out of the lease as anybody, at once or in the line.
    let decisions = [
        lease.table.take(&waits(1)).unwrap(),
        poll(lease.acquire(&waits(1)), 9).unwrap().unwrap(),
    ];
    let sources = decisions.iter().map(Decision::source);
    assert!(sources.into_iter().all(|source| source == Source::Lease));
    taken += 2;
    // Who needs more than there is has what is in hand free for all.
    assert!(world.available() < 1000 - taken);
    let decision = poll(lease.acquire(&waits(999)), 9).unwrap().unwrap();
    assert!(!decision.is_allowed());
    assert_eq!(world.available(), 1000 - taken);

    // Nothing is kept that was taken ahead beside one who waits.
    world.advance(200);
    let rest = u32::try_from(world.available() - 150).unwrap();
    let _ = world.takes(0, rest);
    world.advance(200);
    let _ = world.takes(0, 1);
    let asked = world.server.ahead.lock().unwrap().len();
    let mut run: Vec<_> = (0..20).map(|_| world.acquire(1)).collect();
    run.push(waits(200));
    let decisions = poll(lease.acquire_run(&run), 9).unwrap().unwrap();
    assert!(!decisions[20].is_allowed());
    assert_eq!(world.server.ahead.lock().unwrap().len(), asked + 1);
    assert!(lease.table.take(&world.acquire(1)).is_none());
    assert_eq!(world.available(), 150 - 1 - 20);
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
    world.processes[0].end_first(usize::MAX);
    assert_eq!(world.available(), 1_000_000 - taken);
}

/// So many names that each takes the place of another, whose lease is still out.
#[tokio::test]
async fn a_limiter_that_is_evicted_gives_its_lease_back() {
    const MOST: usize = 32;
    let mut world = World::new(Limit::new(u64::from(u32::MAX), SECOND), TENTH, 1);
    let own: Arc<dyn Clock> = Arc::new(world.clock.clone());
    let table = LeaseTable::knowing(MOST, StoreClock::new(Some(own)));
    Arc::get_mut(&mut world.processes[0]).unwrap().table = table;
    for limiter in 0..500 {
        world.name = Name::exact(&format!("hot{limiter}")).unwrap();
        for _ in 0..2 {
            let _ = world.takes(0, 1);
        }
    }
    let (asked, out) = (world.ahead().len(), world.processes[0].count());
    assert!(
        asked > 10 * MOST && (1..=2 * MOST).contains(&out),
        "{out} of {asked}"
    );
    let taken = i64::from(u32::MAX) - world.available();
    assert_eq!(taken, 1000 + 4 * i64::try_from(out).unwrap());
}

#[test]
fn lists_that_are_decided_one_at_a_time_are_so_with_a_lease() {
    let world = World::new(Limit::new(1000, SECOND), TENTH, 1);
    let one = world.acquire(1);
    let list = Acquire {
        rest: vec![world.acquire(1).first],
        ..one.clone()
    };
    let decided = [&one, &list].map(|acquire| world.processes[0].decides_together(acquire));
    assert_eq!(decided, [true, false]);
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
