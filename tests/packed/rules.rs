//! The rules of the format, each by what once broke it: played by the script and by the twin.

use std::{cell::RefCell, slice::from_ref};

use proptest::{collection::vec, prelude::*};

use crate::{
    plan::Step,
    play::{
        Play, again, ban, charge, gcra, granted, group, kinds, log, of, terms, wait, window,
        with_ban,
    },
    twin::{
        Limit, MOST,
        ban::Terms,
        call::{ASKS, Ahead, BANS, Charge, Row, Settled, WAITS},
        reply::{Outcome, Refusal, Standing},
    },
    world::name,
};

const HOUR: i64 = 3_600_000;
const WAS: Settled = settled(3, 0);

const fn settled(was: i64, mark: i64) -> Settled {
    let given = 0;
    Settled { was, mark, given }
}

/// Asks so often, with time between. Returns how many are granted.
fn flood(play: &mut Play, row: &Row, times: usize, between: i64) -> i64 {
    let asks = (0..times).map(|_| {
        play.pass(between);
        play.take(row, 1)
    });
    asks.sum()
}

/// A limiter of 1 in 100 s, full, with a ban by these terms, is asked four times, with time
/// between. Returns whether a ban is in force after each.
fn banned(play: &mut Play, terms: Terms, between: i64) -> [i64; 4] {
    let rows = [window(1, 100_000), Row::Ban(terms)];
    play.take(&rows[0], 1);
    [0; 4].map(|_| {
        play.pass(between);
        let outcome = play.one(&rows, of(1, 0, &[with_ban(1, 0, 0)]));
        i64::from(ban(&outcome)[0] > 0)
    })
}

#[test]
fn rule_1_2_what_is_foreign_stays_and_stops_its_request_alone() {
    let mut play = Play::new();
    let rows = [log(&[(5, 1000)]), log(&[(5, 1000)])];
    play.take(&rows[0], 1);
    let state = play.world.keys[&name(0)].bytes.clone().unwrap();
    let (mut later, mut odd) = (state.clone(), state.clone());
    later[state.len() - 2] += 16;
    odd[state.len() - 20] += 1;
    let damaged = [
        b"x\x11\xb7".to_vec(),
        state[1..].to_vec(),
        later,
        odd,
        Vec::new(),
    ];
    for bytes in damaged {
        play.world.store(&name(1), bytes.clone(), None);
        let charges = [
            &[charge(1, 1)][..],
            &[charge(1, 1), charge(2, 1)],
            &[charge(2, 1)],
        ];
        let outcomes = play.call(&rows, &charges.map(|charges| of(1, 0, charges)));
        assert_eq!(outcomes[1..], [Outcome::Foreign, Outcome::Foreign]);
        assert_eq!(granted(&outcomes[0]), 1);
        assert_eq!(play.world.keys[&name(1)].bytes, Some(bytes));
        play.pass(1000);
    }
}

#[test]
fn rule_1_3_versions_with_other_intervals_keep_the_bytes_and_their_limits() {
    let mut play = Play::new();
    let [slow, fast] = [log(&[(10, 10_000)]), log(&[(10, 1000)])];
    for _ in 0..40 {
        flood(&mut play, &fast, 1, 25);
        flood(&mut play, &slow, 1, 25);
    }
    assert!(play.since(0) <= 21, "each grant counts for both");
    assert_eq!(play.take(&slow, 1), 0);
    play.world.clear();
    assert_eq!(flood(&mut play, &log(&[(100, 60_000)]), 100, 1), 100);
    assert_eq!(flood(&mut play, &log(&[(3, 1000)]), 200, 1), 0);
    assert_eq!(flood(&mut play, &log(&[(3, 1000)]), 1500, 1), 3);
}

#[test]
fn rule_1_4_another_algorithm_goes_on_with_what_is_in_use() {
    let mut play = Play::new();
    for before in kinds(5, 1000) {
        for after in kinds(7, 1000).iter().filter(|after| **after != before) {
            play.world.clear();
            assert_eq!(play.take(&before, 9), 5);
            assert_eq!(play.take(after, 9), 2, "{before:?}, {after:?}");
            play.pass(1001);
            assert_eq!(play.take(after, 9), 7);
        }
    }
}

