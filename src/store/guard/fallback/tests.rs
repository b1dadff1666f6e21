//! Who passes when the store cannot decide, and what is said of that: with a store that fails as it is told to.

use std::{
    pin::pin,
    sync::Mutex,
    task::{Context, Poll, Waker},
};

use super::*;
use crate::store::{
    guard::policy::{settle, without_trials},
    memory::shared::{Shared, stand_in},
};
use crate::{
    clock::ManualClock,
    decision::{Grant, Refusal, RefusalKind, Source},
    demand::{Charge, Labels},
    limit::{Limit, LimitSource},
    list::List,
};

const KINDS: [ErrorKind; 13] = [
    ErrorKind::NotInitialized,
    ErrorKind::RateTypeDiffers,
    ErrorKind::ForeignState,
    ErrorKind::Permits,
    ErrorKind::AboveRate,
    ErrorKind::Name,
    ErrorKind::OtherSlot,
    ErrorKind::Timeout,
    ErrorKind::Unavailable,
    ErrorKind::Rejected,
    ErrorKind::Tls,
    ErrorKind::Full,
    ErrorKind::Limit,
];

/// Those that are a mistake, or a flood: letting pass would open the gate.
const REFUSE: [ErrorKind; 3] = [ErrorKind::NotInitialized, ErrorKind::Full, ErrorKind::Limit];

#[derive(Debug, Default)]
struct ByHand {
    fails: Mutex<Option<ErrorKind>>,
    /// Whether it fails before anybody waits for it.
    fails_at_once: AtomicBool,
}

impl Decide for ByHand {
    fn decide_at_once(&self, _: &mut Acquire) -> Option<Result<Decision, Error>> {
        let fails = self.fails_at_once.load(Ordering::Relaxed);
        fails.then(|| Err(ErrorKind::Unavailable.into()))
    }

    async fn acquire(&self, acquire: &Acquire) -> Result<Decision, Error> {
        match *self.fails.lock().unwrap() {
            Some(kind) => Err(kind.into()),
            None => Ok(Decision::Allow(Grant::new(
                List::new(),
                acquire.receipts(),
                Source::Store,
            ))),
        }
    }

    async fn manage(&self, _: &Name, _: &Op) -> Result<Outcome, Error> {
        Err(ErrorKind::Rejected.into())
    }

    fn settle(&self, _: Receipt, _: u32) {}
}

type Guard = Fallback<ByHand, Shared>;

fn guard() -> (Guard, ManualClock) {
    let clock = ManualClock::new();
    let shared: Arc<dyn Clock> = Arc::new(clock.clone());
    let refusals = Refusals::new(Duration::from_secs(60), Some(Arc::clone(&shared)));
    let locals = Locals::new(stand_in(Arc::clone(&shared)), Arc::clone(&shared));
    let guard = Fallback::new(ByHand::default(), Arc::new(refusals), locals, shared);
    (guard, clock)
}

impl Guard {
    /// Asks where the store fails before anybody waits for it.
    fn at_once(&self, acquire: &Acquire) -> Result<Decision, Error> {
        self.inner.fails_at_once.store(true, Ordering::Relaxed);
        let decision = self.decide_at_once(&mut acquire.clone());
        self.inner.fails_at_once.store(false, Ordering::Relaxed);
        decision.unwrap()
    }

    /// Asks when the store fails so, or does not.
    fn ask(&self, acquire: &Acquire, fails: Option<ErrorKind>) -> Result<Decision, Error> {
        *self.inner.fails.lock().unwrap() = fails;
        let asking = pin!(self.acquire(acquire));
        match asking.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(decision) => decision,
            Poll::Pending => panic!("it waits"),
        }
    }
}

fn charge(name: &str, shadow: bool) -> Charge {
    Charge {
        shadow,
        ..Charge::named(
            Name::exact(name).unwrap(),
            LimitSource::Code(Limit::per_second(8)),
            Labels::new(name, false, None),
            1,
        )
    }
}

fn asks(charges: &[(&str, bool)], on_failure: Option<FailurePolicy>) -> Acquire {
    let mut charges = charges.iter().map(|(name, shadow)| charge(name, *shadow));
    Acquire {
        first: charges.next().unwrap(),
        rest: charges.collect(),
        on_failure,
        remaining: true,
        max_wait: None,
        asked: None,
        unsent: std::sync::OnceLock::new(),
    }
}

