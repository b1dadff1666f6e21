//! Who is asked for when, with a store whose calls are carried out and answered by hand.

mod leaving;
mod lines;
mod patience;
mod state;
mod store;

use std::time::Duration;

use proptest::prelude::*;

use self::store::{Caller, LEASED, World, acquire, number};
use super::member::LONGEST_RUN;
use crate::{decision::Decision, demand::MaxWait, error::ErrorKind};

/// The ids that a call asks for.
fn ids(from: u64, count: usize) -> Vec<u64> {
    (from..).take(count).collect()
}

#[test]
fn a_caller_alone_makes_its_own_call_and_leaves_nothing_behind() {
    let world = World::new();
    let mut caller = world.caller(acquire(1));
    assert!(caller.poll().is_none());
    assert_eq!(world.calls(), [(false, vec![1])]);
    world.grant(0);
    assert!(caller.woken());
    assert!(caller.poll().unwrap().unwrap().is_allowed());
    drop(caller);
    assert_eq!(world.lines(), "Lines(0)");
}

#[test]
fn those_who_come_meanwhile_go_together_with_the_next_call() {
    let world = World::new();
    let mut callers = world.callers(1..=64);
    callers
        .iter_mut()
        .for_each(|caller| assert!(caller.poll().is_none()));
    assert_eq!(world.calls(), [(false, vec![1])]);
    world.grant(0);
    // It need not be the one whose call it was.
    assert!(callers[63].woken());
    assert!(callers[63].poll().is_none());
    assert_eq!(world.calls()[1..], [(true, ids(2, 63))]);
    world.grant(1);
    for caller in &mut callers {
        assert!(caller.woken());
        assert!(caller.poll().unwrap().unwrap().is_allowed());
    }
    assert_eq!(world.calls().len(), 2);
}

#[test]
fn the_next_run_goes_at_once_and_none_is_longer_than_the_longest() {
    let world = World::new();
    let mut callers = world.callers(1..=130);
    callers
        .iter_mut()
        .for_each(|caller| assert!(caller.poll().is_none()));
    world.grant(0);
    assert!(callers[1].poll().is_none());
    world.grant(1);
    // Its own answer is there, and the next run was sent before it was told.
    assert!(callers[1].poll().is_some());
    let runs = world.calls();
    assert_eq!(runs[1], (true, ids(2, LONGEST_RUN)));
    assert_eq!(runs[2], (true, ids(66, LONGEST_RUN)));
    world.grant(2);
    assert!(callers[70].poll().is_some());
    assert_eq!(world.calls()[3], (true, vec![130]));
}

#[test]
fn one_that_is_neither_polled_nor_dropped_holds_up_nobody() {
    let world = World::new();
    let mut callers = world.callers(1..=5);
    // The first makes its call and is polled no more.
    callers
        .iter_mut()
        .for_each(|caller| assert!(caller.poll().is_none()));
    world.grant(0);
    assert!(callers[4].woken());
    // The last sends the run, and is polled no more either.
    assert!(callers[4].poll().is_none());
    let mut behind = world.caller(acquire(6));
    assert!(behind.poll().is_none());
    world.grant(1);
    for caller in callers[1..].iter_mut().chain([&mut behind]) {
        assert!(caller.woken());
    }
    // Nobody whom the run was for is polled: the one behind it sees to it.
    assert!(behind.poll().is_none());
    assert_eq!(world.calls()[2], (true, vec![6]));
    assert!(callers[3].poll().is_some());
    world.grant(2);
    assert!(behind.poll().is_some());
}

#[test]
fn one_that_is_not_polled_is_not_the_only_one_to_be_woken() {
    let world = World::new();
    let mut callers = world.callers(1..=3);
    callers
        .iter_mut()
        .for_each(|caller| assert!(caller.poll().is_none()));
    // Whoever made the call leaves, and the last behind it is polled no more.
    drop(callers.remove(0));
    assert!(callers[0].woken());
    assert!(callers[0].poll().is_none());
    assert_eq!(world.calls()[1..], [(true, vec![2, 3])]);
}

