//! How long the keys live.

use std::time::Duration;

use super::pair::{Clock, How, Key, Pair, START};
use crate::{
    algorithm::answer::Verdict,
    limit::{LimitSource, RateType},
};

/// A limiter that a rule made: 5 in 1000 ms, kept for 60 s.
const KEPT: i64 = 60_000;

fn pairs() -> impl Iterator<Item = Pair> {
    let types = [RateType::Overall, RateType::PerClient];
    types
        .into_iter()
        .map(|rate_type| Pair::new(rate_type, Clock::Given(START)))
}

fn of_a_rule(pair: &Pair) -> How {
    How {
        limit: LimitSource::Code(pair.limit(5, 1000).for_request_key()),
        rewrite: true,
        exact: false,
    }
}

fn expire(pair: &mut Pair, millis: i64) {
    for key in [pair.keys[0].clone(), pair.value_key(), pair.log_key()] {
        pair.command(&["PEXPIRE", &key, &millis.to_string()]);
    }
}

/// Without looking at what came of it: the model knows no life, and the tests here look closer.
fn acquire_only(pair: &mut Pair, permits: u32, how: How) {
    let sent = pair.unsent(permits);
    let [(script, command), _] = pair.commands(sent, how);
    pair.call(script, &command).unwrap();
}

/// About as long as said: a busy machine may take its time before it looks.
fn about(ttl: i64, expected: i64) -> bool {
    (expected - 10_000..=expected).contains(&ttl)
}

/// Each of the three keys lives about so long.
#[track_caller]
fn all_live(pair: &mut Pair, expected: i64) {
    let ttls = pair.ttls();
    assert!(ttls.iter().all(|ttl| about(*ttl, expected)), "{ttls:?}");
}

/// After an acquire each of the keys lives as long as a rule has it.
#[track_caller]
fn keeps(pair: &mut Pair, permits: u32, how: How) {
    pair.acquire(permits, how).unwrap();
    all_live(pair, KEPT);
}

#[test]
fn a_life_is_renewed_when_half_of_it_is_gone() {
    for mut pair in pairs() {
        let how = of_a_rule(&pair);
        for (permits, how) in [(1, how), (1, How::STORED), (5, How::STORED)] {
            // The last is refused, and keeps alive all the same.
            pair.acquire(permits, how).unwrap();
            expire(&mut pair, KEPT - 11_000);
            pair.acquire(permits, how).unwrap();
            assert!(pair.ttls().iter().all(|ttl| *ttl <= KEPT - 11_000));

            expire(&mut pair, KEPT / 2 - 1);
            keeps(&mut pair, permits, how);
        }
    }
}

#[test]
fn a_refusal_renews_no_life_where_the_limit_can_be_written_again() {
    for mut pair in pairs() {
        let how = of_a_rule(&pair);
        pair.acquire(1, how).unwrap();
        expire(&mut pair, 11_000);
        pair.refuses(5, how);
        all_live(&mut pair, 11_000);
        // One that credits what has expired does: it has written.
        pair.advance(500);
        pair.acquire(4, how).unwrap();
        expire(&mut pair, 11_000);
        pair.advance(500);
        pair.refuses(5, how);
        all_live(&mut pair, KEPT);
    }
}

#[test]
fn a_value_with_a_short_life_renews_all() {
    for mut pair in pairs() {
        let how = of_a_rule(&pair);
        pair.acquire(1, how).unwrap();
        for how in [how, How::STORED] {
            let value = pair.value_key();
            expire(&mut pair, KEPT - 11_000);
            pair.command(&["PEXPIRE", &value, "5000"]);
            keeps(&mut pair, 1, how);
        }
    }
}

/// One that the stored limit decides for, one that may write it, and one that writes it.
fn hows(pair: &Pair) -> [How; 3] {
    let init = How {
        limit: LimitSource::StoreOrInit(pair.limit(5, 1000).for_request_key()),
        ..How::STORED
    };
    [How::STORED, init, of_a_rule(pair)]
}

// Redisson's `availablePermits` takes the life off value, and its next acquire puts it back. The
// next limiter of that name finds a value that outlives log and hash: Redisson then throws, or
// grants more than the rate.
#[test]
fn a_value_whose_life_was_dropped_has_it_back_with_the_next_acquire() {
    for mut pair in pairs() {
        for how in hows(&pair) {
            let limit = pair.limit(5, 1000).for_request_key();
            pair.set_rate(limit, false, false);
            pair.acquire(1, how).unwrap();
            // Granted by one entry, by many permits, and refused; alone, and with another caller.
            for (permits, verdict) in [
                (1, Verdict::Granted),
                (2, Verdict::Granted),
                (5, Verdict::Refused),
            ] {
                for exact in [false, true] {
                    let how = How { exact, ..how };
                    let value = pair.value_key();
                    pair.command(&["PERSIST", &value]);
                    let answer = pair.acquire(permits, how).unwrap();
                    assert_eq!(answer.verdict, verdict, "{permits} by {how:?}");
                    all_live(&mut pair, KEPT);

                    pair.command(&["PERSIST", &value]);
                    let run = pair.unsent_run([5, 4]);
                    pair.send_run(&run, how).unwrap();
                    all_live(&mut pair, KEPT);
                    pair.advance(1000);
                    pair.acquire(1, how).unwrap();
                }
            }
        }
    }
}

