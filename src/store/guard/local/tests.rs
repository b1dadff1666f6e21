//! Tests decisions by a share of the limit while the store fails.

mod given_up;

use proptest::prelude::*;

use super::*;
use crate::{
    store::{guard::scripted::*, memory::untracked::latest},
    values::charge::{OfLease, TakenAhead, TakenFrom},
};

/// In front of a server that counts by the same clock.
struct World {
    clock: ManualClock,
    guard: WithFallback,
    policy: Option<FailurePolicy>,
}

const INTERVAL: Duration = Duration::from_millis(800);
/// The longest time that what was granted stays in the interval for too long.
const PART: i64 = 101;

const ALGORITHMS: [Algorithm; 3] = [
    Algorithm::SlidingLog,
    Algorithm::FixedWindow,
    Algorithm::Gcra,
];

impl World {
    fn new(policy: FailurePolicy) -> Self {
        let clock = ManualClock::new();
        let server = Scripted {
            decided_by: Some(MemoryStore::builder().clock(clock.clone()).build()),
            ..Scripted::default()
        };
        Self {
            guard: with_fallback(server, &clock),
            clock,
            policy: Some(policy),
        }
    }

    /// Returns one in an outage, with half of each limit.
    fn failing() -> Self {
        let world = Self::new(FailurePolicy::Local(0.5));
        world.fail(true);
        world
    }

    /// Returns one with no room left for what is decided here.
    fn full(policy: FailurePolicy) -> Self {
        let mut world = Self::new(policy);
        let store = MemoryStore::builder().clock(world.clock.clone());
        world.guard.fallback.locals.store = store.max_limiters(1).build().shared;
        world.fail(true);
        let daily = LimitSource::Code(Limit::per_day(90));
        assert!(world.takes([charge("other", 1, daily)]));
        world
    }

    fn fail(&self, fails: bool) {
        let error = fails.then(|| ErrorKind::Unavailable.into());
        self.guard.inner.fail(error);
    }

    fn now(&self) -> i64 {
        millis(&self.clock).cast_signed()
    }

    fn advance(&self, millis: u64) {
        self.clock.advance(Duration::from_millis(millis));
    }

    fn try_ask(&self, charges: impl IntoIterator<Item = Charge>) -> Result<Decision, Error> {
        ready(self.guard.acquire(&Demand {
            asked_at: Some(crate::values::clock::moment()),
            ..by(self.policy, charges)
        }))
    }

    fn ask(&self, charges: impl IntoIterator<Item = Charge>) -> Decision {
        self.try_ask(charges).unwrap()
    }

    fn takes(&self, charges: impl IntoIterator<Item = Charge>) -> bool {
        self.ask(charges).is_allowed()
    }

    /// Takes all there is room for, and returns how often that was.
    fn takes_all(&self, charge: &Charge) -> usize {
        let takes = |_: &usize| self.takes([charge.clone()]);
        (0..20).filter(takes).count()
    }

    fn settle(&self, taken: &Decision, keep: u32) {
        for receipt in receipts(taken) {
            self.guard.settle(receipt, keep);
        }
    }
}

/// Returns so many permits of a limit of so many.
fn charge_of(name: &str, permits: u32, limit: u64) -> Charge {
    charge(name, permits, code(limit))
}

fn code(limit: u64) -> LimitSource {
    LimitSource::Code(Limit::new(limit, INTERVAL))
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Ask(u32),
    Advance(u64),
    Fail(bool),
}

fn steps(flaps: bool) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (1..4_u32).prop_map(Step::Ask),
        4 => (0..120_u64).prop_map(Step::Advance),
        u32::from(flaps) => any::<bool>().prop_map(Step::Fail),
    ];
    prop::collection::vec(step, 1..80)
}

/// Returns how many permits of these grants were taken after that time.
fn since(grants: &[(i64, u32)], time: i64) -> u32 {
    let late = grants.iter().filter(|(at, _)| *at > time);
    late.map(|(_, permits)| permits).sum()
}