#[test]
fn rule_1_5_callers_clocks_an_hour_off_lose_no_key() {
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
    // A strike by the one leaves the ban by the other its time.
    let (lasts, off) = (600_000, HOUR);
    let terms = Terms::of([6, 60_000, lasts, lasts]);
    play.world.clear();
    play.now = play.ms() + off;
    assert_eq!(banned(&mut play, terms, 1), [0; 4]);
    play.now = play.ms();
    assert_eq!(banned(&mut play, terms, 1), [0, 1, 1, 1]);
    play.pass(lasts - 500);
    play.now = play.ms();
    assert_eq!(banned(&mut play, terms, 1), [1; 4]);
}

#[test]
fn rule_1_6_a_clock_set_back_is_written_once_and_refuses_for_an_interval() {
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
    // A debt is at most as much above a whole limit, and no clock's.
    play.world.clear();
    let row = gcra(5, 1000);
    play.take(&row, 5);
    assert_eq!(play.settle(&row, play.last(), 9, settled(0, 0)), -9);
    play.pass(1199);
    assert_eq!(play.take(&row, 1), 0);
    play.pass(1);
    assert_eq!(play.take(&row, 1), 1);
    // A ban lasts no longer than itself.
    play.world.clear();
    assert_eq!(banned(&mut play, terms(2), 1), [0, 1, 1, 1]);
    play.pass(-HOUR);
    assert_eq!(banned(&mut play, terms(2), 1)[0], 1);
    play.pass(2000);
    assert_eq!(banned(&mut play, terms(2), 1)[0], 0);
}

#[test]
fn rule_1_7_great_numbers_are_exact() {
    let mut play = Play::new();
    let row = log(&[(1 << 40, 1000)]);
    play.ask(&row, 2, 3_000_000_000);
    let (left, next) = ((1 << 40) - 6_000_000_001, 1000);
    assert_eq!(
        play.ask(&row, 1, 1).1.room,
        Some(Standing::Left { left, next })
    );
    for rate in [1 << 50, MOST] {
        play.world.clear();
        assert_eq!(play.take(&log(&[(rate, HOUR)]), 1), 1);
    }
}

#[test]
fn rule_1_8_the_newest_grants_are_single_and_the_others_a_thousandth_late() {
    let mut play = Play::new();
    let (interval, rate) = (60_000, 3000);
    let row = log(&[(rate, interval)]);
    for number in [1200, 1999, 2000, 2999] {
        play.world.clear();
        let step = Step::Preload(0, number, Limit { interval, rate }, false);
        play.world.play(&step).unwrap();
        assert_eq!(play.take(&row, 1), 1);
        let records = play.log().records;
        assert!(records.len() <= if number < 2000 { 2000 } else { 1501 });
        let newest = records.iter().rev().take(500);
        assert!(newest.clone().all(|record| record.callers.number == 1));
        let id = records.last().unwrap().callers.id;
        assert_eq!(play.settle(&row, id, 0, WAS), 1);
        assert_eq!(play.take(&row, 1), 1);
        let wait = wait(play.ask(&row, 1, rate).1).unwrap();
        assert!((interval..=interval + 60).contains(&wait), "{wait}");
        play.pass(wait);
        assert_eq!(play.ask(&row, 1, rate).0, 1);
    }
}

#[test]
fn rule_1_9_what_has_expired_is_bounded() {
    let mut play = Play::new();
    let (interval, rate) = (1000, 4000);
    let step = Step::Preload(0, 1999, Limit { interval, rate }, false);
    play.world.play(&step).unwrap();
    assert_eq!(flood(&mut play, &log(&[(rate, interval)]), 400, 3), 400);
    assert!(play.log().records.len() < 2000);
}

