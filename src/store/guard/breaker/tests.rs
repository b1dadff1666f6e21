//! The breaker on a clock that is moved.

mod oracle;

use std::{
    collections::BTreeSet,
    sync::{Barrier, atomic::AtomicUsize as Count},
    thread,
};

use proptest::prelude::*;

use super::*;
use crate::{
    clock::{ManualClock, Millis},
    demand::Labels,
    limit::LimitSource,
};

const SLOW: Duration = Duration::from_millis(50);
const FAILURES: u32 = 3;

fn breakers(failures: u32, nodes: usize, clock: &ManualClock) -> Breakers {
    // Names end with the number of their node.
    let place = |name: &Name| usize::from(name.as_str().ends_with('1'));
    Breakers::new(failures, SLOW, nodes, place, Arc::new(clock.clone()))
}

fn charge(name: &str, shadow: bool) -> Charge {
    Charge {
        shadow,
        ..Charge::named(
            Name::exact(name).unwrap(),
            LimitSource::Store,
            Labels::new("orders", false, None),
            1,
        )
    }
}

fn list(charges: &[(&str, bool)]) -> Acquire {
    let mut charges = charges.iter().map(|(name, shadow)| charge(name, *shadow));
    Acquire {
        first: charges.next().unwrap(),
        rest: charges.collect(),
        on_failure: None,
        remaining: true,
        max_wait: None,
        asked: None,
        unsent: std::sync::OnceLock::new(),
    }
}

fn orders() -> Acquire {
    list(&[("orders-0", false)])
}

fn enter<'a>(breakers: &'a Breakers, acquire: &Acquire) -> Option<Pass<'a>> {
    let pass = breakers.enter(acquire.first.name(), Duration::ZERO);
    if let Err(error) = &pass {
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(
            error.to_string(),
            "the store is unavailable: its breaker is open"
        );
    }
    pass.ok()
}

fn fail(breakers: &Breakers, acquire: &Acquire, times: u32) {
    for _ in 0..times {
        enter(breakers, acquire).unwrap().ends(Signal::Failed);
    }
}

fn state(breakers: &Breakers) -> BreakerState {
    breakers.look()[0].0
}

/// Half of a pause, and all of it.
fn bounds(pauses: u32) -> (u64, u64) {
    let whole = (FIRST_PAUSE * 2u32.pow(pauses.min(10))).min(LONGEST_PAUSE);
    (in_millis(whole) / 2, in_millis(whole))
}

fn in_millis(time: Duration) -> Millis {
    u64::try_from(time.as_millis()).unwrap()
}

proptest! {
    #[test]
    fn a_pause_is_between_half_and_whole(pauses in 0..64u32, now in 0..1u64 << 39, spread: u64) {
        let now = Duration::from_millis(now);
        let open = Open::pausing(pauses, now, spread);
        let (half, whole) = bounds(pauses);
        let bounds = now + Duration::from_millis(half)..=now + Duration::from_millis(whole);
        prop_assert!(bounds.contains(&open.until), "{open:?}");
        prop_assert_eq!((open.pauses, open.is_probed), (pauses + 1, false));
    }
}

/// No call passes until the end of a pause, and one does at it; a probe is waited for as exactly.
#[test]
fn a_phase_is_over_at_its_end() {
    let clock = ManualClock::new();
    let breakers = breakers(1, 1, &clock);
    fail(&breakers, &orders(), 1);
    let tick = Duration::from_nanos(1);
    let until = |breakers: &Breakers| breakers.state().nodes[0].open.unwrap().until;
    let passes = || enter(&breakers, &orders()).is_some();
    clock.set(until(&breakers) - tick);
    assert_eq!(state(&breakers), BreakerState::Open);
    assert!(!passes());
    clock.advance(tick);
    assert_eq!(state(&breakers), BreakerState::HalfOpen);
    let probe = enter(&breakers, &orders()).unwrap();
    assert_eq!(until(&breakers), clock.now() + LONGEST_PROBE);
    clock.set(until(&breakers) - tick);
    assert!(!passes());
    clock.advance(tick);
    assert!(passes());
    drop(probe);
}

