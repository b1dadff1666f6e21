//! Tests which refusals are kept, for how long, and what drops them.

mod banned;
mod waiters;

use proptest::prelude::*;

use super::*;
use crate::store::guard::scripted::*;

const CAP: Duration = Duration::from_secs(60);

/// A store behind the deny cache alone.
struct Cached {
    inner: Scripted,
    refusals: Arc<Refusals>,
}

impl Cached {
    async fn acquire(&self, demand: &Demand) -> Result<Decision, Error> {
        let asked = self.refusals.ask(demand);
        let decision = self.inner.acquire(demand).await?;
        self.refusals.decided(demand, asked, &decision);
        Ok(decision)
    }

    fn settle(&self, receipt: Charge, keep: u32) {
        self.refusals.settles(&receipt);
        self.inner.settle(receipt, keep);
    }
}

struct World {
    cache: Cached,
    clock: ManualClock,
}

impl World {
    fn new(cap: Duration) -> Self {
        let clock = ManualClock::new();
        let refusals = Refusals::new(cap, Some(Arc::new(clock.clone())), false);
        Self {
            cache: Cached {
                inner: Scripted::default(),
                refusals: Arc::new(refusals),
            },
            clock,
        }
    }

    fn advance(&self, millis: u64) {
        self.clock.advance(Duration::from_millis(millis));
    }

    /// Asks, does something while the call is on its way, and gets this answer.
    fn answers(&self, demand: &Demand, answer: Decision, meanwhile: impl FnOnce()) {
        let mut asking = std::pin::pin!(self.cache.acquire(demand));
        assert!(poll(asking.as_mut()).is_pending());
        meanwhile();
        self.cache.inner.answer(answer);
        assert!(poll(asking).is_ready());
    }

    fn refused(&self, demand: &Demand, wait: u64, meanwhile: impl FnOnce()) {
        self.answers(demand, Decision::Deny(for_ms(demand, wait)), meanwhile);
    }

    /// Returns the wait in ms of a refusal from memory.
    fn repeated(&self, demand: &Demand) -> Option<u128> {
        let (known, elapsed) = self.cache.refusals.known(demand)?;
        let refusal = known.refusal(elapsed);
        assert_eq!(refusal.source, Source::Cache);
        assert_eq!(refusal.charges[0].standing.wait, refusal.retry_after);
        assert_eq!(
            Some(refusal.charges[0].standing.reset_after),
            refusal.retry_after
        );
        Some(refusal.retry_after.unwrap().as_millis())
    }
}

fn acquire(names: &[Name]) -> Demand {
    let charge = |name: &Name| Charge {
        id: PermitId([7; 16]),
        ..charge(name.as_str(), 1, LimitSource::Store)
    };
    asks(names.iter().map(charge))
}

fn name(text: &str) -> Name {
    Name::exact(text).unwrap()
}

fn one(text: &str) -> Demand {
    acquire(&[name(text)])
}

fn for_ms(demand: &Demand, wait: u64) -> Refusal {
    refusal(demand, Duration::from_millis(wait))
}

#[test]
fn a_refusal_is_repeated_until_its_wait_or_the_cap_is_over() {
    let ask = one("a");
    for (wait, meanwhile, steps) in [
        // The server may have decided at any moment of the 300 ms: the refusal ends by the time of
        // the call, and its wait counts from the time of the answer.
        (
            1000,
            300,
            &[(0, Some(1000)), (699, Some(301)), (1, None)][..],
        ),
        (
            3_600_000,
            0,
            &[
                (44_999, Some(3_555_001)),
                // One asks, to know it for longer. The others do not.
                (1, None),
                (0, Some(3_555_000)),
                (0, Some(3_555_000)),
                (14_999, Some(3_540_001)),
                (1, None),
            ],
        ),
        // There is nothing to know for longer.
        (60_000, 0, &[(59_999, Some(1)), (0, Some(1)), (1, None)]),
    ] {
        let world = World::new(CAP);
        assert_eq!(world.repeated(&ask), None);
        world.refused(&ask, wait, || world.advance(meanwhile));
        for (step, (pause, left)) in steps.iter().enumerate() {
            world.advance(*pause);
            assert_eq!(world.repeated(&ask), *left, "{wait} ms, step {step}");
        }
        // While the store fails, what it said last is still true.
        let last = world.cache.refusals.last_known(&ask);
        let left = last.map(|last| last.retry_after.unwrap().as_secs());
        assert_eq!(left, (wait == 3_600_000).then_some(3540), "{wait} ms");
    }
}

