//! The breaker against a simple one, on a clock that is moved.

use std::{
    collections::BTreeSet,
    sync::{Barrier, atomic::AtomicUsize as Count},
    thread,
};

use proptest::prelude::*;

use super::{
    word::{FIRST_PAUSE, LONGEST_PAUSE, LONGEST_PROBE},
    *,
};
use crate::{clock::ManualClock, demand::Labels, limit::LimitSource};

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
        patience: None,
        asked: None,
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
        enter(breakers, acquire).unwrap().ends(Told::Failed);
    }
}

fn state(breakers: &Breakers) -> Seems {
    breakers.look()[0].state
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Enter,
    /// One of the calls under way is over
    End(usize, Told),
    /// Its callers have left
    Leave(usize),
    /// Bytes come in, for whichever call
    CameIn,
    Advance(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let told = prop_oneof![
        3 => Just(Told::Failed),
        2 => Just(Told::Answered),
        1 => Just(Told::Nothing),
    ];
    let step = prop_oneof![
        6 => Just(Step::Enter),
        6 => (any::<usize>(), told).prop_map(|(which, told)| Step::End(which, told)),
        3 => any::<usize>().prop_map(Step::Leave),
        1 => Just(Step::CameIn),
        2 => (0..20_u64).prop_map(Step::Advance),
        1 => (20..1500_u64).prop_map(Step::Advance),
    ];
    prop::collection::vec(step, 1..200)
}

/// What a breaker is to do, said in another way.
#[derive(Debug)]
struct Model {
    phase: Is,
    /// The last calls that were begun since it closed.
    row: Vec<bool>,
    opened: u64,
}

#[derive(Debug, PartialEq)]
enum Is {
    Closed,
    /// Since when, and after how many pauses
    Open(u64, u32),
    /// Nobody has to wait for anything
    Ready(u32),
    /// Since when, by which call, after how many pauses
    Probed(u64, usize, u32),
}

/// A call of the model.
struct Call<'a> {
    number: usize,
    /// How often it had been opened when it was begun.
    opened: u64,
    at: u64,
    probes: bool,
    pass: Pass<'a>,
}

impl Model {
    fn told(&mut self, call: &Call<'_>, now: u64, told: Told) {
        match (&self.phase, told) {
            // Also if another one asks by now.
            (Is::Probed(..) | Is::Ready(_), Told::Answered)
                if call.probes && self.opened == call.opened =>
            {
                self.phase = Is::Closed;
                self.row.clear();
            }
            (Is::Probed(_, number, pauses), Told::Failed) if *number == call.number => {
                self.phase = Is::Open(now, pauses + 1);
                self.opened += 1;
            }
            (Is::Probed(_, number, pauses), Told::Nothing) if *number == call.number => {
                self.phase = Is::Ready(*pauses);
            }
            // Of a probe that was given up nobody wants to hear.
            (Is::Closed, Told::Answered | Told::Failed)
                if self.opened == call.opened && !call.probes =>
            {
                self.row.push(told == Told::Failed);
                let last = self.row.iter().rev().take(2 * FAILURES as usize);
                let failed = last.filter(|failed| **failed).count();
                if told == Told::Failed && failed >= FAILURES as usize {
                    self.phase = Is::Open(now, 0);
                    self.opened += 1;
                }
            }
            _ => {}
        }
    }
}

/// Half of a pause, and all of it.
fn bounds(pauses: u32) -> (u64, u64) {
    let whole = (FIRST_PAUSE * 2u32.pow(pauses.min(10))).min(LONGEST_PAUSE);
    (millis(whole) / 2, millis(whole))
}