/// What became of a call: who decided, and which error is told of.
fn fate(decision: Result<Decision, Error>) -> (bool, Source, Option<ErrorKind>) {
    match decision.unwrap() {
        Decision::Allow(grant) => (true, grant.source(), None),
        Decision::Deny(refusal) => {
            let error = refusal.error.as_ref().map(Error::kind);
            assert_eq!(refusal.kind == RefusalKind::Unavailable, error.is_some());
            (false, refusal.source, error)
        }
    }
}

#[test]
fn whatever_was_chosen_three_errors_refuse() {
    let local = FailurePolicy::local(0.5);
    for kind in KINDS {
        let passes = !REFUSE.contains(&kind);
        let refused = (false, Source::FailurePolicy, Some(kind));
        let allowed = (true, Source::FailurePolicy, None);
        let here = (true, Source::Local, None);
        for (policy, by_guard, by_itself) in [
            (FailurePolicy::Deny, refused, refused),
            (
                FailurePolicy::Allow,
                if passes { allowed } else { refused },
                if passes { allowed } else { refused },
            ),
            // A store in this process has no share of its own.
            (local, if passes { here } else { refused }, refused),
        ] {
            let ask = asks(&[("ann", false)], Some(policy));
            assert_eq!(fate(settle(&ask, kind.into())), by_itself, "{policy:?}");
            let decision = guard().0.ask(&ask, Some(kind));
            assert_eq!(fate(decision), by_guard, "{policy:?} {kind:?}");
            // What is only tried out refuses nobody.
            let tried = asks(&[("ann", true)], Some(policy));
            assert_eq!(fate(settle(&tried, kind.into())), allowed);
            assert_eq!(fate(guard().0.ask(&tried, Some(kind))), allowed);
        }
        // Nobody chose anything.
        let ask = asks(&[("ann", false)], None);
        assert_eq!(settle(&ask, kind.into()).unwrap_err().kind(), kind);
        let decision = guard().0.ask(&ask, Some(kind));
        assert_eq!(decision.unwrap_err().kind(), kind);
    }
}

/// A limiter that has no room goes on having none while nobody can be asked. Where the limiter is at fault, it says so.
#[test]
fn what_was_told_last_is_told_while_the_store_fails() {
    let of_limiter = [
        ErrorKind::NotInitialized,
        ErrorKind::RateTypeDiffers,
        ErrorKind::ForeignState,
        ErrorKind::Permits,
        ErrorKind::Limit,
    ];
    let wait = Some(Duration::from_secs(1));
    let last = Refusal::by_limits(List::new(), wait, Source::Store);
    for kind in KINDS {
        let ask = asks(&[("ann", false)], Some(FailurePolicy::Deny));
        let (guard, _) = guard();
        guard.refusals.learns(&ask, &last);
        let source = fate(guard.ask(&ask, Some(kind))).1;
        let told_again = source == Source::Cache;
        assert_eq!(told_again, !of_limiter.contains(&kind), "{kind:?}");
    }
}

#[test]
fn what_is_tried_out_is_left_out_where_it_may_be_the_fault() {
    let faults = [
        ErrorKind::NotInitialized,
        ErrorKind::RateTypeDiffers,
        ErrorKind::ForeignState,
        ErrorKind::Full,
        ErrorKind::Limit,
    ];
    let mixed = asks(&[("new", true), ("ann", false), ("newer", true)], None);
    for kind in KINDS {
        let run = [mixed.clone(), mixed.clone()];
        let instead = without_trials(&run, &kind.into());
        assert_eq!(instead.is_some(), faults.contains(&kind), "{kind:?}");
        for acquire in instead.into_iter().flatten() {
            let names = acquire.charges().map(|charge| charge.name().as_str());
            assert_eq!(names.collect::<Vec<_>>(), ["ann"]);
        }
        for same in [[("ann", false), ("bob", false)], [("a", true), ("b", true)]] {
            assert!(without_trials(&[asks(&same, None)], &kind.into()).is_none());
        }
    }
}

mod logs {
    use super::*;
    use crate::macros::logged::levels;