/// Of a list that takes several calls, the later ones are not made.
#[test]
fn a_refusal_by_the_first_of_a_list_is_repeated() {
    let world = World::new(CAP);
    let ask = acquire(&["a", "b"].map(name));
    let first = for_ms(&acquire(&[name("a")]), 1000);
    world.answers(&ask, Decision::Deny(first), || {});
    assert_eq!(world.repeated(&ask), Some(1000));
}

/// When the first of several limits has room, the answer changes, but the request is still refused.
#[test]
fn in_an_outage_a_refusal_by_several_limits_lasts_until_the_last_has_room() {
    let world = World::new(CAP);
    let ask = acquire(&["a", "b"].map(name));
    let mut refusal = for_ms(&ask, 40_000);
    refusal.charges[0].standing.wait = Some(Duration::from_millis(500));
    world.answers(&ask, Decision::Deny(refusal), || {});
    let last_known = || {
        let last = world.cache.refusals.last_known(&ask)?;
        // The first has room by then.
        let refuse = last.limits().map(|limit| limit.is_refused());
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
    let ask = one("a");
    let mut many = one("a");
    many.charges[0].permits = 5;
    world.refused(&many, 1000, || {});
    for (source, wait) in [(Source::Lease, Some(1000)), (Source::Store, None)] {
        world.answers(&ask, granted(&ask, source), || {});
        assert_eq!(world.repeated(&many), wait, "{source:?}");
    }
}

/// Also while the answer is on its way. Changes before it was asked for, and those of other names,
/// are none.
#[test]
fn a_change_of_any_of_its_names_drops_it() {
    let [a, b, other] = ["a", "b", "other"].map(name);
    let asks = [
        acquire(std::slice::from_ref(&a)),
        acquire(&[b.clone(), a.clone()]),
    ];
    for (changed, drops) in [
        (&a, [true, true]),
        (&b, [false, true]),
        (&other, [false, false]),
    ] {
        for (ask, drops) in asks.iter().zip(drops) {
            let world = World::new(CAP);
            let change = || world.cache.refusals.changed(changed);
            let names = ask.charges().map(|charge| charge.name().as_str());
            let row = format!("{} of {:?}", changed.as_str(), names.collect::<Vec<_>>());
            change();
            world.refused(ask, 1000, change);
            assert_eq!(world.repeated(ask).is_none(), drops, "{row}, on its way");
            world.refused(ask, 1000, || {});
            assert!(world.repeated(ask).is_some(), "{row}, before");
            change();
            assert_eq!(world.repeated(ask).is_none(), drops, "{row}, after");
        }
    }
}

#[test]
fn what_is_given_back_drops_it_once_it_is_known_to_make_room() {
    let world = World::new(CAP);
    let ask = one("a");
    let receipt = ask.first().to_send();
    world.refused(&ask, 1000, || {});
    // It is not known whether it was granted: the store says when it has arrived.
    world.cache.settle(receipt.clone(), 0);
    assert!(world.repeated(&ask).is_some());
    let mut granted = receipt;
    granted.standing.interval = 1000;
    world.cache.settle(granted, 0);
    assert!(world.repeated(&ask).is_none());
}

#[test]
fn a_clock_that_is_set_back_drops_it() {
    let world = World::new(CAP);
    let ask = one("a");
    world.refused(&ask, 1000, || {});
    let earlier = world.clock.now() - Duration::from_millis(1);
    world.clock.set(earlier);
    assert_eq!(world.repeated(&ask), None);
}

proptest! {
    /// Whether a store counts in nanoseconds or, as Redis, in whole milliseconds: who waits as long
    /// as it is told is not refused from memory once more.
    #[test]
    fn a_wait_is_over_when_it_has_passed(
        asked in 0..3_000_000u64,
        meanwhile in 0..3_000_000u64,
        wait in 1..5_000_000u64,
        in_millis: bool,
    ) {
        let (world, ask) = (World::new(CAP), one("a"));
        let advance = |nanos| world.clock.advance(Duration::from_nanos(nanos));
        advance(asked);
        let wait = if in_millis { wait.next_multiple_of(1_000_000) } else { wait };
        let refused = Decision::Deny(refusal(&ask, Duration::from_nanos(wait)));
        world.answers(&ask, refused, || advance(meanwhile));
        advance(wait);
        prop_assert_eq!(world.repeated(&ask), None);
    }
}

#[test]
fn windows_and_logs_are_told_by_their_own_clocks() {
    let world = World::new(CAP);
    let log = one("a").first().clone();
    let window = log.clone().counted_by(Algorithm::FixedWindow);
    let by_window = asks([window.clone()]);
    world.refused(&by_window, 3_600_000, || {});
    // A window ends by the server's clock: this one is nothing to it.
    world.advance(3_600_000);
    assert!(world.repeated(&by_window).is_some());
    let both = asks([log, window]);
    world.refused(&both, 1000, || {});
    assert_eq!(world.repeated(&both), None);
}

#[test]
fn there_are_no_more_than_so_many() {
    let clock = ManualClock::new();
    let refusals = Refusals::keeping(1000, CAP, Some(Arc::new(clock)), false);
    for n in 0..5000 {
        let ask = one(&format!("key-{n}"));
        refusals.learns(&ask, &for_ms(&ask, 1000));
    }
    let kept = refusals.kept.as_ref().unwrap().len();
    assert_eq!(refusals.count(), kept);
    // Shared out evenly, and rounded up.
    assert!((500..=1100).contains(&kept), "{kept}");
    let each =
        size_of::<KnownRefusal>() + 2 * size_of::<usize>() + size_of::<u64>() + size_of::<usize>();
    let limiter = 2 * size_of::<usize>() + size_of::<crate::values::compiled_limit::Limiter>();
    assert!(
        each + limiter <= 460,
        "with the table, 500 are documented: {each} + {limiter}"
    );
}

/// A refusal from after a change is not replaced by a late answer from before it.
#[test]
fn what_is_old_when_it_arrives_does_not_replace_what_is_new() {
    let world = World::new(CAP);
    let ask = one("a");
    let late = world.cache.refusals.ask(&ask).unwrap();
    world.cache.refusals.changed(ask.first().name());
    world.refused(&ask, 1000, || {});
    world.cache.refusals.learn(&ask, late, &for_ms(&ask, 5000));
    assert_eq!(world.repeated(&ask), Some(1000));
}

/// A server counts whole milliseconds: a wait of one may be over when its answer arrives.
#[test]
fn a_wait_by_the_servers_clock_is_told_a_millisecond_less() {
    let ask = one("a");
    for (own, wait, keeps) in [(false, 1, false), (true, 1, true), (false, 60_000, true)] {
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::new());
        let refusals = Refusals::new(CAP, own.then_some(clock), false);
        refusals.learns(&ask, &for_ms(&ask, wait));
        let kept = refusals.kept.unwrap().len();
        assert_eq!(kept, usize::from(keeps), "{own} {wait}");
    }
}

