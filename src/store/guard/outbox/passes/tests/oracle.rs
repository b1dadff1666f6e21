//! Tests the breaker against a simpler model, on a clock that the test moves.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, Debug)]
enum Step {
    Enter,
    /// One of the calls under way is over
    End(usize, Signal),
    /// Its callers have left
    Leave(usize),
    /// Bytes come in, for any call
    CameIn,
    Advance(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let signal = prop_oneof![
        3 => Just(Signal::Failed),
        2 => Just(Signal::Answered),
        1 => Just(Signal::Nothing),
    ];
    let step = prop_oneof![
        6 => Just(Step::Enter),
        6 => (any::<usize>(), signal).prop_map(|(which, signal)| Step::End(which, signal)),
        3 => any::<usize>().prop_map(Step::Leave),
        1 => Just(Step::CameIn),
        // The longest time of a probe, to the millisecond.
        2 => prop::sample::select(vec![1_u64, 999, 1000]).prop_map(Step::Advance),
        2 => (0..20_u64).prop_map(Step::Advance),
        1 => (20..1500_u64).prop_map(Step::Advance),
    ];
    prop::collection::vec(step, 1..200)
}

/// The expected behaviour of a breaker, written in a simpler way.
#[derive(Debug)]
struct Model {
    failures: usize,
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
    /// No caller has to wait
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
    fn signal(&mut self, call: &Call<'_>, now: u64, signal: Signal) {
        match (&self.phase, signal) {
            // Also if another one asks by now.
            (Is::Probed(..) | Is::Ready(_), Signal::Answered)
                if call.probes && self.opened == call.opened =>
            {
                self.phase = Is::Closed;
                self.row.clear();
            }
            (Is::Probed(_, number, pauses), Signal::Failed) if *number == call.number => {
                self.phase = Is::Open(now, pauses + 1);
                self.opened += 1;
            }
            (Is::Probed(_, number, pauses), Signal::Nothing) if *number == call.number => {
                self.phase = Is::Ready(*pauses);
            }
            // A probe that was given up reports nothing.
            (Is::Closed, Signal::Answered | Signal::Failed)
                if self.opened == call.opened && !call.probes =>
            {
                self.row.push(signal == Signal::Failed);
                let last = self.row.iter().rev().take(2 * self.failures);
                let failed = last.filter(|failed| **failed).count();
                if signal == Signal::Failed && failed >= self.failures {
                    self.phase = Is::Open(now, 0);
                    self.opened += 1;
                }
            }
            _ => {}
        }
    }
}

proptest! {
    #[test]
    fn it_does_what_a_simple_one_does(
        // Shorter than probes may take, and longer.
        slow in prop::sample::select(vec![50, 5000_u64]),
        failures in prop::sample::select(vec![1, FAILURES]),
        steps in steps(),
    ) {
        let (breakers, clock) = waiting_for(Duration::from_millis(slow), failures, 1);
        let orders = orders();
        let mut model = Model { failures: failures as usize, phase: Is::Closed, row: Vec::new(), opened: 0 };
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
                        Is::Probed(since, ..) => Some(now >= since + in_millis(LONGEST_PROBE)),
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
                Step::End(which, signal) if !calls.is_empty() => {
                    let call = calls.remove(which % calls.len());
                    let late = signal == Signal::Answered && now - call.at >= slow;
                    let of_late = if call.probes { Signal::Failed } else { Signal::Nothing };
                    model.signal(&call, now, if late { of_late } else { signal });
                    call.pass.ends(signal);
                    if signal == Signal::Answered {
                        came_in = Some((now, sent.len()));
                    }
                }
                Step::Leave(which) if !calls.is_empty() => {
                    let call = calls.remove(which % calls.len());
                    let late = now - call.at >= slow / 10 * 9;
                    // Where others are answered it is a burst.
                    let forgiven = slow / 10;
                    let silent = came_in.is_none_or(|(at, _)| at <= call.at + forgiven);
                    // What was sent behind the last bytes is owed.
                    let (_, before) = came_in.unwrap_or_default();
                    let owed = sent.get(before);
                    let owes = owed.is_some_and(|owed| now - owed >= slow / 10 * 9);
                    let fails = late && (call.probes || silent && owes);
                    model.signal(&call, now, if fails { Signal::Failed } else { Signal::Nothing });
                    drop(call.pass);
                }
                Step::CameIn => {
                    breakers.came_in(0);
                    came_in = Some((now, sent.len()));
                }
                Step::End(..) | Step::Leave(_) => {}
            }
            let seems = state(&breakers);
            match model.phase {
                Is::Closed => prop_assert_eq!(seems, BreakerState::Closed),
                Is::Open(since, pauses) => {
                    prop_assert_ne!(seems, BreakerState::Closed);
                    prop_assert!(seems == BreakerState::Open || now >= since + bounds(pauses).0);
                }
                Is::Ready(_) | Is::Probed(..) => prop_assert_ne!(seems, BreakerState::Closed),
            }
            // The lock is passed by only where there is nothing to find.
            let (state, _, failures) = breakers.look()[0];
            let troubled = state != BreakerState::Closed || failures > 0;
            prop_assert_eq!(breakers.has_failures(), troubled);
        }
    }
}
