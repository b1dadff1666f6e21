//! The state in Redis, read by the description of Redisson's format and not with this crate's code.
//!
//! - `N`: a hash of `rate`, `interval` (ms), `keepAliveTime` (ms, 0 none), `type` (0 overall, 1 per
//!   client), first written in this order, in decimal.
//! - `{N}:value`: permits left, in decimal; `N:value` if there is a `{` in N. Per client, the
//!   suffix
//!   `:<client id>` follows.
//! - `{N}:permits`, named likewise: a sorted set with one member for each grant, scored with its
//!   time in ms since the epoch. A member is the length of an id in one byte, the id, and the
//!   permits as 32 bits, little-endian.

mod limits;

use crate::defects::world::{Keys, START, unused};
use kit::{permits_of, scene::*};

const CLIENT: &str = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6";

#[derive(Clone, Copy, Debug)]
enum Step {
    Pause(u64),
    Take(u32),
    Count,
}

type Input = (u64, u64, bool, Vec<Step>);

fn input() -> impl Strategy<Value = Input> {
    let step = prop_oneof![
        3 => (0u64..700).prop_map(Step::Pause),
        1 => Just(Step::Pause(1000)),
        6 => (1u32..6).prop_map(Step::Take),
        1 => Just(Step::Count),
    ];
    let interval = proptest::sample::select(&[100u64, 1000, 2500][..]);
    (
        1u64..12,
        interval,
        any::<bool>(),
        proptest::collection::vec(step, 1..40),
    )
}

fn store(clock: &ManualClock) -> RedisStoreBuilder {
    shared_redis().client_clock(clock.clone()).client_id(CLIENT)
}

/// Value and log are the decisions that were taken, no more and no less.
fn agrees(keys: &Keys, rate: u64, interval: u64, now: i64, granted: &[(i64, u32)]) {
    let mut logged = Vec::new();
    let mut ids = Vec::new();
    for (score, member) in keys.entries() {
        assert_eq!(
            (member.len(), member[0]),
            (21, 16),
            "as Redisson since 3.21.0"
        );
        logged.push((score, permits_of(&member)));
        ids.push(member[1..17].to_vec());
    }
    logged.sort_unstable();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), logged.len(), "an id of its own for each");

    // Expired entries may remain, the oldest leave first: the log has the last grants, and all live
    // ones.
    let mut sorted = granted.to_vec();
    sorted.sort_unstable();
    assert!(sorted.ends_with(&logged), "{logged:?} of {sorted:?}");
    let interval = interval.cast_signed();
    let live = sorted.iter().filter(|(at, _)| at + interval > now).count();
    assert!(live <= logged.len(), "{live} live in {logged:?}");

    let sum: i64 = logged.iter().map(|(_, permits)| i64::from(*permits)).sum();
    match keys.books().value {
        Some(value) => assert_eq!(value.parse::<i64>().unwrap() + sum, rate.cast_signed()),
        None => assert!(logged.is_empty() && granted.is_empty()),
    }
}

#[test]
fn a_limiter_leaves_what_redisson_would_read() {
    histories(150, false);
}

/// In Redisson keys of single users never expire (#4301, #6216).
#[test]
fn a_rule_leaves_the_same_under_its_name_and_lets_it_vanish() {
    histories(80, true);
}

fn histories(cases: u32, by_rule: bool) {
    let (runtime, clock) = (runtime(), ManualClock::new());
    check(cases, &input(), |input| {
        runtime.block_on(play(&clock, by_rule, input));
    });
}

/// Plays a history, and looks into Redis after each step.
async fn play(clock: &ManualClock, by_rule: bool, (rate, interval, per_client, steps): Input) {
    let prefix = unique("raw");
    let store = store(clock).prefix(&prefix).redisson();
    let store = store.build().unwrap();
    let (name, life, lives) = match (by_rule, steps.len() % 2) {
        (true, _) => (
            format!("{prefix}:{{caf%C3%A9%20%7B}}:api"),
            60_000,
            30_000..=60_000,
        ),
        (false, 0) => (prefix, 0, i64::MIN..=-1),
        (false, _) => (format!("{prefix}{{tag}}"), 0, i64::MIN..=-1),
    };
    let mut limit = Limit::new(rate, millis(interval));
    let (mut keys, mut other) = (Keys::of(&name), Keys::of_client(&name, CLIENT));
    if per_client {
        std::mem::swap(&mut keys, &mut other);
        limit = limit.per_client();
    }
    let limiter = RateLimiter::new(&store, &name).unwrap();
    let cost = |parts: &http::request::Parts| parts.headers["cost"].to_str().unwrap().parse();
    let rule = Rule::new("api", limit, FromHeader::new("user"));
    let layer = RateLimitLayer::new(&store, rule.cost_by(move |parts| cost(parts).unwrap()));
    if !by_rule {
        limiter.try_set_rate(limit).await.unwrap();
    }
    let now = || i64::try_from(clock.now().as_millis()).unwrap() - START;
    let mut granted = Vec::new();
    for step in steps {
        let permits = match step {
            Step::Pause(time) => {
                clock.advance(millis(time));
                0
            }
            Step::Take(permits) => permits,
            Step::Count if by_rule => 1,
            Step::Count => {
                free(&limiter).await;
                0
            }
        };
        if permits > 0 {
            let decision = if by_rule {
                let request = Request::builder().header("user", "café {");
                let request = request.header("cost", permits.to_string());
                decide(&layer, request.body(()).unwrap()).await
            } else {
                limiter.try_acquire_many(permits).await.unwrap()
            };
            if decision.is_allowed() {
                granted.push((now(), permits));
            }
        }
        // The first request makes a rule's limiter.
        if by_rule && granted.is_empty() {
            continue;
        }
        let kind = u8::from(per_client);
        assert_eq!(
            keys.fields().replace('\n', " "),
            format!("rate {rate} interval {interval} keepAliveTime {life} type {kind}")
        );
        agrees(&keys, rate, interval, now(), &granted);
        let left = keys.lives();
        assert!(left.iter().all(|left| lives.contains(left)), "{left:?}");
    }
    // The other rate type's keys, and with them other clients', stay untouched.
    assert_eq!(other.books(), unused());
}
