//! Which leases are out, when they end, and what an account knows of one.

use super::{world::Connection, *};
use crate::receipt::TakenAhead;

/// The keeper of a process that asks nobody, and the clock it goes by.
fn keeper(world: &World) -> (Arc<Keeper<Connection>>, Arc<dyn Clock>) {
    let clock: Arc<dyn Clock> = Arc::new(world.clock.clone());
    let inner = Arc::clone(&world.processes[0].inner);
    (Arc::new(Keeper::new(inner, Arc::clone(&clock))), clock)
}

fn account(world: &World, permits: u32) -> Arc<Account> {
    Arc::new(Account::new(world.acquire(permits).first.receipt()))
}

/// Also those that end at one time.
#[tokio::test]
async fn leases_are_ended_by_number_those_first_that_end_first() {
    let mut world = World::new(Limit::new(1000, SECOND), TENTH, 1);
    let mut out = Vec::new();
    for (limiter, pause) in [("a", 0), ("b", 10), ("c", 0)] {
        world.name = Name::exact(limiter).unwrap();
        world.warm(0);
        out.push(world.acquire(1));
        world.advance(pause);
    }
    let ours = &world.processes[0];
    assert_eq!(ours.count(), 3);
    let before = world.available();
    ours.end_first(2);
    assert_eq!(ours.count(), 1);
    // Of each four, one was taken.
    assert_eq!(world.available(), before + 6);
    let lasts = out.iter().map(|acquire| ours.pools.take(acquire).is_some());
    assert_eq!(lasts.collect::<Vec<_>>(), [false, false, true]);
    ours.end_first(2);
    assert_eq!(ours.count(), 0);
    assert_eq!(world.available(), before + 6 + 2);
}

/// The task sleeps until the first one's end, whichever came first.
#[tokio::test]
async fn a_lease_that_ends_before_all_others_ends_in_time() {
    let world = World::new(Limit::new(1000, SECOND), TENTH, 1);
    let (keeper, _) = keeper(&world);
    for (left, out) in [(90, 1), (70, 2), (50, 3)] {
        keeper.watch(account(&world, 1), Duration::from_millis(left));
        world.settle_down().await;
        assert_eq!(keeper.count(), out);
    }
    for out in [2, 1, 0] {
        world.advance(if out == 2 { 49 } else { 19 });
        world.settle_down().await;
        assert_eq!(keeper.count(), out + 1);
        world.advance(1);
        world.settle_down().await;
        assert_eq!(keeper.count(), out);
    }
}

/// And not at the end of the last lease, which would keep a runtime from being idle.
#[tokio::test]
async fn the_task_ends_with_its_store() {
    let world = World::new(Limit::new(1000, SECOND), TENTH, 1);
    let (keeper, clock) = keeper(&world);
    keeper.watch(account(&world, 1), TENTH);
    world.settle_down().await;
    // Here, in the keeper and in its task.
    assert_eq!(Arc::strong_count(&clock), 3);
    drop(keeper);
    world.settle_down().await;
    assert_eq!(Arc::strong_count(&clock), 1);
}

#[test]
fn an_account_is_worn_when_less_than_half_is_left() {
    let world = World::new(Limit::new(1000, SECOND), TENTH, 1);
    let account = account(&world, 100);
    assert_eq!((account.used(), account.is_worn()), (0, false));
    let (left, grant) = account.take(50).unwrap();
    assert_eq!(left, 50);
    assert_eq!((account.used(), account.is_worn()), (50, false));
    account.take(1).unwrap();
    assert_eq!((account.used(), account.is_worn()), (51, true));
    account.give_back(grant, 20, &mut |_, _| panic!("it may be handed out again"));
    assert_eq!((account.used(), account.is_worn()), (31, false));
    // Out of the store, as nobody has it.
    account.close(|entry, keep| assert_eq!((entry.permits, keep), (100, 31)));
    assert_eq!((account.used(), account.is_worn()), (31, true));
    assert_eq!(account.taken(), 100);
}
