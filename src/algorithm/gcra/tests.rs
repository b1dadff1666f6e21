use std::time::Duration;

use super::*;
use crate::{
    algorithm::{answer::Verdict, limiter::LimiterState},
    values::{
        charge::{Charge, PermitId},
        clock::ManualClock,
        limit::{Limit, LimitSource},
    },
};

/// In us
const START: i64 = 1_700_000_000_000_000;
const NOW: Now = Now::at(START);

const ID: PermitId = PermitId::NONE;

type Limiter = LimiterState<Gcra>;

fn fresh(rate: u64, millis: u64) -> Limiter {
    Limiter {
        limit: Some(Limit::new(rate, Duration::from_millis(millis)).stored()),
        ..Limiter::default()
    }
}

/// Settles a grant of this many permits.
fn settle(limiter: &mut Limiter, (permits, keep): (u32, u32), tat: Tat) -> Result<i64, ErrorKind> {
    let charge = Charge::plain(LimitSource::Store, permits, ID);
    let receipt = charge.counted_by(limit::Algorithm::Gcra).to_send();
    limiter.settle(&receipt, Some(Taken::Tat(tat)), keep, NOW)
}

/// Asks for one permit by the store's limit.
fn acquire(limiter: &mut Limiter, clock: &ManualClock) -> Answer {
    let charge = Charge::plain(LimitSource::Store, 1, ID);
    let answer = limiter
        .state
        .acquire_one(&mut limiter.limit, &charge, true, Now::by(clock));
    answer.unwrap()
}

fn give_back(limiter: &mut Limiter, permits: u32, tat: Tat) -> Result<i64, ErrorKind> {
    settle(limiter, (permits, 0), tat)
}

/// Takes permits as a charge does, whatever is left.
fn take(limiter: &mut Limiter, permits: u32, now: i64) -> Tat {
    let call = limiter.verb(Now::at(now), ID).unwrap();
    let charged = limiter.state.charge(&call, permits);
    assert_eq!(charged, i64::from(permits));
    limiter.state.stored.unwrap().tat
}

#[test]
fn a_call_that_takes_nothing_makes_no_state() {
    let (mut limiter, clock) = (Limiter::default(), ManualClock::new());
    let limit = LimitSource::Code(Limit::new(5, Duration::from_secs(1)));
    let charge = Charge::plain(limit, 6, ID);
    let answer = limiter
        .state
        .acquire_one(&mut limiter.limit, &charge, true, Now::by(&clock));
    assert_eq!(answer.unwrap().verdict, Verdict::AboveRate);
    assert!(limiter.limit.is_some() && limiter.state.stored.is_none());
}

/// Without a TAT, its receipt was settled before.
#[test]
fn a_settled_receipt_and_one_of_another_algorithm_change_nothing() {
    let mut limiter = fresh(5, 1000);
    let tat = take(&mut limiter, 1, START);
    for (algorithm, taken) in [
        (limit::Algorithm::Gcra, None),
        (limit::Algorithm::SlidingLog, Some(Taken::Tat(tat))),
    ] {
        let charge = Charge::plain(LimitSource::Store, 1, ID);
        let receipt = charge.counted_by(algorithm).to_send();
        for keep in [0, 3] {
            assert_eq!(limiter.settle(&receipt, taken, keep, NOW), Ok(0));
        }
    }
    assert_eq!(limiter.state.stored.unwrap().tat, tat);
}

#[test]
fn a_stored_limit_that_cannot_be_counted_by_is_an_error_that_changes_nothing() {
    let foreign = StoredLimit {
        rate: 3001,
        ..Limit::new(3000, Duration::from_millis(3)).stored()
    };
    let mut limiter = Limiter {
        limit: Some(foreign),
        ..Limiter::default()
    };
    let charge = Charge::plain(LimitSource::Store, 1, ID);
    let answer = limiter
        .state
        .acquire_one(&mut limiter.limit, &charge, false, NOW);
    assert_eq!(answer, Err(ErrorKind::ForeignState));
    let given = Tat { at: 0, given: 0 };
    // There is nothing to give back.
    assert_eq!(settle(&mut limiter, (1, 0), given), Ok(0));
    assert_eq!(
        settle(&mut limiter, (1, 2), given),
        Err(ErrorKind::ForeignState)
    );
    assert_eq!(limiter.available(NOW, ID), Err(ErrorKind::ForeignState));
    assert_eq!((limiter.limit, limiter.state.stored), (Some(foreign), None));
}

