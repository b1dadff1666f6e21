//! Laws of the twin alone: what a limiter promises, whatever the calls.

use proptest::{collection::vec, prelude::*};

use crate::{
    play::{
        Play, again, ban, charge, decided, gcra, granted, kinds, log, of, wait, window, with_ban,
    },
    twin::{
        Id, Limit, MOST,
        ban::Terms,
        call::{Row, Settled},
        reply::{Group, Refusal, Standing},
        window::Dates,
    },
    world::World,
};
use kit::{random::Random, windows};

fn alone() -> Play {
    Play::new(World::alone())
}

/// There is room when a wait is over, and, if it is exact, none a millisecond before. A refusal
/// changes nothing.
fn check_wait(play: &Play, row: &Row, permits: i64, group: Group, is_exact: bool) {
    let Some(wait) = wait(group) else {
        return;
    };
    let mut same = play.later(0);
    assert_eq!(same.ask(row, 1, permits).0, 0);
    assert_eq!(same.world.keys, play.world.keys);
    let granted = play.later(wait).ask(row, 1, permits).0;
    assert_eq!(granted, 1, "{row:?}: no room after {wait} ms");
    let early = play.later(wait - 1).ask(row, 1, permits).0;
    assert!(!is_exact || early == 0, "{row:?}: room before {wait} ms");
}

fn limits(number: usize) -> impl Strategy<Value = Vec<Limit>> {
    vec((1..10_i64, 1..3000_i64), number).prop_map(|limits| {
        let limits = limits
            .into_iter()
            .map(|(rate, interval)| Limit { interval, rate });
        let mut limits: Vec<_> = limits.collect();
        limits.sort_by_key(|limit| -limit.interval);
        limits.dedup_by_key(|limit| limit.interval);
        limits
    })
}

/// What passes before a call, in thousandths of an interval; a number, how many callers come, and
/// how many permits each asks for.
fn steps(number: usize) -> impl Strategy<Value = Vec<(i64, usize, u8, i64)>> {
    let passes = prop_oneof![Just(0), 0..50_i64, 0..1000_i64, Just(1000), 0..2000_i64];
    vec((passes, 0..4_usize, 1..5_u8, 1..5_i64), number)
}

fn cases(cases: u32) -> ProptestConfig {
    let mut config = ProptestConfig::with_cases(cases);
    config.failure_persistence = None;
    config
}

#[test]
fn a_log_is_never_over_a_limit_and_its_waits_are_exact() {
    proptest!(cases(150), |(limits in (1..4_usize).prop_flat_map(limits), steps in steps(80))| {
        let (mut play, row) = (alone(), Row::Log(limits.clone()));
        for (pass, _, callers, permits) in steps {
            play.world.us += pass * limits[0].interval;
            let (_, group) = play.ask(&row, callers, permits);
            for Limit { interval, rate } in &limits {
                let sum = play.since(play.ms() - interval);
                prop_assert!(sum <= *rate, "{sum} of {rate} in {interval} ms");
                if let Some(Standing::Left { left, .. }) = group.room {
                    prop_assert!(left <= rate - sum);
                }
            }
            check_wait(&play, &row, permits, group, true);
        }
        let rate = limits.iter().map(|limit| limit.rate).min().unwrap();
        let granted = play.later(limits[0].interval).ask(&row, 1, rate).0;
        prop_assert_eq!(granted, 1, "all is free an interval after the last grant");
    });
}

/// Versions of a service with different limits on one key: each counts what all of them take, from
/// its first grant on, or from its first after it took nothing for an interval.
#[test]
fn versions_side_by_side_keep_their_own_limits() {
    proptest!(cases(150), |(limits in limits(4), steps in steps(120))| {
        let (mut play, mut since) = (alone(), vec![None::<(i64, i64)>; limits.len()]);
        for (pass, version, _, permits) in steps {
            let version = version % limits.len();
            let Limit { interval, rate } = limits[version];
            play.world.us += pass * limits[(version + 1) % limits.len()].interval;
            let row = Row::Log(vec![limits[version]]);
            let (granted, group) = play.ask(&row, 1, permits);
            let now = play.ms();
            let known = since[version].filter(|(_, last)| *last > now - interval);
            if granted == 1 {
                let first = known.map_or(now, |(first, _)| first);
                since[version] = Some((first, now));
                let sum = play.since((now - interval).max(first));
                prop_assert!(sum <= rate, "{sum} of {rate} in {interval} ms");
            }
            // What others took is forgotten by their intervals, while this one has no grant.
            check_wait(&play, &row, permits, group, known.is_some());
        }
    });
}

