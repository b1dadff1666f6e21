//! Callers that leave, at every step of a call.

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Waker},
};

use tokio::runtime::Runtime;

use super::{
    super::in_flight::Bounds,
    world::{BOUNDS, Caller, World},
};
use crate::{
    limit::{Limit, LimitSource},
    sync::lock,
};

/// A call of a limiter in flight, with so many requests and waiters behind it.
fn behind(world: &mut World, requests: usize) -> (Caller, Vec<Caller>) {
    let first = world.comes(1);
    (first, (0..requests).map(|_| world.comes(1)).collect())
}

/// The sequence in which a grant dies in a oneshot: it was sent, and its caller left before it was
/// polled.
#[test]
fn a_grant_that_lies_unread_is_given_back_if_its_caller_waited() {
    let mut world = World::new();
    let waiting = world.waits(1);
    let (mut first, mut behind) = behind(&mut world, 1);
    let request = behind.remove(0);
    world.answer_all();
    assert!(world.poll(&mut first).is_some());
    world.answer_all();
    assert_eq!(world.held(), [waiting.id, first.id, request.id]);
    let id = request.id;
    drop(waiting);
    drop(request);
    world.settle();
    // Hanging up must not be free.
    assert_eq!(world.held(), [first.id, id]);
    world.is_empty();
}

#[test]
fn a_caller_that_leaves_unsent_takes_nothing() {
    let mut world = World::new();
    let (mut first, mut others) = behind(&mut world, 2);
    let left = others.remove(0);
    let left_id = left.id;
    drop(left);
    world.settle();
    world.server.reply(0);
    assert!(world.poll(&mut first).is_some());
    world.settle();
    assert_eq!(world.calls()[1..], [vec![others[0].id]]);
    assert!(!world.held().contains(&left_id));
}

/// What it took is known to be nothing, so nothing is given back for it.
#[test]
fn a_caller_knows_whether_it_leaves_unsent() {
    let bounds = Bounds { most: 1, ..BOUNDS };
    for (limiters, is_sent) in [([1, 1], false), ([1, 2], false), ([1, 1], true)] {
        // Behind a call of its limiter, behind the bound in flight, and with its call sent.
        let mut world = World::with(1, bounds, true);
        let first = world.comes(limiters[0]);
        let acquire = world.acquire(limiters[1], None);
        let queued = Arc::clone(&world.queued);
        {
            let runtime = world.runtimes[0].as_ref().map(Runtime::enter);
            let mut asking = pin!(queued.acquire(&acquire));
            let mut context = Context::from_waker(Waker::noop());
            assert!(asking.as_mut().poll(&mut context).is_pending());
            drop(runtime);
            if is_sent {
                world.server.state().holds_limiters = false;
                drop(first);
                world.alive(&acquire);
                world.settle();
                assert_eq!(world.calls().len(), 2);
            }
        }
        assert_eq!(acquire.unsent.get().is_some(), !is_sent);
    }
}

/// A caller that leaves gives back at once, on another connection; its call is sent once more after
/// that, with it in it.
#[test]
fn what_is_sent_again_after_its_caller_left_is_given_back_once_more() {
    let mut world = World::new();
    let (waits, more) = (world.waits(1), world.waits(1));
    world.server.fail(0);
    drop(waits);
    let waits = world.waits(1);
    world.run(&mut [&mut { more }]);
    let (mut first, mut others) = behind(&mut world, 2);
    let at = world.calls().len() - 1;
    world.server.fail(at);
    assert!(world.poll(&mut first).is_some());
    world.settle();
    let stays = others.remove(1);
    let leaves = others.remove(0);
    let (leaves_id, waits_id) = (leaves.id, waits.id);
    let shared = world.calls().len() - 1;
    assert_eq!(world.calls()[shared], [leaves_id, stays.id]);
    // Not carried out yet.
    leaves.leave_and_give_back(&world);
    drop(waits);
    world.answer_all();
    assert!(!world.held().contains(&leaves_id) && !world.held().contains(&waits_id));
    assert_eq!(world.held(), [stays.id]);
    assert!(lock(&world.queues.unanswered).is_empty());
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
            .map(|(at, call)| (at, call.callers[0].first.id))
            .collect()
    };
    assert_eq!(attempts.len(), 2);
    assert_ne!(attempts[0].1, attempts[1].1);
    world.server.carry_out(attempts[1].0);
    assert!(world.held().contains(&id));
    drop(waiting);
    assert!(!world.held().contains(&id));
}

/// The same where the whole call is given up: it is not sent again, and may have arrived.
#[test]
fn a_call_that_all_have_left_is_dropped_and_what_it_took_is_given_back() {
    let mut world = World::new();
    world.server.state().arrives = true;
    let leaving: Vec<_> = (0..3).map(|_| world.waits(1)).collect();
    assert_eq!(world.calls(), [[leaving[0].id]]);
    drop(leaving);
    let (first, requests) = behind(&mut world, 2);
    drop(first);
    world.settle();
    assert_eq!(world.calls()[2].len(), 2);
    for request in requests {
        request.leave_and_give_back(&world);
    }
    world.settle();
    assert!(world.server.state().calls.iter().all(|call| call.over));
    // The first hung up, and stays charged.
    assert_eq!(world.held().len(), 1);
    world.is_empty();
}

/// `{A1: 50 ms, B1: endless}` on a silent node: A1 leaves, and others come.
#[test]
fn a_limiter_is_held_for_one_deadline_at_most() {
    let mut world = World::new();
    let (a1, mut b1) = (world.comes(1), world.waits(1));
    world.advance(25);
    let mut behind = world.comes(1);
    world.settle();
    assert_eq!(world.calls().len(), 2);
    world.advance(25);
    drop(a1);
    world.run(&mut [&mut b1]);
    // B1 is asked for once more, by an id of its own, and so is the request behind.
    assert_eq!(world.calls()[2..], [[behind.id], [b1.id]]);
    // All calls are answered in the end, the first ones last, and B1 has its permit once.
    for at in world.server.open().into_iter().rev() {
        world.server.reply(at);
    }
    let decided = world.run(&mut [&mut b1, &mut behind]);
    assert!(
        decided
            .iter()
            .all(|(_, outcome)| outcome.as_ref().is_ok_and(|it| it.is_allowed()))
    );
    drop((b1, behind));
    world.settle();
    assert_eq!(world.held().len(), 2);
    world.is_empty();
}

/// Two lists that share a limiter do not hold each other up, nor that limiter; and two limits of
/// one name are two queues.
#[test]
fn a_queue_is_that_of_the_whole_list_and_of_one_limit() {
    let mut world = World::new();
    let _hot = world.comes(1);
    let mut list = world.acquire(1, None);
    list.rest.push(world.acquire(2, None).first);
    let mut other = world.acquire(1, None);
    other.first = other.first.by(LimitSource::Code(Limit::per_hour(9)));
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

/// What comes out of a lease has an id that no caller knows.
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
