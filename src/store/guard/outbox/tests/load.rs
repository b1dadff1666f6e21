//! Tests bursts, slow nodes, and nodes that hang.

use super::{server::SentCall, *};
use crate::store::guard::late::Late;

/// The results of the callers of a burst.
#[derive(Default)]
struct Fates {
    decided: usize,
    overloaded: usize,
    late: usize,
}

/// Plays a burst on a node that answers so many calls a millisecond, until all callers have left.
fn burst(world: &mut World, mut callers: Vec<Caller>, a_millisecond: usize) -> Fates {
    let mut fates = Fates::default();
    while !callers.is_empty() {
        world.drive(0, 700);
        let now = world.clock.now();
        let mut rest = Vec::new();
        for mut caller in callers {
            let outcome = if caller.is_woken() {
                world.poll(&mut caller)
            } else {
                None
            };
            match outcome {
                Some(Ok(_)) => fates.decided += 1,
                Some(Err(error)) => {
                    assert_eq!(Late::of(&error), Some(Late::Unsent));
                    fates.overloaded += 1;
                }
                None if caller.is_late(now) => {
                    fates.late += 1;
                    if !world.server.state().sent.contains(&caller.id) {
                        let id = caller.id;
                        drop(caller);
                        world.drive(0, 10);
                        assert!(!world.server.state().sent.contains(&id));
                    }
                }
                None => rest.push(caller),
            }
        }
        callers = rest;
        for at in world.server.open().into_iter().take(a_millisecond) {
            world.server.reply(at);
        }
        world.advance(1);
    }
    world.settle();
    fates
}

fn newcomers(world: &mut World, count: u64, keys: u64) -> Vec<Caller> {
    let caller = |world: &mut World, at: u64| {
        let demand = world.acquire(at % keys, None);
        world.caller(Some(0), demand)
    };
    (0..count).map(|at| caller(world, at)).collect()
}

#[test]
fn a_burst_of_new_keys_is_bounded_and_closes_nothing() {
    let mut world = World::new();
    let callers = newcomers(&mut world, 20_000, 20_000);
    let fates = burst(&mut world, callers, 30);
    assert_eq!(fates.late, 0);
    assert_eq!(fates.decided + fates.overloaded, 20_000);
    // As many as are in flight at a time, and as many again.
    assert_eq!(fates.decided, 512);
    assert_eq!(world.server.state().most, 256);
    // Those that were turned away took nothing.
    assert_eq!(world.held().len(), 512);
    assert!(world.server.is_closed());
    world.is_empty();
}

#[test]
fn a_burst_over_hot_keys_shares_calls_and_passes_the_limit_only() {
    let mut world = World::new();
    let callers = newcomers(&mut world, 20_000, 200);
    let fates = burst(&mut world, callers, 30);
    assert_eq!(
        (fates.decided, fates.overloaded, fates.late),
        (20_000, 0, 0)
    );
    assert_eq!(world.held().len(), 200 * 3);
    assert!(world.calls().len() <= 200 * 3, "{}", world.calls().len());
}

/// Those that come late enough behind a command are served by the next one. Those that come just
/// after it was sent are turned away at once.
#[test]
fn callers_of_a_hot_limiter_far_away_are_served_in_time_or_turned_away() {
    let (mut world, mut fates, mut waiting) = (World::new(), Fates::default(), Vec::new());
    for millis in 0..400 {
        let demand = world.acquire(1, None);
        waiting.push(world.caller(Some(0), demand));
        for _ in 0..2 {
            let now = world.clock.now();
            for mut caller in std::mem::take(&mut waiting) {
                let woken = caller.is_woken();
                match woken.then(|| world.poll(&mut caller)).flatten() {
                    Some(Ok(_)) => fates.decided += 1,
                    Some(Err(_)) => {
                        // None waits in vain, once it is known how far away the node is.
                        assert!(millis < 50 || caller.arrived == now);
                        fates.overloaded += 1;
                    }
                    None if caller.is_late(now) => fates.late += 1,
                    None => waiting.push(caller),
                }
            }
            for at in world.server.open() {
                let sent = world.server.state().calls[at].sent;
                if now >= sent + Duration::from_millis(30) {
                    world.server.reply(at);
                }
            }
            world.drive(0, 10);
        }
        world.advance(1);
    }
    assert_eq!(fates.late, 0);
    assert!(fates.decided > 150, "{}", fates.decided);
}

/// What a node did for so many callers.
#[derive(Debug, Default)]
struct Work {
    /// Those that it decided for, and those of them that had not left.
    decided: usize,
    received: usize,
    /// Those that were turned away unsent.
    overloaded: usize,
}