    /// The outage is over when the store has answered, and not failed for a second.
    #[test]
    fn an_outage_is_two_lines() {
        let (guard, clock) = guard();
        let ask = asks(&[("ann", false)], Some(FailurePolicy::Allow));
        let fails = || levels(|| drop(guard.ask(&ask, Some(ErrorKind::Timeout))));
        let answers = || levels(|| drop(guard.ask(&ask, None)));
        let unasked = || levels(|| drop(guard.at_once(&ask)));
        clock.advance(Duration::from_secs(60));
        assert_eq!(answers(), [""; 0]);
        for begins in [&fails as &dyn Fn() -> Vec<String>, &unasked] {
            assert_eq!(begins(), ["WARN"]);
            assert_eq!(begins(), [""; 0]);
            for _ in 0..3 {
                clock.advance(CALM - Duration::from_millis(1));
                assert_eq!(answers(), [""; 0]);
                assert_eq!(fails(), [""; 0]);
            }
            // Whoever meets the policy meets an outage, also where the store is left alone.
            clock.advance(CALM - Duration::from_millis(1));
            assert_eq!(unasked(), [""; 0]);
            clock.advance(CALM - Duration::from_millis(1));
            assert_eq!(answers(), [""; 0]);
            clock.advance(Duration::from_millis(1));
            assert_eq!(answers(), ["INFO"]);
            assert_eq!(answers(), [""; 0]);
        }
    }

    /// The server answers others: that some calls are late is no outage.
    #[test]
    fn a_burst_is_no_outage() {
        for (given_up, lines) in [(GivenUp::Overload, 0), (GivenUp::Silence, 1)] {
            let (guard, _) = guard();
            let error = Error::new(ErrorKind::Timeout).caused_by(given_up);
            let told = levels(|| guard.note(&Err(error)));
            assert_eq!(told, vec!["WARN"; lines], "{given_up:?}");
            assert_eq!(guard.failing.load(Ordering::Relaxed), lines > 0);
        }
    }

    /// An error of the limiter is told to its callers, and is no outage.
    #[test]
    fn what_is_no_fault_of_the_stores_is_no_outage() {
        for kind in KINDS {
            let of_limiter = [
                ErrorKind::NotInitialized,
                ErrorKind::RateTypeDiffers,
                ErrorKind::ForeignState,
                ErrorKind::Permits,
                ErrorKind::Limit,
            ];
            let (guard, _) = guard();
            let ask = asks(&[("ann", false)], None);
            let told = levels(|| drop(guard.ask(&ask, Some(kind))));
            assert_eq!(told.is_empty(), of_limiter.contains(&kind), "{kind:?}");
        }
    }

    #[test]
    fn a_limit_that_nobody_has_set_is_told_of_once() {
        let [unset, other] = [ErrorKind::NotInitialized, ErrorKind::ForeignState];
        let ask = asks(&[("ann", false), ("bob", false)], Some(FailurePolicy::Deny));
        let told = |kind: ErrorKind| levels(|| drop(settle(&ask, kind.into())));
        assert_eq!(told(other), [""; 0]);
        // Each of the rules: nobody knows which one it is.
        assert_eq!(told(unset), ["WARN", "WARN"]);
        assert_eq!(told(unset), [""; 0]);
    }

    #[test]
    fn what_is_tried_out_and_cannot_be_counted_is_told_of_once() {
        let trial = || {
            asks(
                &[("new", true), ("newer", true)],
                Some(FailurePolicy::Allow),
            )
        };
        let mixed = || asks(&[("new", true), ("ann", false)], Some(FailurePolicy::Allow));
        for kind in KINDS {
            let of_store = [ErrorKind::Timeout, ErrorKind::Unavailable].contains(&kind);
            let ask = trial();
            let told = || levels(|| drop(settle(&ask, kind.into())));
            let lines = if of_store { 0 } else { 2 };
            assert_eq!(told(), vec!["WARN"; lines], "{kind:?}");
            assert_eq!(told(), [""; 0], "{kind:?}");
        }
        let ask = mixed();
        let run = [ask.clone(), ask];
        let told = |kind: ErrorKind| levels(|| drop(without_trials(&run, &kind.into())));
        assert_eq!(told(ErrorKind::Rejected), [""; 0]);
        assert_eq!(told(ErrorKind::Full), ["WARN"]);
        assert_eq!(told(ErrorKind::Full), [""; 0]);
    }
}
