//! Tests the order of guards, and when listeners are called.

use super::*;
use crate::store::guard::scripted::*;

fn remote_of(log: &Log) -> Arc<Remote<Scripted>> {
    let clock = ManualClock::new();
    let nodes = Nodes::new(1, |_| 0, Duration::from_secs(1), Arc::new(clock.clone()));
    let guards = Guards {
        deny_cache: Duration::from_secs(1),
        nodes: Arc::new(nodes),
        own_clock: Some(Arc::new(clock)),
        ends_windows: false,
    };
    remote(guards, About::default(), |listeners, _| Scripted {
        log: Arc::clone(log),
        listeners: Some(listeners),
        ..Scripted::default()
    })
}

fn ask(policy: impl Into<Option<FailurePolicy>>) -> Demand {
    let limit = LimitSource::Code(Limit::per_hour(8));
    by(policy, [charge("orders", 1, limit)])
}

/// Asks at both doors, as all callers do.
fn decide(store: &Arc<Remote<Scripted>>, demand: &Demand) -> Result<Decision, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    let _entered = runtime.as_ref().unwrap().enter();
    let mut demand = demand.clone();
    match store.decide_at_once(&mut demand) {
        Some(decision) => decision,
        None => ready(Arc::clone(store).acquire(demand)),
    }
}

/// A known refusal is returned before anything within is asked, and goes when there is room.
#[test]
fn what_is_known_is_told_at_the_first_door() {
    let log = Log::default();
    let (store, demand) = (remote_of(&log), ask(None));
    let refused = refusal(&demand, Duration::from_secs(60));
    store.server.answer(Decision::Deny(refused));
    let first = decide(&store, &demand).unwrap();
    assert_eq!(first.source(), Source::Store);
    assert_eq!(read(&log), ["at once", "in time"]);
    let again = decide(&store, &demand).unwrap();
    assert_eq!(again.source(), Source::Cache);
    assert!(read(&log).is_empty());
    // Not known whether it was granted: it is news once the store has carried it out.
    store.settle(demand.first().to_send(), 0);
    assert_eq!(read(&log), ["orders: 0 of 1"]);
    store.server.answer(granted(&demand, Source::Store));
    let again = decide(&store, &demand).unwrap();
    assert_eq!(again.source(), Source::Store);
}

/// A store that fails at either door is answered by the same policy.
#[test]
fn both_doors_meet_the_failure_policy() {
    let log = Log::default();
    for policy in [
        None,
        Some(FailurePolicy::Allow),
        Some(FailurePolicy::Deny),
        Some(FailurePolicy::Local(0.5)),
    ] {
        let decided = [true, false].map(|at_once| {
            let (store, demand) = (remote_of(&log), ask(policy));
            let unavailable = ErrorKind::Unavailable;
            *store.server.fails_at_once.lock().unwrap() = at_once.then_some(unavailable);
            store.server.fail(Some(unavailable.into()));
            let decision = decide(&store, &demand);
            let decision = decision.map(|decision| (decision.is_allowed(), decision.source()));
            decision.map_err(|error| error.kind())
        });
        assert_eq!(decided[0], decided[1], "{policy:?}");
        assert_eq!(decided[0].is_err(), policy.is_none());
        assert_eq!(read(&log), ["at once", "at once", "in time"]);
    }
}

struct Recorder(Log, &'static str);

impl Listener for Recorder {
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
    let there = Name::exact("there").unwrap();
    let limiter = charge("here", 1, LimitSource::Store).limiter;
    for (op, names) in [
        (Op::Available, &[][..]),
        (Op::Release(1), &["here"]),
        (Op::Delete, &["here"]),
        (Op::Rename(there), &["here", "there"]),
    ] {
        for stays in [true, false] {
            let log = Log::default();
            let server = Scripted {
                log: Arc::clone(&log),
                ..Scripted::default()
            };
            let listeners = ["a", "b"].map(|who| Recorder(Arc::clone(&log), who));
            let listeners = listeners.map(|it| Box::new(it) as Box<dyn Listener>);
            let outermost = Outermost::new(Listeners::new(listeners), About::default());
            let (clock, steady) = (ManualClock::new(), Arc::new(SteadyClock::new()));
            let nodes = Arc::new(Nodes::new(1, |_| 0, ANSWERS_WITHIN, steady));
            let store = Arc::new(server);
            let outbox = Outbox::new(
                Arc::clone(&store),
                Arc::new(clock),
                Arc::default(),
                nodes,
                None,
            );
            let stack = Arc::new(InMemory {
                outermost,
                outbox,
                store,
            });
            {
                let mut managing = stack.manage(limiter.clone(), op.clone());
                assert!(poll(managing.as_mut()).is_pending());
                assert_eq!(*log.lock().unwrap(), ["verb"], "{op:?}");
                if stays {
                    assert!(poll(managing.as_mut()).is_ready());
                    assert_eq!(log.lock().unwrap().len(), 1 + 4 * names.len(), "{op:?}");
                }
            }
            let mut all = vec!["verb".to_owned()];
            for (name, event) in names.iter().flat_map(|it| [(it, "changed"), (it, "room")]) {
                all.extend(["a", "b"].map(|who| format!("{who} {event} {name}")));
            }
            assert_eq!(read(&log), all, "{op:?}, its caller stays: {stays}");
        }
    }
}

/// Listeners know leases, and leases their store: nothing of it outlives the store.
#[test]
fn a_store_that_is_dropped_is_gone() {
    let log = Log::default();
    let store = remote_of(&log);
    let server = Arc::downgrade(&store.server);
    let leasing = Arc::downgrade(&store.leasing);
    drop(store);
    assert!(server.upgrade().is_none() && leasing.upgrade().is_none());
}

/// A store has one observer by itself: it writes the line in the log.
#[test]
fn a_line_is_due_once_a_minute_by_default() {
    use crate::{RedisStore, store::sealed::Sealed};
    let observers = |store: crate::RedisStoreBuilder| {
        let store = store.build().unwrap().handle().0;
        format!("{:?}", store.about().observers)
    };
    let builder = || RedisStore::builder("redis://127.0.0.1/");
    let said = observers(builder());
    assert!(said.contains("Summary { every: 60s,"), "{said}");
    assert_eq!(said.matches("Observed {").count(), 1, "{said}");
    assert_eq!(observers(builder().summary(None)), "Observers(None)");
}