#[test]
fn a_log_that_is_made_anew_lives_as_long_as_the_value() {
    for mut pair in pairs() {
        for how in hows(&pair) {
            let limit = pair.limit(5, 1000).for_request_key();
            for exact in [false, true] {
                let how = How { exact, ..how };
                pair.set_rate(limit, false, false);
                pair.acquire(2, how).unwrap();
                // All has expired.
                pair.advance(1000);
                keeps(&mut pair, 1, how);
                // All was given back.
                pair.release(5);
                keeps(&mut pair, 1, how);
                // It was lost, and what is in use is put back.
                pair.lose(Key::Log);
                keeps(&mut pair, 1, how);
            }
        }
    }
}

/// What `expire` has set to vanish does so whole.
#[test]
fn a_value_whose_life_was_dropped_gets_what_expire_has_set() {
    for mut pair in pairs() {
        for how in hows(&pair).map(|how| match how.limit {
            LimitSource::StoreOrInit(_) => How {
                limit: LimitSource::StoreOrInit(pair.limit(5, 1000)),
                ..how
            },
            LimitSource::Code(_) => How {
                limit: LimitSource::Code(pair.limit(5, 1000)),
                ..how
            },
            LimitSource::Store => how,
        }) {
            let limit = pair.limit(5, 1000);
            pair.set_rate(limit, false, false);
            acquire_only(&mut pair, 1, How::STORED);
            expire(&mut pair, KEPT);
            for permits in [1, 5] {
                let value = pair.value_key();
                pair.command(&["PERSIST", &value]);
                acquire_only(&mut pair, permits, how);
                all_live(&mut pair, KEPT);
            }
        }
    }
}

// `expire` and `clearExpire` of another client reach the hash, which all clients share.
#[test]
fn what_another_client_did_to_the_hash_lasts_until_the_next_acquire() {
    let mut pair = Pair::new(RateType::PerClient, Clock::Given(START));
    let hash = pair.keys[0].clone();
    for how in hows(&pair) {
        let limit = pair.limit(5, 1000).for_request_key();
        pair.set_rate(limit, false, false);
        pair.acquire(1, how).unwrap();
        for command in [&["PEXPIRE", &hash, "5000"][..], &["PERSIST", &hash]] {
            pair.command(command);
            keeps(&mut pair, 1, how);
            pair.command(command);
            let run = pair.unsent_run([1, 5]);
            pair.send_run(&run, how).unwrap();
            all_live(&mut pair, KEPT);
        }
        // One that is only refused leaves no hash that never vanishes.
        pair.command(&["PERSIST", &hash]);
        pair.refuses(5, how);
        all_live(&mut pair, KEPT);
    }
}

#[test]
fn a_key_that_was_lost_lives_as_long_as_the_others() {
    for lose in [Key::Limit, Key::Value, Key::Log] {
        for mut pair in pairs() {
            let how = of_a_rule(&pair);
            // Limiters of rules vanish when idle.
            keeps(&mut pair, 1, how);
            pair.lose(lose);
            keeps(&mut pair, 1, how);
        }
    }
}

#[test]
fn no_life_ends_before_what_it_counts_does() {
    for mut pair in pairs() {
        // As short as it may be.
        let interval = Duration::from_secs(1000);
        let limit = pair.limit(5, 1_000_000).keep_alive(interval).unwrap();
        pair.try_set_rate(limit);
        acquire_only(&mut pair, 1, How::STORED);
        all_live(&mut pair, 1_100_000);
        expire(&mut pair, 1_050_000);
        acquire_only(&mut pair, 1, How::STORED);
        all_live(&mut pair, 1_100_000);
    }
}

#[test]
fn what_expire_sets_is_passed_on() {
    for mut pair in pairs() {
        let limit = pair.limit(5, 1000);
        pair.try_set_rate(limit);
        pair.acquire(1, How::STORED).unwrap();
        assert_eq!(pair.ttls(), [-1; 3]);

        let key = pair.keys[0].clone();
        for life in [50_000, 90_000] {
            pair.command(&["PEXPIRE", &key, &life.to_string()]);
            acquire_only(&mut pair, 1, How::STORED);
            all_live(&mut pair, life);
        }
    }
}

// Found by random histories: value and log kept the life that a rule had given them, and vanished
// in the middle of an interval in which they counted.
#[test]
fn a_limit_without_a_life_takes_it_off_what_an_earlier_one_left() {
    for mut pair in pairs() {
        let how = of_a_rule(&pair);
        let lasting = pair.limit(5, 1000);
        for init in [false, true] {
            pair.acquire(1, how).unwrap();
            pair.lose(Key::Limit);
            if init {
                let how = How {
                    limit: LimitSource::StoreOrInit(lasting),
                    ..How::STORED
                };
                pair.acquire(1, how).unwrap();
            } else {
                pair.try_set_rate(lasting);
            }
            assert_eq!(pair.ttls(), [-1; 3]);
            pair.lose(Key::Limit);
        }
    }
}
