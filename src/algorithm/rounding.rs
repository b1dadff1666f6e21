//! Tests that the laws of the algorithms hold to the nanosecond, with and without counting the
//! permits left. `tests/laws/exact_wait.rs` tests the same of a store, which always counts them.
//!
//! The time of a grant is rounded up and the present time is rounded down, so that rounding never
//! breaks a law.

use std::{iter, time::Duration};

use proptest::prelude::*;

use super::{
    AnyLimiter,
    answer::{Answer, Verdict},
};
use crate::values::{
    charge::{Charge, PermitId},
    clock::{Clock, ManualClock, Now},
    limit::Counting,
    limit::{Algorithm, Limit, LimitSource, Slots},
};

const MS: u64 = 1_000_000;

/// A way to count, with slots or without.
type Counted = (Algorithm, bool);

/// A pause in ns, and the permits asked for after it.
type Request = (u64, u32);

fn histories() -> impl Strategy<Value = (u64, u64, Counted, Vec<Request>)> {
    let counted = [
        (Algorithm::SlidingLog, false),
        (Algorithm::SlidingLog, true),
        (Algorithm::FixedWindow, false),
        (Algorithm::Gcra, false),
    ];
    let interval = prop::sample::select(&[1u64, 2, 7, 10, 15, 100][..]);
    let kind = (1..12u64, interval, prop::sample::select(counted.to_vec()));
    kind.prop_flat_map(|(rate, millis, counted)| {
        let interval = millis * MS;
        let pause = prop_oneof![
            2 => Just(0),
            2 => 1u64..3000,
            4 => 0..interval / 3,
            1 => interval - 2000..interval + 2000,
            1 => Just(interval - 1),
            1 => Just(interval),
        ];
        let traffic = prop::collection::vec((pause, 1u32..5), 1..50);
        (Just(rate), Just(millis), Just(counted), traffic)
    })
}

struct Subject {
    limiter: AnyLimiter,
    limit: Limit,
    clock: ManualClock,
    last_id: u64,
}

impl Subject {
    fn new(rate: u64, millis: u64, (algorithm, in_slots): Counted) -> Self {
        let mut limiter = AnyLimiter::new(algorithm);
        let slots = Slots::try_new(10, "law", true, iter::empty());
        limiter.state.count_by(Counting {
            slots: slots.ok().filter(|_| in_slots),
            ..Counting::default()
        });
        Self {
            limiter,
            limit: Limit::new(rate, Duration::from_millis(millis)),
            clock: ManualClock::new(),
            last_id: 0,
        }
    }

    fn ask(&mut self, permits: u32) -> Answer {
        self.last_id += 1;
        let mut id = [0; 16];
        id[8..].copy_from_slice(&self.last_id.to_be_bytes());
        let exact = self.last_id.is_multiple_of(2);
        let charge = Charge::plain(LimitSource::Code(self.limit), permits, PermitId(id));
        let now = Now::by(&self.clock);
        let answer = self.limiter.acquire_one(&charge, exact, now);
        let answer = answer.unwrap();
        assert_eq!(answer.repaired, 0);
        answer
    }

    /// Returns the grants, each with its time and its permits.
    fn send(&mut self, traffic: &[Request]) -> Vec<(Duration, u64)> {
        let mut grants = Vec::new();
        for (pause, permits) in traffic {
            self.clock.advance(Duration::from_nanos(*pause));
            if self.ask(*permits).verdict == Verdict::Granted {
                grants.push((self.clock.now(), u64::from(*permits)));
            }
        }
        grants
    }
}

/// Returns the most permits of any time as long.
fn fullest(grants: &[(Duration, u64)], time: Duration) -> u64 {
    let from = |(begin, _): &(Duration, u64)| {
        let within = grants
            .iter()
            .filter(|(at, _)| (*begin..*begin + time).contains(at));
        within.map(|(_, permits)| permits).sum()
    };
    grants.iter().map(from).max().unwrap_or(0)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(inside) { 1500 } else { 200 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    // L1
    #[test]
    fn no_interval_has_more((rate, millis, counted, traffic) in histories()) {
        let grants = Subject::new(rate, millis, counted).send(&traffic);
        let interval = Duration::from_millis(millis);
        match counted.0 {
            Algorithm::SlidingLog => prop_assert!(fullest(&grants, interval) <= rate),
            Algorithm::FixedWindow | Algorithm::Calendar => {
                prop_assert!(fullest(&grants, interval) <= 2 * rate);
            }
            Algorithm::Gcra => for parts in 1..8 {
                // Any time has what comes free in it, and the burst.
                let most = u128::from(rate) * u128::from(parts) / 4 + u128::from(rate);
                let full = fullest(&grants, interval * parts / 4);
                prop_assert!(u128::from(full) <= most, "{} of {} in {}/4", full, most, parts);
            },
        }
    }

    // L2
    #[test]
    fn a_wait_is_exact(
        (rate, millis, counted, traffic) in histories(),
        permits in 1..12u32,
        part in 0..1000u32,
    ) {
        let mut subject = Subject::new(rate, millis, counted);
        subject.send(&traffic);
        let asked = subject.ask(permits);
        if asked.verdict == Verdict::Refused {
            let wait = asked.now.until(asked.wait);
            subject.clock.advance(wait);
            let due = subject.clock.now();
            for early in [wait - wait * part / 1000, Duration::from_nanos(1)] {
                subject.clock.set(due - early);
                let answer = subject.ask(permits);
                prop_assert_eq!(answer.verdict, Verdict::Refused, "{:?} early", early);
                prop_assert_eq!(answer.now.until(answer.wait), early);
            }
            subject.clock.set(due);
            prop_assert_eq!(subject.ask(permits).verdict, Verdict::Granted);
        }
    }
}
