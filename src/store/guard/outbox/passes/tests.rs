//! Tests the breaker on a clock that the test moves.

mod oracle;

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::{
    super::breaker::{FIRST_PAUSE, LONGEST_PAUSE, WARNED_AGAIN_AFTER},
    *,
};
use crate::{store::guard::scripted::*, values::clock::Millis};

const SLOW: Duration = Duration::from_millis(50);
const FAILURES: u32 = 3;

/// Returns those of so many nodes, and their clock. Names end with the number of their node.
fn breakers(failures: u32, nodes: usize) -> (Nodes, ManualClock) {
    waiting_for(SLOW, failures, nodes)
}

/// Returns the same, whose callers wait for so long.
fn waiting_for(slow: Duration, failures: u32, nodes: usize) -> (Nodes, ManualClock) {
    let clock = ManualClock::new();
    let index_of = |name: &Name| usize::from(name.as_str().ends_with('1'));
    let breakers = Nodes::new(nodes, index_of, slow, Arc::new(clock.clone()));
    let breakers = breakers.with_breakers(failures, None, |_, _| ());
    (breakers, clock)
}

/// Returns a demand of limiters, each with whether it is of a shadow rule.
fn list(charges: &[(&str, bool)]) -> Demand {
    asks(charges.iter().map(|(name, shadow)| Charge {
        shadow: *shadow,
        ..charge(name, 1, LimitSource::Store)
    }))
}

fn orders() -> Demand {
    list(&[("orders-0", false)])
}

fn enter<'a>(breakers: &'a Nodes, demand: &Demand) -> Option<Pass<'a>> {
    let pass = breakers.enter(demand.first().name(), Duration::ZERO);
    if let Err(error) = &pass {
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(
            error.to_string(),
            "the store is unavailable: its breaker is open"
        );
    }
    pass.ok()
}

fn fail(breakers: &Nodes, demand: &Demand, times: u32) {
    for _ in 0..times {
        enter(breakers, demand).unwrap().ends(Signal::Failed);
    }
}

fn states(breakers: &Nodes) -> Vec<BreakerState> {
    let looks = breakers.look().into_iter();
    looks.map(|(state, ..)| state).collect()
}

/// Of two nodes
const SECOND_IS_OPEN: [BreakerState; 2] = [BreakerState::Closed, BreakerState::Open];

fn state(breakers: &Nodes) -> BreakerState {
    states(breakers)[0]
}

/// Returns half of a pause, and all of it.
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
    let (breakers, clock) = breakers(1, 1);
    fail(&breakers, &orders(), 1);
    let tick = Duration::from_nanos(1);
    let until = |breakers: &Nodes| breakers.node(0).breaker.open.unwrap().until;
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

/// Its time ends in the instant in which the next one learns nothing.
#[test]
fn the_failure_of_an_old_probe_is_not_that_of_the_next() {
    let ((breakers, clock), orders) = (breakers(FAILURES, 1), orders());
    fail(&breakers, &orders, FAILURES);
    clock.advance(FIRST_PAUSE);
    let old = enter(&breakers, &orders).unwrap();
    clock.advance(LONGEST_PROBE);
    enter(&breakers, &orders).unwrap().ends(Signal::Nothing);
    old.ends(Signal::Failed);
    assert!(enter(&breakers, &orders).is_some());
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
    let pauses: BTreeSet<_> = (0..50)
        .map(|_| {
            let (breakers, _) = breakers(1, 1);
            fail(&breakers, &orders(), 1);
            breakers.node(0).breaker.open.map(|open| open.until)
        })
        .collect();
    assert!(pauses.len() > 1, "{pauses:?}");
}

/// The first callers of a long line leave when their call is young: what the server owes them is
/// older.
#[test]
fn a_young_call_fails_where_the_server_has_been_silent_since_an_earlier_one() {
    let orders = orders().first().clone();
    let name = orders.name();
    let late = SLOW / 10 * 9;
    let millisecond = Duration::from_millis(1);
    for (waited, earlier, expected) in [
        (late - 2 * millisecond, late, BreakerState::Closed),
        (late, late - 2 * millisecond, BreakerState::Closed),
        (late, late - millisecond, BreakerState::Open),
    ] {
        let (breakers, clock) = breakers(1, 1);
        // The callers of the first call have left, early or late: it is not known which.
        let pass = |waited| breakers.enter(name, waited).unwrap();
        pass(Duration::ZERO).ends(Signal::Nothing);
        clock.advance(earlier);
        let pass = pass(waited);
        clock.advance(millisecond);
        drop(pass);
        assert_eq!(state(&breakers), expected, "{waited:?}, {earlier:?}");
    }
    // What was answered in time is no failure, however long a caller stood in the queue.
    let (breakers, _) = breakers(1, 1);
    let pass = breakers.enter(name, 10 * SLOW).unwrap();
    pass.ends(Signal::Answered);
    assert_eq!(state(&breakers), BreakerState::Closed);
}