proptest! {
    #[test]
    fn it_does_what_a_simple_one_does(steps in steps()) {
        let clock = ManualClock::new();
        let breakers = breakers(FAILURES, 1, &clock);
        let orders = orders();
        let mut model = Model { phase: Is::Closed, row: Vec::new(), opened: 0 };
        let (mut calls, mut now, mut number) = (Vec::<Call<'_>>::new(), 0, 0);
        let (mut came_in, mut sent) = (None::<(u64, usize)>, Vec::new());
        for step in steps {
            match step {
                Step::Advance(by) => {
                    clock.advance(Duration::from_millis(by));
                    now += by;
                }
                Step::Enter => {
                    let refused = breakers.refuses(&orders).is_some();
                    let pass = enter(&breakers, &orders);
                    prop_assert_eq!(refused, pass.is_none());
                    let passes = match model.phase {
                        Is::Closed | Is::Ready(_) => Some(true),
                        Is::Open(since, pauses) => match bounds(pauses) {
                            (half, _) if now < since + half => Some(false),
                            (_, whole) if now >= since + whole => Some(true),
                            _ => None,
                        },
                        Is::Probed(since, ..) => Some(now >= since + millis(LONGEST_PROBE)),
                    };
                    if let Some(passes) = passes {
                        prop_assert_eq!(passes, pass.is_some(), "{:?} at {}", model, now);
                    }
                    let Some(pass) = pass else { continue };
                    sent.push(now);
                    number += 1;
                    let probes = model.phase != Is::Closed;
                    match model.phase {
                        Is::Closed => {}
                        Is::Open(_, pauses) | Is::Ready(pauses) | Is::Probed(_, _, pauses) => {
                            model.phase = Is::Probed(now, number, pauses);
                        }
                    }
                    calls.push(Call { number, opened: model.opened, at: now, probes, pass });
                }
                Step::End(which, told) if !calls.is_empty() => {
                    let call = calls.remove(which % calls.len());
                    let late = told == Told::Answered && now - call.at >= millis(SLOW);
                    let of_late = if call.probes { Told::Failed } else { Told::Nothing };
                    model.told(&call, now, if late { of_late } else { told });
                    call.pass.ends(told);
                }
                Step::Leave(which) if !calls.is_empty() => {
                    let call = calls.remove(which % calls.len());
                    let late = now - call.at >= millis(SLOW) / 10 * 9;
                    // Where others are answered it is a burst.
                    let forgiven = millis(SLOW) / 10;
                    let silent = came_in.is_none_or(|(at, _)| at <= call.at + forgiven);
                    // What was sent behind the last bytes is owed.
                    let (_, before) = came_in.unwrap_or_default();
                    let owed = sent.get(before);
                    let owes = owed.is_some_and(|owed| now - owed >= millis(SLOW) / 10 * 9);
                    let fails = late && (call.probes || silent && owes);
                    model.told(&call, now, if fails { Told::Failed } else { Told::Nothing });
                    drop(call.pass);
                }
                Step::CameIn => {
                    breakers.traffic().came_in();
                    came_in = Some((now, sent.len()));
                }
                Step::End(..) | Step::Leave(_) => {}
            }
            let seems = state(&breakers);
            match model.phase {
                Is::Closed => prop_assert_eq!(seems, Seems::Closed),
                Is::Open(since, pauses) => {
                    prop_assert_ne!(seems, Seems::Closed);
                    prop_assert!(seems == Seems::Open || now >= since + bounds(pauses).0);
                }
                Is::Ready(_) | Is::Probed(..) => prop_assert_ne!(seems, Seems::Closed),
            }
            let unwell = breakers.unwell.load(Ordering::Relaxed);
            prop_assert_eq!(unwell, usize::from(seems != Seems::Closed));
        }
    }

    /// Also of the longest times and of the most pauses.
    #[test]
    fn a_word_is_packed_whole(until in 0..1u64 << 40, pauses in 0..64u8, generation: u16, phase in 0..3usize) {
        let phase = [Phase::Closed, Phase::Open, Phase::Probing][phase];
        let word = Word { phase, pauses, generation, until };
        prop_assert_eq!(Word::unpack(word.pack()), word);
    }

    #[test]
    fn a_pause_is_between_half_and_whole(pauses in 0..64u8, now in 0..1u64 << 39, spread: u64) {
        let opened = Word { pauses, ..Word::NEW }.opened(now, spread);
        let (half, whole) = bounds(pauses.into());
        prop_assert!((now + half..=now + whole).contains(&opened.until), "{opened:?}");
        prop_assert_eq!(opened.pauses, (pauses + 1).min(63));
    }
}

/// Nobody asks until the end of a pause, and one does at it; a probe is waited for as exactly.
#[test]
fn a_phase_is_over_at_its_end() {
    let opened = Word::NEW.opened(1000, 0);
    let node = Node::new();
    node.word.store(opened.pack(), Ordering::Relaxed);
    assert_eq!(opened.entry(opened.until - 1), Entry::Nobody);
    assert_eq!(node.look(opened.until - 1).state, Seems::Open);
    assert_eq!(node.look(opened.until).state, Seems::HalfOpen);
    let Entry::One(probing) = opened.entry(opened.until) else {
        panic!("nobody asks");
    };
    assert_eq!(probing.until, opened.until + millis(LONGEST_PROBE));
    assert_eq!(probing.entry(probing.until - 1), Entry::Nobody);
    assert!(matches!(probing.entry(probing.until), Entry::One(_)));
}

#[test]
fn a_pause_can_be_any_from_half_to_whole() {
    let pauses: BTreeSet<_> = (0..1000)
        .map(|spread| Word::NEW.opened(0, spread).until)
        .collect();
    let whole = millis(FIRST_PAUSE);
    assert_eq!(pauses, (whole / 2..=whole).collect());
}

#[test]
fn pauses_differ() {
    let clock = ManualClock::new();
    let pauses: BTreeSet<_> = (0..50)
        .map(|_| {
            let breakers = breakers(1, 1, &clock);
            fail(&breakers, &orders(), 1);
            breakers.nodes[0].load().until
        })
        .collect();
    assert!(pauses.len() > 1, "{pauses:?}");
}

#[test]
fn answers_never_open_it() {
    let clock = ManualClock::new();
    let breakers = breakers(1, 1, &clock);
    for _ in 0..1000 {
        enter(&breakers, &orders()).unwrap().ends(Told::Answered);
        enter(&breakers, &orders()).unwrap().ends(Told::Nothing);
        // Somebody hangs up.
        drop(enter(&breakers, &orders()));
    }
    let failed = |seen: Seen| seen.failures;
    assert_eq!(state(&breakers), Seems::Closed);
    assert_eq!(breakers.look().into_iter().map(failed).sum::<u32>(), 0);
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
        (late - 2 * millisecond, late, Seems::Closed),
        (late, late - 2 * millisecond, Seems::Closed),
        (late, late - millisecond, Seems::Open),
    ] {
        let breakers = breakers(1, 1, &clock);
        // The callers of the first call have left, early or late: it is not known which.
        breakers
            .enter(name, Duration::ZERO)
            .unwrap()
            .ends(Told::Nothing);
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
        .ends(Told::Answered);
    assert_eq!(state(&breakers), Seems::Closed);
}

/// The first tenth of the time that callers wait is forgiven: what comes in then may be owed to
/// those before. Another call, sent behind it, is owed its answer for sure.
#[test]
fn a_call_that_is_given_up_fails_where_nothing_came_in() {
    let clock = ManualClock::new();
    let tenth = SLOW / 10;
    let micro = Duration::from_micros(1);
    for (came_in, expected) in [
        (micro, Seems::Open),
        (tenth, Seems::Open),
        (tenth + micro, Seems::Closed),
        (SLOW, Seems::Closed),
    ] {
        let breakers = breakers(1, 1, &clock);
        let pass = enter(&breakers, &orders()).unwrap();
        clock.advance(came_in);
        breakers.traffic().came_in();
        let behind = enter(&breakers, &orders()).unwrap();
        clock.advance(SLOW - came_in);
        drop(pass);
        assert_eq!(state(&breakers), expected, "{came_in:?}");
        behind.ends(Told::Nothing);
    }
    // Where nothing is sent behind it, nothing may be owed.
    let breakers = breakers(1, 1, &clock);
    let pass = enter(&breakers, &orders()).unwrap();
    clock.advance(micro);
    breakers.traffic().came_in();
    clock.advance(SLOW);
    drop(pass);
    assert_eq!(state(&breakers), Seems::Closed);
    // Timers that fire late, as in a process that is short of processor time, make no difference.
    let breakers = self::breakers(1, 1, &clock);
    let pass = enter(&breakers, &orders()).unwrap();
    clock.advance(SLOW / 2);
    breakers.traffic().came_in();
    clock.advance(10 * SLOW);
    drop(pass);
    assert_eq!(state(&breakers), Seems::Closed);
}

/// The connection's own timeout may be shorter than callers wait.
#[test]
fn a_call_that_its_connection_gives_up_fails_where_nothing_came_in() {
    let clock = ManualClock::new();
    for (came_in, expected) in [(false, Seems::Open), (true, Seems::Closed)] {
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
    let states: Vec<_> = breakers.look().into_iter().map(|seen| seen.state).collect();
    assert_eq!(states, [Seems::Closed, Seems::Open]);
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
    first.ends(Told::Answered);
    assert_eq!(state(&breakers), Seems::Closed);
    second.ends(Told::Failed);
    assert_eq!(state(&breakers), Seems::Closed);
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
    let told = |state, lasts, failures| Seen {
        state,
        lasts: Duration::from_millis(lasts),
        failures,
    };
    clock.advance(Duration::from_secs(5));
    fail(&breakers, &orders(), 2);
    assert_eq!(breakers.look(), [told(Seems::Closed, 5000, 2)]);
    fail(&breakers, &orders(), 1);
    assert_eq!(breakers.look(), [told(Seems::Open, 0, 0)]);
    clock.advance(FIRST_PAUSE);
    assert_eq!(breakers.look(), [told(Seems::HalfOpen, 100, 0)]);
    let probe = enter(&breakers, &orders()).unwrap();
    assert_eq!(breakers.look(), [told(Seems::HalfOpen, 100, 0)]);
    // It goes on being open, though it pauses anew.
    probe.ends(Told::Failed);
    clock.advance(LONGEST_PAUSE);
    assert_eq!(breakers.look(), [told(Seems::HalfOpen, 1100, 0)]);
    enter(&breakers, &orders()).unwrap().ends(Told::Answered);
    assert_eq!(breakers.look(), [told(Seems::Closed, 0, 0)]);
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
                        pass.ends(Told::Failed);
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
    let states: Vec<_> = breakers.look().into_iter().map(|seen| seen.state).collect();
    assert_eq!(states, [Seems::Closed, Seems::Open]);
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

/// Of several nodes the first that is left alone is told, and that all are asked again; and both once a minute at most.
#[test]
fn what_opens_again_and_again_is_told_of_once_a_minute() {
    use crate::macros::logged::levels;

    let clock = ManualClock::new();
    let breakers = breakers(1, 2, &clock);
    let nodes = ["a-0", "b-1"].map(|name| list(&[(name, false)]));
    let opens = |node: &Acquire| levels(|| fail(&breakers, node, 1));
    let closes = |node: &Acquire| levels(|| enter(&breakers, node).unwrap().ends(Told::Answered));
    clock.advance(Duration::from_secs(5));
    assert_eq!(opens(&nodes[0]), ["WARN"]);
    assert_eq!(opens(&nodes[1]), [""; 0]);
    clock.advance(LONGEST_PAUSE);
    assert_eq!(closes(&nodes[0]), [""; 0]);
    assert_eq!(closes(&nodes[1]), ["INFO"]);
    let next = TOLD_AGAIN_AFTER - LONGEST_PAUSE - Duration::from_millis(1);
    clock.advance(next);
    assert_eq!(opens(&nodes[1]), ["DEBUG"]);
    clock.advance(LONGEST_PAUSE);
    assert_eq!(closes(&nodes[1]), ["DEBUG"]);
    assert_eq!(opens(&nodes[0]), ["WARN"]);
    clock.advance(LONGEST_PAUSE);
    assert_eq!(closes(&nodes[0]), ["INFO"]);
    clock.advance(TOLD_AGAIN_AFTER - LONGEST_PAUSE);
    assert_eq!(opens(&nodes[0]), ["WARN"]);
}