#[test]
fn rule_1_10_a_limit_that_comes_or_goes_keeps_what_is_in_use() {
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

#[test]
fn rule_1_11_only_what_is_fetched_ahead_returns_late() {
    let mut play = Play::new();
    let (row, mut lease) = (log(&[(3, 1000)]), charge(1, 1));
    let (permits, lead) = (1, 600);
    lease.ahead = Some(Ahead { permits, lead });
    let outcome = play.one(from_ref(&row), of(1, 0, &[lease]));
    assert_eq!(group(&outcome, 0).ahead, Some(true));
    // At 100 ms another; the first is back at 1000, the other at 1100, what was fetched at 1600.
    for (pass, granted) in [(100, 1), (900, 1), (100, 1), (499, 0), (1, 1)] {
        play.pass(pass);
        assert_eq!(play.take(&row, 2), granted, "after {pass}");
    }
}

#[test]
fn rule_2_1_each_caller_of_a_call_has_an_id() {
    let mut play = Play::new();
    let row = [log(&[(9, 1000)])];
    play.call(
        &row,
        &[of(2, 0, &[charge(1, 1)]), of(3, 0, &[charge(1, 1)])],
    );
    let (ids, next) = (
        [0, 1, 2, 3, 4, 5].map(|place| play.caller(&row[0], place)),
        1000,
    );
    for (id, left) in ids.into_iter().zip([4, 4, 4, 4, 4, 3]) {
        let outcome = play.one(&row, again(id, 0, charge(1, 1)));
        assert_eq!(group(&outcome, 0).room, Some(Standing::Left { left, next }));
    }
}

#[test]
fn rule_2_2_who_comes_again_learns_what_it_got() {
    let mut play = Play::new();
    for row in kinds(5, 1000) {
        play.world.clear();
        assert_eq!(play.take(&row, 9), 5);
        let resent = (0..9).map(|place| again(play.caller(&row, place), 0, charge(1, 1)));
        let resent: Vec<_> = resent.collect();
        let outcomes = play.call(&[row], &resent);
        let each: Vec<_> = outcomes.iter().map(granted).collect();
        assert_eq!(each, [1, 1, 1, 1, 1, 0, 0, 0, 0]);
    }
}

#[test]
fn rule_2_3_settling_sets_the_permits_of_a_caller() {
    let mut play = Play::new();
    let row = log(&[(9, 1000)]);
    play.ask(&row, 3, 3);
    let (id, other) = (play.caller(&row, 1), play.caller(&row, 6));
    let freed = [1, 1, 3, 3, 0, 0].map(|permits| play.settle(&row, id, permits, WAS));
    assert_eq!(freed, [2, 0, -2, 0, 3, 0]);
    assert_eq!(play.take(&row, 9), 3);
    // One that is gone: what it has is what it had.
    let freed = [0, 5, 5, 4, 0].map(|permits| play.settle(&row, other, permits, WAS));
    assert_eq!(freed, [0, -2, 0, 1, 1]);
    play.world.clear();
    assert_eq!(
        [5, 5, 3].map(|permits| play.settle(&row, id, permits, WAS)),
        [-2, 0, 2]
    );
    play.pass(1000);
    assert_eq!(play.take(&row, 9), 9);
}

// Its last bytes show most grants; the others are looked for in what is before them.
#[test]
fn rule_2_3_a_settlement_reads_a_log_at_most_once_behind_its_last_bytes() {
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
        let ids: Vec<_> = (0..50).map(|place| play.caller(&row, place)).collect();
        for (place, permits) in settlements {
            let before = play.world.reads();
            play.settle(&row, ids[place], permits, WAS);
            prop_assert!(play.world.reads() - before <= 2);
        }
    });
}

#[test]
fn rule_2_3_a_window_or_a_backlog_gives_back_what_lies_ahead() {
    let mut play = Play::new();
    let (row, mark) = (gcra(5, 1000), play.world.us + 800_000);
    play.ask(&row, 1, 4);
    play.pass(500);
    assert_eq!(
        play.settle(&row, play.last(), 0, settled(4, mark)),
        2,
        "of 300 ms"
    );
    assert_eq!(play.take(&row, 9), 5);
    play.world.clear();
    let (row, mark) = (window(5, 1000), play.ms() + 1000);
    play.ask(&row, 1, 4);
    assert_eq!(play.settle(&row, play.last(), 0, settled(4, mark)), 4);
    assert_eq!(play.settle(&row, play.last(), 0, settled(4, mark - 1)), 0);
    assert_eq!(play.take(&row, 9), 5);
}

