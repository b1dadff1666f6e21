//! One line behind its lock: who stands in it, which call is in flight for whom, and who is woken to see to it.
//!
//! The lock is never held while a future is polled or dropped, or somebody woken.

use std::{
    mem,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use super::{
    lines::Gone,
    lock,
    member::{Run, Wakes},
    state::State,
};
use crate::{decision::Decision, demand::Acquire, error::Error, list::List, receipt::Receipt};

/// One line. It is woken by the calls that callers make alone.
#[derive(Default)]
pub(crate) struct Queue(Mutex<State>);

/// What makes the calls for many, and sleeps until those who wait can be served.
pub(crate) struct Driver {
    pub(crate) future: Pin<Box<dyn Future<Output = ()> + Send>>,
    pub(crate) waker: Waker,
}

/// What a caller does next.
#[allow(
    clippy::large_enum_variant,
    reason = "it lives for a moment, and a box would be an allocation"
)]
pub(crate) enum Turn {
    Served(Result<Decision, Error>),
    /// Another one sees to it
    Wait,
    /// It makes its own call
    Alone,
    /// It polls the driver, and makes it if there is none
    Drive(Option<Driver>),
}

/// What the driver does next.
pub(crate) enum Next {
    Ask(Run),
    Sleep(Duration),
    /// Nobody is left to see to
    End,
}

impl Queue {
    /// See `State`, here and below.
    pub(crate) fn enter(
        &self,
        acquire: &Acquire,
        deadline: Option<Duration>,
        now: Duration,
    ) -> (u64, bool) {
        self.with(|state, wakes| state.enter(acquire, deadline, now, wakes))
    }

    pub(crate) fn poll(&self, ticket: u64, waker: &Waker) -> Turn {
        self.with(|state, _| state.turn(ticket, waker))
    }

    pub(crate) fn reach_alone(&self, ticket: u64, waker: &Waker) {
        self.with(|state, _| state.reach_alone(ticket, waker));
    }

    pub(crate) fn next(&self, now: Duration) -> Next {
        self.with(|state, wakes| state.next(now, wakes))
    }

    pub(crate) fn serve(
        &self,
        run: &Run,
        decisions: Result<Vec<Decision>, Error>,
        now: Duration,
        gone: &Gone,
    ) -> Vec<Receipt> {
        self.with(|state, wakes| state.serve(run, decisions, now, gone, wakes))
    }

    /// Keeps the driver until it is polled again; whether whoever polled it was served meanwhile.
    pub(crate) fn put_back(&self, driver: Driver, ticket: u64, waker: &Waker) -> bool {
        let (served, unwanted) =
            self.with(|state, wakes| state.put_back(driver, ticket, waker, wakes));
        drop(unwanted);
        served
    }

    pub(crate) fn ended(&self) {
        self.with(State::ended);
    }

    /// Gives up a place; what was or may be taken for it and is to be given back, and whether it was the last one.
    pub(crate) fn leave(&self, ticket: u64, gone: &Gone) -> (List<Receipt>, bool) {
        let ((receipts, unwanted), empty) =
            self.with(|state, wakes| (state.leave(ticket, gone, wakes), state.is_empty()));
        // Before anything is given back: it is not to be sent again after that.
        drop(unwanted);
        (receipts, empty)
    }

    /// Whether nobody is in it, and then the driver, to be dropped.
    pub(crate) fn close_if_empty(&self) -> (bool, Option<Driver>) {
        self.with(|state, _| {
            let empty = state.is_empty();
            let driver = empty.then(|| state.take_driver()).flatten();
            (empty, driver)
        })
    }

    pub(crate) fn nudge(&self) {
        self.with(State::nudge);
    }

    /// Whether anybody is in it who waits if there is no room, and is not being asked for.
    #[cfg(feature = "redis")]
    pub(crate) fn is_waited_in(&self) -> bool {
        self.with(|state, _| state.is_waited_in())
    }

    /// Sleeps until the timer fires or the line is to be looked at.
    pub(crate) fn poll_sleep(
        &self,
        timer: &mut Pin<Box<dyn Future<Output = ()> + Send>>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        if self.with(|state, _| mem::take(&mut state.look)) {
            return Poll::Ready(());
        }
        timer.as_mut().poll(cx)
    }

    fn with<T>(&self, act: impl FnOnce(&mut State, &mut Wakes) -> T) -> T {
        let mut wakes = Wakes::default();
        let done = act(&mut lock(&self.0), &mut wakes);
        wakes.wake();
        done
    }
}

impl Wake for Queue {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.with(State::answered_alone);
    }
}

/// Wakes those who can poll the driver of a line.
struct Horn(Arc<Queue>);

impl Wake for Horn {
    fn wake(self: Arc<Self>) {
        self.0.with(State::wake_driver);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.with(State::wake_driver);
    }
}

impl Driver {
    pub(crate) fn new(
        queue: Arc<Queue>,
        future: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        Self {
            future: Box::pin(future),
            waker: Arc::new(Horn(queue)).into(),
        }
    }

    pub(crate) fn poll(&mut self) -> Poll<()> {
        let mut context = Context::from_waker(&self.waker);
        self.future.as_mut().poll(&mut context)
    }
}
