//! The state in Redis, read by the description of Redisson's format and not with this crate's code.
//!
//! - `N`: a hash of `rate`, `interval` (ms), `keepAliveTime` (ms, 0 none), `type` (0 overall, 1 per
//!   client), first written in this order, in decimal.
//! - `{N}:value`: permits left, in decimal; `N:value` if there is a `{` in N. Per client, the suffix
//!   `:<client id>` follows.
//! - `{N}:permits`, named likewise: a sorted set with one member for each grant, scored with its
//!   time in ms since the epoch. A member is the length of an id in one byte, the id, and the
//!   permits as 32 bits, little-endian.

mod limits;

use crate::scene::*;

use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};

const CLIENT: &str = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6";

#[derive(Debug)]
struct State {
    fields: Vec<(String, String)>,
    value: Option<i64>,
    log: Vec<Entry>,
    /// Milliseconds each of the three keys has left; -1 for no end, -2 for no key.
    lives: [i64; 3],
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    score: u64,
    permits: u32,
    id: Vec<u8>,
}

fn read(name: &str, client: Option<&str>) -> State {
    let server = RedisServer::shared();
    let key = |suffix: &str| {
        let tagged = if name.contains('{') {
            name.to_owned()
        } else {
            format!("{{{name}}}")
        };
        let client = client.map_or_else(String::new, |client| format!(":{client}"));
        format!("{tagged}:{suffix}{client}")
    };
    let (value, log) = (key("value"), key("permits"));
    let text = |reply: Reply| match reply {
        Reply::Bulk(bytes) => String::from_utf8(bytes).expect("text"),
        other => panic!("not a string: {other:?}"),
    };
    let array = |reply: Reply| match reply {
        Reply::Array(replies) => replies,
        other => panic!("not an array: {other:?}"),
    };
    let pairs = |replies: Vec<Reply>| -> Vec<[Reply; 2]> {
        replies
            .chunks_exact(2)
            .map(|pair| [pair[0].clone(), pair[1].clone()])
            .collect()
    };
    let number = |reply: Reply| match reply {
        Reply::Int(number) => number,
        other => panic!("not a number: {other:?}"),
    };
    State {
        fields: (pairs(array(server.command(&["HGETALL", name]))).into_iter())
            .map(|[field, content]| (text(field), text(content)))
            .collect(),
        value: match server.command(&["GET", &value]) {
            Reply::Nil => None,
            reply => Some(text(reply).parse().expect("decimal permits")),
        },
        log: (pairs(array(server.command(&[
            "ZRANGE",
            &log,
            "0",
            "-1",
            "WITHSCORES",
        ])))
        .into_iter())
        .map(|[member, score]| entry(member, &text(score)))
        .collect(),
        lives: [name, &value, &log].map(|key| number(server.command(&["PTTL", key]))),
    }
}

fn entry(member: Reply, score: &str) -> Entry {
    let Reply::Bulk(member) = member else {
        panic!("not a string: {member:?}");
    };
    let (length, rest) = member.split_first().expect("a length");
    let (id, permits) = rest.split_at(usize::from(*length));
    assert_eq!(id.len(), 16, "as Redisson since 3.21.0");
    Entry {
        score: score.parse().expect("whole milliseconds"),
        permits: u32::from_le_bytes(permits.try_into().expect("four bytes of permits")),
        id: id.to_owned(),
    }
}

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

fn millis(clock: &ManualClock) -> u64 {
    u64::try_from(clock.now().as_millis()).unwrap()
}

/// Value and log are the decisions that were taken, no more and no less.
fn agrees(state: &State, rate: u64, interval: u64, now: u64, granted: &[(u64, u32)]) {
    let mut logged: Vec<_> = state
        .log
        .iter()
        .map(|entry| (entry.score, entry.permits))
        .collect();
    logged.sort_unstable();
    let mut ids: Vec<_> = state.log.iter().map(|entry| &entry.id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), logged.len(), "an id of its own for each");

    // Expired entries may remain, the oldest leave first: the log has the last grants, and all live
    // ones.
    let mut sorted = granted.to_vec();
    sorted.sort_unstable();
    assert!(sorted.ends_with(&logged), "{logged:?} of {sorted:?}");
    let live = sorted.iter().filter(|(at, _)| at + interval > now).count();
    assert!(live <= logged.len(), "{live} live in {logged:?}");

    let sum: i64 = logged.iter().map(|(_, permits)| i64::from(*permits)).sum();
    match state.value {
        Some(value) => assert_eq!(value + sum, rate.cast_signed()),
        None => assert!(logged.is_empty() && granted.is_empty()),
    }
}

