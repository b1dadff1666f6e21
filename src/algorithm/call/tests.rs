use std::{fmt::Debug, iter};

use proptest::prelude::*;

use super::*;
use crate::{
    algorithm::{fixed_window, gcra, sliding_log},
    limit::{Limit, Slots},
};

const START: i64 = 1_700_000_000_000;
const NOW: Now = Now::millis(START);

/// What is asked, and how long after what was asked before.
#[derive(Clone, Copy, Debug)]
struct Step {
    take: Take,
    waits: bool,
    ask: Ask,
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
        |(limit, [waits, shadow, rewrite, exact, resendable, leads], permits, id, pause)| {
            Step {
                take: Take {
                    permits,
                    // Some are sent again.
                    id: PermitId([id; 16]),
                    shadow,
                    lead: if leads { 100 } else { 0 },
                },
                waits,
                ask: Ask {
                    limit,
                    rewrite,
                    exact,
                    resendable,
                },
                pause,
            }
        },
    );
    prop::collection::vec(step, 1..30)
}

fn ask(limit: LimitSource) -> Ask {
    Ask {
        limit,
        rewrite: false,
        exact: false,
        resendable: true,
    }
}

fn per_second(permits: u64) -> LimitSource {
    LimitSource::Code(Limit::per_second(permits))
}

fn take(permits: u32) -> Take {
    Take {
        permits,
        id: PermitId([1; 16]),
        shadow: false,
        lead: 0,
    }
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
        let (take, ask) = (step.take, step.ask);
        let at = Now::millis(now);
        let answer = acquire_one(&mut one, ask, &take, at);
        let caller = Caller {
            waits: step.waits,
            takes: List::one(take),
        };
        let limiters = iter::once((&mut many as &mut dyn Counts, ask));
        let answers = acquire(limiters, &[caller], at);
        prop_assert_eq!(answer.map(List::one), answers, "{:?}", step);
        prop_assert_eq!(&one, &many, "{:?}", step);
    }
    Ok(())
}

#[test]
fn only_a_log_knows_a_call_that_comes_again() {
    let twice = |limiter: &mut dyn Counts| {
        let mut answer = || acquire_one(limiter, ask(per_second(1)), &take(1), NOW).unwrap();
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
        acquire_one(&mut spent, ask(per_second(1)), &take(1), NOW).unwrap();
        let of = |id| Take {
            id: PermitId([id; 16]),
            ..take(1)
        };
        let caller = Caller {
            waits: false,
            takes: [of(2), of(3)].into_iter().collect(),
        };
        let limiters: [(&mut dyn Counts, Ask); 2] = [
            (&mut first, ask(per_second(2))),
            (&mut spent, ask(per_second(1))),
        ];
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
