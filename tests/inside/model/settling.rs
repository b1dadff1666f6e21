//! What is settled: single cases, and what is left of them when time has passed.

use super::pair::{Clock, How, Key, Pair, START};
use crate::{
    algorithm::answer::Verdict,
    error::ErrorKind,
    limit::{LimitSource, RateType},
};

/// 10 in 1000 ms, overall and per client.
fn pairs() -> impl Iterator<Item = Pair> {
    [RateType::Overall, RateType::PerClient]
        .into_iter()
        .map(|rate_type| {
            let mut pair = Pair::new(rate_type, Clock::Given(START));
            let limit = pair.limit(10, 1000);
            assert!(pair.try_set_rate(limit));
            pair
        })
}

#[test]
fn what_stays_expires_when_it_would_have() {
    for mut pair in pairs() {
        pair.grants(8, How::EXACT);
        let sent = pair.sent[0];
        pair.advance(400);
        assert_eq!(pair.settle(sent, 3, LimitSource::Store), Ok(5));
        assert_eq!(pair.available(), Ok(7));
        assert_eq!(pair.refuses(8, How::EXACT), 600);
        pair.advance(600);
        assert_eq!(pair.available(), Ok(10));
        // Whatever comes late finds nothing.
        assert_eq!(pair.settle(sent, 0, LimitSource::Store), Ok(0));
        assert_eq!(pair.available(), Ok(10));
    }
}

#[test]
fn as_much_again_is_another_member() {
    for mut pair in pairs() {
        pair.grants(3, How::EXACT);
        let sent = pair.sent[0];
        assert_eq!(pair.settle(sent, 6, LimitSource::Store), Ok(-3));
        assert_eq!(pair.available(), Ok(4));
    }
}

#[test]
fn debt_is_paid_before_anybody_is_admitted() {
    for mut pair in pairs() {
        pair.grants(1, How::EXACT);
        let sent = pair.sent[0];
        pair.advance(500);
        assert_eq!(pair.settle(sent, 26, LimitSource::Store), Ok(-25));
        assert_eq!(pair.available(), Ok(-16));
        // Not when the first permit has expired, but when the debt has.
        assert_eq!(pair.refuses(1, How::EXACT), 1000);
        pair.advance(500);
        assert_eq!(pair.available(), Ok(-15));
        assert_eq!(pair.refuses(1, How::EXACT), 500);
        pair.advance(499);
        assert_eq!(pair.refuses(1, How::EXACT), 1);
        pair.advance(1);
        pair.grants(10, How::EXACT);
    }
}

#[test]
fn what_has_expired_is_charged_more_all_the_same() {
    for mut pair in pairs() {
        pair.grants(2, How::EXACT);
        let sent = pair.sent[0];
        pair.advance(5000);
        assert_eq!(pair.settle(sent, 6, LimitSource::Store), Ok(-4));
        assert_eq!(pair.settle(sent, 6, LimitSource::Store), Ok(0));
        assert_eq!(pair.available(), Ok(6));
        pair.advance(1000);
        assert_eq!(pair.available(), Ok(10));
    }
}

#[test]
fn a_limiter_that_vanished_is_found_in_debt() {
    for mut pair in pairs() {
        pair.grants(2, How::EXACT);
        let sent = pair.sent[0];
        let given = LimitSource::Code(pair.limit(10, 1000).for_request_key());
        pair.advance(90_000);
        pair.lose(Key::Limit);
        pair.lose(Key::Value);
        pair.lose(Key::Log);
        assert_eq!(
            pair.settle(sent, 50, LimitSource::Store),
            Err(ErrorKind::NotInitialized)
        );
        assert_eq!(pair.settle(sent, 50, given), Ok(-48));
        assert_eq!(pair.settle(sent, 50, given), Ok(0));
        // It vanishes again when it is paid.
        assert!(pair.ttls().iter().all(|ttl| *ttl > 1000));
        assert_eq!(pair.refuses(1, How::EXACT), 1000);
        pair.advance(1000);
        assert_eq!(pair.available(), Ok(10));
    }
}

#[test]
fn an_acquire_that_comes_late_is_settled_by_the_second_sending() {
    for mut pair in pairs() {
        pair.grants(8, How::EXACT);
        let sent = pair.sent[0];
        assert_eq!(pair.settle(sent, 3, LimitSource::Store), Ok(5));
        pair.release(3);
        pair.advance(1);
        assert_eq!(
            pair.send(sent, How::EXACT).unwrap().verdict,
            Verdict::Granted
        );
        assert_eq!(pair.settle(sent, 3, LimitSource::Store), Ok(5));
        assert_eq!(pair.available(), Ok(7));
        assert_eq!(pair.settle(sent, 3, LimitSource::Store), Ok(0));
        pair.advance(1000);
        assert_eq!(pair.available(), Ok(10));
    }
}

#[test]
fn what_stays_is_not_counted_twice() {
    for mut pair in pairs() {
        pair.grants(4, How::EXACT);
        let sent = pair.sent[0];
        assert_eq!(pair.settle(sent, 2, LimitSource::Store), Ok(2));
        pair.advance(1);
        // The duplicate takes four more; its settlement finds the two of the first.
        assert_eq!(
            pair.send(sent, How::EXACT).unwrap().verdict,
            Verdict::Granted
        );
        assert_eq!(pair.settle(sent, 2, LimitSource::Store), Ok(4));
        assert_eq!(pair.available(), Ok(8));
    }
}

/// A receipt is settled once. Where it is not, a release can make one of its two members what the other is.
#[test]
fn two_members_of_one_receipt_may_become_one() {
    for mut pair in pairs() {
        pair.grants(2, How::EXACT);
        let sent = pair.sent[0];
        assert_eq!(pair.settle(sent, 26, LimitSource::Store), Ok(-24));
        pair.advance(1);
        assert_eq!(pair.settle(sent, 17, LimitSource::Store), Ok(-15));
        pair.release(11);
        pair.advance(1000);
        assert_eq!(pair.available(), Ok(10));
    }
}