#[test]
fn a_pause_can_be_any_from_half_to_whole() {
    let pauses: BTreeSet<_> = (0..1000)
        .map(|spread| in_millis(Open::pausing(0, Duration::ZERO, spread).until))
        .collect();
    let (half, whole) = bounds(0);
    assert_eq!(pauses, (half..=whole).collect());
}

#[test]
fn pauses_differ() {
    let clock = ManualClock::new();
    let pauses: BTreeSet<_> = (0..50)
        .map(|_| {
            let breakers = breakers(1, 1, &clock);
            fail(&breakers, &orders(), 1);
            breakers.state().nodes[0].open.map(|open| open.until)
        })
        .collect();
    assert!(pauses.len() > 1, "{pauses:?}");
}

#[test]
fn answers_never_open_it() {
    let clock = ManualClock::new();
    let breakers = breakers(1, 1, &clock);
    for _ in 0..1000 {
        enter(&breakers, &orders()).unwrap().ends(Signal::Answered);
        enter(&breakers, &orders()).unwrap().ends(Signal::Nothing);
        // Somebody hangs up.
        drop(enter(&breakers, &orders()));
    }
    let (state, _, failures) = breakers.look()[0];
    assert_eq!((state, failures), (BreakerState::Closed, 0));
}

/// The first callers of a long line leave when their call is young: what the server owes them is
/// older.
#[test]
fn a_young_call_fails_where_the_server_has_been_silent_since_an_earlier_one() {
    let clock = ManualClock::new();
    let orders = orders().first;
    let name = orders.name();
    let late = SLOW / 10 * 9;
    let millisecond = Duration::from_millis(1);
    for (waited, earlier, expected) in [
        (late - 2 * millisecond, late, BreakerState::Closed),
        (late, late - 2 * millisecond, BreakerState::Closed),
        (late, late - millisecond, BreakerState::Open),
    ] {
        let breakers = breakers(1, 1, &clock);
        // The callers of the first call have left, early or late: it is not known which.
        breakers
            .enter(name, Duration::ZERO)
            .unwrap()
            .ends(Signal::Nothing);
        clock.advance(earlier);
        let pass = breakers.enter(name, waited).unwrap();
        clock.advance(millisecond);
        drop(pass);
        assert_eq!(state(&breakers), expected, "{waited:?}, {earlier:?}");
    }
    // What was answered in time is no failure, however long somebody stood in line.
    let breakers = breakers(1, 1, &clock);
    breakers
        .enter(name, 10 * SLOW)
        .unwrap()
        .ends(Signal::Answered);
    assert_eq!(state(&breakers), BreakerState::Closed);
}

/// The first tenth of the time that callers wait is forgiven: what comes in then may be owed to
/// those before. Another call, sent behind it, is owed its answer for sure.
#[test]
fn a_call_that_is_given_up_fails_where_nothing_came_in() {
    let clock = ManualClock::new();
    let tenth = SLOW / 10;
    let micro = Duration::from_micros(1);
    for (came_in, expected) in [
        (micro, BreakerState::Open),
        (tenth, BreakerState::Open),
        (tenth + micro, BreakerState::Closed),
        (SLOW, BreakerState::Closed),
    ] {
        let breakers = breakers(1, 1, &clock);
        let pass = enter(&breakers, &orders()).unwrap();
        clock.advance(came_in);
        breakers.traffic().came_in();
        let behind = enter(&breakers, &orders()).unwrap();
        clock.advance(SLOW - came_in);
        drop(pass);
        assert_eq!(state(&breakers), expected, "{came_in:?}");
        behind.ends(Signal::Nothing);
    }
    // Where nothing is sent behind it, nothing may be owed.
    let breakers = breakers(1, 1, &clock);
    let pass = enter(&breakers, &orders()).unwrap();
    clock.advance(micro);
    breakers.traffic().came_in();
    clock.advance(SLOW);
    drop(pass);
    assert_eq!(state(&breakers), BreakerState::Closed);
    // Timers that fire late, as in a process that is short of processor time, make no difference.
    let breakers = self::breakers(1, 1, &clock);
    let pass = enter(&breakers, &orders()).unwrap();
    clock.advance(SLOW / 2);
    breakers.traffic().came_in();
    clock.advance(10 * SLOW);
    drop(pass);
    assert_eq!(state(&breakers), BreakerState::Closed);
}