#[test]
fn one_that_waits_and_is_not_polled_holds_up_no_other() {
    let world = World::new();
    let mut waiting: Vec<_> = (1..=3)
        .map(|id| world.caller(acquire(id).waiting(MaxWait::ENDLESS)))
        .collect();
    for caller in &mut waiting {
        assert!(caller.poll().is_none());
    }
    world.refuse(0, 1000);
    assert!(waiting[0].poll().is_none());
    // The first made the timer, and looks no more.
    world.advance(1000);
    assert!(waiting[1].woken() && waiting[2].woken());
    assert!(waiting[2].poll().is_none());
    assert_eq!(world.calls()[1], (true, ids(1, 3)));
    world.grant(1);
    assert!(waiting[1].poll().is_some());
    assert!(waiting[2].poll().is_some());
}

#[test]
fn who_is_dropped_before_its_run_was_sent_is_not_asked_for() {
    let world = World::new();
    let mut callers = world.callers(1..=4);
    callers
        .iter_mut()
        .for_each(|caller| assert!(caller.poll().is_none()));
    drop(callers.remove(2));
    world.grant(0);
    assert!(callers[1].poll().is_none());
    assert_eq!(world.calls()[1], (true, vec![2, 4]));
}

#[test]
fn who_is_dropped_during_its_run_stays_charged_unless_it_gives_back() {
    let world = World::new();
    let mut callers = world.callers((1..=5).chain([7]));
    callers
        .iter_mut()
        .for_each(|caller| assert!(caller.poll().is_none()));
    world.grant(0);
    assert!(callers[1].poll().is_none());
    // Requests, of which nobody gives back, and callers that do, before the store has carried out the call and after.
    drop(callers.remove(2));
    callers.remove(2).drop_and_give_back();
    world.carry_out(1);
    callers.remove(1).drop_and_give_back();
    drop(callers.remove(2));
    world.reply(1);
    assert!(callers[1].poll().is_some());
    assert_eq!(world.held(), [1, 3, 5, 7]);
}

#[test]
fn a_call_whose_callers_have_all_left_is_dropped_and_the_next_goes() {
    let world = World::new();
    let mut callers = world.callers(1..=4);
    callers
        .iter_mut()
        .for_each(|caller| assert!(caller.poll().is_none()));
    // The lone caller's own.
    drop(callers.remove(0));
    assert!(world.is_dropped(0));
    assert!(callers[2].woken());
    assert!(callers[2].poll().is_none());
    let mut behind = world.caller(acquire(5));
    assert!(behind.poll().is_none());
    callers.clear();
    assert!(world.is_dropped(1));
    assert!(behind.woken());
    assert!(behind.poll().is_none());
    assert_eq!(world.calls()[2], (false, vec![5]));
}

#[test]
fn an_error_is_that_of_each_and_those_behind_try_once_more_together() {
    let world = World::new();
    let mut callers = world.callers(1..=70);
    callers
        .iter_mut()
        .for_each(|caller| assert!(caller.poll().is_none()));
    world.fail(0);
    assert!(callers[0].poll().unwrap().is_err());
    assert!(callers[1].poll().is_none());
    world.fail(1);
    for caller in &mut callers[1..=LONGEST_RUN] {
        let error = caller.poll().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }
    assert_eq!(world.calls()[2..], [(true, ids(66, 5))]);
}

#[test]
fn lists_that_are_decided_one_at_a_time_go_beside_each_other() {
    let world = World::apart();
    let mut callers = world.callers(1..=3);
    callers
        .iter_mut()
        .for_each(|caller| assert!(caller.poll().is_none()));
    let calls = [(false, vec![1]), (false, vec![2]), (false, vec![3])];
    assert_eq!(world.calls(), calls);
}

#[test]
fn those_who_wait_are_not_asked_for_with_those_who_do_not() {
    let world = World::new();
    let mut waiting = world.caller(acquire(1).waiting(MaxWait::ENDLESS));
    assert!(waiting.poll().is_none());
    world.refuse(0, 1000);
    assert!(waiting.poll().is_none());
    let mut callers = world.callers(2..=4);
    callers
        .iter_mut()
        .for_each(|caller| assert!(caller.poll().is_none()));
    assert_eq!(world.calls()[1..], [(false, vec![2])]);
    world.refuse(1, 1000);
    assert!(callers[1].poll().is_none());
    assert_eq!(world.calls()[2..], [(true, vec![3, 4])]);
    world.refuse(2, 1000);
    callers
        .iter_mut()
        .for_each(|caller| assert!(caller.poll().is_some()));
    // Their refusals are no news to the one that waits.
    world.advance(999);
    assert!(waiting.poll().is_none());
    assert_eq!(world.calls().len(), 3);
    world.advance(1);
    assert!(waiting.poll().is_none());
    assert_eq!(world.calls()[3..], [(true, vec![1])]);
}

