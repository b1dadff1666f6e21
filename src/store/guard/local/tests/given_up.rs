//! Calls that were sent and given up, lists with rules that pass uncounted, and limits that only
//! the store knows.

use super::*;
use crate::{decision::LimitState, store::guard::deadline::GivenUp};

/// Gives up every call that it is asked for.
#[derive(Debug, Default)]
struct Silent {
    given_back: Mutex<Vec<(String, u32)>>,
}

impl Decide for Silent {
    fn decide_at_once(&self, _: &mut Acquire) -> Option<Result<Decision, Error>> {
        None
    }

    async fn acquire(&self, _: &Acquire) -> Result<Decision, Error> {
        Err(Error::new(ErrorKind::Timeout).caused_by(GivenUp::Silence))
    }

    async fn manage(&self, _: &Name, _: &Op) -> Result<Outcome, Error> {
        Err(ErrorKind::Timeout.into())
    }

    fn settle(&self, receipt: Receipt, keep: u32) {
        assert_eq!(receipt.place, Place::Store);
        assert!(!receipt.was_granted());
        let mut given_back = self.given_back.lock().unwrap();
        given_back.push((receipt.name().as_str().to_owned(), keep));
    }
}

fn silent() -> Fallback<Silent, Shared> {
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new());
    guard(Silent::default(), &clock)
}

impl Fallback<Silent, Shared> {
    fn ask(&self, charges: &[Charge], policy: Option<FailurePolicy>) -> Result<Decision, Error> {
        self.ask_by(charges, policy, OnceLock::new())
    }

    fn ask_unsent(&self, charge: Charge, policy: FailurePolicy) -> Result<Decision, Error> {
        self.ask_by(&[charge], Some(policy), OnceLock::from(()))
    }

    fn ask_by(
        &self,
        charges: &[Charge],
        policy: Option<FailurePolicy>,
        unsent: OnceLock<()>,
    ) -> Result<Decision, Error> {
        let acquire = Acquire {
            first: charges[0].clone(),
            rest: charges[1..].to_vec(),
            on_failure: policy,
            remaining: true,
            max_wait: None,
            asked: Some(crate::clock::moment()),
            unsent,
        };
        let asked = pin!(self.acquire(&acquire));
        match asked.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(decision) => decision,
            Poll::Pending => panic!("it waits"),
        }
    }

    /// What was given back, in order, since this was asked last.
    fn given_back(&self) -> Vec<(String, u32)> {
        std::mem::take(&mut self.inner.given_back.lock().unwrap())
    }
}

fn local() -> Option<FailurePolicy> {
    Some(FailurePolicy::local(0.5))
}

fn back(name: &str, keep: u32) -> (String, u32) {
    (name.to_owned(), keep)
}

/// A charge of a rule that lets pass while the store fails.
fn passing(name: &str, permits: u32, limit: u64) -> Charge {
    Charge {
        passes: true,
        ..of(name, permits, limit)
    }
}

#[test]
fn who_is_admitted_here_keeps_the_charge_and_settles_both() {
    let guard = silent();
    let taken = guard.ask(&[of("ann", 2, 4)], local()).unwrap();
    assert_eq!(taken.source(), Source::Local);
    assert_eq!(guard.given_back(), []);
    // Two of two are in use here.
    assert!(!guard.ask(&[of("ann", 1, 4)], local()).unwrap().is_allowed());
    assert_eq!(guard.given_back(), [back("ann", 0)]);
    for receipt in receipts(&taken) {
        guard.settle(receipt, 1);
    }
    assert_eq!(guard.given_back(), [back("ann", 1)]);
    assert!(guard.ask(&[of("ann", 1, 4)], local()).unwrap().is_allowed());
    assert!(!guard.ask(&[of("ann", 1, 4)], local()).unwrap().is_allowed());
}