#[test]
fn other_algorithms_keep_their_limits_and_their_waits_are_exact() {
    proptest!(cases(150), |(limits in limits(1), is_window: bool, steps in steps(100))| {
        let Limit { interval, rate } = limits[0];
        let row = if is_window { window(rate, interval) } else { gcra(rate, interval) };
        let mut play = alone();
        for (pass, _, callers, permits) in steps {
            play.world.us += pass * interval;
            let (_, group) = play.ask(&row, callers, permits);
            check_wait(&play, &row, permits, group, true);
        }
        // Twice the limit at most, over the end of a window or from a full bucket.
        let most = windows(play.grants.iter().copied(), interval).into_iter().max();
        prop_assert!(most <= Some(2 * rate), "{most:?} of {rate}");
        // GCRA rounds each permit up to a microsecond.
        let granted = play.later(interval + 1).ask(&row, 1, rate).0;
        prop_assert_eq!(granted, 1, "{:?}", row);
    });
}

#[test]
fn a_label_of_the_calendar_has_no_more_than_the_limit() {
    proptest!(cases(60), |(steps in steps(100))| {
        let mut play = alone();
        for (pass, _, _, permits) in steps {
            play.world.us += pass * 1000;
            let label = play.world.us / 1_000_000;
            let dates = [label, label + 1].map(|label| Dates {
                label,
                start: 1000 * label,
                end: 1000 * label + 1000,
            });
            let used = play.since(1000 * label - 1);
            let (granted, group) = play.ask(&Row::Calendar { rate: 5, dates }, 1, permits);
            prop_assert_eq!(granted == 1, used + permits <= 5);
            let until = wait(group).map(|wait| play.ms() + wait);
            prop_assert_eq!(until, (granted == 0).then_some(1000 * label + 1000));
        }
    });
}

#[test]
fn merged_grants_come_back_late_by_a_thousandth_and_never_early() {
    let (rate, interval) = (2500, 10_000);
    let row = log(&[(rate, interval)]);
    let (mut play, mut random) = (alone(), Random(7));
    for _ in 0..3000 {
        play.pass(random.within(0, 4));
        let (_, group) = play.ask(&row, 1, 1);
        assert!(play.since(play.ms() - interval) <= rate);
        if let Some(wait) = wait(group) {
            let late = play.since(play.ms() - interval - interval / 1000);
            assert!(late >= rate, "refused too long");
            play.pass(wait);
            assert_eq!(play.take(&row, 1), 1);
            assert!(play.log().length() < 60_000);
        }
    }
    let log = play.log();
    assert!(log.records.iter().any(|record| record.callers.number == 0));
}

#[test]
fn a_settlement_frees_or_charges_what_it_says_and_sent_twice_changes_nothing() {
    proptest!(cases(200), |(limits in limits(3), steps in steps(60))| {
        let (mut play, mut ids) = (alone(), Vec::new());
        let row = Row::Log(limits.clone());
        for (pass, which, callers, permits) in steps {
            play.world.us += pass * limits[0].interval / 4;
            if pass % 2 == 0 || ids.is_empty() {
                let granted = play.ask(&row, callers, permits).0;
                ids.extend((0..granted).map(|place| (play.caller(&row, place), permits)));
                continue;
            }
            let place = (pass as usize + which) % ids.len();
            let (id, was) = ids.swap_remove(place);
            let left = permits - 1;
            let share = play.log().share_at(id, left);
            let settled = Settled { was, mark: 0, given: 0 };
            let freed = if share.is_some() { was - left } else { (was - left).min(0) };
            prop_assert_eq!(play.settle(&row, id, left, settled), freed);
            let keys = play.world.keys.clone();
            prop_assert_eq!(play.settle(&row, id, left, settled), 0);
            prop_assert_eq!(&keys, &play.world.keys);
        }
    });
}

