//! Who is told at once that its patience will not do, who is turned away, and who hears of that.

use std::time::Duration;

use super::{
    ids,
    store::{Caller, World, acquire},
};
use crate::{
    decision::{Decision, Refusal, RefusalKind},
    demand::{Acquire, MaxWait},
    store::guard::line::member::LONGEST_RUN,
};

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// So many permits, which it waits for.
fn waits(id: u64, permits: u32, patience: MaxWait) -> Acquire {
    let mut acquire = acquire(id).waiting(patience);
    acquire.first.permits = permits;
    acquire
}

/// The refusal that it has been told, if any.
fn told(caller: &mut Caller<'_>) -> Option<Refusal> {
    match caller.poll()?.unwrap() {
        Decision::Deny(refusal) => Some(refusal),
        Decision::Allow(_) => panic!("it is granted"),
    }
}

/// One in line who was told to wait for a second, of a limit of five a second.
fn first(world: &World, permits: u32) -> Caller<'_> {
    let mut first = world.caller(waits(1, permits, MaxWait::ENDLESS));
    assert!(first.poll().is_none());
    world.refuse(0, 1000);
    assert!(first.poll().is_none());
    first
}

/// Each further five follow a second later.
#[test]
fn who_cannot_be_served_in_time_is_told_at_once() {
    for (before, permits, turn) in [
        (1, 1, 1000),
        (1, 4, 1000),
        (1, 5, 2000),
        (2, 3, 1000),
        (3, 3, 2000),
        (5, 5, 2000),
    ] {
        for (patience, is_refused) in [(turn - 1, true), (turn, false)] {
            let world = World::new();
            let _first = first(&world, before);
            let patience = MaxWait::of(millis(patience));
            let refusal = told(&mut world.caller(waits(2, permits, patience)));
            assert_eq!(refusal.is_some(), is_refused, "{before} {permits}");
            if let Some(refusal) = refusal {
                assert_eq!(refusal.retry_after(), Some(millis(turn)));
            }
            // All this time nobody is asked.
            assert_eq!(world.calls().len(), 1);
        }
    }
    // More than the limit is never served, which the store says.
    let world = World::new();
    let _first = first(&world, 1);
    let patience = MaxWait::of(millis(1));
    assert!(told(&mut world.caller(waits(2, 6, patience))).is_none());
}

/// What the first of a call is told holds for anybody; what the others are told, only behind it.
#[test]
fn a_refusal_says_whether_it_counts_those_before() {
    let world = World::new();
    let soon = MaxWait::of(millis(500));
    let mut callers = [1, 2, 3].map(|id| world.caller(waits(id, 1, soon)));
    for caller in &mut callers {
        assert!(caller.poll().is_none());
    }
    let [first, second, third] = &mut callers;
    world.refuse(0, 1000);
    assert!(!told(first).unwrap().behind);
    assert!(second.poll().is_none());
    world.refuse(1, 1000);
    assert!(!told(second).unwrap().behind);
    assert!(told(third).unwrap().behind);
    // Told by the line itself, behind one that waits on.
    let world = World::new();
    let _first = self::first(&world, 1);
    assert!(told(&mut world.caller(waits(2, 1, soon))).unwrap().behind);
}

#[test]
fn who_is_told_of_a_turn_after_its_deadline_does_not_wait_for_it() {
    for (patience, is_refused) in [(999, true), (1000, false)] {
        let world = World::new();
        let mut caller = world.caller(waits(1, 1, MaxWait::of(millis(patience))));
        assert!(caller.poll().is_none());
        world.refuse(0, 1000);
        assert_eq!(told(&mut caller).is_some(), is_refused, "{patience}");
    }
}

/// What only somebody's doing can change is no reason to wait, though it tells a time.
#[test]
fn who_waits_is_told_what_is_no_lack_of_room() {
    let world = World::new();
    let mut caller = world.caller(waits(1, 1, MaxWait::ENDLESS));
    assert!(caller.poll().is_none());
    world.refuse_as(0, RefusalKind::AboveRate, 1000);
    assert_eq!(told(&mut caller).unwrap().kind(), RefusalKind::AboveRate);
}