#[test]
fn those_whom_a_call_did_not_ask_for_are_asked_for_by_the_next() {
    let world = World::new();
    let mut callers = world.callers(1..=4);
    callers
        .iter_mut()
        .for_each(|caller| assert!(caller.poll().is_none()));
    world.grant(0);
    assert!(callers[1].poll().is_none());
    world.grant_some(1, 1);
    assert!(callers[2].poll().is_none());
    assert_eq!(world.calls()[2], (true, vec![3, 4]));
}

#[test]
fn a_call_that_panics_is_made_again_by_the_others() {
    let world = World::new();
    let mut callers = world.callers(1..=3);
    callers
        .iter_mut()
        .for_each(|caller| assert!(caller.poll().is_none()));
    world.grant(0);
    assert!(callers[1].poll().is_none());
    world.panic(1);
    let mut panicking = callers.remove(1);
    let panics = std::panic::AssertUnwindSafe(|| panicking.poll());
    assert!(std::panic::catch_unwind(panics).is_err());
    drop(panicking);
    assert!(callers[1].poll().is_none());
    assert_eq!(world.calls()[2], (false, vec![3]));
}

/// A timer is one of the runtime that its maker is polled by, which may end.
#[test]
fn whoever_is_served_leaves_its_timer_to_another() {
    let world = World::new();
    let mut waiting = world.caller(acquire(1).waiting(MaxWait::ENDLESS));
    assert!(waiting.poll().is_none());
    world.refuse(0, 1000);
    assert!(waiting.poll().is_none());
    let mut callers = world.callers(2..=4);
    callers
        .iter_mut()
        .for_each(|caller| assert!(caller.poll().is_none()));
    world.grant(1);
    assert!(callers[2].poll().is_none());
    let mut behind = world.caller(acquire(5).waiting(MaxWait::ENDLESS));
    assert!(behind.poll().is_none());
    world.grant(2);
    assert!(behind.woken() && !waiting.woken());
    // It reads the reply, and puts the driver to sleep again.
    assert!(callers[2].poll().is_some());
    assert!(waiting.woken());
}

#[test]
fn what_happens_while_the_driver_is_polled_is_seen_to() {
    let world = World::new();
    let mut waiting = world.caller(acquire(1).waiting(MaxWait::ENDLESS));
    assert!(waiting.poll().is_none());
    world.refuse(0, 1000);
    assert!(waiting.poll().is_none());
    let mut callers = world.callers(2..=3);
    callers
        .iter_mut()
        .for_each(|caller| assert!(caller.poll().is_none()));
    // The call that a caller makes alone is answered while another one, who comes to wait, polls the driver.
    world.refuse_when_asleep(1);
    let mut newcomer = world.caller(acquire(4).waiting(MaxWait::ENDLESS));
    assert!(newcomer.poll().is_none());
    assert!(callers[0].woken());
    assert!(callers[1].woken());
    assert!(callers[1].poll().is_none());
    assert_eq!(world.calls()[2..], [(false, vec![3])]);
}

#[test]
fn what_the_last_one_who_waited_was_told_is_not_about_the_next() {
    let world = World::new();
    let mut waiting = world.caller(acquire(1).waiting(MaxWait::ENDLESS));
    assert!(waiting.poll().is_none());
    world.refuse(0, 60_000);
    assert!(waiting.poll().is_none());
    // One that does not wait stays in the line.
    let mut other = world.caller(acquire(2));
    assert!(other.poll().is_none());
    drop(waiting);
    let mut next = world.caller(acquire(3).waiting(MaxWait::of(Duration::from_secs(1))));
    assert!(next.poll().is_none());
    assert_eq!(world.calls()[2..], [(true, vec![3])]);
    world.grant(2);
    assert!(next.poll().unwrap().unwrap().is_allowed());
}

