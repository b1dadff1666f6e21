//! What is kept, for how long, and what drops it: with a store whose answers are given by hand.

mod waiters;

use std::{collections::VecDeque, pin::pin, sync::Mutex, task::Poll};

use super::*;
use crate::{
    clock::ManualClock,
    decision::Grant,
    demand::Labels,
    limit::{Limit, LimitSource},
    receipt::PermitId,
    store::{
        Listeners,
        stack::{About, Exit},
    },
};

const CAP: Duration = Duration::from_secs(60);

/// Answers in order, and not before there is an answer.
#[derive(Debug, Default)]
struct ByHand(Mutex<VecDeque<Result<Decision, Error>>>);

impl ByHand {
    fn answer(&self, decision: Decision) {
        self.0.lock().unwrap().push_back(Ok(decision));
    }
}

impl Decide for ByHand {
    fn decide_at_once(&self, _: &mut Acquire) -> Option<Result<Decision, Error>> {
        None
    }

    async fn acquire(&self, _: &Acquire) -> Result<Decision, Error> {
        std::future::poll_fn(|_| {
            let answer = self.0.lock().unwrap().pop_front();
            answer.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    async fn manage(&self, _: &Name, _: &Op) -> Result<Outcome, Error> {
        std::future::pending().await
    }

    fn settle(&self, _: Receipt, _: u32) {}
}

struct World {
    cache: DenyCache<ByHand>,
    clock: ManualClock,
}

impl World {
    fn new(cap: Duration) -> Self {
        let clock = ManualClock::new();
        let refusals = Refusals::new(cap, Some(Arc::new(clock.clone())));
        Self {
            cache: DenyCache::new(ByHand::default(), Arc::new(refusals)),
            clock,
        }
    }

    fn advance(&self, millis: u64) {
        self.clock.advance(Duration::from_millis(millis));
    }

    /// Asks, does something while that is on its way, and is refused.
    fn refused(&self, acquire: &Acquire, wait: u64, meanwhile: impl FnOnce()) {
        let mut asking = pin!(self.cache.acquire(acquire));
        assert!(poll(asking.as_mut()).is_pending());
        meanwhile();
        self.cache.inner.answer(refusal(acquire, wait));
        assert!(poll(asking).is_ready());
    }

    /// The wait in ms that is told from memory.
    fn told(&self, acquire: &Acquire) -> Option<u128> {
        let (known, elapsed) = self.cache.refusals.known(acquire)?;
        let refusal = known.refusal(elapsed);
        assert_eq!(refusal.source, Source::Cache);
        assert_eq!(refusal.limits[0].retry_after, refusal.retry_after);
        Some(refusal.retry_after.unwrap().as_millis())
    }
}

fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
}

fn acquire(names: &[Name]) -> Acquire {
    let charge = |name: &Name| Charge {
        id: PermitId([7; 16]),
        ..Charge::named(
            name.clone(),
            LimitSource::Store,
            Labels::unnamed(name.as_str()),
            1,
        )
    };
    Acquire {
        first: charge(&names[0]),
        rest: names[1..].iter().map(charge).collect(),
        on_failure: None,
        remaining: true,
        max_wait: None,
        asked: None,
        unsent: std::sync::OnceLock::new(),
    }
}

fn one(name: &str) -> Acquire {
    acquire(&[Name::exact(name).unwrap()])
}

fn refusal(acquire: &Acquire, wait: u64) -> Decision {
    let wait = Duration::from_millis(wait);
    let limits = acquire.charges().map(|charge| LimitState {
        labels: Arc::clone(&charge.labels),
        permits: 1,
        interval: wait,
        remaining: Some(0),
        next_after: None,
        reset_after: wait,
        refused: true,
        retry_after: Some(wait),
        shadow: false,
    });
    Decision::Deny(Refusal::by_limits(
        limits.collect(),
        Some(wait),
        Source::Store,
    ))
}

#[test]
fn it_ends_by_when_it_was_asked_and_tells_the_wait_from_when_it_was_heard() {
    let world = World::new(CAP);
    let ask = one("a");
    assert_eq!(world.told(&ask), None);
    // The server may have decided at any moment of these.
    world.refused(&ask, 1000, || world.advance(300));
    assert_eq!(world.told(&ask), Some(1000));
    world.advance(699);
    assert_eq!(world.told(&ask), Some(301));
    world.advance(1);
    assert_eq!(world.told(&ask), None);
}

#[test]
fn it_lasts_for_the_cap_and_one_asks_before_its_end() {
    let world = World::new(CAP);
    let ask = one("a");
    world.refused(&ask, 3_600_000, || {});
    world.advance(44_999);
    assert_eq!(world.told(&ask), Some(3_555_001));
    world.advance(1);
    assert_eq!(world.told(&ask), None, "one asks");
    for _ in 0..3 {
        assert_eq!(world.told(&ask), Some(3_555_000), "the others do not");
    }
    world.advance(14_999);
    assert_eq!(world.told(&ask), Some(3_540_001));
    world.advance(1);
    assert_eq!(world.told(&ask), None);
    // Nobody answers: what was heard last is still true.
    let last = world.cache.refusals.last_known(&ask).unwrap();
    assert_eq!(last.retry_after, Some(Duration::from_secs(3540)));
}

/// When the first of several limits has room, what is told of it changes; that all of them together refuse does not.
#[test]
fn of_several_limits_the_last_that_has_room_ends_it_while_nobody_can_be_asked() {
    let world = World::new(CAP);
    let ask = acquire(&["a", "b"].map(|name| Name::exact(name).unwrap()));
    let mut refused = pin!(world.cache.acquire(&ask));
    assert!(poll(refused.as_mut()).is_pending());
    let Decision::Deny(mut refusal) = refusal(&ask, 40_000) else {
        panic!("it is a refusal");
    };
    refusal.limits[0].retry_after = Some(Duration::from_millis(500));
    world.cache.inner.answer(Decision::Deny(refusal));
    assert!(poll(refused).is_ready());
    let last_known = || {
        let last = world.cache.refusals.last_known(&ask)?;
        // The first has room by then.
        let refuse = last.limits.iter().map(LimitState::is_refused);
        assert!(refuse.eq([false, true]));
        Some(last.retry_after.unwrap().as_millis())
    };
    world.advance(499);
    assert!(world.cache.refusals.known(&ask).is_some());
    world.advance(1);
    assert!(world.cache.refusals.known(&ask).is_none());
    assert_eq!(last_known(), Some(39_500));
    world.advance(39_499);
    assert_eq!(last_known(), Some(1));
    world.advance(1);
    assert_eq!(last_known(), None);
}

#[test]
fn a_grant_drops_it_unless_it_was_taken_before() {
    let world = World::new(CAP);
    let (many, ask) = (one("a"), one("a"));
    let many = Acquire {
        first: Charge {
            permits: 5,
            ..many.first
        },
        ..many
    };
    world.refused(&many, 1000, || {});
    for (source, told) in [(Source::Lease, Some(1000)), (Source::Store, None)] {
        let mut asking = pin!(world.cache.acquire(&ask));
        assert!(poll(asking.as_mut()).is_pending());
        world.cache.inner.answer(Decision::Allow(Grant::new(
            List::new(),
            ask.receipts(),
            source,
        )));
        assert!(poll(asking).is_ready());
        assert_eq!(world.told(&many), told, "{source:?}");
    }
}

#[test]
fn a_change_while_it_is_on_its_way_drops_it() {
    let ask = one("a");
    let names = [Name::exact("b").unwrap(), ask.first.name().clone()];
    let list = acquire(&names);
    let world = World::new(CAP);
    let (a, refusals) = (ask.first.name(), &world.cache.refusals);
    for (changes, before) in [(true, false), (false, true), (true, true), (false, false)] {
        for ask in [&ask, &list] {
            if before {
                refusals.changed(a);
            }
            world.refused(ask, 1000, || {
                if changes {
                    refusals.changed(a);
                }
            });
            assert_eq!(world.told(ask).is_none(), changes, "{changes} {before}");
        }
    }
    assert!(world.told(&list).is_some());
    refusals.changed(a);
    assert!(world.told(&list).is_none());
}

#[test]
fn what_this_process_does_drops_it() {
    let world = World::new(CAP);
    let ask = one("a");
    let known = || {
        world.refused(&ask, 1000, || {});
        assert!(world.told(&ask).is_some());
    };
    let granted = ask.first.receipt().granted(Duration::from_secs(1));

    known();
    let grant = Decision::Allow(Grant::new(
        List::new(),
        List::from([granted.clone()]),
        Source::Store,
    ));
    world.cache.inner.answer(grant);
    assert!(poll(pin!(world.cache.acquire(&ask))).is_ready());
    assert!(world.told(&ask).is_none(), "a grant");

    known();
    world.cache.settle(granted, 0);
    assert!(world.told(&ask).is_none(), "giving back");

    known();
    // Nothing was heard of it: the store says when it has arrived.
    world.cache.settle(ask.first.receipt(), 0);
    assert!(world.told(&ask).is_some());

    let b = Name::exact("b").unwrap();
    for (name, op, drops) in [
        (ask.first.name(), Op::Delete, true),
        (ask.first.name(), Op::Release(1), true),
        (ask.first.name(), Op::Available, false),
        (&b, Op::Delete, false),
        (&b, Op::Rename(ask.first.name().clone()), true),
    ] {
        known();
        // Nobody hears the end of it.
        let listener: Box<dyn Listener> = Box::new(Arc::clone(&world.cache.refusals));
        let listeners = Listeners::new([listener]);
        let exit = Exit::new(ByHand::default(), listeners, About::default());
        assert!(poll(pin!(Decide::manage(&exit, name, &op))).is_pending());
        assert_eq!(world.told(&ask).is_none(), drops, "{op:?}");
    }
}

#[test]
fn a_clock_that_is_set_back_drops_it() {
    let world = World::new(CAP);
    let ask = one("a");
    world.refused(&ask, 1000, || {});
    world
        .clock
        .set(world.clock.now() - Duration::from_millis(1));
    assert_eq!(world.told(&ask), None);
}

#[test]
fn windows_and_logs_are_told_by_their_own_clocks() {
    let world = World::new(CAP);
    let log = Name::exact("a").unwrap();
    let window = log.clone().counted_by(Algorithm::FixedWindow);
    let by_window = acquire(std::slice::from_ref(&window));
    world.refused(&by_window, 3_600_000, || {});
    // A window ends by the server's clock: this one is nothing to it.
    world.advance(3_600_000);
    assert!(world.told(&by_window).is_some());
    let both = acquire(&[log, window]);
    world.refused(&both, 1000, || {});
    assert_eq!(world.told(&both), None);
}

#[test]
fn there_are_no_more_than_so_many() {
    let clock = ManualClock::new();
    let refusals = Refusals::keeping(1000, CAP, Some(Arc::new(clock)));
    for n in 0..5000 {
        let ask = one(&format!("key-{n}"));
        let Decision::Deny(told) = refusal(&ask, 1000) else {
            continue;
        };
        refusals.learn(&ask, refusals.ask(&ask).unwrap(), &told);
    }
    let kept = refusals.kept.as_ref().unwrap().len();
    // Shared out evenly, and rounded up.
    assert!((500..=1100).contains(&kept), "{kept}");
    let each = size_of::<Known>() + 2 * size_of::<usize>() + size_of::<u64>() + size_of::<usize>();
    let limiter = 2 * size_of::<usize>() + size_of::<Limiter>();
    assert!(
        each + limiter <= 460,
        "with the table, 500 are documented: {each} + {limiter}"
    );
    assert!(!format!("{refusals:?}").contains("key-"));
}

/// Nobody asks early where there is nothing to know for longer.
#[test]
fn a_refusal_that_ends_with_the_cap_is_told_to_its_end() {
    let world = World::new(CAP);
    let ask = one("a");
    world.refused(&ask, 60_000, || {});
    world.advance(59_999);
    assert_eq!(world.told(&ask), Some(1));
    assert_eq!(world.told(&ask), Some(1));
}

/// What was learnt after a change outlasts an answer from before it that comes late.
#[test]
fn what_is_old_when_it_arrives_does_not_replace_what_is_new() {
    let world = World::new(CAP);
    let ask = one("a");
    let late = world.cache.refusals.ask(&ask).unwrap();
    world.cache.refusals.changed(ask.first.name());
    world.refused(&ask, 1000, || {});
    let Decision::Deny(old) = refusal(&ask, 5000) else {
        panic!()
    };
    world.cache.refusals.learn(&ask, late, &old);
    assert_eq!(world.told(&ask), Some(1000));
}

/// A server counts whole milliseconds: one that it tells may be over when this process hears of it.
#[test]
fn a_wait_by_the_servers_clock_is_told_a_millisecond_less() {
    let ask = one("a");
    for (own, wait, keeps) in [(false, 1, false), (true, 1, true), (false, 60_000, true)] {
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::new());
        let refusals = Refusals::new(CAP, own.then_some(clock));
        let Decision::Deny(told) = refusal(&ask, wait) else {
            panic!()
        };
        refusals.learn(&ask, refusals.ask(&ask).unwrap(), &told);
        assert_eq!(
            refusals.kept.unwrap().len(),
            usize::from(keeps),
            "{own} {wait}"
        );
    }
}

/// A clock that stands still, or is set back again and again, makes nothing last for longer than the cap.
#[test]
fn the_cap_is_also_one_of_real_time() {
    let ask = one("a");
    for (cap, lasts) in [(Duration::from_millis(20), false), (CAP, true)] {
        let world = World::new(cap);
        world.refused(&ask, 10, || {});
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(world.told(&ask).is_some(), lasts);
    }
}

/// Only who asks the same is told the same. Ids differ with each caller.
#[test]
fn what_is_told_is_the_answer_to_the_same_question() {
    let base = one("a");
    let charges = |change: &dyn Fn(&mut Charge)| {
        let mut changed = base.clone();
        change(&mut changed.first);
        changed
    };
    let all = |rest: &[&Charge]| Acquire {
        rest: rest.iter().copied().cloned().collect(),
        ..base.clone()
    };
    let other_name = one("b").first;
    let questions = [
        base.clone(),
        charges(&|charge| charge.permits = 2),
        charges(&|charge| charge.shadow = true),
        charges(&|charge| {
            *charge = charge.clone().by(LimitSource::Code(Limit::per_second(1)));
        }),
        charges(&|charge| charge.labels = Labels::unnamed("other")),
        charges(&|charge| charge.labels = Labels::new("a", true, None)),
        charges(&|charge| *charge = charge.clone().of(other_name.name().clone())),
        Acquire {
            remaining: false,
            ..base.clone()
        },
        all(&[&base.first]),
        all(&[&other_name]),
        all(&[&other_name, &base.first]),
    ];
    let keys: std::collections::BTreeSet<_> = questions.iter().map(key).collect();
    assert_eq!(keys.len(), questions.len(), "each has a place of its own");
    for (number, learnt) in questions.iter().enumerate() {
        let world = World::new(CAP);
        world.refused(learnt, 1000, || {});
        let refusals = &world.cache.refusals;
        let known = refusals.find(learnt).unwrap().known;
        for (other, asked) in questions.iter().enumerate() {
            let same = number == other;
            assert_eq!(known.answers(asked), same, "{number} {other}");
            // Whatever their hashes.
            let kept = refusals.kept.as_ref().unwrap();
            kept.insert(key(asked), Arc::clone(&known));
            assert_eq!(world.told(asked).is_some(), same, "{number} {other}");
        }
        refusals.kept.as_ref().unwrap().insert(key(learnt), known);
        let again = Acquire {
            first: Charge {
                id: PermitId([8; 16]),
                ..learnt.first.clone()
            },
            ..learnt.clone()
        };
        assert!(world.told(&again).is_some(), "{number}");
    }
    // The same rule, built once more.
    let world = World::new(CAP);
    world.refused(&base, 1000, || {});
    let rebuilt = charges(&|charge| charge.labels = Labels::unnamed("a"));
    assert!(world.told(&rebuilt).is_some());
}