/// Those who do not wait take nobody's place.
#[test]
fn who_finds_enough_waiting_is_turned_away() {
    let world = World::new();
    let _first = first(&world, 1);
    // One makes a call, and two stand behind it.
    let mut others = world.callers(10..=12);
    others
        .iter_mut()
        .for_each(|caller| assert!(caller.poll().is_none()));
    let patience = |longest| MaxWait {
        longest: Some(millis(60_000)),
        queue: Some(longest),
    };
    let mut second = world.caller(waits(2, 1, patience(2)));
    assert!(told(&mut second).is_none());
    world.advance(300);
    let refusal = told(&mut world.caller(waits(3, 1, patience(2)))).unwrap();
    assert_eq!(refusal.kind(), RefusalKind::QueueFull);
    assert_eq!(refusal.retry_after(), Some(millis(700)));
    let mut third = world.caller(waits(4, 1, patience(3)));
    assert!(told(&mut third).is_none());
    // When the first may have room, that many ask at once is no reason.
    world.advance(700);
    assert!(told(&mut world.caller(waits(5, 1, patience(1)))).is_none());
}

/// Those behind were told to wait for it, too, or were not asked for.
#[test]
fn who_is_turned_away_leaves_its_room_to_those_behind() {
    let world = World::new();
    let mut first = world.caller(waits(1, 1, MaxWait::ENDLESS));
    let mut full = world.caller(waits(
        2,
        1,
        MaxWait {
            longest: Some(millis(60_000)),
            queue: Some(1),
        },
    ));
    let behind = [3, 4].map(|id| waits(id, 1, MaxWait::ENDLESS));
    let mut behind = behind.map(|acquire| world.caller(acquire));
    assert!(first.poll().is_none() && full.poll().is_none());
    behind
        .iter_mut()
        .for_each(|caller| assert!(caller.poll().is_none()));
    world.refuse(0, 1000);
    assert!(first.poll().is_none());
    assert_eq!(told(&mut full).unwrap().kind(), RefusalKind::QueueFull);
    assert_eq!(world.calls()[1..], [(true, vec![1, 3, 4])]);
}

#[test]
fn who_gives_up_leaves_its_room_to_those_behind() {
    let world = World::new();
    let mut first = world.caller(waits(1, 1, MaxWait::ENDLESS));
    let mut late = world.caller(waits(2, 1, MaxWait::of(millis(20))));
    let mut behind = world.caller(waits(3, 1, MaxWait::ENDLESS));
    assert!(first.poll().is_none() && late.poll().is_none() && behind.poll().is_none());
    world.refuse(0, 1000);
    assert!(first.poll().is_none());
    assert_eq!(world.calls().len(), 1);
    world.advance(20);
    assert!(first.poll().is_none());
    assert_eq!(told(&mut late).unwrap().retry_after(), Some(millis(980)));
    assert_eq!(world.calls()[1..], [(true, vec![1, 3])]);
}

/// Those who do not wait take no place of those whom a call asks for.
#[test]
fn the_last_one_who_is_asked_for_may_be_late() {
    let world = World::new();
    let longest = LONGEST_RUN as u64;
    let mut first = world.caller(waits(1, 1, MaxWait::ENDLESS));
    assert!(first.poll().is_none());
    let mut other = world.caller(acquire(500));
    assert!(other.poll().is_none());
    let patience = |id| match id {
        id if id == longest => MaxWait::of(millis(20)),
        _ => MaxWait::ENDLESS,
    };
    let behind = (2..=longest).map(|id| world.caller(waits(id, 1, patience(id))));
    let mut behind: Vec<_> = behind.collect();
    behind
        .iter_mut()
        .for_each(|caller| assert!(caller.poll().is_none()));
    world.refuse(0, 10);
    assert!(first.poll().is_none());
    assert_eq!(world.calls()[1..], [(true, vec![500])]);
    world.advance(20);
    // Not asked for, it stays in the line.
    world.grant_some(1, 0);
    assert!(first.poll().is_none());
    let mut all = vec![1, 500];
    all.extend(ids(2, LONGEST_RUN - 1));
    assert_eq!(world.calls()[2..], [(true, all)]);
}
