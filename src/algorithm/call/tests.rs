use std::{iter, slice, time::Instant};

use proptest::prelude::*;

use super::*;
#[cfg(feature = "calendar")]
use crate::algorithm::calendar::CalendarCount;
use crate::{
    algorithm::{
        AnyLimiter, fixed_window::FixedWindow, gcra::Gcra, limiter::Counter,
        sliding_log::SlidingLog,
    },
    values::{
        charge::{PermitId, Taken, Tat},
        limit::Counting,
        limit::{Algorithm as ByName, Limit, LimitSource, Slots},
    },
};

const START: i64 = 1_700_000_000_000;
const NOW: Now = Now::millis(START);

/// A demand, and the time since the one before it.
#[derive(Clone, Debug)]
struct Step {
    demand: Demand,
    pause: i64,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let limit = (1..6_u64, prop::sample::select(vec![10_u64, 1000])).prop_map(|(rate, ms)| {
        let limit = Limit::new(rate, std::time::Duration::from_millis(ms));
        LimitSource::Code(limit)
    });
    let limit = prop_oneof![9 => limit, 1 => Just(LimitSource::Store)];
    let flags = any::<[bool; 5]>();
    let step = (limit, flags, 1..8_u32, 0..12_u8, 0..400_i64).prop_map(
        |(limit, [waits, shadow, remaining, resent, leads], permits, id, pause)| {
            let charge = Charge {
                shadow,
                lead: if leads { 100 } else { 0 },
                // Some are sent again.
                made: resent.then(Instant::now),
                ..Charge::plain(limit, permits, PermitId([id; 16]))
            };
            Step {
                demand: Demand {
                    wants_remaining: remaining,
                    ..Demand::caller([charge], waits)
                },
                pause,
            }
        },
    );
    prop::collection::vec(step, 1..30)
}

/// Takes one permit, at most so many a second.
fn take(rate: u64, id: u8) -> Charge {
    let limit = LimitSource::Code(Limit::per_second(rate));
    Charge::plain(limit, 1, PermitId([id; 16])).to_send()
}

/// Returns how limiters count that have slots, or days.
fn counting(slots: Option<Slots>) -> Counting {
    Counting {
        slots,
        #[cfg(feature = "calendar")]
        calendar: Limit::daily(1).calendar(),
        ..Counting::default()
    }
}

/// Asks both ways, and holds answers and what is kept against each other.
fn agree<A: Counter + Clone + Default + PartialEq + 'static>(
    steps: &[Step],
    slots: Option<Slots>,
) -> Result<(), TestCaseError> {
    let mut one = LimiterState::<A>::default();
    one.state.count_by(counting(slots));
    let mut many = one.clone();
    let mut now = START;
    for step in steps {
        now += step.pause;
        let caller = &step.demand;
        let at = Now::millis(now);
        let answer =
            one.state
                .acquire_one(&mut one.limit, caller.first(), caller.wants_remaining, at);
        let limiters = iter::once(&mut many as &mut LimiterState);
        let answers = acquire(limiters, slice::from_ref(caller), at);
        prop_assert_eq!(answer.map(|it| List::from([it])), answers, "{:?}", step);
        prop_assert_eq!(&one, &many, "{:?}", step);
    }
    Ok(())
}

#[test]
fn only_a_log_knows_a_call_that_comes_again() {
    fn twice<A: Counter + Default>() -> [Verdict; 2] {
        let mut limiter = LimiterState::<A>::default();
        limiter.state.count_by(counting(None));
        let mut answer = || {
            limiter
                .state
                .acquire_one(&mut limiter.limit, &take(1, 1), false, NOW)
                .unwrap()
        };
        [answer(), answer()].map(|answer| answer.verdict)
    }
    let granted = [Verdict::Granted, Verdict::Granted];
    assert_eq!(twice::<SlidingLog>(), granted);
    let refused = [Verdict::Granted, Verdict::Refused];
    assert_eq!(twice::<FixedWindow>(), refused);
    assert_eq!(twice::<Gcra>(), refused);
    #[cfg(feature = "calendar")]
    assert_eq!(twice::<CalendarCount>(), refused);
}

