//! Tests calls that were sent and given up, and rules that pass uncounted.

use std::sync::OnceLock;

use super::*;
use crate::{
    macros::logged::levels,
    store::guard::late::Late,
    values::charge::{PermitId, TakenFrom},
};

/// Returns one whose server is silent, so that every call is given up.
fn silent(policy: Option<FailurePolicy>) -> World {
    let world = World::new(FailurePolicy::Local(0.5));
    world.guard.inner.fail(Some(Late::Silence.error()));
    World { policy, ..world }
}

fn local() -> Option<FailurePolicy> {
    Some(FailurePolicy::Local(0.5))
}

/// Returns a charge of a rule that lets pass while the store fails.
fn passing(name: &str, permits: u32, limit: u64) -> Charge {
    Charge {
        allow_on_failure: true,
        ..charge_of(name, permits, limit)
    }
}

#[test]
fn who_is_admitted_here_keeps_the_charge_and_settles_both() {
    let world = silent(local());
    let asked = Charge {
        id: PermitId([9; 16]),
        ..charge_of("ann", 2, 4)
    };
    let taken = world.ask([asked.clone()]);
    assert_eq!(taken.source(), Source::Local);
    // By what was sent: the store knows neither the id of the grant here nor the share.
    let sent = receipts(&taken)[0].clone().of_store().unwrap();
    assert_eq!((sent.id, sent.limit()), (asked.id, asked.limit()));
    assert_eq!(world.guard.inner.settled(), [""; 0]);
    // Two of two are in use here.
    assert!(!world.takes([charge_of("ann", 1, 4)]));
    assert_eq!(world.guard.inner.settled(), ["ann: 0 of 1"]);
    world.settle(&taken, 1);
    assert_eq!(world.guard.inner.settled(), ["ann: 1 of 2"]);
    assert_eq!(world.takes_all(&charge_of("ann", 1, 4)), 1);
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
        let world = silent(policy);
        drop(world.try_ask([charge_of("ann", 2, 2)]));
        assert_eq!(world.guard.inner.settled(), ["ann: 0 of 2"], "{policy:?}");
    }
}

/// A call that was not sent took nothing, so there is nothing to give back or to settle later.
#[test]
fn what_was_not_sent_is_neither_given_back_nor_settled() {
    let world = silent(None);
    let ask = |policy| {
        ready(world.guard.acquire(&Demand {
            unsent: OnceLock::from(()),
            ..by(policy, [charge_of("ann", 2, 4)])
        }))
    };
    for policy in [FailurePolicy::Deny, FailurePolicy::Allow] {
        drop(ask(policy));
    }
    let here = ask(FailurePolicy::Local(0.5)).unwrap();
    assert!(
        receipts(&here)
            .iter()
            .all(|it| matches!(it.taken_from, TakenFrom::Local))
    );
    world.settle(&here, 1);
    assert_eq!(world.guard.inner.settled(), [""; 0]);
}

/// In a list, only the limits that are counted here are charged.
#[test]
fn of_a_list_only_what_is_counted_here_is_kept() {
    let world = silent(local());
    let list = [
        charge_of("ann", 1, 4),
        passing("open", 1, 4),
        shadow(charge_of("trial", 1, 4)),
    ];
    let taken = world.ask(list);
    let settled = world.guard.inner.settled();
    assert_eq!(settled, ["open: 0 of 1", "trial: 0 of 1"]);
    let taken = receipts(&taken);
    assert!(taken.iter().map(|it| it.name().as_str()).eq(["ann"]));
}

#[test]
fn a_rule_that_lets_pass_neither_refuses_nor_loosens_the_others() {
    let world = World::failing();
    // It would have room for one.
    let both = |permits| [passing("open", permits, 2), charge_of("ann", permits, 8)];
    assert!(world.takes(both(3)));
    assert!(world.takes(both(1)));
    let refused = refused(world.ask(both(1)));
    assert_eq!(refused.source, Source::Local);
    assert!(refused.limits().map(|limit| limit.permits()).eq([4]));
    // Nothing of it was counted.
    assert_eq!(world.takes_all(&charge_of("open", 1, 2)), 1);
}

#[test]
fn a_limit_that_is_not_known_yet_is_warned_of_once() {
    let world = World::failing();
    // That it fails is logged, too.
    assert!(world.takes([charge_of("ann", 1, 8)]));
    let unknown = charge("unknown", 1, LimitSource::Store);
    for lines in [1, 0] {
        let logged = levels(|| drop(world.ask([unknown.clone()])));
        assert_eq!(logged, vec!["WARN"; lines]);
    }
}
