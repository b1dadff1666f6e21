//! A store that fails when it is told to, and what is decided instead.

mod given_up;

use std::{
    pin::pin,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use proptest::prelude::*;

use super::*;
use crate::{
    clock::ManualClock,
    demand::Labels,
    failure_policy::FailurePolicy,
    limit::{Algorithm, Limit},
    list::List,
    name::Name,
    store::{
        Decide, MemoryStore, Op, Outcome,
        guard::{deny_cache::Refusals, fallback::Fallback},
        memory::{
            shared::{Shared, stand_in},
            strangers::latest,
        },
        sealed::Sealed,
    },
};

/// Far below its limits, so that it grants whatever the history says.
#[derive(Debug)]
struct Server {
    store: MemoryStore,
    down: AtomicBool,
    /// What was given back to it.
    settled: Mutex<Vec<(u32, u32)>>,
}

impl Decide for Server {
    fn decide_at_once(&self, _: &mut Acquire) -> Option<Result<Decision, Error>> {
        None
    }

    async fn acquire(&self, acquire: &Acquire) -> Result<Decision, Error> {
        if self.down.load(Ordering::Relaxed) {
            return Err(ErrorKind::Unavailable.into());
        }
        let mut acquire = Acquire {
            on_failure: None,
            ..acquire.clone()
        };
        self.store.handle().0.decide_at_once(&mut acquire).unwrap()
    }

    async fn manage(&self, _: &Name, _: &Op) -> Result<Outcome, Error> {
        Err(ErrorKind::Unavailable.into())
    }

    fn settle(&self, receipt: Receipt, keep: u32) {
        self.settled.lock().unwrap().push((receipt.permits, keep));
        self.store.handle().0.settle(receipt, keep);
    }
}

/// A guard around a store, by one clock.
fn guard<S: Decide>(store: S, clock: &Arc<dyn Clock>) -> Fallback<S, Shared> {
    let refusals = Arc::new(Refusals::new(Duration::ZERO, None));
    let locals = Locals::new(stand_in(Arc::clone(clock)), Arc::clone(clock));
    Fallback::new(store, refusals, locals, Arc::clone(clock))
}

struct World {
    clock: ManualClock,
    guard: Fallback<Server, Shared>,
    policy: FailurePolicy,
}

const INTERVAL: Duration = Duration::from_millis(800);
/// What was granted leaves the interval so much too late at most.
const PART: i64 = 101;

impl World {
    fn new(policy: FailurePolicy) -> Self {
        let clock = ManualClock::new();
        let server = Server {
            store: MemoryStore::new().clock(clock.clone()),
            down: AtomicBool::new(false),
            settled: Mutex::default(),
        };
        let shared: Arc<dyn Clock> = Arc::new(clock.clone());
        Self {
            guard: guard(server, &shared),
            clock,
            policy,
        }
    }

    /// One in which there is no place left for what is decided here.
    fn full(policy: FailurePolicy) -> Self {
        let mut world = Self::new(policy);
        let store = MemoryStore::new().clock(world.clock.clone());
        world.guard.locals.store = store.max_limiters(1).shared;
        world.fail(true);
        let daily = LimitSource::Code(Limit::per_day(90));
        assert!(world.takes(&[charge("other", 1, daily)]));
        world
    }

    fn fail(&self, fails: bool) {
        self.guard.inner.down.store(fails, Ordering::Relaxed);
    }

    fn now(&self) -> i64 {
        millis(&self.clock).cast_signed()
    }

    fn advance(&self, millis: u64) {
        self.clock.advance(Duration::from_millis(millis));
    }

    fn ask(&self, charges: &[Charge]) -> Decision {
        let acquire = Acquire {
            first: charges[0].clone(),
            rest: charges[1..].to_vec(),
            on_failure: Some(self.policy),
            remaining: true,
            max_wait: None,
            asked: None,
            unsent: OnceLock::new(),
        };
        // Nothing here waits for anything.
        let mut asked = pin!(self.guard.acquire(&acquire));
        match asked.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(decision) => decision.unwrap(),
            Poll::Pending => panic!("it waits"),
        }
    }

    fn takes(&self, charges: &[Charge]) -> bool {
        self.ask(charges).is_allowed()
    }
}

fn charge(name: &str, permits: u32, limit: LimitSource) -> Charge {
    Charge::named(
        Name::exact(name).unwrap(),
        limit,
        Labels::new("login", false, None),
        permits,
    )
}