#[test]
fn rule_3_1_a_state_is_read_and_written_once_for_all_requests() {
    let mut play = Play::new();
    for row in kinds(5, 1000) {
        play.world.clear();
        let requests = [(2, 1), (1, 9), (9, 1)];
        let requests = requests.map(|(callers, permits)| of(callers, 0, &[charge(1, permits)]));
        let outcomes = play.call(&[row], &requests);
        assert_eq!(outcomes.iter().map(granted).collect::<Vec<_>>(), [2, 0, 3]);
    }
}

#[test]
fn rule_3_1_the_last_of_the_requests_says_how_long_a_log_lives() {
    let mut play = Play::new();
    let (row, mut lease) = (log(&[(9, 1000)]), charge(1, 1));
    let (permits, lead) = (1, 600);
    lease.ahead = Some(Ahead { permits, lead });
    play.call(
        from_ref(&row),
        &[of(1, 0, &[charge(1, 1)]), of(1, 0, &[lease])],
    );
    let ends = play.ms() + 2600;
    assert_eq!(play.log().ends, ends);
}

#[test]
fn rule_3_asking_takes_nothing_and_strikes_nothing() {
    let mut play = Play::new();
    for row in kinds(2, 1000) {
        play.world.clear();
        let (rows, asking) = ([row, Row::Ban(terms(1))], of(1, ASKS, &[with_ban(2, 0, 0)]));
        assert_eq!(granted(&play.one(&rows, asking.clone())), 1);
        assert!(play.world.keys.is_empty());
        play.take(&rows[0], 1);
        let keys = play.world.keys.clone();
        let outcome = play.one(&rows, asking);
        assert!(wait(group(&outcome, 0)).is_some() && ban(&outcome) == [0; 3]);
        assert_eq!(keys, play.world.keys);
    }
}

#[test]
fn rule_4_the_last_of_so_many_refusals_bans_and_each_ban_doubles() {
    let mut play = Play::new();
    let rows = [window(1, 100_000), Row::Ban(terms(3))];
    play.take(&rows[0], 1);
    for lasts in [1000, 2000, 3000, 3000, 1000] {
        for left in [0, 0, lasts] {
            let outcome = play.one(&rows, of(1, 0, &[with_ban(1, 0, 0)]));
            assert_eq!(ban(&outcome)[0], left);
            assert!(wait(group(&outcome, 0)).is_some());
        }
        let outcome = play.one(&rows, of(1, 0, &[with_ban(1, 0, 0)]));
        assert_eq!(group(&outcome, 0).refusal, Some(Refusal::Banned));
        play.pass(lasts);
        // Before the last, its level is forgotten, after as long again.
        play.pass(if play.ms() % 10_000 == 9000 { 3000 } else { 0 });
    }
}

#[test]
fn rule_4_only_its_own_lack_of_room_strikes_where_waiting_helps() {
    let mut play = Play::new();
    let rows = [window(1, 1000), Row::Ban(terms(9)), window(1, 1000)];
    let lone = with_ban(1, 0, 0);
    play.one(&rows, of(1, 0, &[charge(3, 1)]));
    // The other limit is full; more than the rate; it waits.
    for request in [
        of(1, 0, &[lone, charge(3, 1)]),
        of(1, 0, &[with_ban(2, 0, 0)]),
        of(1, WAITS, &[lone, charge(3, 1)]),
    ] {
        assert_eq!(ban(&play.one(&rows, request))[2], 0);
    }
    play.take(&rows[0], 1);
    assert_eq!(ban(&play.one(&rows, of(3, 0, &[lone])))[2], 3);
    // While it is banned, here by what is carried, nothing of the request is charged.
    let keys = play.world.keys.clone();
    let outcome = play.one(&rows, of(1, 0, &[with_ban(1, 6, 10), charge(3, 1)]));
    assert_eq!(group(&outcome, 1).refusal, Some(Refusal::Banned));
    assert_eq!(keys.get(&name(2)), play.world.keys.get(&name(2)));
}

