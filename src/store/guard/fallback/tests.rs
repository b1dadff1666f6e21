//! Tests which requests pass when the store cannot decide, and what is logged.

use std::cell::Cell;

use super::*;
use crate::store::guard::{
    policy::{answer_error, without_shadows},
    scripted::*,
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

/// The errors from a mistake or a flood: admitting requests would lift the limit.
const REFUSE: [ErrorKind; 4] = [
    ErrorKind::NotInitialized,
    ErrorKind::Full,
    ErrorKind::Limit,
    ErrorKind::ForeignState,
];

/// The errors that are the fault of a limiter, not of its store.
const OF_LIMITER: [ErrorKind; 5] = [
    ErrorKind::NotInitialized,
    ErrorKind::RateTypeDiffers,
    ErrorKind::ForeignState,
    ErrorKind::Permits,
    ErrorKind::Limit,
];

fn guard() -> (WithFallback, ManualClock) {
    let clock = ManualClock::new();
    (with_fallback(Scripted::default(), &clock), clock)
}

impl WithFallback {
    /// Asks where the store fails before a caller waits for it.
    fn at_once(&self, demand: &Demand) -> Result<Decision, Error> {
        *self.inner.fails_at_once.lock().unwrap() = Some(ErrorKind::Unavailable);
        self.decide_at_once(&mut demand.clone()).unwrap()
    }

    /// Asks when the store fails so, or does not.
    fn ask(&self, demand: &Demand, fails: Option<ErrorKind>) -> Result<Decision, Error> {
        self.inner.fail(fails.map(Error::from));
        self.inner.answer(granted(demand, Source::Store));
        ready(self.acquire(demand))
    }
}

fn one(name: &str) -> Charge {
    charge(name, 1, LimitSource::Code(Limit::per_second(8)))
}

/// The outcome of a call: the source of the decision, and the error that is reported.
fn fate(decision: Result<Decision, Error>) -> (bool, Source, Option<ErrorKind>) {
    match decision.unwrap() {
        Decision::Allow(grant) => (true, grant.source(), None),
        Decision::Deny(refusal) => {
            let error = refusal.error().map(Error::kind);
            assert_eq!(refusal.kind == RefusalKind::Unavailable, error.is_some());
            (false, refusal.source, error)
        }
    }
}

#[test]
fn whatever_was_chosen_four_errors_refuse() {
    let local = FailurePolicy::Local(0.5);
    for kind in KINDS {
        let refused = (false, Source::FailurePolicy, Some(kind));
        let allowed = (true, Source::FailurePolicy, None);
        let here = (true, Source::Local, None);
        let unless_refused = |fate| {
            if REFUSE.contains(&kind) {
                refused
            } else {
                fate
            }
        };
        for (policy, by_guard, by_itself) in [
            (FailurePolicy::Deny, refused, refused),
            (
                FailurePolicy::Allow,
                unless_refused(allowed),
                unless_refused(allowed),
            ),
            // A store in this process has no share of its own.
            (local, unless_refused(here), refused),
        ] {
            let ask = by(policy, [one("ann")]);
            assert_eq!(
                fate(answer_error(&ask, kind.into())),
                by_itself,
                "{policy:?}"
            );
            let decision = guard().0.ask(&ask, Some(kind));
            assert_eq!(fate(decision), by_guard, "{policy:?} {kind:?}");
            // Shadows refuse no caller.
            let tried = by(policy, [shadow(one("ann"))]);
            assert_eq!(fate(answer_error(&tried, kind.into())), allowed);
            assert_eq!(fate(guard().0.ask(&tried, Some(kind))), allowed);
        }
        // No policy was chosen.
        let ask = asks([one("ann")]);
        assert_eq!(answer_error(&ask, kind.into()).unwrap_err().kind(), kind);
        let decision = guard().0.ask(&ask, Some(kind));
        assert_eq!(decision.unwrap_err().kind(), kind);
    }
}

/// A limiter that has no room goes on having none while no store can be asked. Where the limiter is
/// at fault, it says so.
#[test]
fn what_was_told_last_is_told_while_the_store_fails() {
    for kind in KINDS {
        let ask = by(FailurePolicy::Deny, [one("ann")]);
        let last = refusal(&ask, Duration::from_secs(1));
        let (guard, _) = guard();
        guard.refusals.learns(&ask, &last);
        let source = fate(guard.ask(&ask, Some(kind))).1;
        let told_again = source == Source::Cache;
        assert_eq!(told_again, !OF_LIMITER.contains(&kind), "{kind:?}");
    }
}

/// One that waits for permits has given back when its call was given up.
#[test]
fn what_a_call_in_doubt_may_have_taken_stays_with_a_request_that_is_admitted() {
    for (max_wait, given_back) in [(None, 0), (Some(MaxWait::ENDLESS), 1)] {
        let (guard, _) = guard();
        let ask = Demand {
            max_wait,
            ..by(FailurePolicy::Local(1.0), [one("ann")])
        };
        let back = Cell::new(0);
        let silence = Err(Late::Silence.error());
        let decision = guard.answer(&ask, silence, |_| back.set(back.get() + 1));
        assert!(decision.unwrap().is_allowed());
        assert_eq!(back.get(), given_back, "{max_wait:?}");
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
    let mixed = asks([shadow(one("new")), one("ann"), shadow(one("newer"))]);
    for kind in KINDS {
        let run = [mixed.clone(), mixed.clone()];
        let instead = without_shadows(&run, &kind.into());
        assert_eq!(instead.is_some(), faults.contains(&kind), "{kind:?}");
        for demand in instead.into_iter().flatten() {
            let names = demand.charges().map(|charge| charge.name().as_str());
            assert_eq!(names.collect::<Vec<_>>(), ["ann"]);
        }
        let both = ["ann", "bob"].map(one);
        for same in [both.clone(), both.map(shadow)] {
            assert!(without_shadows(&[asks(same)], &kind.into()).is_none());
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
        let ask = by(FailurePolicy::Allow, [one("ann")]);
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
            // A request that meets the policy continues the outage, even if the store was not
            // asked.
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
        for (late, lines) in [(Late::Slow, 0), (Late::Unsent, 0), (Late::Silence, 1)] {
            let (guard, _) = guard();
            let ask = asks([one("ann")]);
            let logged = levels(|| drop(guard.answer(&ask, Err(late.error()), |_| ())));
            assert_eq!(logged, vec!["WARN"; lines], "{late:?}");
            assert_eq!(guard.failing.load(Ordering::Relaxed), lines > 0);
        }
    }

    /// An error of the limiter is returned to its callers, and is no outage.
    #[test]
    fn an_error_of_the_limiter_is_no_outage() {
        for kind in KINDS {
            let (guard, _) = guard();
            let ask = asks([one("ann")]);
            let logged = levels(|| drop(guard.ask(&ask, Some(kind))));
            assert_eq!(logged.is_empty(), OF_LIMITER.contains(&kind), "{kind:?}");
        }
    }

    #[test]
    fn what_refuses_whatever_was_chosen_is_logged_once() {
        let ask = by(FailurePolicy::Deny, ["ann", "bob"].map(one));
        let logged = |kind: ErrorKind| levels(|| drop(answer_error(&ask, kind.into())));
        assert_eq!(logged(ErrorKind::RateTypeDiffers), [""; 0]);
        for kind in [ErrorKind::NotInitialized, ErrorKind::ForeignState] {
            // Each of the rules: it is unknown which one it is.
            assert_eq!(logged(kind), ["WARN", "WARN"]);
            assert_eq!(logged(kind), [""; 0]);
        }
    }

    #[test]
    fn a_shadow_rule_that_cannot_be_counted_is_logged_once() {
        for kind in KINDS {
            let of_store = [ErrorKind::Timeout, ErrorKind::Unavailable].contains(&kind);
            let ask = by(FailurePolicy::Allow, ["new", "newer"].map(one).map(shadow));
            let logged = || levels(|| drop(answer_error(&ask, kind.into())));
            let lines = if of_store { 0 } else { 2 };
            assert_eq!(logged(), vec!["WARN"; lines], "{kind:?}");
            assert_eq!(logged(), [""; 0], "{kind:?}");
        }
        let mixed = asks([shadow(one("new")), one("ann")]);
        let run = [mixed.clone(), mixed];
        let logged = |kind: ErrorKind| levels(|| drop(without_shadows(&run, &kind.into())));
        assert_eq!(logged(ErrorKind::Rejected), [""; 0]);
        assert_eq!(logged(ErrorKind::Full), ["WARN"]);
        assert_eq!(logged(ErrorKind::Full), [""; 0]);
    }
}
