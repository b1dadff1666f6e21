//! Calls of one caller: entries that are not read, and short replies.

use super::*;
use crate::store::redis::redisson::{format::member, sliding_log::brief_answers};
use kit::RedisServer;

/// 5 in 1000 ms, as the code says it.
fn how(pair: &Pair, exact: bool) -> How {
    How {
        exact,
        ..How::code(pair.limit(5, 1000))
    }
}

/// With `granted` permits taken one by one, the limit created first.
fn taken(granted: usize) -> Pair {
    let mut pair = Pair::with_rate(5);
    for _ in 0..granted {
        let how = how(&pair, false);
        pair.grants(1, how);
        pair.advance(10);
    }
    pair
}

/// The raw reply, and what is read from it.
fn replied(pair: &mut Pair, sent: Sent, how: How) -> (Value, Answer) {
    let [(script, command), _] = pair.commands(sent, how);
    let reply = pair.call(script, &command).unwrap();
    let run = pair.acquires(&[(sent, false)], how);
    let answers = brief_answers(&reply, &run, pair.asks(how.exact)).unwrap();
    (reply, answers[0].clone())
}

#[test]
fn the_usual_reply_is_one_number_or_two() {
    // The first call finds no value, which is not usual.
    let mut pair = taken(1);
    for left in (0..4).rev() {
        let exact = left % 2 == 0;
        let (sent, how) = (pair.unsent(1), how(&pair, exact));
        let (reply, answer) = replied(&mut pair, sent, how);
        // The first of all was 10 ms before the second, and the others followed 100 ms apart.
        let next = if exact { 990 - 100 * (3 - left) } else { 0 };
        let brief = if exact {
            Value::BulkString(format!("{left} {next}").into_bytes())
        } else {
            Value::Int(left)
        };
        assert_eq!(reply, brief);
        assert_eq!((answer.remaining, answer.reset), (left, 1000));
        assert_eq!(answer.next, next);
        assert_eq!((answer.rate, answer.interval), (5, 1000));
        assert_eq!(Some(answer.now.tick.cast_unsigned()), pair.asks(false).now);
        pair.advance(100);
    }
    let (sent, hasty) = (pair.unsent(1), how(&pair, false));
    let (reply, answer) = replied(&mut pair, sent, hasty);
    assert_eq!(reply, Value::Int(-590));
    assert_eq!((answer.verdict, answer.wait), (Verdict::Refused, 590));
    let exactly = how(&pair, true);
    let (reply, answer) = replied(&mut pair, sent, exactly);
    assert_eq!(reply, Value::BulkString(b"0 590 900".to_vec()));
    assert_eq!((answer.wait, answer.reset), (590, 900));
}

#[test]
fn a_wait_of_less_than_a_millisecond_is_no_grant() {
    let mut pair = taken(0);
    let (value, log) = (pair.value_key(), pair.log_key());
    let member = String::from_utf8(member(PermitId([b'a'; 16]), 5).to_vec()).unwrap();
    pair.command(&["ZADD", &log, &format!("{}.5", START - 1000), &member]);
    pair.command(&["SET", &value, "0"]);
    let (sent, hasty) = (pair.unsent(1), how(&pair, false));
    let (_, answer) = replied(&mut pair, sent, hasty);
    assert_eq!((answer.verdict, answer.wait), (Verdict::Refused, 0));
}

#[test]
fn a_brief_reply_to_a_caller_without_a_limit_is_an_error() {
    let pair = taken(0);
    let limit = pair.limit(5, 1000);
    for limit in [LimitSource::Store, LimitSource::StoreOrInit(limit)] {
        let sent = Sent {
            id: PermitId([0; 16]),
            permits: 1,
            lead: 0,
        };
        let how = How {
            limit,
            ..how(&pair, false)
        };
        let asked = pair.acquires(&[(sent, false)], how);
        for reply in [
            Value::Int(3),
            Value::Int(-3),
            Value::BulkString(b"0 1 2".to_vec()),
        ] {
            let error = brief_answers(&reply, &asked, pair.asks(false)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
        }
    }
}

/// How often a server's time was read, also by scripts.
fn times_read(pair: &mut Pair) -> u32 {
    let stats: String = pair.ask(&["INFO", "commandstats"]);
    let of_time = stats.split("cmdstat_time:calls=").nth(1).unwrap();
    of_time.split(',').next().unwrap().parse().unwrap()
}

// Before Redis 7.2 it moves on while a script runs: a grant would have another time than its reply.
#[test]
fn a_call_that_becomes_unusual_reads_the_time_once() {
    let server = RedisServer::start();
    let mut pair = Pair::new(RateType::Overall, Clock::Server).on(&server);
    let limit = pair.limit(5, 1000);
    assert!(pair.try_set_rate(limit));
    let how = how(&pair, true);
    pair.grants(1, how);
    // By a wrong clock, which the script sees after it has granted.
    let score = pair.now() + 10_000;
    pair.plant(Generation::Bytes21, score, 1);
    pair.set_value(3);
    let sent = pair.unsent(1);
    let [(script, command), _] = pair.commands(sent, how);
    let before = times_read(&mut pair);
    pair.call(script, &command).unwrap();
    assert_eq!(times_read(&mut pair) - before, 1);
    let log = pair.log_key();
    let ahead = pair.now() + 1000;
    assert_eq!(
        pair.ask::<i64>(&["ZCOUNT", &log, &ahead.to_string(), "+inf"]),
        0
    );
}