#[test]
fn a_call_sent_again_takes_nothing_and_is_granted_as_before() {
    proptest!(cases(100), |(limits in limits(1), steps in steps(30), kind in 0..3_usize)| {
        let Limit { interval, rate } = limits[0];
        let (mut play, row) = (alone(), &kinds(rate, interval)[kind..=kind]);
        for (pass, _, callers, permits) in steps {
            play.world.us += pass * interval;
            let granted_now = play.ask(&row[0], callers, permits).0;
            let keys = play.world.keys.clone();
            let ids: Vec<_> = (0..granted_now).map(|place| play.caller(&row[0], place)).collect();
            for id in ids {
                let request = again(id, 0, charge(1, permits));
                prop_assert_eq!(granted(&play.one(row, request)), 1);
                prop_assert_eq!(&play.world.keys, &keys);
            }
        }
    });
}

/// The last of so many refusals within a time bans, and no other.
#[test]
fn refusals_ban_as_their_terms_say() {
    proptest!(cases(100), |(after in 2..6_i64, steps in steps(60))| {
        let rows = [window(1, 1), Row::Ban(Terms::of([after, 1000, 100, 1600]))];
        let (mut play, mut strikes) = (alone(), Vec::new());
        for (pass, ..) in steps {
            play.pass(pass + 1);
            let outcome = play.one(&rows, of(2, 0, &[with_ban(1, 0, 0)]));
            strikes.retain(|at| *at > play.ms() - 1000);
            if decided(&outcome).1[0].refusal != Some(Refusal::Banned) {
                strikes.push(play.ms());
                let is_banned = strikes.len() as i64 == after;
                prop_assert_eq!(ban(&outcome)[0] > 0, is_banned);
                if is_banned {
                    strikes.clear();
                }
            }
            prop_assert_eq!(ban(&outcome)[2], strikes.len() as i64);
        }
    });
}

#[test]
fn no_bytes_make_it_panic() {
    let bytes = prop_oneof![Just(0), Just(1), Just(255), any::<u8>()];
    proptest!(cases(3000), |(
        kinds_of in (0..3_usize, 0..3_usize),
        changes in vec((0..100_usize, bytes), 1..8),
        settled in prop::option::of((0..MOST, 0..MOST)),
        permits in prop_oneof![1..7_i64, Just(i64::from(u32::MAX))],
        now in prop_oneof![Just(0), Just(1), Just((1 << 48) - 1)],
    )| {
        let rows = |kind: usize| {
            [kinds(5, 1000)[kind].clone(), Row::Ban(Terms::of([1, 100, 9, 99]))]
        };
        let mut play = alone();
        for permits in [6, 2] {
            play.one(&rows(kinds_of.0), of(1, 0, &[with_ban(permits, 0, 9)]));
        }
        for (at, byte) in changes {
            for (name, stored) in play.world.keys.clone() {
                let mut bytes = stored.bytes.unwrap();
                let last = bytes.len() - 1;
                bytes[last - at.min(last)] = byte;
                play.world.damage(&name, bytes);
            }
        }
        play.now = now;
        play.world.us += 700_000;
        let mut charge = with_ban(permits, 1, 9);
        charge.settled = settled.map(|(mark, given)| Settled { was: 2, mark, given });
        play.one(&rows(kinds_of.1), again(Id::default(), 0, charge));
    });
}

/// A ladder of a short and a long limit keeps the short one's pace, however many grants live.
#[test]
fn a_ladder_keeps_the_pace_of_its_short_limit() {
    let row = log(&[(100_000, 86_400_000), (10, 1000)]);
    let mut play = alone();
    for second in 0..310 {
        let tries = (0..10).map(|_| {
            play.pass(100);
            play.take(&row, 1)
        });
        let granted: i64 = tries.sum();
        assert!(granted >= 9, "{granted} of 10 in second {second}");
    }
}