/// What ends in an outage is given back to the store alone, so it must not count here.
#[test]
fn places_taken_from_the_store_do_not_count_here() {
    let world = World::new(FailurePolicy::Local(0.5));
    let places = LimitSource::Code(Limit::in_flight(4, Duration::from_secs(3600)));
    let place = charge("places", 1, places);
    assert_eq!(world.takes_all(&place), 4);
    world.fail(true);
    world.advance(1000);
    let held = [world.ask([place.clone()]), world.ask([place.clone()])];
    assert_eq!(world.takes_all(&place), 0);
    world.settle(&held[0], 0);
    assert_eq!(world.takes_all(&place), 1);
}

proptest! {
    /// After the store has failed, a caller has room if, and only if, the share is more than the
    /// grants of the last interval, by the store or here. The same holds in the next outage, when
    /// nothing of this one is in use.
    #[test]
    fn an_outage_neither_frees_nor_forgets(
        before in steps(false),
        after in steps(false),
        between in steps(false),
        again in steps(false),
        share in 1..=12_u32,
    ) {
        let world = World::new(FailurePolicy::Local(f64::from(share) / 40.0));
        let (mut by_store, mut here) = (Vec::new(), Vec::new());
        let interval = 800;
        for (steps, fails) in [(before, false), (after, true), (between, false), (again, true)] {
            world.fail(fails);
            if !fails {
                world.advance(800);
            }
            for step in steps {
                let n = match step {
                    Step::Advance(millis) => { world.advance(millis); continue; }
                    Step::Ask(n) => n,
                    Step::Fail(_) => continue,
                };
                let decision = world.ask([charge_of("ann", n, 40)]);
                let now = world.now();
                if !fails {
                    prop_assert_eq!(decision.source(), Source::Store);
                    if decision.is_allowed() {
                        by_store.push((now, n));
                    }
                    continue;
                }
                let local = since(&here, now - interval);
                let exact = since(&by_store, now - interval) + local + n;
                let late = since(&by_store, now - interval - PART) + local + n;
                match decision {
                    Decision::Allow(grant) => {
                        prop_assert_eq!(grant.source(), Source::Local);
                        prop_assert!(exact <= share, "{exact} of {share}");
                        here.push((now, n));
                    }
                    Decision::Deny(refusal) if n > share => {
                        prop_assert_eq!(refusal.kind, RefusalKind::Unavailable);
                        prop_assert_eq!(refusal.source, Source::FailurePolicy);
                    }
                    Decision::Deny(refusal) => {
                        prop_assert_eq!(refusal.source, Source::Local);
                        prop_assert!(refusal.retry_after.is_some());
                        prop_assert!(late > share, "{late} of {share}");
                    }
                }
            }
        }
    }

    /// However often the store fails: what is granted here is never more than the share within an
    /// interval. Without room for a limiter here, what the store granted counts, too.
    #[test]
    fn one_that_fails_now_and_then_has_one_share(steps in steps(true), share in 1..=12_u32) {
        let policy = FailurePolicy::Local(f64::from(share) / 40.0);
        for (world, is_full) in [(World::new(policy), false), (World::full(policy), true)] {
            let mut granted = Vec::new();
            for step in &steps {
                let n = match *step {
                    Step::Advance(millis) => { world.advance(millis); continue; }
                    Step::Fail(fails) => { world.fail(fails); continue; }
                    Step::Ask(n) => n,
                };
                let decision = world.ask([charge_of("ann", n, 40)]);
                let is_here = decision.source() == Source::Local;
                if !decision.is_allowed() || !is_here && !is_full {
                    continue;
                }
                if is_here {
                    let had = since(&granted, world.now() - 800);
                    prop_assert!(had + n <= share, "{had} and {n} of {share}, full: {is_full}");
                }
                granted.push((world.now(), n));
            }
            prop_assert!(!is_full || world.guard.locals.store.len() == 1);
        }
    }
}

