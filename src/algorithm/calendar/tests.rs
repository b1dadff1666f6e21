use proptest::prelude::*;

use super::*;
use crate::{
    algorithm::{answer::Verdict, limiter::LimiterState},
    values::{
        charge::{Charge, PermitId},
        limit::{Limit, LimitSource},
    },
};

type Limiter = LimiterState<CalendarCount>;

const HOUR: i64 = 3_600_000;
/// A day on which Berlin has 25 hours, at noon.
const NOON: i64 = 1_792_926_000_000;

fn limit(text: &str) -> Limit {
    text.parse().unwrap()
}

fn take(limiter: &mut Limiter, limit: Limit, permits: u32, millis: i64) -> Answer {
    let charge = Charge::plain(LimitSource::Code(limit), permits, PermitId::NONE);
    limiter
        .state
        .count_by(Counting::default().for_limit(Some(&limit)));
    let now = Now::at(0).ticks(millis);
    limiter
        .state
        .acquire_one(&mut limiter.limit, &charge, true, Now::at(now))
        .unwrap()
}

fn settle(
    limiter: &mut Limiter,
    limit: Limit,
    label: i64,
    (taken, keep): (u32, u32),
    millis: i64,
) -> i64 {
    let charge = Charge::plain(LimitSource::Code(limit), taken, PermitId::NONE);
    let now = Now::at(Now::at(0).ticks(millis));
    let taken = Some(Taken::Date { label, end: 0 });
    limiter.settle(&charge.to_send(), taken, keep, now).unwrap()
}

fn label(answer: &Answer) -> i64 {
    match answer.taken {
        Some(Taken::Date { label, .. }) => label,
        taken => panic!("{taken:?}"),
    }
}

proptest! {
    // L2.
    #[test]
    fn there_is_room_when_the_wait_is_over_and_none_before(
        hours in 0i64..10_000,
        text in proptest::sample::select(&[
            "3/day Europe/Berlin", "3/week America/Havana", "3/month from 31",
        ][..]),
    ) {
        let (limit, now) = (limit(text), NOON + hours * HOUR);
        let mut limiter = Limiter::default();
        take(&mut limiter, limit, 2, now);
        let wait = take(&mut limiter, limit, 2, now).wait / Now::at(0).ticks(1);
        let early = take(&mut limiter, limit, 2, now + wait - 1);
        prop_assert_eq!((early.verdict, early.wait), (Verdict::Refused, Now::at(0).ticks(1)));
        prop_assert_eq!(take(&mut limiter, limit, 2, now + wait).verdict, Verdict::Granted);
    }
}

#[test]
fn a_window_has_the_length_of_its_days() {
    for (text, hours) in [
        ("5/day", 24),
        ("5/day Europe/Berlin", 25),
        ("5/week Europe/Berlin", 7 * 24 + 1),
        ("5/month", 31 * 24),
        ("5/month Europe/Berlin", 31 * 24 + 1),
        ("5/month from 28", 30 * 24),
    ] {
        let answer = take(&mut Limiter::default(), limit(text), 1, NOON);
        assert_eq!(answer.interval, hours * HOUR, "{text}");
    }
}

#[test]
fn a_changed_rate_counts_what_was_used() {
    let mut limiter = Limiter::default();
    for (rate, permits, verdict, remaining) in [
        ("5/month", 4, Verdict::Granted, 1),
        ("9/month", 4, Verdict::Granted, 1),
        ("3/month", 1, Verdict::Refused, -5),
        ("3/month", 4, Verdict::AboveRate, -5),
        ("9/month", 1, Verdict::Granted, 0),
    ] {
        let answer = take(&mut limiter, limit(rate), permits, NOON);
        // More than the rate is refused without a look.
        let counted = verdict != Verdict::AboveRate;
        assert_eq!(answer.verdict, verdict, "{rate}");
        assert!(
            !counted || answer.remaining == remaining,
            "{rate}: {answer:?}"
        );
    }
}

#[test]
fn a_receipt_settles_in_its_window_alone() {
    let limit = limit("9/day");
    let mut limiter = Limiter::default();
    let today = label(&take(&mut limiter, limit, 4, NOON));
    assert_eq!(settle(&mut limiter, limit, today, (4, 1), NOON), 3);
    assert_eq!(settle(&mut limiter, limit, today, (1, 9), NOON), -8);
    assert_eq!(limiter.state.stored.unwrap().permits, 9);
    // No more than there is.
    assert_eq!(settle(&mut limiter, limit, today, (20, 0), NOON), 9);
    // The turn, with a call after it or without.
    take(&mut limiter, limit, 1, NOON);
    assert_eq!(
        settle(&mut limiter, limit, today, (1, 0), NOON + 24 * HOUR),
        0
    );
    assert_eq!(
        settle(&mut limiter, limit, today, (1, 5), NOON + 24 * HOUR),
        0
    );
    take(&mut limiter, limit, 2, NOON + 24 * HOUR);
    assert_eq!(
        settle(&mut limiter, limit, today, (1, 0), NOON + 24 * HOUR),
        0
    );
    assert_eq!(limiter.state.stored.unwrap().permits, 2);
}

#[test]
fn verbs_count_in_the_window_of_the_last_call() {
    let limit = limit("9/day");
    let mut limiter = Limiter::default();
    let now = Now::at(Now::at(0).ticks(NOON));
    // Without windows, nothing that is taken would count.
    let mut call = CallContext::of_verb(limit.stored(), now, PermitId::NONE);
    let unknown = limiter.state.prepare(&mut call);
    assert_eq!(unknown, Err(ErrorKind::Limit));
    take(&mut limiter, limit, 4, NOON);
    // A verb has no calendar: that of the last call stays.
    limiter.state.count_by(Counting::default());
    assert_eq!(limiter.state.prepare(&mut call), Ok(9));
    assert_eq!(limiter.state.available(&call), Ok(5));
    assert_eq!(limiter.state.release(&call, 3), Ok(3));
    assert_eq!(limiter.state.available(&call), Ok(8));
    // No more than there is.
    assert_eq!(limiter.state.release(&call, 3), Ok(1));
    assert_eq!(limiter.full_at(), None);
    limiter.state.charge(&call, 2);
    limiter.state.forget();
    assert_eq!(limiter.state.available(&call), Ok(9));
}

#[test]
fn it_is_full_at_its_turn_and_kept_an_hour_longer() {
    let limit = limit("9/day");
    let (mut limiter, now) = (Limiter::default(), Now::at(Now::at(0).ticks(NOON)));
    assert_eq!(limiter.full_at(), None);
    take(&mut limiter, limit, 4, NOON);
    let turn = now.ticks(limiter.state.stored.unwrap().end);
    assert_eq!(limiter.full_at(), Some(turn));
    let end = limiter.state.end_of_life(&limit.stored(), now);
    assert_eq!(end, turn + now.ticks(LINGERS));
}