/// Plays so many callers a millisecond, each of a limiter of so many, on a node that decides for
/// some of them in the order in which they are sent. What is given back costs it as much as three
/// callers. Returns what it did in the last half a second, when its process has found out.
fn overload(joins: bool, callers: usize, of_node: usize, limiters: u64) -> Work {
    let (mut world, mut work) = (World::new(), Work::default());
    world.server.joins.store(joins, Ordering::SeqCst);
    world.server.state().arrives = true;
    let (mut waiting, mut next, mut time, mut came) = (Vec::new(), 0, 0, 0);
    for millis in 0..1200 {
        if millis == 700 {
            work = Work::default();
        }
        for _ in 0..callers {
            came += 1;
            let demand = world.acquire(came % limiters, None);
            waiting.push(world.caller(Some(0), demand));
        }
        for _ in 0..2 {
            let now = world.clock.now();
            for mut caller in std::mem::take(&mut waiting) {
                let woken = caller.is_woken();
                match woken.then(|| world.poll(&mut caller)).flatten() {
                    Some(Ok(_)) => work.received += 1,
                    Some(Err(_)) => work.overloaded += 1,
                    None if !caller.is_late(now) => waiting.push(caller),
                    None if world.server.state().sent.contains(&caller.id) => {
                        caller.leave_and_give_back(&world);
                        time -= 3;
                    }
                    None => drop(caller),
                }
            }
            world.drive(0, 60);
        }
        time += i64::try_from(of_node).expect("a number");
        loop {
            let call = world.server.state().calls.get(next).map(SentCall::ids);
            let Some(callers) = call.map(|ids| ids.len()) else {
                time = time.min(0);
                break;
            };
            let cost = i64::try_from(callers).expect("a number");
            if time < cost {
                break;
            }
            world.server.reply(next);
            work.decided += callers;
            (time, next) = (time - cost, next + 1);
        }
        world.advance(1);
    }
    work
}

/// However much is asked of a node, it is busy, and mostly for callers that wait for it still.
#[test]
fn an_overloaded_node_decides_for_callers_that_have_not_left() {
    for (joins, callers, of_node, limiters) in [
        (true, 6, 2, 10),
        (true, 16, 4, 60_000),
        (false, 6, 2, 60_000),
        (false, 16, 4, 10),
    ] {
        let work = overload(joins, callers, of_node, limiters);
        let of = (joins, callers, of_node, limiters);
        assert!(work.received >= 150 * of_node, "{of:?}: {work:?}");
        assert!(work.received * 2 >= work.decided, "{of:?}: {work:?}");
    }
}

/// A thousand callers on a hot key leave every few milliseconds, and each call is young when its
/// callers leave; so is each of a hundred keys.
#[test]
fn a_hang_opens_the_breaker_also_behind_a_long_queue() {
    for keys in [1, 100] {
        let mut world = World::new();
        let mut callers = Vec::new();
        let mut opened = None;
        for millis in 0..1000u64 {
            for _ in 0..5 {
                let demand = world.acquire(millis % keys, None);
                callers.push(world.caller(Some(0), demand));
            }
            for caller in &mut callers {
                if caller.is_woken() {
                    let _ = world.poll(caller);
                }
            }
            world.drive(0, 20);
            let now = world.clock.now();
            callers.retain(|caller| !caller.is_late(now));
            world.drive(0, 20);
            if !world.server.is_closed() {
                opened = Some(millis);
                break;
            }
            world.advance(1);
        }
        let deadline = u64::try_from(DEADLINE.as_millis()).expect("a deadline");
        assert!(
            opened.is_some_and(|at| at <= 8 * deadline),
            "{keys} keys: {opened:?}"
        );
    }
}

/// Callers behind a call that fails are asked for by the next one, and do not get its error.
#[test]
fn an_error_is_that_of_each_caller_of_its_call() {
    let mut world = World::new();
    let mut first = world.comes(1);
    let mut others: Vec<_> = (0..70).map(|_| world.comes(1)).collect();
    world.settle();
    world.server.fail(0);
    assert!(world.poll(&mut first).expect("failed").is_err());
    world.settle();
    assert_eq!(world.calls()[1].len(), 64);
    world.server.fail(1);
    world.settle();
    for caller in &mut others[..64] {
        assert!(world.poll(caller).expect("failed").is_err());
    }
    assert_eq!(world.calls()[2].len(), 6);
    assert!(world.poll(&mut others[64]).is_none());
}

/// A list that takes several calls shares none, and counts in the bound all the same.
#[test]
fn lists_that_are_decided_apart_go_beside_each_other() {
    let mut world = World::with(1, BOUNDS, false);
    let callers: Vec<_> = (0..300).map(|_| world.comes(1)).collect();
    assert_eq!(world.calls().len(), 256);
    assert_eq!(world.in_flight().0, 256);
    drop(callers);
    world.clock.advance(Duration::from_millis(1));
    world.settle();
    world.is_empty();
}