/// So many permits of a limit of so many.
fn of(name: &str, permits: u32, limit: u64) -> Charge {
    charge(
        name,
        permits,
        LimitSource::Code(Limit::new(limit, INTERVAL)),
    )
}

fn refusal(decision: Decision) -> Refusal {
    match decision {
        Decision::Deny(refusal) => refusal,
        Decision::Allow(_) => panic!("{decision:?}"),
    }
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

/// Of these grants, as many permits as were taken after that time.
fn since(grants: &[(i64, u32)], time: i64) -> u32 {
    let late = grants.iter().filter(|(at, _)| *at > time);
    late.map(|(_, permits)| permits).sum()
}

proptest! {
    /// After the store has failed, somebody has room if, and only if, the share is more than what was granted within
    /// the last interval, by the store or here. So it is in the next outage, when nothing of this one is in use.
    #[test]
    fn an_outage_neither_frees_nor_forgets(
        before in steps(false),
        after in steps(false),
        between in steps(false),
        again in steps(false),
        share in 1..=12_u32,
    ) {
        let world = World::new(FailurePolicy::local(f64::from(share) / 40.0));
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
                let decision = world.ask(&[of("ann", n, 40)]);
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

    /// The same for one for whom there is no place here, in one outage or in several: never more
    /// than the share, what the store granted included.
    #[test]
    fn a_full_store_here_neither_frees_nor_forgets(steps in steps(true), share in 1..=12_u32) {
        let world = World::full(FailurePolicy::local(f64::from(share) / 40.0));
        let (mut by_store, mut here) = (Vec::new(), Vec::new());
        for step in steps {
            let n = match step {
                Step::Advance(millis) => { world.advance(millis); continue; }
                Step::Fail(fails) => { world.fail(fails); continue; }
                Step::Ask(n) => n,
            };
            let decision = world.ask(&[of("ann", n, 40)]);
            if !decision.is_allowed() {
                continue;
            }
            let now = world.now();
            if decision.source() == Source::Local {
                let had = since(&by_store, now - 800) + since(&here, now - 800);
                prop_assert!(had + n <= share, "{had} and {n} of {share}");
                here.push((now, n));
            } else {
                by_store.push((now, n));
            }
        }
        prop_assert_eq!(world.guard.locals.store.len(), 1);
    }

    /// However often it fails: what is granted here is never more than the share within an interval.
    #[test]
    fn one_that_fails_now_and_then_has_one_share(steps in steps(true)) {
        let world = World::new(FailurePolicy::local(0.25));
        let mut here: Vec<(i64, u32)> = Vec::new();
        for step in steps {
            match step {
                Step::Advance(millis) => world.advance(millis),
                Step::Fail(fails) => world.fail(fails),
                Step::Ask(n) => {
                    let decision = world.ask(&[of("ann", n, 20)]);
                    if decision.is_allowed() && decision.source() == Source::Local {
                        prop_assert!(since(&here, world.now() - 800) + n <= 5);
                        here.push((world.now(), n));
                    }
                }
            }
        }
    }
}

#[test]
fn all_ways_to_count_are_counted_by() {
    for algorithm in [
        Algorithm::SlidingLog,
        Algorithm::FixedWindow,
        Algorithm::Gcra,
    ] {
        let world = World::new(FailurePolicy::local(0.25));
        let charge = |name, permits| {
            let charge = of(name, permits, 20);
            let name = charge.name().clone().counted_by(algorithm);
            [charge.of(name)]
        };
        assert!(world.takes(&charge("ann", 3)));
        assert!(world.takes(&charge("flood", 9)));
        world.fail(true);
        let granted = |name| (0..20).filter(|_| world.takes(&charge(name, 1))).count();
        assert_eq!(granted("flood"), 0, "{algorithm:?}");
        assert_eq!(granted("ann"), 2, "{algorithm:?}");
        assert_eq!(granted("idle"), 5, "{algorithm:?}");
        world.advance(2000);
        assert_eq!(granted("flood"), 5, "{algorithm:?}");
    }
}

/// What the store granted leaves the interval when it would have, whether or not there was an outage before.
#[test]
fn an_outage_after_another_is_as_exact() {
    for algorithm in [
        Algorithm::SlidingLog,
        Algorithm::FixedWindow,
        Algorithm::Gcra,
    ] {
        let world = World::new(FailurePolicy::local(0.25));
        let charge = of("ann", 5, 20);
        let name = charge.name().clone().counted_by(algorithm);
        let charge = [charge.of(name)];
        for outage in 0..3 {
            assert!(world.takes(&charge));
            world.advance(500);
            world.fail(true);
            assert!(!world.takes(&charge), "{algorithm:?}, {outage}");
            world.advance(402);
            assert!(world.takes(&charge), "{algorithm:?}, {outage}");
            world.fail(false);
            world.advance(1000);
        }
    }
}

#[test]
fn a_list_is_granted_here_whole_or_not_at_all() {
    let world = World::new(FailurePolicy::local(0.5));
    world.fail(true);
    let both = |permits| [of("ann", permits, 4), of("all", permits, 20)];
    assert!(world.takes(&both(2)));
    let refused = refusal(world.ask(&both(1)));
    assert_eq!(refused.kind, RefusalKind::OverLimit);
    assert_eq!(
        refused
            .limits
            .iter()
            .filter(|limit| limit.is_refused())
            .count(),
        1
    );
    // The other one has lost nothing.
    assert!(world.takes(&[of("all", 8, 20)]));
    assert!(!world.takes(&[of("all", 1, 20)]));
}

/// What is only tried out takes nothing, and refuses nobody.
#[test]
fn what_is_tried_out_is_not_counted_here() {
    let world = World::new(FailurePolicy::local(0.5));
    world.fail(true);
    let trial = |permits| Charge {
        shadow: true,
        ..of("trial", permits, 4)
    };
    for _ in 0..5 {
        let decision = world.ask(&[trial(1)]);
        assert!(decision.is_allowed());
        assert_eq!(decision.source(), Source::FailurePolicy);
    }
    assert!(world.takes(&[trial(3), of("ann", 2, 4)]));
    assert!(!world.takes(&[trial(1), of("ann", 1, 4)]));
}

/// A limit that only the store knows is the one that it told last.
#[test]
fn a_limit_of_the_store_is_known_from_its_answers() {
    let world = World::new(FailurePolicy::local(0.5));
    let shared = |limit| [charge("orders", 1, limit)];
    let told = |limit: u64| LimitSource::StoreOrInit(Limit::new(limit, INTERVAL));
    assert!(world.takes(&shared(told(6))));
    assert!(world.takes(&shared(LimitSource::Store)));
    world.fail(true);
    assert!(world.takes(&shared(LimitSource::Store)));
    assert!(!world.takes(&shared(LimitSource::Store)));
    // Of another rule, as what one limiter of a rule shows goes for all of them.
    let unknown = refusal(world.ask(&[Charge {
        labels: Labels::new("other", false, None),
        ..charge("unknown", 1, LimitSource::Store)
    }]));
    assert_eq!(unknown.kind, RefusalKind::Unavailable);
    assert_eq!(unknown.error.unwrap().kind(), ErrorKind::Unavailable);
}

#[test]
fn a_limit_of_each_process_is_not_shared() {
    let world = World::new(FailurePolicy::local(0.25));
    world.fail(true);
    let limit = Limit::new(8, INTERVAL).per_client();
    let granted = |_: &usize| world.takes(&[charge("own", 1, LimitSource::Code(limit))]);
    assert_eq!((0..20).filter(granted).count(), 8);
}

/// As it is when nobody has set a limit: that is a mistake, and no outage.
#[test]
fn a_limit_that_nobody_has_set_is_refused() {
    let world = World::new(FailurePolicy::local(0.5));
    let unset = refusal(world.ask(&[charge("unset", 1, LimitSource::Store)]));
    assert_eq!(unset.error.unwrap().kind(), ErrorKind::NotInitialized);
}

#[test]
fn what_costs_more_than_the_share_is_unavailable() {
    let world = World::new(FailurePolicy::local(0.5));
    world.fail(true);
    let refused = refusal(world.ask(&[of("ann", 3, 4)]));
    assert_eq!(
        (refused.kind, refused.source),
        (RefusalKind::Unavailable, Source::FailurePolicy)
    );
    assert!(world.takes(&[of("ann", 2, 4)]));
}

fn receipts(decision: &Decision) -> List<Receipt> {
    match decision {
        Decision::Allow(grant) => grant.receipts().iter().cloned().collect(),
        Decision::Deny(_) => panic!("{decision:?}"),
    }
}

#[test]
fn what_was_taken_here_is_given_back_here() {
    let world = World::new(FailurePolicy::local(0.5));
    world.fail(true);
    let taken = world.ask(&[of("ann", 2, 4)]);
    assert!(!world.takes(&[of("ann", 1, 4)]));
    // Also when the store is back.
    world.fail(false);
    for receipt in receipts(&taken) {
        world.guard.settle(receipt, 1);
    }
    assert!(world.guard.inner.settled.lock().unwrap().is_empty());
    world.fail(true);
    assert!(world.takes(&[of("ann", 1, 4)]));
    assert!(!world.takes(&[of("ann", 1, 4)]));
}

/// A login that succeeded is no guess: it is not counted when the store fails either.
#[test]
fn what_was_given_back_to_the_store_is_not_counted_here() {
    let world = World::new(FailurePolicy::local(0.25));
    for keep in [0, 0, 0, 1] {
        let taken = world.ask(&[of("ann", 1, 8)]);
        for receipt in receipts(&taken) {
            world.guard.settle(receipt, keep);
        }
    }
    assert_eq!(world.guard.inner.settled.lock().unwrap().len(), 4);
    // One that nobody heard of was not noted either.
    world.guard.settle(of("ann", 1, 8).receipt(), 0);
    world.fail(true);
    assert!(world.takes(&[of("ann", 1, 8)]));
    assert!(!world.takes(&[of("ann", 1, 8)]));
}

#[test]
fn nothing_is_remembered_of_those_who_do_not_want_it() {
    let world = World::new(FailurePolicy::Deny);
    assert!(world.takes(&[of("ann", 1, 8)]));
    world.fail(true);
    let refused = refusal(world.ask(&[of("ann", 1, 8)]));
    assert_eq!(refused.source, Source::FailurePolicy);
    assert_eq!(refused.kind, RefusalKind::Unavailable);
    assert!(world.guard.locals.recent.get().is_none());
}

/// What was only tried out, and what was refused, has taken nothing by which somebody could be refused here.
#[test]
fn only_what_was_granted_and_enforced_is_remembered() {
    let world = World::new(FailurePolicy::local(0.5));
    let trial = Charge {
        shadow: true,
        ..of("ann", 2, 4)
    };
    assert!(world.takes(&[trial, of("other", 1, 4)]));
    // Together with one that has no room.
    assert!(!world.takes(&[of("bob", 2, 4), of("other", 4, 4)]));
    world.fail(true);
    assert!(world.takes(&[of("ann", 2, 4)]));
    assert!(world.takes(&[of("bob", 2, 4)]));
    assert!(world.takes(&[of("other", 1, 4)]));
    assert!(!world.takes(&[of("other", 1, 4)]));
}

/// A refusal tells it, too: others may have used it up.
#[test]
fn a_limit_of_the_store_is_known_from_its_refusals() {
    let world = World::new(FailurePolicy::local(0.5));
    let told = charge(
        "orders",
        6,
        LimitSource::StoreOrInit(Limit::new(6, INTERVAL)),
    );
    let mut other_process = Acquire {
        first: told,
        rest: Vec::new(),
        on_failure: None,
        remaining: true,
        max_wait: None,
        asked: None,
        unsent: OnceLock::new(),
    };
    let server = &world.guard.inner.store;
    let taken = server.handle().0.decide_at_once(&mut other_process);
    assert!(taken.unwrap().unwrap().is_allowed());
    let shared = |permits| [charge("orders", permits, LimitSource::Store)];
    assert!(!world.takes(&shared(1)));
    world.fail(true);
    assert!(world.takes(&shared(3)));
    assert!(!world.takes(&shared(1)));
}

/// Of what was given back only a part may be; and more may have been used than was taken.
#[test]
fn what_was_kept_of_a_grant_is_counted_here() {
    for (taken, keep, left) in [(6, 2, 6), (6, 6, 2), (1, 5, 3), (3, 0, 8)] {
        let world = World::new(FailurePolicy::local(0.5));
        let granted = world.ask(&[of("ann", taken, 16)]);
        for receipt in receipts(&granted) {
            world.guard.settle(receipt, keep);
        }
        world.fail(true);
        let room = (0..20).filter(|_| world.takes(&[of("ann", 1, 16)])).count();
        assert_eq!(room, left, "{keep} of {taken}");
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
