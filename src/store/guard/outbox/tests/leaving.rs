//! Tests callers that leave, at every step of a call.

use tokio::runtime::Runtime;

use super::*;
use crate::store::guard::outbox::breaker::Signal;

/// A call of a limiter in flight, with so many requests and waiters behind it.
fn behind(world: &mut World, requests: usize) -> (Caller, Vec<Caller>) {
    let first = world.comes(1);
    (first, (0..requests).map(|_| world.comes(1)).collect())
}

/// It is known to have taken nothing, so nothing is given back for it.
#[test]
fn a_caller_knows_whether_it_leaves_unsent() {
    let bounds = Bounds { most: 1, ..BOUNDS };
    for (limiters, is_sent) in [([1, 1], false), ([1, 2], false), ([1, 1], true)] {
        // Behind a call of its limiter, behind the bound in flight, and with its call sent.
        let mut world = World::with(1, bounds, true);
        let first = world.comes(limiters[0]);
        let demand = world.acquire(limiters[1], None);
        let outbox = Arc::clone(&world.outbox);
        {
            let runtime = world.runtimes[0].as_ref().map(Runtime::enter);
            let mut asking = pin!(outbox.acquire(&demand));
            let mut context = Context::from_waker(Waker::noop());
            assert!(asking.as_mut().poll(&mut context).is_pending());
            drop(runtime);
            if is_sent {
                world.server.state().holds_limiters = false;
                drop(first);
                world.alive(&demand);
                world.settle();
                assert_eq!(world.calls().len(), 2);
            }
        }
        assert_eq!(demand.unsent.get().is_some(), !is_sent);
    }
}

/// What a list of several calls took before one of them refused is given back, perhaps after the
/// next attempt has arrived: by its own id, which nothing else has. So does one that leaves, and
/// at once: no runtime is driven for it.
#[test]
fn a_waiter_for_parts_asks_by_a_new_id_each_time() {
    let mut world = World::with(1, BOUNDS, false);
    let mut others: Vec<_> = (0..3).map(|_| world.comes(1)).collect();
    world.answer_all();
    assert_eq!(
        world.run(&mut others.iter_mut().collect::<Vec<_>>()).len(),
        3
    );
    let mut waiting = world.waits(1);
    world.answer_all();
    assert!(world.run(&mut [&mut waiting]).is_empty());
    world.advance(201);
    assert!(world.run(&mut [&mut waiting]).is_empty());
    let id = waiting.id;
    let attempts: Vec<_> = {
        let state = world.server.state();
        let calls = state.calls.iter().enumerate();
        let calls = calls.filter(|(_, call)| call.ids() == [id]);
        calls
            .map(|(at, call)| (at, call.callers[0].first().id))
            .collect()
    };
    assert_eq!(attempts.len(), 2);
    assert_ne!(attempts[0].1, attempts[1].1);
    world.server.carry_out(attempts[1].0);
    assert!(world.held().contains(&id));
    drop(waiting);
    assert!(!world.held().contains(&id));
}

/// Two lists that share a limiter do not hold each other up, nor that limiter; and two limits of
/// one name are two lines.
#[test]
fn a_line_is_that_of_the_whole_list_and_of_one_limit() {
    let mut world = World::new();
    let _hot = world.comes(1);
    let mut list = world.acquire(1, None);
    list.charges.push(world.acquire(2, None).first().clone());
    let mut other = world.acquire(1, None);
    other.charges[0] = other
        .first()
        .clone()
        .by(LimitSource::Code(Limit::per_hour(9)));
    for asks in [list, other] {
        let mut caller = world.caller(Some(0), asks);
        assert!(world.poll(&mut caller).is_none());
    }
    assert_eq!(world.calls().len(), 3);
}

/// A call that did not try all of its callers is followed by one for the others.
#[test]
fn callers_that_a_call_did_not_try_go_first_with_the_next() {
    let mut world = World::new();
    let (mut first, mut others) = behind(&mut world, 3);
    world.server.reply(0);
    assert!(world.poll(&mut first).is_some());
    world.settle();
    let late = world.comes(1);
    world.server.reply_to_some(1, 1);
    world.settle();
    assert_eq!(world.calls()[2], [others[1].id, others[2].id, late.id]);
    assert!(world.poll(&mut others[0]).is_some());
}

/// A grant from a lease has an id that its caller does not know.
#[test]
fn an_unread_grant_out_of_a_lease_is_given_back() {
    let mut world = World::new();
    let (mut first, mut others) = behind(&mut world, 4);
    world.server.reply(0);
    assert!(world.poll(&mut first).is_some());
    world.settle();
    // Before it is granted and after: of a request, and of a caller that gives back.
    drop(others.remove(3));
    world.server.lease(1);
    world.settle();
    drop(others.remove(2));
    others.remove(1).leave_and_give_back(&world);
    assert_eq!(world.held().len(), 2);
    assert!(world.poll(&mut others[0]).is_some());
    drop(others);
    assert_eq!(world.held().len(), 2);
    world.is_empty();
}

#[test]
fn callers_of_a_call_that_panics_send_for_themselves() {
    let mut world = World::new();
    let (mut first, mut others) = behind(&mut world, 2);
    world.server.reply(0);
    assert!(world.poll(&mut first).is_some());
    world.settle();
    assert_eq!(world.calls()[1].len(), 2);
    {
        let mut state = world.server.state();
        (state.panics, state.holds_limiters) = (Some(1), false);
    }
    world.server.reply(1);
    let [one, two] = &mut others[..] else {
        panic!("two stood behind");
    };
    assert!(world.run(&mut [&mut *one, &mut *two]).is_empty());
    world.answer_all();
    assert_eq!(world.run(&mut [&mut *one, &mut *two]).len(), 2);
    world.is_empty();
}

/// A shared call is dropped, and arrives. Its callers' own calls are refused by the breaker, or
/// granted out of a lease by other ids.
#[test]
fn callers_that_are_not_granted_by_their_own_id_give_back_what_the_shared_call_took() {
    for leases in [false, true] {
        let mut world = World::new();
        let (mut first, mut others) = behind(&mut world, 2);
        world.server.reply(0);
        assert!(world.poll(&mut first).is_some());
        {
            let mut state = world.server.state();
            (state.arrives, state.holds_limiters) = (true, false);
            state.panics = Some(1);
        }
        world.settle();
        assert_eq!(world.held(), [first.id, others[0].id, others[1].id]);
        let name = others[0].demand.first().name().clone();
        while !leases && world.server.is_closed() {
            let pass = world.outbox.nodes.enter(&name, Duration::ZERO);
            pass.expect("it is closed").ends(Signal::Failed);
        }
        for caller in &mut others {
            let mut decided = world.poll(caller);
            for at in world.server.open() {
                world.server.lease(at);
                decided = world.poll(caller);
            }
            assert_eq!(decided.expect("decided").is_ok(), leases);
        }
        let held = world.held();
        assert!(others.iter().all(|caller| !held.contains(&caller.id)));
        // A lease's grants have other ids.
        assert_eq!(held.len(), if leases { 3 } else { 1 });
        world.is_empty();
    }
}