#[test]
fn all_ways_to_count_are_counted_by() {
    for algorithm in ALGORITHMS {
        let world = World::new(FailurePolicy::Local(0.25));
        let charge = |name, permits| charge_of(name, permits, 20).counted_by(algorithm);
        assert!(world.takes([charge("ann", 3)]));
        assert!(world.takes([charge("flood", 9)]));
        world.fail(true);
        for (name, left) in [("flood", 0), ("ann", 2), ("idle", 5)] {
            assert_eq!(
                world.takes_all(&charge(name, 1)),
                left,
                "{algorithm:?}, {name}"
            );
        }
        world.advance(2000);
        assert_eq!(world.takes_all(&charge("flood", 1)), 5, "{algorithm:?}");
    }
}

/// What the store granted leaves the interval when it would have, whether or not there was an
/// outage before.
#[test]
fn an_outage_after_another_is_as_exact() {
    for algorithm in ALGORITHMS {
        let world = World::new(FailurePolicy::Local(0.25));
        let takes = || world.takes([charge_of("ann", 5, 20).counted_by(algorithm)]);
        for outage in 0..3 {
            assert!(takes());
            world.advance(500);
            world.fail(true);
            assert!(!takes(), "{algorithm:?}, {outage}");
            world.advance(402);
            assert!(takes(), "{algorithm:?}, {outage}");
            world.fail(false);
            world.advance(1000);
        }
    }
}

#[test]
fn a_list_is_granted_here_whole_or_not_at_all() {
    let world = World::failing();
    let both = |permits| [charge_of("ann", permits, 4), charge_of("all", permits, 20)];
    assert!(world.takes(both(2)));
    let refused = refused(world.ask(both(1)));
    assert_eq!(refused.kind, RefusalKind::OverLimit);
    let refuse = refused.limits().map(|limit| limit.is_refused());
    assert!(refuse.eq([true, false]));
    // The other one has lost nothing.
    assert_eq!(world.takes_all(&charge_of("all", 1, 20)), 8);
}

/// Shadow rules take nothing, and refuse nothing.
#[test]
fn what_is_tried_out_is_not_counted_here() {
    let world = World::failing();
    let trial = |permits| shadow(charge_of("trial", permits, 4));
    assert!(world.takes([trial(3), charge_of("ann", 2, 4)]));
    assert!(!world.takes([trial(1), charge_of("ann", 1, 4)]));
}

/// The limit is the rule's, so any answer for any of its keys has it.
#[test]
fn a_limit_of_the_store_is_known_from_any_limiter_of_the_rule() {
    let world = World::failing();
    let shared = |name, limit| charge(name, 1, limit).counted(|of| of.name = "orders".into());
    let [ann, bob] = ["ann", "bob"].map(|name| shared(name, LimitSource::Store));
    let is_unknown = |charge: Charge| {
        let unknown = refused(world.ask([charge]));
        assert_eq!(unknown.kind, RefusalKind::Unavailable);
        assert_eq!(unknown.error().unwrap().kind(), ErrorKind::Unavailable);
    };
    is_unknown(bob.clone());
    world.fail(false);
    let set = LimitSource::StoreOrInit(Limit::new(6, INTERVAL));
    assert!(world.takes([shared("ann", set)]));
    assert!(world.takes([ann.clone()]));
    world.fail(true);
    assert_eq!(world.takes_all(&ann), 1);
    assert_eq!(world.takes_all(&bob), 3);
    is_unknown(charge("of another rule", 1, LimitSource::Store));
}

/// Each may have a limit of its own, where other processes set it.
#[test]
fn a_limiter_is_decided_by_its_own_limit_before_that_of_its_rule() {
    let world = World::new(FailurePolicy::Local(0.5));
    let [ann, bob] = [("ann", 6), ("bob", 2)].map(|(name, limit)| {
        let shared = |limit| charge(name, 1, limit).counted(|of| of.name = "orders".into());
        let set = LimitSource::StoreOrInit(Limit::new(limit, INTERVAL));
        assert!(world.takes([shared(set)]));
        shared(LimitSource::Store)
    });
    world.fail(true);
    assert_eq!(world.takes_all(&ann), 2);
    assert_eq!(world.takes_all(&bob), 0);
}