/// The connection's own timeout may be shorter than callers wait.
#[test]
fn a_call_that_its_connection_gives_up_fails_where_nothing_came_in() {
    let clock = ManualClock::new();
    for (came_in, expected) in [(false, BreakerState::Open), (true, BreakerState::Closed)] {
        let breakers = breakers(1, 1, &clock);
        let pass = enter(&breakers, &orders()).unwrap();
        clock.advance(SLOW / 4);
        if came_in {
            breakers.traffic().came_in();
        }
        clock.advance(SLOW / 4);
        pass.ends_unanswered();
        assert_eq!(state(&breakers), expected);
    }
}

/// Each node of a Cluster is silent by itself.
#[test]
fn what_comes_in_from_one_node_says_nothing_of_another() {
    let clock = ManualClock::new();
    let breakers = breakers(1, 2, &clock);
    let [well, ill] = ["a-0", "b-1"].map(|name| list(&[(name, false)]));
    let passes = [&well, &ill].map(|node| enter(&breakers, node).unwrap());
    clock.advance(SLOW / 2);
    breakers.traffic().replied_for(well.first.name());
    clock.advance(SLOW / 2);
    drop(passes);
    let states: Vec<_> = breakers
        .look()
        .into_iter()
        .map(|(state, ..)| state)
        .collect();
    assert_eq!(states, [BreakerState::Closed, BreakerState::Open]);
}

/// One that took longer than probes are waited for, and comes when another one asks already.
#[test]
fn the_answer_to_any_probe_closes_it() {
    let clock = ManualClock::new();
    let slow = Duration::from_secs(5);
    let breakers = Breakers::new(1, slow, 1, |_| 0, Arc::new(clock.clone()));
    fail(&breakers, &orders(), 1);
    clock.advance(LONGEST_PAUSE);
    let first = enter(&breakers, &orders()).unwrap();
    clock.advance(LONGEST_PROBE);
    let second = enter(&breakers, &orders()).unwrap();
    first.ends(Signal::Answered);
    assert_eq!(state(&breakers), BreakerState::Closed);
    second.ends(Signal::Failed);
    assert_eq!(state(&breakers), BreakerState::Closed);
}

#[test]
fn none_is_never_open() {
    let clock = ManualClock::new();
    let breakers = breakers(0, 1, &clock);
    fail(&breakers, &orders(), 1000);
    assert!(breakers.refuses(&orders()).is_none());
    assert!(breakers.look().is_empty());
}

#[test]
fn it_is_told_how_it_is_and_for_how_long() {
    let clock = ManualClock::new();
    let breakers = breakers(FAILURES, 1, &clock);
    let seen = |state, lasts, failures| (state, Duration::from_millis(lasts), failures);
    clock.advance(Duration::from_secs(5));
    fail(&breakers, &orders(), 2);
    assert_eq!(breakers.look(), [seen(BreakerState::Closed, 5000, 2)]);
    fail(&breakers, &orders(), 1);
    assert_eq!(breakers.look(), [seen(BreakerState::Open, 0, 0)]);
    clock.advance(FIRST_PAUSE);
    assert_eq!(breakers.look(), [seen(BreakerState::HalfOpen, 100, 0)]);
    let probe = enter(&breakers, &orders()).unwrap();
    assert_eq!(breakers.look(), [seen(BreakerState::HalfOpen, 100, 0)]);
    // It goes on being open, though it pauses anew.
    probe.ends(Signal::Failed);
    clock.advance(LONGEST_PAUSE);
    assert_eq!(breakers.look(), [seen(BreakerState::HalfOpen, 1100, 0)]);
    enter(&breakers, &orders()).unwrap().ends(Signal::Answered);
    assert_eq!(breakers.look(), [seen(BreakerState::Closed, 0, 0)]);
}

