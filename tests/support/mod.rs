//! Shared by the integration tests: `mod support;` brings it into a test binary.

#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    reason = "every test binary compiles its own copy and uses part of it"
)]
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test helper fails the test by panicking; clippy.toml reaches `#[test]` fns only"
)]

pub mod cluster;
pub mod own_log;
pub mod ports;
pub mod random;
pub mod redis_server;
pub mod resp;
pub mod scripted;
pub mod sentinel;
pub mod worker;

pub use cluster::Cluster;
pub use own_log::OwnLog;
pub use redis_server::RedisServer;
pub use resp::Reply;
pub use sentinel::Sentinel;
pub use worker::Worker;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{process, thread};

/// A name that no other call returns, in this process or in one that runs beside it
///
/// Keeps tests on one server apart: name every limiter by it.
pub fn unique(prefix: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{prefix}-{}-{n}", process::id())
}

/// Polls for a state of servers, which nothing announces
///
/// # Panics
///
/// If it is not reached in half a minute.
pub fn wait_until(what: &str, mut reached: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !reached() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// The permissions that the guide calls sufficient, as words for `ACL SETUSER limiter`
pub fn permissions() -> Vec<&'static str> {
    let guide = include_str!("../../src/docs/guide.md");
    let rules = guide.split_once("ACL SETUSER limiter ");
    let (_, rules) = rules.expect("the guide has the permissions");
    let (rules, _) = rules.split_once("```").expect("a whole block");
    rules.split_whitespace().collect()
}

/// Returns the name of a key beside a limiter's hash, as Redisson spells it.
pub fn companion(name: &str, suffix: &str) -> String {
    match name.contains('{') {
        true => format!("{name}:{suffix}"),
        false => format!("{{{name}}}:{suffix}"),
    }
}

/// Returns the key of a limiter that is one string, in our own format.
pub fn state_key(name: &str) -> String {
    match name.contains('{') {
        true => format!("{name}~"),
        false => format!("{{{name}}}~"),
    }
}

/// Returns whether a key is that of a limiter's state in our own format, and none of a ban.
pub fn is_state_key(key: &str) -> bool {
    key.ends_with("~:calendar") || key.ends_with('~') && !key.ends_with(":ban~")
}

/// Returns that of a limiter by the calendar.
pub fn calendar_key(name: &str) -> String {
    format!("{}:calendar", state_key(name))
}

/// Returns the label of a calendar's window and the permits used, from its state.
///
/// # Panics
///
/// If it is another state.
pub fn label_and_used(state: &[u8]) -> (u64, i64) {
    assert!(
        state.len() == 74 && state.ends_with(&[21, 183]),
        "{state:?}"
    );
    (
        number_of(&state[..6]),
        number_of(&state[12..19]).cast_signed(),
    )
}

/// Returns the number of these bytes, the lowest first.
pub fn number_of(bytes: &[u8]) -> u64 {
    let number = |sum, byte: &u8| sum << 8 | u64::from(*byte);
    bytes.iter().rev().fold(0, number)
}

/// Returns the permits of a log's member: its last four bytes, in the members of all releases of
/// Redisson.
pub fn permits_of(member: &[u8]) -> u32 {
    u32::from_le_bytes(*member.last_chunk().expect("packed permits"))
}

/// Returns the permits of each window of this length that begins with a grant: grants are instants
/// and permits, in order.
pub fn windows<T>(grants: impl Iterator<Item = (T, i64)>, length: T) -> Vec<i64>
where
    T: Copy + PartialOrd + std::ops::Sub<Output = T>,
{
    let grants: Vec<_> = grants.collect();
    let (mut end, mut within) = (0, 0);
    let mut windows = Vec::new();
    for &(begin, permits) in &grants {
        while let Some(&(_, more)) = grants.get(end).filter(|(at, _)| *at - begin < length) {
            within += more;
            end += 1;
        }
        windows.push(within);
        within -= permits;
    }
    windows
}
