//! Single cases that random histories hit too seldom, and keys that are no limiter's.

use super::*;
use crate::store::redis::redisson::sliding_log::{SCRIPTS, VERBS};

#[test]
fn scores_from_the_future_are_set_back_by_the_servers_clock_only() {
    let cases = [
        (Clock::Server, Lone::Own, 2),
        (Clock::Server, Lone::Run, 2),
        (Clock::Given(START), Lone::Own, 0),
    ];
    for (clock, lone, repaired) in cases {
        let mut pair = Pair::new(RateType::Overall, clock).through(lone);
        let limit = pair.limit(5, 60_000);
        pair.try_set_rate(limit);
        let now = pair.now();
        pair.plant(Generation::Bytes21, now, 1);
        pair.plant(Generation::Bytes21, now + 600_000, 2);
        pair.plant(Generation::Bytes13, now + 700_000, 2);
        let answer = pair.acquire(4, How::EXACT).unwrap();
        assert_eq!(
            (answer.verdict, answer.repaired),
            (Verdict::Refused, repaired)
        );
        if clock == Clock::Server {
            assert_eq!((answer.wait, answer.reset), (66_000, 66_000));
        }
    }
}

#[test]
fn a_member_that_no_redisson_wrote_is_an_error_that_changes_nothing() {
    let missing_value = |pair: &mut Pair| pair.lose(Key::Value);
    let value_above_rate = |pair: &mut Pair| pair.set_value(50);
    let spent = |pair: &mut Pair| pair.set_value(0);
    for foreign in ["x", "0123456789abcdefghijk-"] {
        let raised = How::code(Limit::per_second(9));
        let longer = How::code(Limit::new(5, Duration::from_secs(5)));
        for how in [How::EXACT, raised, longer] {
            for spoil in [missing_value as fn(&mut Pair), value_above_rate, spent] {
                let mut pair = Pair::with_rate(5);
                pair.acquire(2, How::EXACT).unwrap();
                spoil(&mut pair);
                let (log, score) = (pair.log_key(), (START - 1).to_string());
                pair.command(&["ZADD", &log, &score, foreign]);
                if how.limit == LimitSource::Store || pair.model.state.value != Some(0) {
                    cannot_acquire(&mut pair, how);
                }
                pair.advance(998);
                if pair.model.state.value != Some(0) {
                    cannot_count(&mut pair);
                }
            }
        }
    }
}

#[test]
fn a_give_back_beside_a_foreign_member_makes_no_room() {
    let mut pair = Pair::with_rate(5);
    pair.acquire(2, How::EXACT).unwrap();
    pair.acquire(3, How::EXACT).unwrap();
    let (sent, log) = (pair.sent[0], pair.log_key());
    pair.command(&["ZADD", &log, &START.to_string(), "x"]);
    pair.lose(Key::Value);
    let receipt = pair.receipt(sent, LimitSource::Store);
    let call = (SCRIPTS.settle)(&receipt, 0, pair.asks_at(Some(START))).unwrap();
    pair.call(call.script, &call.command).unwrap();
    // What is left is still to be counted, and cannot be.
    cannot_acquire(&mut pair, How::EXACT);
}

#[test]
fn other_kinds_of_keys_are_an_error_that_changes_nothing() {
    for (place, spoil) in [(0, "SET"), (1, "LPUSH"), (3, "SET")] {
        let mut pair = Pair::overall();
        let key = pair.keys[place].clone();
        if spoil == "SET" {
            pair.command(&["SET", &key, "x"]);
        } else {
            pair.command(&["LPUSH", &key, "x"]);
        }
        let how = How::code(pair.limit(5, 1000));
        let sent = pair.unsent(1);
        for (script, command) in pair.commands(sent, how) {
            let error = pair.call(script, &command).unwrap_err();
            assert_eq!(
                classify::failure(error).kind(),
                ErrorKind::ForeignState,
                "{key}"
            );
        }
        for other in (0..5).filter(|other| *other != place) {
            let key = pair.keys[other].clone();
            assert_eq!(pair.ask::<i64>(&["EXISTS", &key]), 0, "{key}");
        }
    }
}

#[test]
fn a_number_that_is_spelled_otherwise_is_one() {
    for (field, text) in [("rate", "5.0"), ("interval", "1e3")] {
        let mut pair = Pair::with_rate(5);
        pair.acquire(1, How::EXACT).unwrap();
        let (hash, value) = (pair.keys[0].clone(), pair.value_key());
        pair.command(&["HSET", &hash, field, text]);
        // INCRBY refuses it.
        pair.command(&["SET", &value, "4.0"]);
        let sent = pair.unsent(1);
        let how = How {
            exact: false,
            ..How::EXACT
        };
        let [(script, command), _] = pair.commands(sent, how);
        let reply = pair.call(script, &command).unwrap();
        let answer = redisson::read_answers(&reply, 1, 1).unwrap().remove(0);
        assert_eq!((answer.verdict, answer.remaining), (Verdict::Granted, 3));
        assert_eq!((answer.rate, answer.interval), (5, 1000));
        assert_eq!(pair.ask::<String>(&["GET", &value]), "3");
    }
}

// A caller that can never be granted holds up no queue: the one behind it would get a grant for
// which nothing was taken.
#[test]
fn a_caller_that_comes_again_for_more_than_the_rate_holds_up_no_queue() {
    let mut pair = Pair::with_rate(5);
    pair.acquire(5, How::EXACT).unwrap();
    let again = pair.sent[0];
    pair.set_rate(pair.limit(3, 1000), true, false);
    pair.advance(1000);
    let behind = pair.unsent(1);
    let answers = pair.send_run(&[(again, true), (behind, true)], How::EXACT);
    let answers = answers.unwrap();
    assert_eq!(answers[0].verdict, Verdict::AboveRate);
    assert_eq!(
        (answers[1].verdict, answers[1].remaining),
        (Verdict::Granted, 2)
    );
}

/// An acquire that must fail with [`ErrorKind::ForeignState`], and leave the keys as they are.
pub(crate) fn cannot_acquire(pair: &mut Pair, how: How) {
    let sent = pair.unsent(1);
    for (script, command) in pair.commands(sent, how) {
        changes_nothing(pair, script, &command);
    }
}

/// The same for the count of free permits.
pub(crate) fn cannot_count(pair: &mut Pair) {
    let (id, now) = (pair.new_id(), pair.now().cast_unsigned());
    let command = pair.count_command(id, Some(now));
    changes_nothing(pair, &VERBS, &command);
}

pub(crate) fn changes_nothing(pair: &mut Pair, script: &Script, command: &Cmd) {
    let before = pair.raw();
    let reply: Value = pair.call(script, command).unwrap();
    let error = redisson::reply::second(&reply).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ForeignState, "{command:?}");
    assert_eq!(pair.raw(), before, "{command:?}");
}