/// Whoever comes at the end of a pause, all at once: one goes.
#[test]
fn a_herd_sends_one() {
    const HERD: usize = 8;
    let clock = ManualClock::new();
    let breakers = breakers(1, 1, &clock);
    fail(&breakers, &orders(), 1);
    for _ in 0..200 {
        clock.advance(LONGEST_PAUSE);
        let (barrier, went) = (Barrier::new(HERD), Count::new(0));
        thread::scope(|scope| {
            for _ in 0..HERD {
                scope.spawn(|| {
                    let orders = orders();
                    barrier.wait();
                    let pass = enter(&breakers, &orders);
                    went.fetch_add(pass.is_some().into(), Ordering::SeqCst);
                    barrier.wait();
                    // Not before all have tried.
                    if let Some(pass) = pass {
                        pass.ends(Signal::Failed);
                    }
                });
            }
        });
        assert_eq!(went.into_inner(), 1);
    }
}

#[test]
fn a_node_stands_for_itself() {
    let clock = ManualClock::new();
    let breakers = breakers(FAILURES, 2, &clock);
    let (well, ill) = (list(&[("a-0", false)]), list(&[("b-1", false)]));
    fail(&breakers, &ill, FAILURES);
    assert!(breakers.refuses(&ill).is_some());
    assert!(breakers.refuses(&well).is_none());
    let states: Vec<_> = breakers
        .look()
        .into_iter()
        .map(|(state, ..)| state)
        .collect();
    assert_eq!(states, [BreakerState::Closed, BreakerState::Open]);
    // A list needs them all, but for what is only tried out.
    for (charges, refused) in [
        ([("a-0", false), ("b-1", false)], true),
        ([("b-1", false), ("a-0", false)], true),
        ([("a-0", false), ("b-1", true)], false),
        ([("b-1", true), ("a-0", false)], false),
        ([("a-0", true), ("b-1", true)], true),
    ] {
        let acquire = list(&charges);
        assert_eq!(breakers.refuses(&acquire).is_some(), refused, "{charges:?}");
    }
}

/// The first of several nodes that opens is logged, and the last that closes: once a minute at most.
#[test]
fn what_opens_again_and_again_is_told_of_once_a_minute() {
    use crate::macros::logged::levels;

    let clock = ManualClock::new();
    let breakers = breakers(1, 2, &clock);
    let nodes = ["a-0", "b-1"].map(|name| list(&[(name, false)]));
    let opens = |node: &Acquire| levels(|| fail(&breakers, node, 1));
    let closes = |node: &Acquire| levels(|| enter(&breakers, node).unwrap().ends(Signal::Answered));
    clock.advance(Duration::from_secs(5));
    assert_eq!(opens(&nodes[0]), ["WARN"]);
    assert_eq!(opens(&nodes[1]), [""; 0]);
    clock.advance(LONGEST_PAUSE);
    assert_eq!(closes(&nodes[0]), [""; 0]);
    assert_eq!(closes(&nodes[1]), ["INFO"]);
    let next = WARNED_AGAIN_AFTER - LONGEST_PAUSE - Duration::from_millis(1);
    clock.advance(next);
    assert_eq!(opens(&nodes[1]), ["DEBUG"]);
    clock.advance(LONGEST_PAUSE);
    assert_eq!(closes(&nodes[1]), ["DEBUG"]);
    assert_eq!(opens(&nodes[0]), ["WARN"]);
    clock.advance(LONGEST_PAUSE);
    assert_eq!(closes(&nodes[0]), ["INFO"]);
    clock.advance(WARNED_AGAIN_AFTER - LONGEST_PAUSE);
    assert_eq!(opens(&nodes[0]), ["WARN"]);
}
