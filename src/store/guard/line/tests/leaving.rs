//! What becomes of the others, and of what was granted, when somebody leaves.

use super::store::{Caller, World, acquire};
use crate::demand::MaxWait;

/// So many who wait and were told to wait for a second, and come after each other.
fn waiting(world: &World, count: u64) -> Vec<Caller<'_>> {
    let waits = |id| world.caller(acquire(id).waiting(MaxWait::ENDLESS));
    let mut waiting: Vec<_> = (1..=count).map(waits).collect();
    for caller in &mut waiting {
        assert!(caller.poll().is_none());
    }
    world.refuse(0, 1000);
    assert!(waiting[0].poll().is_none());
    world.nudge();
    assert!(waiting[0].poll().is_none());
    world.refuse(1, 1000);
    assert!(waiting[0].poll().is_none());
    assert_eq!(world.calls().len(), 2);
    waiting
}

/// A request that hung up stays charged; whoever waited has nothing to give back by, so the line does.
#[test]
fn of_grants_that_nobody_heard_of_those_of_waiters_are_given_back() {
    let world = World::new();
    let mut callers = world.callers(1..=3);
    callers
        .iter_mut()
        .for_each(|caller| assert!(caller.poll().is_none()));
    world.grant(0);
    assert!(callers[1].poll().is_none());
    world.grant(1);
    assert!(callers[1].poll().unwrap().unwrap().is_allowed());
    drop(callers.remove(2));
    assert_eq!(world.held(), [1, 2, 3]);

    let world = World::new();
    let mut waiting = waiting(&world, 2);
    world.advance(1000);
    assert!(waiting[0].poll().is_none());
    world.grant(2);
    assert!(waiting[0].poll().unwrap().unwrap().is_allowed());
    assert_eq!(world.held(), [1, 2]);
    drop(waiting.remove(1));
    assert_eq!(world.held(), [1]);
}

/// The answer, with which it would be given back once more, may never come.
#[test]
fn what_a_waiter_left_in_a_call_is_given_back_at_once() {
    let world = World::new();
    let mut waiting = waiting(&world, 2);
    world.advance(1000);
    assert!(waiting[0].poll().is_none());
    world.carry_out(2);
    assert_eq!(world.held(), [1, 2]);
    drop(waiting.remove(1));
    assert_eq!(world.held(), [1]);
}

/// They may be served earlier than they were told; those before it may not.
#[test]
fn those_behind_a_waiter_who_leaves_are_asked_for() {
    for (leaves, asked) in [(0, vec![2, 3]), (1, vec![1, 3]), (2, vec![])] {
        let world = World::new();
        let mut waiting = waiting(&world, 3);
        drop(waiting.remove(leaves));
        for caller in &mut waiting {
            assert!(caller.poll().is_none());
        }
        let calls: Vec<_> = world.calls().drain(2..).map(|(_, ids)| ids).collect();
        let expected: Vec<_> = Some(asked)
            .filter(|ids| !ids.is_empty())
            .into_iter()
            .collect();
        assert_eq!(calls, expected, "{leaves}");
    }
}

/// A call is under way, after which they are seen to; and nothing will be heard of one who left before it was asked for.
#[test]
fn one_who_leaves_before_it_was_asked_for_wakes_nobody_and_is_forgotten() {
    let world = World::new();
    let mut callers = world.callers(1..=6);
    callers
        .iter_mut()
        .for_each(|caller| assert!(caller.poll().is_none()));
    drop(callers.remove(1));
    assert_eq!(world.gone(), 0);
    assert!(!callers.iter().any(Caller::woken));
    // And beside a call for many.
    world.grant(0);
    assert!(callers[1].poll().is_none());
    assert_eq!(world.calls()[1], (true, vec![3, 4, 5, 6]));
    let mut behind = world.callers(7..=9);
    for caller in &mut behind {
        assert!(caller.poll().is_none());
    }
    drop(behind.remove(1));
    assert_eq!(world.gone(), 0);
    assert!(!behind.iter().any(Caller::woken));
}
