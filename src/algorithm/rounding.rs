//! The laws of the pure functions, whatever a tick is: milliseconds or microseconds, by a clock
//! that moves by nanoseconds.
//!
//! Grants are scored rounded up and expire by now rounded down, so each law holds to the
//! nanosecond.

use std::{iter, time::Duration};

use proptest::prelude::*;

use super::{
    answer::{Answer, Verdict},
    limiter::{LimiterState, Terms},
};
use crate::{
    clock::{Now, TICKS},
    demand::Charge,
    limit::{Algorithm, Limit, LimitSource, Slots},
    receipt::PermitId,
};

const START: u64 = 1_700_000_000_000_000_000;
const MS: u64 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Counted {
    Log,
    Slots,
    Window,
    Gcra,
}

/// A pause in ns, and the permits asked for after it.
type Request = (u64, u32);

fn histories() -> impl Strategy<Value = (u64, u64, Counted, i64, Vec<Request>)> {
    let kinds = &[Counted::Log, Counted::Slots, Counted::Window, Counted::Gcra][..];
    let interval = prop::sample::select(&[1u64, 2, 7, 10, 15, 100][..]);
    let per_ms = prop::sample::select(&[1, TICKS][..]);
    let kind = (1..12u64, interval, prop::sample::select(kinds), per_ms);
    kind.prop_flat_map(|(rate, millis, counted, per_ms)| {
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
        // That counts in microseconds anyway: by a coarser clock it is not rounded.
        let per_ms = if counted == Counted::Gcra {
            TICKS
        } else {
            per_ms
        };
        (
            Just(rate),
            Just(millis),
            Just(counted),
            Just(per_ms),
            traffic,
        )
    })
}

struct Subject {
    limiter: Box<LimiterState>,
    limit: Limit,
    per_ms: i64,
    now: u64,
    last_id: u64,
}

impl Subject {
    fn new(rate: u64, millis: u64, counted: Counted, per_ms: i64) -> Self {
        let algorithm = match counted {
            Counted::Log | Counted::Slots => Algorithm::SlidingLog,
            Counted::Window => Algorithm::FixedWindow,
            Counted::Gcra => Algorithm::Gcra,
        };
        let mut limiter = super::new(algorithm);
        if counted == Counted::Slots {
            let slots = Slots::try_new(10, "law", iter::empty());
            limiter.state.set_slots(slots.ok());
        }
        Self {
            limiter,
            limit: Limit::new(rate, Duration::from_millis(millis)),
            per_ms,
            now: START,
            last_id: 0,
        }
    }

    fn ask(&mut self, permits: u32) -> Answer {
        self.last_id += 1;
        let mut id = [0; 16];
        id[8..].copy_from_slice(&self.last_id.to_be_bytes());
        let exact = self.last_id.is_multiple_of(2);
        let charge = Charge::plain(LimitSource::Code(self.limit), permits, PermitId(id));
        let now = Now::of(Duration::from_nanos(self.now), self.per_ms);
        let answer = (self.limiter)
            .acquire_one(&charge, Terms::HERE, exact, now)
            .unwrap();
        assert_eq!(answer.repaired, 0);
        answer
    }

    fn send(&mut self, traffic: &[Request]) -> Vec<(u64, u64)> {
        let mut grants = Vec::new();
        for (pause, permits) in traffic {
            self.now += pause;
            if self.ask(*permits).verdict == Verdict::Granted {
                grants.push((self.now, u64::from(*permits)));
            }
        }
        grants
    }
}

/// The most permits that a time of `nanos` has.
fn fullest(grants: &[(u64, u64)], nanos: u64) -> u64 {
    let from = |(at, _): &(u64, u64)| {
        let within = grants
            .iter()
            .filter(|(time, _)| (*at..*at + nanos).contains(time));
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
    fn no_interval_has_more(
        (rate, millis, counted, per_ms, traffic) in histories(),
    ) {
        let grants = Subject::new(rate, millis, counted, per_ms).send(&traffic);
        let interval = millis * MS;
        match counted {
            Counted::Log | Counted::Slots => prop_assert!(fullest(&grants, interval) <= rate),
            Counted::Window => prop_assert!(fullest(&grants, interval) <= 2 * rate),
            Counted::Gcra => for parts in 1..8 {
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
        (rate, millis, counted, per_ms, traffic) in histories(),
        permits in 1..12u32,
        part in 0..1000u64,
    ) {
        let mut subject = Subject::new(rate, millis, counted, per_ms);
        subject.send(&traffic);
        let asked = subject.ask(permits);
        if asked.verdict == Verdict::Refused {
            let wait = asked.now.until(asked.wait).as_nanos() as u64;
            let due = subject.now + wait;
            for early in [wait - wait * part / 1000, 1] {
                subject.now = due - early;
                let answer = subject.ask(permits);
                prop_assert_eq!(answer.verdict, Verdict::Refused, "{} ns early", early);
                let left = answer.now.until(answer.wait);
                prop_assert_eq!(left, Duration::from_nanos(early));
            }
            subject.now = due;
            prop_assert_eq!(subject.ask(permits).verdict, Verdict::Granted);
        }
    }
}
