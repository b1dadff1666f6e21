//! What callers on several threads see of a line, one step at a time: between two looks of one, others come and go.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Wake, Waker},
    time::Duration,
};

use super::store::acquire;
use crate::{
    demand::{Acquire, MaxWait},
    store::guard::line::{
        lines::Gone,
        member::{LONGEST_RUN, Wakes},
        queue::{Next, Turn},
        state::State,
    },
};

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Flag {
    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

fn act<T>(state: &mut State, act: impl FnOnce(&mut State, &mut Wakes) -> T) -> T {
    let mut wakes = Wakes::default();
    let done = act(state, &mut wakes);
    wakes.wake();
    done
}

/// Whether it makes its own call. Its ticket is its id, as they come in that order.
fn enter(state: &mut State, acquire: &Acquire) -> bool {
    act(state, |state, wakes| {
        state.enter(acquire, None, Duration::ZERO, wakes).1
    })
}

fn waits(id: u64) -> Acquire {
    acquire(id).waiting(MaxWait::ENDLESS)
}

/// What it does, and whether it is woken after that.
fn turn(state: &mut State, ticket: u64) -> (Turn, Arc<Flag>) {
    let flag = Arc::new(Flag::default());
    (state.turn(ticket, &Waker::from(Arc::clone(&flag))), flag)
}

fn ask(state: &mut State) -> Vec<u64> {
    match act(state, |state, wakes| state.next(Duration::ZERO, wakes)) {
        Next::Ask(run) => run.tickets,
        Next::Sleep(_) | Next::End => panic!("there is somebody to ask for"),
    }
}

#[test]
fn nobody_makes_another_driver_while_one_is_polled() {
    let mut state = State::default();
    assert!(!enter(&mut state, &waits(1)));
    assert!(matches!(turn(&mut state, 1).0, Turn::Drive(None)));
    // It sleeps, and one that does not wait goes beside it.
    assert!(enter(&mut state, &acquire(2)));
    assert!(!enter(&mut state, &acquire(3)));
    assert!(!enter(&mut state, &acquire(4)));
    act(&mut state, State::answered_alone);
    assert!(matches!(turn(&mut state, 3).0, Turn::Wait));
    act(&mut state, State::ended);
    assert!(matches!(turn(&mut state, 3).0, Turn::Drive(None)));
}

#[test]
fn those_who_cannot_be_woken_take_the_place_of_none_who_can() {
    let mut state = State::default();
    let last = LONGEST_RUN as u64 + 1;
    for id in 1..=last {
        assert!(!enter(&mut state, &waits(id)));
    }
    let (does, flag) = turn(&mut state, last);
    assert!(matches!(does, Turn::Drive(None)));
    act(&mut state, State::ended);
    assert!(flag.is_set());
}

#[test]
fn the_last_behind_a_call_is_one_who_can_be_woken() {
    let mut state = State::default();
    for id in 1..=3 {
        assert_eq!(enter(&mut state, &acquire(id)), id == 1);
    }
    act(&mut state, State::answered_alone);
    let (does, asking) = turn(&mut state, 2);
    assert!(matches!(does, Turn::Drive(None)));
    assert_eq!(ask(&mut state), [2, 3]);
    for id in 4..=6 {
        assert!(!enter(&mut state, &acquire(id)));
    }
    let behind = [4, 5].map(|ticket| turn(&mut state, ticket).1);
    act(&mut state, State::wake_driver);
    assert!(asking.is_set());
    assert_eq!(behind.map(|flag| flag.is_set()), [false, true]);
}

/// Each is a call to the store.
#[test]
fn what_was_not_asked_for_is_not_given_back() {
    for is_asked_for in [false, true] {
        let mut state = State::default();
        enter(&mut state, &waits(1));
        if is_asked_for {
            assert_eq!(ask(&mut state), [1]);
        }
        let gone = Gone::default();
        let (receipts, driver) = act(&mut state, |state, wakes| state.leave(1, &gone, wakes));
        assert_eq!(receipts.len(), usize::from(is_asked_for));
        assert!(driver.is_none());
    }
}
