//! Tests runtimes that are shut down, or alive and not driven.

use super::*;

fn world() -> World {
    World::with(2, BOUNDS, true)
}

/// A static store, and a runtime between two `block_on`s.
#[test]
fn a_runtime_that_is_not_driven_holds_up_others_for_one_deadline() {
    let mut world = world();
    // Its caller sends its own call, and is polled no more.
    let _undriven = world.comes_to(Some(0), 1, None);
    let _behind = world.comes_to(Some(0), 1, None);
    world.server.reply(0);
    world.advance(20);
    let mut other = world.comes_to(Some(1), 1, None);
    world.advance(29);
    world.drive(1, 20);
    assert_eq!(world.calls().len(), 1);
    world.advance(1);
    // The hold is over: the next one to come goes at once, and those behind after it, but for the
    // one that is late by now.
    let mut later = world.comes_to(Some(1), 1, None);
    assert_eq!(world.calls()[1], [later.id]);
    world.server.reply(1);
    assert!(world.poll(&mut later).is_some());
    world.drive(1, 20);
    assert_eq!(world.calls()[2], [other.id]);
    world.server.reply(2);
    world.drive(1, 20);
    assert!(world.poll(&mut other).is_some());
}

#[test]
fn a_call_of_a_runtime_that_is_not_driven_does_not_keep_waiters_of_others() {
    let mut world = world();
    let _first = world.comes_to(Some(0), 1, Some(MaxWait::ENDLESS));
    let mut waits = world.comes_to(Some(1), 1, Some(MaxWait::ENDLESS));
    // The first runtime stops in the midst of the call, whose reply it never reads.
    world.server.reply(0);
    world.advance(50);
    world.run_on(1, &mut waits);
    assert_eq!(world.calls()[1].last(), Some(&waits.id));
    world.server.reply(1);
    assert!(world.run_on(1, &mut waits).expect("served").is_ok());
    // It goes on, and gives back what it does not find a taker for.
    world.settle();
    assert!(world.held().contains(&waits.id));
}

/// However much one of them has to send.
#[test]
fn of_two_runtimes_that_wait_the_one_that_waits_longer_sends() {
    let mut world = world();
    let bound = |world: &World, bound| {
        world.outbox.nodes.node(0).flights.commands.bound = bound;
    };
    bound(&world, 1);
    world.server.joins.store(true, Ordering::SeqCst);
    let comes = [(0, 1), (0, 2), (1, 3), (0, 4)];
    let mut callers = comes.map(|(runtime, limiter)| {
        world.advance(1);
        world.comes_to(Some(runtime), limiter, None)
    });
    for (sent, caller) in callers.iter_mut().enumerate() {
        assert_eq!(world.calls()[sent..], [[caller.id]]);
        // It grows by one at the end of the command.
        bound(&world, 0);
        world.server.reply(sent);
        (0..2).for_each(|runtime| world.drive(runtime, 20));
        assert!(world.poll(caller).is_some());
        (0..2).for_each(|runtime| world.drive(runtime, 20));
    }
}

/// Of limiters that go together: those that wait for a task of it go by another after a deadline.
#[test]
fn a_runtime_that_is_not_driven_holds_up_no_other_limiter() {
    let mut world = world();
    world.server.joins.store(true, Ordering::SeqCst);
    let _undriven = [1, 2].map(|limiter| world.comes_to(Some(0), limiter, None));
    let mut others: Vec<_> = (3..6)
        .map(|limiter| world.comes_to(Some(1), limiter, None))
        .collect();
    assert_eq!(world.calls()[1], [others[0].id]);
    world.drive(1, 20);
    assert_eq!(world.calls()[2..], [[others[1].id], [others[2].id]]);
    (1..4).for_each(|at| world.server.reply(at));
    world.drive(1, 20);
    assert!(others.iter_mut().all(|other| world.poll(other).is_some()));
    let _same = world.comes_to(Some(1), 2, None);
    world.drive(1, 20);
    assert_eq!(world.calls().len(), 4);
    world.clock.advance(DEADLINE);
    let later = world.comes_to(Some(1), 2, None);
    world.drive(1, 20);
    assert_eq!(world.calls()[4].last(), Some(&later.id));
}