/// Bytes count from when the callers asked; for a call that is old enough itself, from its begin.
#[test]
fn what_came_in_before_a_call_matters_only_to_those_who_waited_for_it() {
    for (pause, took, expected) in [
        (SLOW, Duration::from_millis(1), BreakerState::Closed),
        (SLOW / 2, SLOW, BreakerState::Open),
    ] {
        let (breakers, clock) = breakers(1, 1);
        clock.advance(Duration::from_secs(1));
        breakers.came_in(0);
        enter(&breakers, &orders()).unwrap().ends(Signal::Nothing);
        clock.advance(pause);
        let pass = breakers.enter(orders().first().name(), 2 * SLOW).unwrap();
        clock.advance(took);
        drop(pass);
        assert_eq!(state(&breakers), expected, "{took:?}");
    }
}

/// The first tenth of the time that callers wait is forgiven: what comes in then may be owed to
/// those before. Another call, sent behind it, is owed its answer for sure.
#[test]
fn a_call_that_is_given_up_fails_where_nothing_came_in() {
    let tenth = SLOW / 10;
    let micro = Duration::from_micros(1);
    for row in [
        (Some(micro), true, SLOW, false, true),
        (Some(tenth), true, SLOW, false, true),
        (Some(tenth + micro), true, SLOW, false, false),
        (Some(SLOW), true, SLOW, false, false),
        // Where nothing is sent behind it, nothing may be owed.
        (Some(micro), false, SLOW + micro, false, false),
        // Timers that fire late, as in a process that is short of processor time, make no
        // difference.
        (Some(SLOW / 2), false, 10 * SLOW, false, false),
        // The connection's own timeout may be shorter than callers wait.
        (None, false, SLOW / 2, true, true),
        (Some(SLOW / 4), false, SLOW / 2, true, false),
    ] {
        let (came_in, is_sent_behind, ends, by_connection, opens) = row;
        let (breakers, clock) = breakers(1, 1);
        let pass = enter(&breakers, &orders()).unwrap();
        if let Some(came_in) = came_in {
            clock.advance(came_in);
            breakers.came_in(0);
        }
        let behind = is_sent_behind.then(|| enter(&breakers, &orders()).unwrap());
        clock.advance(ends - came_in.unwrap_or_default());
        if by_connection {
            pass.ends_unanswered();
        } else {
            drop(pass);
        }
        assert_eq!(state(&breakers) == BreakerState::Open, opens, "{row:?}");
        if let Some(behind) = behind {
            behind.ends(Signal::Nothing);
        }
    }
}

/// Each node of a Cluster is silent by itself.
#[test]
fn what_comes_in_from_one_node_says_nothing_of_another() {
    let (breakers, clock) = breakers(1, 2);
    let [well, ill] = ["a-0", "b-1"].map(|name| list(&[(name, false)]));
    let passes = [&well, &ill].map(|node| enter(&breakers, node).unwrap());
    clock.advance(SLOW / 2);
    let traffic = &breakers;
    traffic.replied(traffic.index(well.first().name()));
    clock.advance(SLOW / 2);
    drop(passes);
    assert_eq!(states(&breakers), SECOND_IS_OPEN);
}

#[test]
fn none_is_never_open() {
    let (breakers, _) = breakers(0, 1);
    fail(&breakers, &orders(), 1000);
    assert!(breakers.refuses(&orders()).is_none());
    assert!(breakers.look().is_empty());
}

#[test]
fn it_is_told_how_it_is_and_for_how_long() {
    let (breakers, clock) = breakers(FAILURES, 1);
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
    // The breaker counts as open since its first failure, even after another pause.
    probe.ends(Signal::Failed);
    clock.advance(LONGEST_PAUSE);
    assert_eq!(breakers.look(), [seen(BreakerState::HalfOpen, 1100, 0)]);
    enter(&breakers, &orders()).unwrap().ends(Signal::Answered);
    assert_eq!(breakers.look(), [seen(BreakerState::Closed, 0, 0)]);
}

#[test]
fn a_node_stands_for_itself() {
    let (breakers, _) = breakers(FAILURES, 2);
    let (well, ill) = (list(&[("a-0", false)]), list(&[("b-1", false)]));
    fail(&breakers, &ill, FAILURES);
    assert!(breakers.refuses(&ill).is_some());
    assert!(breakers.refuses(&well).is_none());
    assert_eq!(states(&breakers), SECOND_IS_OPEN);
    // A list needs them all, except for shadows.
    for (charges, refused) in [
        ([("a-0", false), ("b-1", false)], true),
        ([("b-1", false), ("a-0", false)], true),
        ([("a-0", false), ("b-1", true)], false),
        ([("b-1", true), ("a-0", false)], false),
        ([("a-0", true), ("b-1", true)], true),
    ] {
        let demand = list(&charges);
        assert_eq!(breakers.refuses(&demand).is_some(), refused, "{charges:?}");
    }
}