#[test]
fn who_is_refused_or_not_counted_here_gets_the_charge_back() {
    for policy in [
        None,
        Some(FailurePolicy::Deny),
        Some(FailurePolicy::Allow),
        // It has room for one.
        local(),
    ] {
        let guard = silent();
        drop(guard.ask(&[of("ann", 2, 2)], policy));
        assert_eq!(guard.given_back(), [back("ann", 0)], "{policy:?}");
    }
}

/// A call that was not sent took nothing, so there is nothing to give back or to settle later.
#[test]
fn what_was_not_sent_is_neither_given_back_nor_settled() {
    let guard = silent();
    for policy in [FailurePolicy::Deny, FailurePolicy::Allow] {
        drop(guard.ask_unsent(of("ann", 2, 4), policy));
    }
    let here = guard.ask_unsent(of("ann", 2, 4), FailurePolicy::local(0.5));
    for receipt in receipts(&here.unwrap()) {
        assert_eq!(receipt.place, Place::Here);
        guard.settle(receipt, 1);
    }
    assert_eq!(guard.given_back(), []);
}

/// Of a list what is counted here is paid for, and what is not, is not.
#[test]
fn of_a_list_only_what_is_counted_here_is_kept() {
    let guard = silent();
    let trial = Charge {
        shadow: true,
        ..of("trial", 1, 4)
    };
    let list = [of("ann", 1, 4), passing("open", 1, 4), trial];
    let taken = guard.ask(&list, local()).unwrap();
    assert!(taken.is_allowed());
    assert_eq!(guard.given_back(), [back("open", 0), back("trial", 0)]);
    let names: Vec<_> = receipts(&taken)
        .into_iter()
        .map(|receipt| receipt.name().as_str().to_owned())
        .collect();
    assert_eq!(names, ["ann"]);
}

#[test]
fn a_rule_that_lets_pass_neither_refuses_nor_loosens_the_others() {
    let world = World::new(FailurePolicy::local(0.5));
    world.fail(true);
    // It would have room for one.
    let both = |permits| [passing("open", permits, 2), of("ann", permits, 8)];
    assert!(world.takes(&both(3)));
    assert!(world.takes(&both(1)));
    let refused = refusal(world.ask(&both(1)));
    assert_eq!(refused.source, Source::Local);
    let names: Vec<_> = refused.limits.iter().map(LimitState::permits).collect();
    assert_eq!(names, [4]);
    // Nothing of it was counted.
    assert!(world.takes(&[of("open", 1, 2)]));
    assert!(!world.takes(&[of("open", 1, 2)]));
}

/// As it is for all keys of a rule: the limit is the rule's.
#[test]
fn a_limit_of_the_store_is_known_from_any_limiter_of_the_rule() {
    let world = World::new(FailurePolicy::local(0.5));
    let rule = Labels::new("orders", false, None);
    let shared = |name: &str, limit| Charge {
        labels: Arc::clone(&rule),
        ..charge(name, 1, limit)
    };
    let set = |limit: u64| LimitSource::StoreOrInit(Limit::new(limit, INTERVAL));
    let (ann, bob) = (
        shared("ann", LimitSource::Store),
        shared("bob", LimitSource::Store),
    );
    world.fail(true);
    let unknown = refusal(world.ask(std::slice::from_ref(&bob)));
    assert_eq!(unknown.kind, RefusalKind::Unavailable);
    world.fail(false);
    assert!(world.takes(&[shared("ann", set(6))]));
    assert!(world.takes(&[ann]));
    world.fail(true);
    let granted = (0..20).filter(|_| world.takes(std::slice::from_ref(&bob)));
    assert_eq!(granted.count(), 3);
}

#[test]
fn a_limit_that_is_not_known_yet_is_warned_of_once() {
    use crate::macros::logged::levels;

    let world = World::new(FailurePolicy::local(0.5));
    world.fail(true);
    // That it fails is logged, too.
    assert!(world.takes(&[of("ann", 1, 8)]));
    let unknown = [charge("unknown", 1, LimitSource::Store)];
    assert_eq!(levels(|| drop(world.ask(&unknown))), ["WARN"]);
    assert_eq!(levels(|| drop(world.ask(&unknown))), [""; 0]);
}
