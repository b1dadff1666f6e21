//! What histories of the script and its twin do not reach: logs of many grants, two versions in one
//! command, and numbers at the edge. Each by what once broke it.

use std::cell::RefCell;

use proptest::{collection::vec, prelude::*};

use crate::{
    play::{Play, again, granted, group, kinds, log, of},
    twin::{
        Limit, MOST,
        call::{ASKS, Call, Charge, Request, Row},
        reply::Standing,
    },
    world::script,
};
use kit::RedisServer;

const HOUR: i64 = 3_600_000;

// Its last bytes show most grants; the others are looked for in what is before them.
#[test]
fn a_settlement_reads_a_log_at_most_once_behind_its_last_bytes() {
    let play = RefCell::new(Play::new());
    let settlements = vec((0..50_usize, 0..7_i64), 1..6);
    let config = ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(20)
    };
    proptest!(config, |(callers in 1..40_u8, settlements in settlements)| {
        let (mut play, row) = (play.borrow_mut(), log(&[(500, 1000)]));
        play.world.clear();
        play.ask(&row, callers, 3);
        let ids: Vec<_> = (0..50).map(|place| play.caller(place)).collect();
        for (place, permits) in settlements {
            let before = play.world.reads();
            play.settle(&row, ids[place], permits, 3);
            prop_assert!(play.world.reads() - before <= 2);
        }
    });
}

/// Also where nothing is used, and so all of the rate is left.
#[test]
fn every_number_of_a_reply_is_below_2_to_the_53() {
    let mut play = Play::new();
    let unit = 1001;
    for rate in [MOST / unit - 1, MOST / unit, MOST / unit + 1] {
        for row in [
            log(&[(rate, 1000)]),
            Row::Window(Limit {
                rate,
                interval: 1000,
            }),
        ] {
            let asked = play.one(&row, of(1, ASKS, Charge::of(1, 1, 1)));
            let room = group(&asked).room;
            assert!(
                matches!(room, Some(Standing::Left { left, .. }) if left == rate),
                "{room:?}"
            );
        }
    }
}

#[test]
fn permits_that_were_given_back_fill_no_log() {
    let mut play = Play::new();
    let row = log(&[(5, 86_400_000)]);
    for _ in 0..4100 {
        assert_eq!(play.take(&row, 1), 1);
        let id = play.last();
        assert_eq!(play.settle(&row, id, 0, 1), 1);
        play.pass(2000);
    }
    assert!(play.log().records.len() < 200);
    // Nor is one the next that is free.
    assert_eq!(play.take(&row, 1), 1);
    let next = 86_400_000;
    let room = play.ask(&row, 1, 6).1;
    assert_eq!(room.room, None);
    let (_, group) = play.ask(&row, 1, 1);
    assert_eq!(group.room, Some(Standing::Left { left: 3, next }));
}

/// As many as a limit of what is in flight has places.
#[test]
fn places_that_are_held_stay_single_beside_those_that_come_and_go() {
    let mut play = Play::new();
    let row = log(&[(1000, 60_000)]);
    let take = |play: &mut Play| {
        assert_eq!(play.take(&row, 1), 1);
        play.last()
    };
    let held: Vec<_> = (0..999).map(|_| take(&mut play)).collect();
    for _ in 0..4500 {
        let id = take(&mut play);
        assert_eq!(play.settle(&row, id, 0, 1), 1);
        play.pass(2);
    }
    for id in held {
        assert_eq!(play.settle(&row, id, 0, 1), 1);
    }
}

/// Two versions of a service, whose requests share a command, may have another interval, or more
/// limits. The second finds a log that the first has changed.
#[test]
fn two_versions_of_a_limit_share_a_command() {
    for second in [log(&[(100, 1000)]), log(&[(1000, 60_000), (100, 1000)])] {
        let mut play = Play::new();
        let rows = [log(&[(1000, 60_000)]), second];
        for (records, then) in [(45, 29_700), (5, 300)] {
            for _ in 0..records {
                assert_eq!(play.take(&rows[0], 1), 1);
            }
            play.pass(then);
        }
        let requests = [1, 2].map(|row| of(1, 0, Charge::of(1, row, 1)));
        let outcomes = play.call(&rows, &requests);
        assert!(outcomes.iter().all(|outcome| granted(outcome) == 1));
    }
}

#[test]
fn callers_clocks_an_hour_off_lose_no_key() {
    let mut play = Play::new();
    for off in [-HOUR, -3000, HOUR] {
        for row in kinds(5, 1000) {
            play.world.clear();
            let grants = (0..100).map(|_| {
                play.pass(7);
                play.now = play.ms() + off;
                play.take(&row, 1)
            });
            let most = if matches!(row, Row::Gcra(_)) { 8 } else { 5 };
            assert_eq!(grants.sum::<i64>(), most, "{row:?}");
        }
    }
}

