//! The order of guards, and when listeners are called: with a store that says when it is asked.

use std::{
    pin::pin,
    sync::Mutex,
    task::{Context, Poll, Waker},
};

use super::*;
use crate::{
    clock::ManualClock,
    decision::{Grant, LimitState, Refusal, Source},
    demand::{Charge, Labels},
    error::ErrorKind,
    failure_policy::FailurePolicy,
    limit::{Limit, LimitSource},
    list::List,
    receipt::PermitId,
};

/// What happened, in order.
type Log = Arc<Mutex<Vec<String>>>;

fn write(log: &Log, entry: impl Into<String>) {
    log.lock().unwrap().push(entry.into());
}

fn read(log: &Log) -> Vec<String> {
    std::mem::take(&mut log.lock().unwrap())
}

/// Answers as it is told to; a verb stops on its way.
#[derive(Debug)]
struct Server {
    log: Log,
    listeners: Listeners,
    at_once: Mutex<Option<ErrorKind>>,
    answer: Mutex<Option<Result<Decision, ErrorKind>>>,
}

impl Decide for Server {
    fn decide_at_once(&self, acquire: &mut Acquire) -> Option<Result<Decision, Error>> {
        write(&self.log, "at once");
        acquire.identify(PermitId([7; 16]));
        let fails = *self.at_once.lock().unwrap();
        fails.map(|kind| Err(kind.into()))
    }

    async fn acquire(&self, _: &Acquire) -> Result<Decision, Error> {
        write(&self.log, "in time");
        let answer = self.answer.lock().unwrap().take();
        answer.unwrap().map_err(Error::from)
    }

    async fn manage(&self, _: &Name, op: &Op) -> Result<Outcome, Error> {
        write(&self.log, "verb");
        if matches!(op, Op::Delete) {
            std::future::pending::<()>().await;
        }
        Ok(Outcome::Changed(true))
    }

    fn settle(&self, receipt: Receipt, keep: u32) {
        write(&self.log, format!("{} of {}", keep, receipt.permits));
        self.listeners.room(receipt.name(), false);
    }
}

impl DecideRuns for Server {
    async fn acquire_run(&self, run: &[Acquire]) -> Result<Vec<Decision>, Error> {
        Ok(vec![self.acquire(&run[0]).await?])
    }

    fn decides_together(&self, _: &Acquire) -> bool {
        true
    }
}

fn remote_of(log: &Log) -> Remote<Server> {
    let clock = ManualClock::new();
    let traffic = Traffic::new(1, |_| 0, Arc::new(clock.clone()));
    let guards = Guards {
        deadline: Duration::from_secs(1),
        deny_cache: Duration::from_secs(1),
        traffic: Arc::new(traffic),
        own_clock: Some(Arc::new(clock)),
    };
    remote(guards, About::default(), |listeners| Server {
        log: Arc::clone(log),
        listeners,
        at_once: Mutex::default(),
        answer: Mutex::default(),
    })
}

fn ask(on_failure: Option<FailurePolicy>) -> Acquire {
    let name = Name::exact("orders").unwrap();
    let limit = LimitSource::Code(Limit::per_hour(8));
    Acquire {
        first: Charge::named(name, limit, Labels::new("orders", false, None), 1),
        rest: Vec::new(),
        on_failure,
        remaining: true,
        max_wait: None,
        asked: None,
        unsent: std::sync::OnceLock::new(),
    }
}

fn refusal(acquire: &Acquire) -> Decision {
    let wait = Duration::from_secs(60);
    let limit = LimitState {
        labels: Arc::clone(&acquire.first.labels),
        permits: 8,
        interval: wait,
        remaining: Some(0),
        next_after: None,
        reset_after: wait,
        refused: true,
        retry_after: Some(wait),
        shadow: false,
    };
    Decision::Deny(Refusal::by_limits(
        List::from([limit]),
        Some(wait),
        Source::Store,
    ))
}

fn granted(acquire: &Acquire) -> Decision {
    Decision::Allow(Grant::new(List::new(), acquire.receipts(), Source::Store))
}

fn poll<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

fn runtime() -> tokio::runtime::Runtime {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().build().unwrap()
}

/// Asks at both doors, as everybody does.
fn decide(
    store: &Remote<Server>,
    acquire: &Acquire,
    answer: Result<Decision, ErrorKind>,
) -> Result<Decision, Error> {
    *store.server.answer.lock().unwrap() = Some(answer);
    match poll(crate::store::take(&store.stack, acquire.clone())) {
        Poll::Ready(decision) => decision,
        Poll::Pending => panic!("it waits"),
    }
}