/// The first of several nodes that opens is logged, and the last that closes: once a minute at
/// most.
#[test]
fn what_opens_again_and_again_is_logged_once_a_minute() {
    use crate::macros::logged::levels;

    let (breakers, clock) = breakers(1, 2);
    let nodes = ["a-0", "b-1"].map(|name| list(&[(name, false)]));
    let opens = |node: &Demand| levels(|| fail(&breakers, node, 1));
    let closes = |node: &Demand| levels(|| enter(&breakers, node).unwrap().ends(Signal::Answered));
    clock.advance(Duration::from_secs(5));
    assert_eq!(opens(&nodes[0]), ["WARN"]);
    assert_eq!(opens(&nodes[1]), [""; 0]);
    clock.advance(LONGEST_PAUSE);
    assert_eq!(closes(&nodes[0]), [""; 0]);
    assert_eq!(closes(&nodes[1]), ["INFO"]);
    let next = WARNED_AGAIN_AFTER - LONGEST_PAUSE - Duration::from_millis(1);
    clock.advance(next);
    assert_eq!(opens(&nodes[1]), [""; 0]);
    clock.advance(LONGEST_PAUSE);
    assert_eq!(closes(&nodes[1]), [""; 0]);
    assert_eq!(opens(&nodes[0]), ["WARN"]);
    clock.advance(LONGEST_PAUSE);
    assert_eq!(closes(&nodes[0]), ["INFO"]);
    clock.advance(WARNED_AGAIN_AFTER - LONGEST_PAUSE);
    assert_eq!(opens(&nodes[0]), ["WARN"]);
}

/// A thread that reads holds nothing against the server, which may have answered. If it finds
/// nothing, the silence goes on.
#[test]
fn a_read_that_finds_nothing_ends_no_silence() {
    let clock = ManualClock::new();
    let traffic = Nodes::new(1, |_| 0, SLOW, Arc::new(clock.clone()));
    let _watched = traffic.watch(|| false);
    let is_silent = || traffic.was_silent(0, Duration::ZERO, SLOW);
    traffic.sent(0);
    traffic.owes_nothing(0);
    clock.advance(SLOW);
    assert!(!is_silent());
    traffic.sent(0);
    clock.advance(SLOW);
    assert!(is_silent());
    assert!(!traffic.read(|| (is_silent(), 0)));
    assert!(is_silent());
    traffic.read(|| ((), 1));
    assert!(!is_silent());
}

#[test]
fn bytes_that_were_not_read_yet_end_a_silence() {
    let clock = ManualClock::new();
    let traffic = Nodes::new(1, |_| 0, SLOW, Arc::new(clock.clone()));
    let _watched = traffic.watch(|| true);
    traffic.sent(0);
    clock.advance(SLOW);
    assert!(!traffic.was_silent(0, Duration::ZERO, SLOW));
}

#[test]
fn a_list_is_let_down_by_any_of_its_nodes() {
    let (breakers, clock) = breakers(1, 2);
    let traffic = &breakers;
    traffic.sent(1);
    clock.advance(SLOW);
    let (well, ill) = (("a-0", false), ("b-1", false));
    for (names, silent) in [(&[well][..], false), (&[well, ill], true)] {
        let any = traffic.any_was_silent(&list(names), Duration::ZERO, SLOW);
        assert_eq!(any, silent);
    }
    // Where there is one node, it is that.
    let (single, _) = self::breakers(1, 1);
    assert_eq!(single.index(list(&[ill]).first().name()), 0);
}

/// Without a look at bytes, a connection is silent since the last reply.
#[test]
fn a_connection_is_silent_until_it_answers_and_once_it_has_not_for_so_long() {
    let clock = ManualClock::new();
    let traffic = Nodes::new(1, |_| 0, SLOW, Arc::new(clock.clone()));
    assert!(traffic.is_silent_for(SLOW));
    traffic.replied(0);
    assert!(!traffic.is_silent_for(SLOW));
    clock.advance(SLOW - Duration::from_nanos(1));
    assert!(!traffic.is_silent_for(SLOW));
    clock.advance(Duration::from_nanos(1));
    assert!(traffic.is_silent_for(SLOW));
    // With one, it owes nothing unless something was sent.
    let watched = traffic.watch(|| false);
    assert!(!traffic.is_silent_for(SLOW));
    traffic.sent(0);
    assert!(!traffic.is_silent_for(SLOW));
    clock.advance(SLOW);
    assert!(traffic.is_silent_for(SLOW));
    // Replies count again once that connection is gone.
    drop(watched);
    traffic.replied(0);
    assert!(!traffic.is_silent_for(SLOW));
}