#[test]
fn rule_4_a_refusal_sent_again_strikes_once_and_is_forgiven() {
    let mut play = Play::new();
    let (rows, lone) = ([window(1, 1000), Row::Ban(terms(3))], with_ban(1, 0, 0));
    play.take(&rows[0], 1);
    play.one(&rows, of(1, 0, &[lone]));
    let id = play.last();
    for _ in 0..4 {
        assert_eq!(ban(&play.one(&rows, again(id, 0, lone)))[2], 1);
    }
    play.pass(1000);
    let outcome = play.one(&rows, again(id, 0, lone));
    assert!(granted(&outcome) == 1 && ban(&outcome)[2] == 0);
}

#[test]
fn rule_4_a_ban_by_hand_lasts_as_long_as_it_says() {
    let mut play = Play::new();
    let rows = [log(&[(5, 1000)]), Row::Ban(terms(1))];
    for _ in 0..2 {
        let outcome = play.one(&rows, of(1, BANS, &[with_ban(1, 0, 70_000)]));
        assert!(granted(&outcome) == 1 && ban(&outcome) == [70_000, 70_000, 0]);
    }
    for (pass, left) in [(69_999, 1), (1, 0)] {
        play.pass(pass);
        let outcome = play.one(&rows, of(1, 0, &[with_ban(1, 0, 0)]));
        assert_eq!((granted(&outcome), ban(&outcome)[0]), (1 - left, left));
    }
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
            let asked = play.one(from_ref(&row), of(1, ASKS, &[charge(1, 1)]));
            let room = group(&asked, 0).room;
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
        assert_eq!(play.settle(&row, id, 0, WAS), 1);
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
        assert_eq!(play.settle(&row, id, 0, WAS), 1);
        play.pass(2);
    }
    for id in held {
        assert_eq!(play.settle(&row, id, 0, WAS), 1);
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
        let requests = [1, 2].map(|row| of(1, 0, &[Charge::of(1, row, 1)]));
        let outcomes = play.call(&rows, &requests);
        assert!(outcomes.iter().all(|outcome| granted(outcome) == 1));
    }
}

/// By the clock of a caller that has just begun, or by a limit for a century.
#[test]
fn an_interval_may_begin_before_1970() {
    let mut play = Play::new();
    let century = log(&[(2, 36_525 * 24 * HOUR)]);
    assert_eq!(
        [1, 1, 1].map(|callers| play.take(&century, callers)),
        [1, 1, 0]
    );
}

/// What a settlement owes stands in a record of its own, wherever the grant stands that it is for.
#[test]
fn a_debt_before_its_grant_is_found_again() {
    for between in [3, 12] {
        let mut play = Play::new();
        let row = log(&[(1000, HOUR)]);
        play.take(&row, 1);
        let (id, was) = (play.caller(&row, 7), settled(5, 0));
        assert_eq!(play.settle(&row, id, 9, was), -4);
        for _ in 0..between {
            play.take(&row, 1);
        }
        let again = again(id, 0, charge(1, 5));
        assert_eq!(granted(&play.one(from_ref(&row), again)), 1);
        assert_eq!(play.settle(&row, id, 9, was), 0, "{between}");
    }
}

/// A ladder of a short and a long limit keeps the short one's pace, however many grants live.
#[test]
fn a_ladder_keeps_the_pace_of_its_short_limit() {
    let (mut play, row) = (Play::new(), log(&[(100_000, 86_400_000), (10, 1000)]));
    for second in 0..310 {
        let granted = flood(&mut play, &row, 10, 100);
        assert!(granted >= 9, "{granted} of 10 in second {second}");
    }
}