/// A clock that stands still, or is set back again and again, makes nothing last longer than the
/// cap.
#[test]
fn the_cap_is_also_one_of_real_time() {
    let ask = one("a");
    for (cap, lasts) in [(Duration::from_millis(20), false), (CAP, true)] {
        let world = World::new(cap);
        world.refused(&ask, 10, || {});
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(world.repeated(&ask).is_some(), lasts);
    }
}

/// Only the same question has the same answer. Ids differ with each caller.
#[test]
fn what_is_told_is_the_answer_to_the_same_question() {
    let base = one("a");
    let with = |change: &dyn Fn(&mut Charge)| {
        let mut changed = base.clone();
        change(&mut changed.charges[0]);
        changed
    };
    let all = |charges: &[&Charge]| Demand {
        charges: charges.iter().copied().cloned().collect(),
        ..base.clone()
    };
    let [other_name, third_name] = ["b", "c"].map(|name| one(name).first().clone());
    let questions = [
        base.clone(),
        with(&|charge| charge.permits = 2),
        with(&|charge| charge.shadow = true),
        with(&|charge| {
            *charge = charge.clone().by(LimitSource::Code(Limit::per_second(1)));
        }),
        with(&|charge| charge.limiter.compiled = CompiledLimit::unnamed("other")),
        with(&|charge| charge.limiter.compiled = CompiledLimit::new("a", true)),
        with(&|charge| *charge = charge.clone().renamed(other_name.name().clone())),
        Demand {
            wants_remaining: false,
            ..base.clone()
        },
        all(&[base.first(), &other_name]),
        all(&[&other_name, base.first()]),
        all(&[base.first(), &third_name]),
        all(&[base.first(), &other_name, &third_name]),
    ];
    let keys: std::collections::BTreeSet<_> = questions.iter().map(key).collect();
    assert_eq!(keys.len(), questions.len(), "each is kept by itself");
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
            assert_eq!(world.repeated(asked).is_some(), same, "{number} {other}");
        }
        refusals.kept.as_ref().unwrap().insert(key(learnt), known);
        let mut again = learnt.clone();
        again.identify(PermitId([8; 16]));
        assert!(world.repeated(&again).is_some(), "{number}");
    }
    // The same rule, built once more.
    let world = World::new(CAP);
    world.refused(&base, 1000, || {});
    let rebuilt = with(&|charge| charge.limiter.compiled = CompiledLimit::new("a", false));
    assert!(world.repeated(&rebuilt).is_some());
}