/// A refusal has the limit, too: other processes may have used it up.
#[test]
fn a_limit_of_the_store_is_known_from_its_refusals() {
    let world = World::new(FailurePolicy::Local(0.5));
    let set = LimitSource::StoreOrInit(Limit::new(6, INTERVAL));
    let mut other_process = by(None, [charge("orders", 6, set)]);
    let server = world.guard.inner.decided_by.as_ref().unwrap();
    let taken = server.handle().0.decide_at_once(&mut other_process);
    assert!(taken.unwrap().unwrap().is_allowed());
    let shared = charge("orders", 1, LimitSource::Store);
    assert!(!world.takes([shared.clone()]));
    world.fail(true);
    assert_eq!(world.takes_all(&shared), 3);
}

#[test]
fn a_limit_of_each_process_is_not_shared() {
    let world = World::failing();
    let limit = Limit::new(8, INTERVAL).per_client();
    let own = charge("own", 1, LimitSource::Code(limit));
    // Only Redisson's format has such limits.
    let own = own.counted(|of| of.counting.prefers_redisson = true);
    assert_eq!(world.takes_all(&own), 8);
}

#[test]
fn what_was_taken_here_is_given_back_here() {
    let world = World::failing();
    let taken = world.ask([charge_of("ann", 2, 4)]);
    assert!(!world.takes([charge_of("ann", 1, 4)]));
    // Also when the store is back.
    world.fail(false);
    world.settle(&taken, 1);
    assert_eq!(world.guard.inner.settled(), [""; 0]);
    world.fail(true);
    assert_eq!(world.takes_all(&charge_of("ann", 1, 4)), 1);
}

/// Only a part may be given back, and more may have been used than was taken. A login that
/// succeeded is no guess: it is not counted when the store fails either.
#[test]
fn what_was_kept_of_a_grant_is_counted_here() {
    for (taken, keep, left) in [(6, 2, 6), (6, 6, 2), (1, 5, 3), (3, 0, 8)] {
        let world = World::new(FailurePolicy::Local(0.5));
        let granted = world.ask([charge_of("ann", taken, 16)]);
        world.settle(&granted, keep);
        // What was not granted was not recorded either.
        world.guard.settle(charge_of("ann", 1, 16).to_send(), 0);
        let settled = [
            format!("ann: {keep} of {taken}, granted"),
            "ann: 0 of 1".into(),
        ];
        assert_eq!(world.guard.inner.settled(), settled);
        world.fail(true);
        assert_eq!(
            world.takes_all(&charge_of("ann", 1, 16)),
            left,
            "{keep} of {taken}"
        );
    }
}

#[test]
fn nothing_is_remembered_of_those_who_do_not_want_it() {
    let world = World::new(FailurePolicy::Deny);
    assert!(world.takes([charge_of("ann", 1, 8)]));
    world.fail(true);
    let refused = refused(world.ask([charge_of("ann", 1, 8)]));
    assert_eq!(refused.source, Source::FailurePolicy);
    assert_eq!(refused.kind, RefusalKind::Unavailable);
    assert_eq!(
        world
            .guard
            .locals
            .recent
            .count(charge_of("ann", 1, 8).name()),
        0
    );
}