#[test]
fn who_is_late_when_its_turn_has_come_hears_what_the_store_says() {
    for is_room in [true, false] {
        let world = World::new();
        let mut first = world.caller(acquire(1).waiting(MaxWait::ENDLESS));
        assert!(first.poll().is_none());
        world.refuse(0, 100);
        assert!(first.poll().is_none());
        world.advance(95);
        let patience = MaxWait::of(Duration::from_millis(20));
        let mut late = world.caller(acquire(2).waiting(patience));
        assert!(late.poll().is_none());
        // Nobody is polled before its patience is at an end, and by then there can be room for both.
        world.advance(100);
        assert!(late.poll().is_none());
        assert_eq!(world.calls()[1..], [(true, vec![1, 2])]);
        if is_room {
            world.grant(1);
        } else {
            world.refuse(1, 100);
        }
        assert_eq!(late.poll().unwrap().unwrap().is_allowed(), is_room);
        assert_eq!(first.poll().is_some(), is_room);
    }
}

#[test]
fn who_is_late_and_behind_those_who_are_asked_for_is_refused() {
    let world = World::new();
    let longest = LONGEST_RUN as u64;
    let wait = |id| world.caller(acquire(id).waiting(MaxWait::ENDLESS));
    let mut waiting: Vec<_> = (1..=longest).map(wait).collect();
    waiting
        .iter_mut()
        .for_each(|caller| assert!(caller.poll().is_none()));
    world.refuse(0, 100);
    assert!(waiting[0].poll().is_none());
    world.nudge();
    let patience = MaxWait::of(Duration::from_millis(20));
    let mut late = world.caller(acquire(longest + 1).waiting(patience));
    assert!(late.poll().is_none());
    assert_eq!(world.calls()[1..], [(true, ids(1, LONGEST_RUN))]);
    world.advance(20);
    // There is a call for the others at once, and may be another one behind it.
    world.nudge();
    world.refuse(1, 100);
    assert!(!late.poll().unwrap().unwrap().is_allowed());
    assert_eq!(world.calls()[2..], [(true, ids(1, LONGEST_RUN))]);
}

