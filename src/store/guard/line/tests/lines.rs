//! Which lines are looked into, and what is handed on to the store within.

use super::store::{World, acquire};
use crate::{
    demand::{Acquire, MaxWait},
    name::Name,
    store::Op,
};

fn elsewhere(id: u64) -> Acquire {
    let acquire = acquire(id);
    Acquire {
        first: acquire.first.of(Name::exact("elsewhere").unwrap()),
        ..acquire
    }
}

/// Only who waits for the same limiter, and is not being asked for, has what is left reserved.
#[cfg(feature = "redis")]
#[test]
fn it_is_known_of_which_limiters_permits_are_waited_for() {
    let world = World::new();
    assert!(!world.is_waited_for(&acquire(1)));
    let mut waiting = world.caller(acquire(1).waiting(MaxWait::ENDLESS));
    assert!(waiting.poll().is_none());
    assert!(!world.is_waited_for(&acquire(2)), "it is being asked for");
    world.refuse(0, 1000);
    assert!(waiting.poll().is_none());
    assert!(world.is_waited_for(&acquire(2)));
    assert!(!world.is_waited_for(&elsewhere(2)));
    drop(waiting);
    assert!(!world.is_waited_for(&acquire(2)));
}

/// Whatever may have made room has those asked for who wait for it, under either name; nobody else.
#[test]
fn a_change_has_those_asked_for_who_wait_there() {
    let names = [acquire(1), elsewhere(1)].map(|acquire| acquire.first.name().clone());
    let [here, there] = &names;
    for (name, op, asks) in [
        (here, Op::Available, [false, false]),
        (here, Op::Delete, [true, false]),
        (there, Op::Release(1), [false, true]),
        (here, Op::Rename(there.clone()), [true, true]),
    ] {
        let world = World::new();
        let waiting = [acquire(1), elsewhere(2)];
        let mut waiting = waiting.map(|it| world.caller(it.waiting(MaxWait::ENDLESS)));
        for (place, caller) in waiting.iter_mut().enumerate() {
            assert!(caller.poll().is_none());
            world.refuse(place, 1000);
            assert!(caller.poll().is_none());
        }
        world.manage(name, &op);
        for (caller, asks) in waiting.iter_mut().zip(asks) {
            let before = world.calls().len();
            assert_eq!(caller.woken(), asks, "{op:?}");
            assert!(caller.poll().is_none());
            assert_eq!(world.calls().len(), before + usize::from(asks), "{op:?}");
        }
    }
}