#[test]
fn only_a_charge_makes_a_limiter_without_a_log() {
    let given = LimitSource::Code(Limit::per_second(10));
    let second = Limit::per_second(10).stored();
    let window = Some(Taken::Window(START));
    let tat = Some(Taken::Tat(Tat { at: 0, given: 0 }));
    let in_micros = Now::at(START * 1000);
    for (algorithm, taken, now, left, lasts) in [
        (ByName::FixedWindow, window, NOW, -2, 1001),
        (ByName::Gcra, tat, in_micros, -2, 1_200_000),
    ] {
        let settle = |limiter: &mut LimiterState, limit, permits, keep| {
            let charge = Charge::plain(limit, permits, PermitId([1; 16]));
            limiter.settle(&charge.counted_by(algorithm).to_send(), taken, keep, now)
        };
        let mut limiter = AnyLimiter::new(algorithm);
        for (source, keep) in [(given, 0), (given, 1), (LimitSource::Store, 2)] {
            let settled = settle(&mut limiter, source, 1, keep);
            assert_eq!(settled, Err(ErrorKind::NotInitialized), "{algorithm:?}");
            assert_eq!(limiter.limit, None, "{algorithm:?}");
            assert_eq!(limiter.full_at(), None, "{algorithm:?}");
        }
        assert_eq!(settle(&mut limiter, given, 1, 13), Ok(-12), "{algorithm:?}");
        assert_eq!(limiter.limit, Some(second), "{algorithm:?}");
        let available = limiter.available(now, PermitId::NONE);
        assert_eq!(available, Ok(left), "{algorithm:?}");
        let full_at = limiter.full_at().unwrap();
        assert_eq!(full_at - now.tick, lasts, "{algorithm:?}");
        let mut unused = AnyLimiter::new(algorithm);
        unused.limit = Some(second);
        assert_eq!(settle(&mut unused, given, 1, 1), Ok(0), "{algorithm:?}");
        assert_eq!(unused.full_at(), None, "{algorithm:?}");
    }
}

/// A call that another limiter refused either makes this one, and says so, or does neither.
#[test]
fn what_is_made_is_reported() {
    fn reported<A: Counter + 'static>(state: A) -> bool {
        let mut first = LimiterState { limit: None, state };
        let mut spent = LimiterState::<SlidingLog>::default();
        spent
            .state
            .acquire_one(&mut spent.limit, &take(1, 1), false, NOW)
            .unwrap();
        let caller = Demand::caller([take(2, 2), take(1, 3)], false);
        let limiters: [&mut LimiterState; 2] = [&mut first, &mut spent];
        let answers = acquire(limiters.into_iter(), &[caller], NOW).unwrap();
        assert_eq!(answers[1].verdict, Verdict::Refused);
        let reported = answers[0].changed == Changed::Created;
        assert_eq!(reported, first.limit.is_some());
        reported
    }
    assert!(!reported(SlidingLog::default()));
    // Of this one only the limit was lost.
    let mut unset = SlidingLog::default();
    unset.value = Some(2);
    assert!(reported(unset));
    assert!(reported(FixedWindow::default()));
    assert!(reported(Gcra::default()));
}

proptest! {
    #[test]
    fn one_caller_of_one_limiter_is_answered_as_a_list_of_one(steps in steps()) {
        agree::<SlidingLog>(&steps, Slots::try_new(10, "orders", true, iter::empty()).ok())?;
        agree::<SlidingLog>(&steps, None)?;
        agree::<FixedWindow>(&steps, None)?;
        agree::<Gcra>(&steps, None)?;
        #[cfg(feature = "calendar")]
        agree::<CalendarCount>(&steps, None)?;
    }
}