/// It is recorded with the lease, which also settles what it takes back.
#[test]
fn a_grant_out_of_a_lease_is_not_recorded_once_more() {
    let world = World::new(FailurePolicy::Local(0.5));
    let charge = charge_of("ann", 2, 16);
    let ask = by(world.policy, [charge.clone()]);
    let Decision::Allow(granted) = world.ask([charge]) else {
        panic!("refused");
    };
    let lease: Arc<dyn TakenAhead> = Arc::new(Leased);
    let leased = granted.charges().iter().map(|charge| Charge {
        taken_from: TakenFrom::Lease(OfLease::new(Arc::clone(&lease))),
        ..charge.clone()
    });
    let leased = Decision::Allow(Grant::new(leased.collect(), Source::Lease));
    let answered = world.guard.answer(&ask, Ok(leased), |_| ()).unwrap();
    let recorded = || world.guard.locals.recent.count(ask.first().name());
    assert_eq!(recorded(), 2);
    // More than it took, the store charges by itself.
    for (keep, expected) in [(0, 2), (1, 2), (2, 2), (5, 5)] {
        world.settle(&answered, keep);
        assert_eq!(recorded(), expected, "{keep} kept");
    }
}

struct Leased;

impl TakenAhead for Leased {
    fn give_back(&self, _: u32) {}
}

/// A shadow rule and a refused request have taken nothing that counts here.
#[test]
fn only_what_was_granted_and_enforced_is_remembered() {
    let world = World::new(FailurePolicy::Local(0.5));
    assert!(world.takes([shadow(charge_of("ann", 2, 4)), charge_of("other", 1, 4)]));
    // Together with one that has no room.
    assert!(!world.takes([charge_of("bob", 2, 4), charge_of("other", 4, 4)]));
    world.fail(true);
    for (name, left) in [("ann", 2), ("bob", 2), ("other", 1)] {
        assert_eq!(world.takes_all(&charge_of(name, 1, 4)), left, "{name}");
    }
}

#[test]
fn of_more_than_the_limit_the_latest_count() {
    let past = || vec![(1, 5), (2, 3)];
    for (permits, counts) in [
        (9, past()),
        (8, past()),
        (4, vec![(1, 1), (2, 3)]),
        (3, vec![(2, 3)]),
        (2, vec![(2, 2)]),
        (0, Vec::new()),
    ] {
        assert_eq!(latest(past(), permits), counts, "{permits}");
    }
}

/// Also of more at once than a shorter limit grants.
#[test]
fn what_the_store_granted_counts_by_each_of_several_limits() {
    let world = World::new(FailurePolicy::Local(1.0));
    let short = Limit::new(2, Duration::from_millis(10));
    let limit = LimitSource::Code(short.and(Limit::new(12, INTERVAL)));
    let several = charge("k", 1, limit);
    let mut taken = 0;
    while taken < 12 {
        taken += world.takes_all(&several);
        world.advance(10);
    }
    world.fail(true);
    for _ in 0..30 {
        assert_eq!(world.takes_all(&several), 0);
        world.advance(10);
    }
}

proptest! {
    /// What was in use in an earlier one has left, though the store granted more meanwhile.
    #[test]
    fn an_outage_after_another_grants_as_the_first(
        algorithm in prop::sample::select(&ALGORITHMS[..]),
        earlier in 1..=10_u32,
        by_store in prop::collection::vec((0..300_u64, 1..=4_u32), 0..4),
        pauses in prop::collection::vec(0..300_u64, 1..20),
    ) {
        let granted = [false, true].map(|had_another| {
            let world = World::new(FailurePolicy::Local(1.0));
            let of = |permits| charge_of("ann", permits, 10).counted_by(algorithm);
            if had_another {
                world.fail(true);
                assert!(world.takes([of(earlier)]));
                world.fail(false);
            }
            let began = world.now();
            for (pause, permits) in &by_store {
                world.advance(*pause);
                let _ = world.ask([of(*permits)]);
            }
            let left = began + 801 - world.now();
            world.advance(left.max(0).unsigned_abs());
            world.fail(true);
            let each = pauses.iter().map(|pause| {
                world.advance(*pause);
                world.takes_all(&of(1))
            });
            each.collect::<Vec<_>>()
        });
        prop_assert_eq!(&granted[0], &granted[1]);
    }
}
