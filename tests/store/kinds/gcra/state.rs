//! The state in Redis, by `lua/README.md` and not by this crate's code.

use super::*;
use crate::support::number_of;
use serde_json::{Value, json};
use tower_ratelimit::inspect::Finding;

impl State {
    fn numbers(&self) -> [u64; 5] {
        numbers(&state_key(self.limiter.name()))
    }
}

/// Returns the TAT, the key's end and the released permits, all in us, and the rate and interval
/// before them.
fn numbers(key: &str) -> [u64; 5] {
    let Reply::Bulk(bytes) = RedisServer::shared().command(&["GET", key]) else {
        panic!("no value");
    };
    assert_eq!((bytes.len(), &bytes[74..]), (76, &[18, 183][..]));
    let [interval, rate, ends, given, tat] =
        [0..6, 6..13, 13..20, 20..27, 27..34].map(|range| number_of(&bytes[range]));
    [tat, ends, given, rate, interval]
}

/// By the server's clock, in us.
fn now() -> u64 {
    RedisServer::shared().micros().cast_unsigned()
}

const HOUR_US: u64 = 3_600_000_000;

#[tokio::test]
async fn one_small_value() {
    let state = State::new(Way::Gcra, 4).await;
    assert_eq!(free(&state.limiter).await, 4);
    assert!(!state.exists("~"), "counting makes none");
    let before = now();
    take(&state.limiter, 3).await;
    let [tat, ends, given, rate, interval] = state.numbers();
    let began = tat - HOUR_US / 4 * 3;
    assert!((before..=now()).contains(&began), "{tat}");
    assert_eq!((given, rate, interval), (0, 4, 3_600_000));
    assert_eq!(ends, tat + HOUR_US);
    for other in ["", "value", "permits"] {
        assert!(!state.exists(other), "{other}");
    }
    let left = state.left("~").cast_unsigned() * 1000;
    assert!(left.abs_diff(ends - now()) < 60_000_000, "{left}");

    // The end of the key is left alone while it is late enough.
    let grant = take(&state.limiter, 1).await;
    assert_eq!(
        state.numbers(),
        [tat + HOUR_US / 4, ends, 0, rate, interval]
    );
    state.limiter.give_back(&grant);
    state.store.close().await;
    assert_eq!(state.numbers(), [tat, ends, HOUR_US / 4, rate, interval]);
    // A refusal writes nothing.
    let _ = state.limiter.try_acquire_many(4).await.unwrap();
    assert_eq!(state.numbers(), [tat, ends, HOUR_US / 4, rate, interval]);
}

/// Whatever a policy says: a later version wrote it, or a hand.
#[tokio::test]
async fn what_is_not_ours_is_an_error_that_changes_nothing() {
    let prefix = unique("other");
    let store = redis_store().prefix(&prefix).build().unwrap();
    let rule = Limit::new(5, HOUR)
        .by(FromHeader::new("x-key"))
        .named("five");
    let rule = rule
        .algorithm(Algorithm::Gcra)
        .on_failure(FailurePolicy::Allow);
    let layer = RateLimitLayer::new(&store, rule);
    let limiter = layer.limiter("five", ["a"]).unwrap();
    let key = state_key(limiter.name());
    let later = format!("{}\u{22}\u{b7}", "a".repeat(74));
    let of_forty = "a text of forty bytes that is no limiter.";
    for other in ["3", "", of_forty, &later] {
        let server = RedisServer::shared();
        server.command(&["SET", &key, other]);
        for error in [
            limiter.available_permits().await.unwrap_err(),
            limiter.release(1).await.unwrap_err(),
            limiter.try_acquire().await.unwrap_err(),
            limiter.ban_for(HOUR).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::ForeignState, "{other}");
        }
        assert!(!send(&layer, "a").await.status().is_success(), "{other}");
        assert_eq!(server.command(&["GET", &key]), Reply::Bulk(other.into()));
        assert!(limiter.delete().await.unwrap());
        assert!(send(&layer, "a").await.status().is_success());
    }
}

#[cfg(feature = "inspect")]
#[tokio::test]
async fn a_look_says_what_is_left() {
    let state = State::new(Way::Gcra, 5).await;
    take(&state.limiter, 2).await;
    let diagnosis = state.store.diagnose(state.limiter.name()).await.unwrap();
    assert_eq!(diagnosis.algorithm(), Algorithm::Gcra);
    let data = json!(diagnosis);
    assert_eq!(data["value"], "3");
    assert_eq!(data["drift"], Value::Null);
    let sound = |findings: Vec<Finding>| {
        findings
            .iter()
            .all(|finding| finding.code() == "old_redisson")
    };
    assert!(sound(diagnosis.findings()), "{diagnosis}");
    assert!(diagnosis.to_string().contains("counted by GCRA"));

    // A rule's limiter has no hash, and lacks none.
    {
        let limit = Limit::new(5, HOUR);
        let prefix = unique("look");
        let store = redis_store().prefix(&prefix).build().unwrap();
        send(&Way::Gcra.layer(&store, limit), "a").await;
        let diagnosis = store
            .diagnose(&format!("{prefix}:{{a}}:five"))
            .await
            .unwrap();
        assert_eq!(diagnosis.algorithm(), Algorithm::Gcra);
        let data = json!(diagnosis);
        assert_eq!(data["value"], "4");
        assert_eq!(data["stored"]["rate"], "5", "{diagnosis}");
        assert!(sound(diagnosis.findings()), "{diagnosis}");
    }
}
