//! Tests when leases end, and how a balance counts their permits.

use std::sync::{OnceLock, Weak};

use super::{world::Connection, *};
use crate::values::charge::TakenAhead;

/// Three limiters that are asked for ten milliseconds after each other, each with a lease of four
/// permits, and one is taken.
fn leased(world: &mut World) -> Vec<Demand> {
    let mut out = Vec::new();
    for (limiter, pause) in [("a", 10), ("b", 10), ("c", 0)] {
        world.name = Name::exact(limiter).unwrap();
        world.warm(0);
        out.push(world.acquire(1));
        world.advance(pause);
    }
    out
}

fn balance(world: &World, permits: u32, settle: SettleFn) -> Arc<Balance> {
    Arc::new(Balance::new(
        world.acquire(permits).first().to_send(),
        settle,
    ))
}

#[tokio::test]
async fn leases_are_ended_by_number() {
    let mut world = World::of_one();
    let out = leased(&mut world);
    let ours = &world.processes[0];
    assert_eq!(ours.table.count(), 3);
    let before = world.available();
    ours.table.end_first(2);
    assert_eq!(ours.table.count(), 1);
    assert_eq!(world.available(), before + 6);
    let lasts = |demand: &&Demand| ours.table.take(&mut Demand::clone(demand)).is_some();
    assert_eq!(out.iter().filter(lasts).count(), 1);
    ours.table.end_first(2);
    assert_eq!(ours.table.count(), 0);
    assert_eq!(world.available(), before + 6 + 2);
}

/// Each by itself, to the millisecond, and also where another one has taken its place meanwhile.
#[tokio::test]
async fn each_lease_ends_in_time() {
    let mut world = World::of_one();
    leased(&mut world);
    let before = world.available();
    world.settle_down().await;
    for (millis, out) in [(79, 3), (1, 2), (9, 2), (1, 1), (9, 1), (1, 0)] {
        world.advance(millis);
        world.settle_down().await;
        assert_eq!(world.processes[0].table.count(), out, "{millis}");
        // Of the four of each, three are unused.
        let ended = i64::try_from(3 - out).unwrap();
        assert_eq!(world.available(), before + 3 * ended, "{millis}");
    }
    // The first of these is used up.
    world.advance(2000);
    while world.ahead().len() < 5 {
        let _ = world.takes(0, 1);
        world.settle_down().await;
        world.advance(1);
    }
    assert_eq!(world.processes[0].table.count(), 1);
    world.advance(98);
    world.settle_down().await;
    assert_eq!(world.processes[0].table.count(), 1);
    world.advance(1);
    world.settle_down().await;
    assert_eq!(world.processes[0].table.count(), 0);
}

/// And not at the end of the last lease, which would keep a runtime from being idle.
#[tokio::test]
async fn the_tasks_end_with_their_leases() {
    let mut world = World::new(Limit::new(1000, SECOND), TENTH, 2);
    leased(&mut world);
    world.settle_down().await;
    let tasks = || Handle::current().metrics().num_alive_tasks();
    assert_eq!(tasks(), 3);
    world.processes[0].table.end_first(1);
    world.settle_down().await;
    assert_eq!(tasks(), 2);
    let store: Weak<Connection> = Arc::downgrade(&world.processes[0].inner);
    world.processes.remove(0);
    world.settle_down().await;
    assert_eq!(tasks(), 0);
    assert!(store.upgrade().is_none());
}

#[test]
fn a_balance_is_worn_when_less_than_half_is_left() {
    let world = World::of_one();
    let settled = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&settled);
    let settle = move |entry: Charge, keep| log.lock().unwrap().push((entry.permits, keep));
    let balance = balance(&world, 100, Arc::new(settle));
    assert_eq!((balance.used(), balance.is_low()), (0, false));
    let (left, _) = balance.take(50).unwrap();
    assert_eq!(left, 50);
    assert_eq!((balance.used(), balance.is_low()), (50, false));
    balance.take(1).unwrap();
    assert_eq!((balance.used(), balance.is_low()), (51, true));
    // It may be handed out again.
    balance.give_back(20);
    assert_eq!(*settled.lock().unwrap(), []);
    assert_eq!((balance.used(), balance.is_low()), (31, false));
    // Out of the store, as no grant has it.
    balance.close();
    assert_eq!(*settled.lock().unwrap(), [(100, 31)]);
    assert_eq!((balance.used(), balance.is_low()), (31, true));
    assert_eq!(balance.taken(), 100);
}

/// A lease that its time ends was not used up, so the next one is smaller.
#[tokio::test]
async fn a_lease_that_ends_unused_makes_the_next_one_small() {
    let world = World::new(Limit::new(100_000, SECOND), TENTH, 1);
    let has_grown = || world.ahead().last().is_some_and(|ahead| *ahead >= 60);
    'growing: loop {
        for _ in 0..50 {
            let _ = world.takes(0, 1);
            if has_grown() {
                break 'growing;
            }
        }
        world.settle_down().await;
        world.advance(5);
    }
    world.advance(500);
    world.settle_down().await;
    assert_eq!(world.processes[0].table.count(), 0);
    // A pair of callers after a long pause looks like many.
    world.advance(60_000);
    let before = world.ahead().len();
    for _ in 0..4 {
        let _ = world.takes(0, 1);
        world.advance(1);
    }
    let ahead = world.ahead();
    assert!(ahead.len() > before, "{ahead:?}");
    let is_small = |ahead: &u32| *ahead <= 10;
    assert!(ahead[before..].iter().all(is_small), "{ahead:?}");
}

/// A loss is reported to observers that may ask for the lease again, and the order stays.
#[tokio::test]
async fn a_correction_that_comes_back_waits_for_its_turn() {
    let world = World::of_one();
    let sent = Arc::new(Mutex::new(Vec::new()));
    let this = Arc::new(OnceLock::<Weak<Balance>>::new());
    let settle = {
        let (sent, this) = (Arc::clone(&sent), Arc::clone(&this));
        move |entry: Charge, keep| {
            sent.lock().unwrap().push((entry.permits, keep));
            if keep == 50 {
                let balance = this.get().unwrap().upgrade().unwrap();
                assert_eq!(balance.used(), 50);
                balance.give_back(20);
                assert_eq!(sent.lock().unwrap().len(), 2, "the caller before sends it");
            }
        }
    };
    let balance = balance(&world, 100, Arc::new(settle));
    this.set(Arc::downgrade(&balance)).unwrap();
    let _ = balance.take(60).unwrap();
    balance.close();
    balance.give_back(10);
    assert_eq!(*sent.lock().unwrap(), [(100, 60), (60, 50), (50, 30)]);
}