#[test]
fn a_clock_set_back_is_written_once_and_refuses_for_an_interval() {
    let mut play = Play::new();
    for row in kinds(5, 1000) {
        play.world.clear();
        assert_eq!(play.take(&row, 9), 5);
        play.pass(-HOUR);
        assert_eq!(play.take(&row, 1), 0);
        let keys = play.world.keys.clone();
        assert_eq!(play.take(&row, 1), 0);
        assert_eq!(keys, play.world.keys);
        play.pass(1001);
        assert_eq!(play.take(&row, 1), 1);
    }
}

/// Time stands still while a script runs on Redis. Where it goes on, a key may end behind its last
/// read: what the write leaves of it is whole, and ends.
#[test]
fn a_state_that_ends_within_a_call_is_written_whole() {
    let server = RedisServer::start();
    let take = |ends: &str| {
        let script = script("gcra_lone.lua");
        let script = script.replace("redis.call", ends);
        let numbers = [0.0, 1e7, 9e7, 1e5, 10.0].map(f64::to_le_bytes);
        let argument = [&b"a caller"[..], &[0, 1], numbers.as_flattened()].concat();
        let words: [&[u8]; 5] = [b"EVAL", script.as_bytes(), b"1", b"{a}~", &argument];
        // Three doubles say that it is granted.
        assert_eq!(server.command(&words).into_bytes().len(), 24);
    };
    take("redis.call");
    take(
        "function(...)
            if ... == 'SETRANGE' then redis.call('DEL', KEYS[1]) end
            return redis.call(...)
        end",
    );
    assert_eq!(server.command(&["STRLEN", "{a}~"]), kit::Reply::Int(76));
    assert!(matches!(
        server.command(&["PTTL", "{a}~"]),
        kit::Reply::Int(1..)
    ));
}

/// Whatever becomes of several callers behind it, and whatever their ids are.
#[test]
fn what_a_list_takes_is_written_beside_callers_for_whom_there_is_too_little() {
    for id in 0..4 {
        let mut play = Play::new();
        let list = [1, 2].map(|key| Charge::of(key, 1, 1));
        let call = Call {
            command: [id, 0, 0, 0, 0, 0, 0, 9],
            rows: vec![log(&[(5, HOUR)])],
            requests: vec![
                Request::of(1, 0, list.to_vec()),
                of(3, 0, Charge::of(3, 1, 2)),
            ],
            ..Call::default()
        };
        if let Err(difference) = play.world.call(&call, &[0, 1, 2]) {
            panic!("{difference}");
        }
    }
}

/// A debt is at most as much above a whole limit, and no clock's.
#[test]
fn a_debt_lies_ahead_as_no_clock_that_was_set_back() {
    let mut play = Play::new();
    let [_, row, _] = kinds(5, 1000);
    play.take(&row, 5);
    assert_eq!(play.settle(&row, play.last(), 9, 0), -9);
    play.pass(1199);
    assert_eq!(play.take(&row, 1), 0);
    play.pass(1);
    assert_eq!(play.take(&row, 1), 1);
}

#[test]
fn a_limit_that_comes_or_goes_keeps_what_is_in_use() {
    let mut play = Play::new();
    let (one, two) = (log(&[(20, 10_000)]), log(&[(20, 10_000), (3, 1000)]));
    assert_eq!(play.take(&one, 2), 2);
    assert_eq!(play.take(&two, 9), 1);
    assert_eq!(play.take(&one, 20), 17);
    play.pass(1000);
    assert_eq!(play.take(&two, 1), 0);
    play.pass(9000);
    assert_eq!(play.take(&two, 9), 3);
    assert_eq!(play.take(&log(&[(3, 1000)]), 1), 0);
}

/// What a settlement owes stands in a record of its own, wherever the grant stands that it is for.
#[test]
fn a_debt_before_its_grant_is_found_again() {
    for between in [3, 12] {
        let mut play = Play::new();
        let row = log(&[(1000, HOUR)]);
        play.take(&row, 1);
        let id = play.caller(7);
        assert_eq!(play.settle(&row, id, 9, 5), -4);
        for _ in 0..between {
            play.take(&row, 1);
        }
        let again = again(id, Charge::of(1, 1, 5));
        assert_eq!(granted(&play.one(&row, again)), 1);
        assert_eq!(play.settle(&row, id, 9, 5), 0, "{between}");
    }
}

/// A ladder of a short and a long limit keeps the short one's pace, however many grants live.
#[test]
fn a_ladder_keeps_the_pace_of_its_short_limit() {
    let (mut play, row) = (Play::new(), log(&[(100_000, 86_400_000), (10, 1000)]));
    for second in 0..310 {
        let asks = (0..10).map(|_| {
            play.pass(100);
            play.take(&row, 1)
        });
        let granted: i64 = asks.sum();
        assert!(granted >= 9, "{granted} of 10 in second {second}");
    }
}