#[test]
fn it_is_kept_until_no_receipt_can_give_back_any_more() {
    let mut limiter = fresh(10, 1000);
    assert_eq!(limiter.full_at(), None);
    let tat = take(&mut limiter, 4, START);
    let until = START + 400_000;
    assert_eq!(limiter.full_at(), Some(until));
    assert_eq!(give_back(&mut limiter, 4, tat), Ok(4));
    assert_eq!(limiter.available(NOW, ID), Ok(10));
    assert_eq!(limiter.full_at(), Some(until));
    // What is charged beyond twice the limit is forgotten at once.
    take(&mut limiter, 50, START);
    assert_eq!(limiter.full_at(), Some(START + 2_000_000));
    assert_eq!(limiter.available(NOW, ID), Ok(-10));
}

// A clock that was wrong, and is set right: who asks first finds no more in use than the limit,
// and an interval later nothing is.
#[test]
fn what_a_wrong_clock_has_made_is_over_an_interval_after_it_was_met() {
    const HOUR: i64 = 3_600_000_000;
    let fast = |permits| {
        let mut limiter = fresh(10, 1000);
        take(&mut limiter, permits, START + HOUR);
        limiter
    };
    for permits in [1, 10, 50] {
        let mut limiter = fast(permits);
        assert_eq!(limiter.available(NOW, ID), Ok(0));
        assert_eq!(limiter.available(Now::at(START + 300_000), ID), Ok(3));
        assert_eq!(limiter.available(Now::at(START + 1_000_000), ID), Ok(10));
    }
    // Nor is it more by another limit, which takes over what is in use.
    let mut limiter = fast(10);
    limiter.limit = fresh(20, 1000).limit;
    assert_eq!(limiter.available(NOW, ID), Ok(10));
}

#[test]
fn no_tat_is_later_than_a_script_can_count() {
    let mut limiter = fresh(1, 60_000);
    for _ in 0..2 {
        let tat = take(&mut limiter, u32::MAX, MOST - 1000);
        assert_eq!(tat.at, MOST);
    }
}

// L2 and the whole limit at once, by a clock that is finer than what is counted in.
#[test]
fn all_permits_are_there_within_one_microsecond() {
    let clock = ManualClock::new();
    let mut limiter = fresh(10, 1);
    for _ in 0..2 {
        clock.advance(Duration::from_nanos(2_000_300));
        for left in (0..10).rev() {
            clock.advance(Duration::from_nanos(10));
            let answer = acquire(&mut limiter, &clock);
            let found = (answer.verdict, answer.remaining, answer.next, answer.reset);
            // From the tick of now, which is rounded down.
            let taken = 10 - left;
            assert_eq!(found, (Verdict::Granted, left, 101, taken * 100 + 1));
        }
        let answer = acquire(&mut limiter, &clock);
        assert_eq!((answer.verdict, answer.wait), (Verdict::Refused, 101));
    }
}

#[test]
fn it_lives_until_nothing_is_in_use() {
    let mut limiter = fresh(10, 1000);
    let limit = limiter.limit.unwrap();
    assert_eq!(limiter.state.end_of_life(&limit, NOW), START);
    take(&mut limiter, 4, START);
    assert_eq!(limiter.state.end_of_life(&limit, NOW), START + 400_000);
}

#[test]
fn the_sum_of_what_was_given_back_wraps_around() {
    let mut limiter = fresh(10, 1000);
    let first = take(&mut limiter, 1, START);
    let given = WRAP - 150_000;
    let state = limiter.state.stored.unwrap();
    limiter.state.stored = Some(State {
        tat: Tat { given, ..first },
        ..state
    });
    let early = Tat { given, ..first };
    let [second, third] = [3, 2].map(|permits| take(&mut limiter, permits, START));
    assert_eq!((second.given, third.given), (given, given));
    assert_eq!(give_back(&mut limiter, 3, second), Ok(3));
    assert_eq!(limiter.state.stored.unwrap().tat.given, 150_000);
    // What was given back since counts, also beyond the end of the sum: a late receipt takes no
    // more than its own.
    assert_eq!(give_back(&mut limiter, 1, early), Ok(0));
    assert_eq!(give_back(&mut limiter, 2, third), Ok(2));
    assert_eq!(limiter.available(NOW, ID), Ok(9));
}