#[test]
fn a_limiter_leaves_what_redisson_would_read() {
    let runtime = runtime();
    let clock = ManualClock::new();
    let store = store(&clock).build().unwrap();
    let law = |(rate, interval, per_client, steps): Input| {
        runtime.block_on(async {
            let name = unique(if steps.len() % 2 == 0 {
                "raw"
            } else {
                "raw{tag}"
            });
            let limiter = RateLimiter::new(&store, &name).unwrap();
            let limit = Limit::new(rate, Duration::from_millis(interval));
            let limit = if per_client {
                limit.per_client()
            } else {
                limit
            };
            limiter.try_set_rate(limit).await.unwrap();
            let mut granted = Vec::new();
            for step in steps {
                match step {
                    Step::Pause(millis) => clock.advance(Duration::from_millis(millis)),
                    Step::Take(permits) => {
                        if limiter
                            .try_acquire_many(permits)
                            .await
                            .unwrap()
                            .is_allowed()
                        {
                            granted.push((millis(&clock), permits));
                        }
                    }
                    Step::Count => {
                        limiter.available_permits().await.unwrap();
                    }
                }
                let state = read(&name, per_client.then_some(CLIENT));
                let (rate_text, interval_text) = (rate.to_string(), interval.to_string());
                let fields = [
                    ("rate", rate_text.as_str()),
                    ("interval", &interval_text),
                    ("keepAliveTime", "0"),
                    ("type", if per_client { "1" } else { "0" }),
                ];
                assert_eq!(
                    state.fields,
                    fields.map(|(a, b)| (a.to_owned(), b.to_owned()))
                );
                agrees(&state, rate, interval, millis(&clock), &granted);
                assert!(
                    state.lives.iter().all(|life| *life < 0),
                    "{:?}",
                    state.lives
                );
            }
            // The other rate type's keys, and with them other clients', stay untouched.
            let other = read(&name, (!per_client).then_some(CLIENT));
            assert!(other.value.is_none() && other.log.is_empty());
        });
    };
    check(150, law);
}

#[test]
fn a_rule_leaves_the_same_under_its_name_and_lets_it_vanish() {
    let runtime = runtime();
    let clock = ManualClock::new();
    let law = |(rate, interval, _, steps): Input| {
        runtime.block_on(async {
            let prefix = unique("raw");
            let store = store(&clock).prefix(&prefix).build().unwrap();
            let limit = Limit::new(rate, Duration::from_millis(interval));
            let rule = Rule::new("api", limit, FromHeader::new("user"))
                .cost_by(|parts| parts.headers["cost"].to_str().unwrap().parse().unwrap());
            let inner = service_fn(serve);
            let service = RateLimitLayer::new(&store, rule).layer(inner);
            let name = format!("{prefix}:{{caf%C3%A9%20%7B}}:api");
            let mut granted = Vec::new();
            for step in steps {
                let permits = match step {
                    Step::Pause(millis) => {
                        clock.advance(Duration::from_millis(millis));
                        continue;
                    }
                    Step::Take(permits) => permits,
                    Step::Count => 1,
                };
                let request = Request::builder()
                    .header("user", "café {")
                    .header("cost", permits.to_string())
                    .body(String::new())
                    .unwrap();
                let answer = service.clone().oneshot(request).await.unwrap();
                if answer.extensions().get::<Decision>().unwrap().is_allowed() {
                    granted.push((millis(&clock), permits));
                }
                if u64::from(permits) > rate && granted.is_empty() {
                    continue;
                }
                let state = read(&name, None);
                let fields = [
                    ("rate", rate.to_string()),
                    ("interval", interval.to_string()),
                    ("keepAliveTime", String::from("60000")),
                    ("type", String::from("0")),
                ];
                assert_eq!(state.fields, fields.map(|(a, b)| (a.to_owned(), b)));
                agrees(&state, rate, interval, millis(&clock), &granted);
                assert!(
                    state
                        .lives
                        .iter()
                        .all(|life| (30_000..=60_000).contains(life)),
                    "{:?}",
                    state.lives
                );
            }
        });
    };
    check(80, law);
}

fn check(cases: u32, law: impl Fn(Input)) {
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    let outcome = TestRunner::new(config).run(&input(), |input| {
        law(input);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}