#[test]
fn who_never_hears_of_a_grant_out_of_a_lease_has_taken_nothing() {
    let world = World::new();
    let mut callers = world.callers(1..=5);
    callers
        .iter_mut()
        .for_each(|caller| assert!(caller.poll().is_none()));
    world.grant(0);
    assert!(callers[1].poll().is_none());
    // Before it is granted, and after: of a request, and of a caller that gives back by the receipt that it made before.
    drop(callers.remove(2));
    world.lease(1);
    assert!(callers[1].poll().unwrap().unwrap().is_allowed());
    drop(callers.remove(2));
    callers.remove(2).drop_and_give_back();
    assert_eq!(world.held(), [1, 2 | LEASED]);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Come {
        waits: bool,
    },
    /// If it was woken, or never polled
    Poll(prop::sample::Index),
    /// Also if nothing woke it
    PollAnyway(prop::sample::Index),
    Neglect(prop::sample::Index),
    Drop {
        which: prop::sample::Index,
        gives_back: bool,
    },
    CarryOut(prop::sample::Index),
    Reply(prop::sample::Index),
    Fail(prop::sample::Index),
    Lease(prop::sample::Index),
    Nudge,
    Advance(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let which = any::<prop::sample::Index>;
    prop_oneof![
        8 => proptest::bool::weighted(0.25).prop_map(|waits| Step::Come { waits }),
        12 => which().prop_map(Step::Poll),
        2 => which().prop_map(Step::PollAnyway),
        1 => which().prop_map(Step::Neglect),
        3 => (which(), any::<bool>())
            .prop_map(|(which, gives_back)| Step::Drop { which, gives_back }),
        4 => which().prop_map(Step::CarryOut),
        6 => which().prop_map(Step::Reply),
        1 => which().prop_map(Step::Fail),
        1 => which().prop_map(Step::Lease),
        1 => Just(Step::Nudge),
        2 => (0u64..1500).prop_map(Step::Advance),
    ]
}

/// What became of a caller.
#[derive(Debug, Default)]
struct Fates {
    granted: Vec<u64>,
    /// Dropped, by one that does not give back.
    hung_up: Vec<u64>,
}

fn note(fates: &mut Fates, caller: &mut Caller<'_>) -> bool {
    let Some(outcome) = caller.poll() else {
        return false;
    };
    if let Ok(Decision::Allow(grant)) = outcome {
        let ids = grant.receipts().iter().map(|receipt| number(receipt.id));
        fates.granted.extend(ids);
    }
    true
}

/// Any order of coming, being polled, neglected, dropped and answered: nobody else is held up, whoever is told of a grant has
/// it, whoever hung up stays charged, and nothing else is held.
fn live(steps: Vec<Step>) {
    let world = World::new();
    let mut callers: Vec<Caller<'_>> = Vec::new();
    let mut neglected: Vec<Caller<'_>> = Vec::new();
    let mut fates = Fates::default();
    let mut last_id = 0;
    for step in steps {
        match step {
            Step::Come { waits } => {
                last_id += 1;
                let mut ask = acquire(last_id);
                if waits {
                    ask = ask.waiting(MaxWait::of(Duration::from_secs(5)));
                }
                callers.push(world.caller(ask));
            }
            Step::Advance(by) => world.advance(by),
            Step::Nudge => world.nudge(),
            Step::CarryOut(which) => world.carry_out_any(which),
            Step::Reply(which) => world.reply_any(which),
            Step::Fail(which) => world.fail_any(which),
            Step::Lease(which) => world.lease_any(which),
            Step::Poll(_) | Step::PollAnyway(_) | Step::Neglect(_) | Step::Drop { .. }
                if callers.is_empty() => {}
            Step::Poll(which) => {
                let at = which.index(callers.len());
                if callers[at].woken() && note(&mut fates, &mut callers[at]) {
                    callers.remove(at);
                }
            }
            Step::PollAnyway(which) => {
                let at = which.index(callers.len());
                if note(&mut fates, &mut callers[at]) {
                    callers.remove(at);
                }
            }
            Step::Neglect(which) => {
                let caller = callers.remove(which.index(callers.len()));
                neglected.push(caller);
            }
            Step::Drop { which, gives_back } => {
                let caller = callers.remove(which.index(callers.len()));
                if gives_back || caller.waits() {
                    caller.drop_and_give_back();
                } else {
                    fates.hung_up.push(caller.id());
                }
            }
        }
    }
    // Everybody who is woken is polled, until nobody is left that is not neglected. One that is neglected holds up nobody;
    // several may hold up others until somebody comes.
    let mut newcomers = if neglected.len() < 2 { 0 } else { 20 };
    for round in 0.. {
        assert!(round < 1000, "held up: {:?}", ids_of(&callers));
        callers.retain_mut(|caller| !(caller.woken() && note(&mut fates, caller)));
        if callers.is_empty() {
            break;
        }
        if callers.iter().any(Caller::woken) {
            continue;
        }
        if world.is_busy() {
            world.answer_all();
        } else if newcomers > 0 && round % 10 == 9 {
            newcomers -= 1;
            last_id += 1;
            callers.push(world.caller(acquire(last_id)));
        } else {
            world.advance(500);
        }
    }
    for caller in neglected.drain(..) {
        if !caller.waits() {
            fates.hung_up.push(caller.id());
        }
        drop(caller);
    }
    assert_eq!(world.lines(), "Lines(0)");
    assert_eq!(world.gone(), 0);
    // Also what the store carries out only now.
    world.answer_all();
    for id in world.held() {
        assert!(
            fates.granted.contains(&id) || fates.hung_up.contains(&id),
            "{id} is held"
        );
    }
    for id in fates.hung_up {
        assert_eq!(
            world.held().contains(&id),
            world.was_granted(id),
            "{id} hung up"
        );
    }
    for id in fates.granted {
        assert!(
            world.held().contains(&id),
            "{id} was told that it has what it has not"
        );
    }
}

fn ids_of(callers: &[Caller<'_>]) -> Vec<u64> {
    callers.iter().map(Caller::id).collect()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases * if cfg!(inside) { 4 } else { 1 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn whatever_the_order_nobody_is_held_up_and_nothing_lost(
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        live(steps);
    }
}
