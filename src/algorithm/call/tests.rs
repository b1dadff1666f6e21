use std::{fmt::Debug, iter, slice};

use proptest::prelude::*;

use super::*;
use crate::{
    algorithm::{fixed_window, gcra, sliding_log},
    limit::{Limit, Slots},
};

const START: i64 = 1_700_000_000_000;
const NOW: Now = Now::millis(START);

/// What is asked, and how long after what was asked before.
#[derive(Clone, Debug)]
struct Step {
    acquire: Acquire,
    terms: Terms,
    pause: i64,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let limit = (1..6_u64, prop::sample::select(vec![10_u64, 1000])).prop_map(|(rate, ms)| {
        let limit = Limit::new(rate, std::time::Duration::from_millis(ms));
        LimitSource::Code(limit)
    });
    let limit = prop_oneof![9 => limit, 1 => Just(LimitSource::Store)];
    let flags = any::<[bool; 6]>();
    let step = (limit, flags, 1..8_u32, 0..12_u8, 0..400_i64).prop_map(
        |(limit, [waits, shadow, rewrite, remaining, resendable, leads], permits, id, pause)| {
            let charge = Charge {
                shadow,
                lead: if leads { 100 } else { 0 },
                // Some are sent again.
                ..Charge::plain(limit, permits, PermitId([id; 16]))
            };
            Step {
                acquire: Acquire {
                    remaining,
                    ..Acquire::of([charge], waits)
                },
                terms: Terms {
                    rewrite,
                    resendable,
                },
                pause,
            }
        },
    );
    prop::collection::vec(step, 1..30)
}

const TERMS: Terms = Terms {
    rewrite: false,
    resendable: true,
};

/// Takes one permit, at most so many a second.
fn take(rate: u64, id: u8) -> Charge {
    let limit = LimitSource::Code(Limit::per_second(rate));
    Charge::plain(limit, 1, PermitId([id; 16]))
}

/// Asks both ways, and holds answers and what is kept against each other.
fn agree<L: Counts + Clone + Debug + PartialEq>(
    steps: &[Step],
    mut one: L,
) -> Result<(), TestCaseError> {
    let mut many = one.clone();
    let mut now = START;
    for step in steps {
        now += step.pause;
        let (caller, terms) = (&step.acquire, step.terms);
        let at = Now::millis(now);
        let answer = acquire_one(&mut one, &caller.first, terms, caller.remaining, at);
        let limiters = iter::once((&mut many as &mut dyn Counts, terms));
        let answers = acquire(limiters, slice::from_ref(caller), at);
        prop_assert_eq!(answer.map(|it| List::from([it])), answers, "{:?}", step);
        prop_assert_eq!(&one, &many, "{:?}", step);
    }
    Ok(())
}

#[test]
fn only_a_log_knows_a_call_that_comes_again() {
    let twice = |limiter: &mut dyn Counts| {
        let mut answer = || acquire_one(limiter, &take(1, 1), TERMS, false, NOW).unwrap();
        [answer(), answer()].map(|answer| answer.verdict)
    };
    let granted = [Verdict::Granted, Verdict::Granted];
    assert_eq!(twice(&mut sliding_log::Limiter::default()), granted);
    let refused = [Verdict::Granted, Verdict::Refused];
    assert_eq!(twice(&mut fixed_window::Limiter::default()), refused);
    assert_eq!(twice(&mut gcra::Limiter::default()), refused);
}

/// What a refused caller was the first to ask is either made, and said to be, or neither.
#[test]
fn what_is_made_is_told() {
    fn told<L: Counts>(mut first: L) -> bool {
        let mut spent = sliding_log::Limiter::default();
        acquire_one(&mut spent, &take(1, 1), TERMS, false, NOW).unwrap();
        let caller = Acquire::of([take(2, 2), take(1, 3)], false);
        let limiters: [(&mut dyn Counts, Terms); 2] = [(&mut first, TERMS), (&mut spent, TERMS)];
        let answers = acquire(limiters.into_iter(), &[caller], NOW).unwrap();
        assert_eq!(answers[1].verdict, Verdict::Refused);
        let told = answers[0].changed == Changed::Created;
        assert_eq!(told, first.limit().is_some());
        told
    }
    assert!(!told(sliding_log::Limiter::default()));
    // Of this one only the limit was lost.
    assert!(told(sliding_log::Limiter {
        value: Some(2),
        ..sliding_log::Limiter::default()
    }));
    assert!(told(fixed_window::Limiter::default()));
    assert!(told(gcra::Limiter::default()));
}

proptest! {
    #[test]
    fn one_caller_of_one_limiter_is_answered_as_a_list_of_one(steps in steps()) {
        let mut slotted = sliding_log::Limiter::default();
        slotted.note_in(Some(Slots::try_new(10, "orders", iter::empty()).unwrap()));
        agree(&steps, slotted)?;
        agree(&steps, sliding_log::Limiter::default())?;
        agree(&steps, fixed_window::Limiter::default())?;
        agree(&steps, gcra::Limiter::default())?;
    }
}