/// A refusal that is known is told before anything within is asked, and goes when there is room.
#[test]
fn what_is_known_is_told_at_the_first_door() {
    let _runtime = runtime();
    let _entered = _runtime.enter();
    let log = Log::default();
    let (store, acquire) = (remote_of(&log), ask(None));
    let first = decide(&store, &acquire, Ok(refusal(&acquire))).unwrap();
    assert_eq!(first.source(), Source::Store);
    assert_eq!(read(&log), ["at once", "in time"]);
    let again = decide(&store, &acquire, Ok(refusal(&acquire))).unwrap();
    assert_eq!(again.source(), Source::Cache);
    assert!(read(&log).is_empty());
    // Not known whether it was granted: it is news once the store has carried it out.
    store.stack.settle(acquire.first.receipt(), 0);
    assert_eq!(read(&log), ["0 of 1"]);
    let anew = decide(&store, &acquire, Ok(granted(&acquire))).unwrap();
    assert_eq!(anew.source(), Source::Store);
}

/// A store that fails at either door is answered by the same policy.
#[test]
fn both_doors_meet_the_failure_policy() {
    let _runtime = runtime();
    let _entered = _runtime.enter();
    let log = Log::default();
    for policy in [
        None,
        Some(FailurePolicy::Allow),
        Some(FailurePolicy::Deny),
        Some(FailurePolicy::local(0.5)),
    ] {
        let decided = [true, false].map(|at_once| {
            let (store, acquire) = (remote_of(&log), ask(policy));
            let fails = at_once.then_some(ErrorKind::Unavailable);
            *store.server.at_once.lock().unwrap() = fails;
            let decision = decide(&store, &acquire, Err(ErrorKind::Unavailable));
            let decision = decision.map(|decision| (decision.is_allowed(), decision.source()));
            decision.map_err(|error| error.kind())
        });
        assert_eq!(decided[0], decided[1], "{policy:?}");
        assert_eq!(decided[0].is_err(), policy.is_none());
        assert_eq!(read(&log), ["at once", "at once", "in time"]);
    }
}

struct Heard(Log, &'static str);

impl Listener for Heard {
    fn changed(&self, name: &Name) {
        write(&self.0, format!("{} changed {}", self.1, name.as_str()));
    }

    fn room(&self, name: &Name, _: bool) {
        write(&self.0, format!("{} room {}", self.1, name.as_str()));
    }
}

/// In their order, under every name that the verb changes, and also if its caller is gone.
#[test]
fn listeners_are_called_when_a_verb_is_over() {
    let [here, there] = ["here", "there"].map(|name| Name::exact(name).unwrap());
    for (op, names, ends) in [
        (Op::Available, &[][..], true),
        (Op::Release(1), &["here"], true),
        (Op::Delete, &["here"], false),
        (Op::Rename(there), &["here", "there"], true),
    ] {
        let log = Log::default();
        let heard = || {
            let listeners = ["a", "b"].map(|who| Heard(Arc::clone(&log), who));
            Listeners::new(listeners.map(|it| Box::new(it) as Box<dyn Listener>))
        };
        let server = Server {
            log: Arc::clone(&log),
            listeners: heard(),
            at_once: Mutex::default(),
            answer: Mutex::default(),
        };
        let exit = Exit::new(server, heard(), About::default());
        {
            let mut managing = pin!(Decide::manage(&exit, &here, &op));
            let polled = managing
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()));
            assert_eq!(polled.is_ready(), ends, "{op:?}");
            assert_eq!(log.lock().unwrap().len() > 1, ends && !names.is_empty());
        }
        let events = names.iter().flat_map(|name| {
            ["changed", "room"]
                .into_iter()
                .flat_map(move |event| ["a", "b"].map(|who| format!("{who} {event} {name}")))
        });
        let all: Vec<_> = std::iter::once("verb".to_owned()).chain(events).collect();
        assert_eq!(read(&log), all, "{op:?}");
    }
}

/// Listeners know leases, and leases their store: nothing of it outlives the store.
#[test]
fn a_store_that_is_dropped_is_gone() {
    let log = Log::default();
    let store = remote_of(&log);
    let (server, leasing) = (
        Arc::downgrade(&store.server),
        Arc::downgrade(&store.leasing),
    );
    drop(store);
    assert!(server.upgrade().is_none() && leasing.upgrade().is_none());
}
