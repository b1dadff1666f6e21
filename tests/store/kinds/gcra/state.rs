//! The state in Redis, by `lua/README.md` and not by this crate's code.

use super::*;
use tower_ratelimit::{Finding, FindingKind};

impl State {
    fn numbers(&self) -> [f64; 5] {
        numbers(&key(self.limiter.name(), "value"))
    }
}

/// Returns the TAT, the key's end and the released permits, all in us, and the rate and interval
/// before them.
fn numbers(key: &str) -> [f64; 5] {
    let Reply::Bulk(bytes) = RedisServer::shared().command(&["GET", key]) else {
        panic!("no value");
    };
    assert_eq!(bytes.len(), 40);
    let (doubles, _) = bytes.as_chunks::<8>();
    let doubles: Vec<_> = doubles.iter().map(|d| f64::from_le_bytes(*d)).collect();
    let [interval, rate, tat, ends, given] = doubles[..] else {
        panic!("{doubles:?}");
    };
    [tat, ends, given, rate, interval]
}

/// By the server's clock, in us.
fn now() -> f64 {
    RedisServer::shared().micros() as f64
}

const HOUR_US: f64 = 3.6e9;

#[tokio::test]
async fn one_small_value() {
    let state = State::new(Way::Gcra, 4).await;
    assert_eq!(free(&state.limiter).await, 4);
    assert!(!state.exists("value"), "counting makes none");
    let before = now();
    take(&state.limiter, 3).await;
    let [tat, ends, given, rate, interval] = state.numbers();
    let began = tat - 0.75 * HOUR_US;
    assert!((before..=now()).contains(&began), "{tat}");
    assert_eq!((given, rate, interval), (0.0, 4.0, 3_600_000.0));
    assert_eq!(ends, tat + HOUR_US);
    assert!(!state.exists("permits"));
    assert!(!state.exists(""));
    let left: f64 = state.left("value") as f64;
    assert!((left * 1000.0 - (ends - now())).abs() < 6e7, "{left}");

    // The end of the key is left alone while it is late enough.
    let grant = take(&state.limiter, 1).await;
    assert_eq!(
        state.numbers(),
        [tat + 0.25 * HOUR_US, ends, 0.0, rate, interval]
    );
    state.limiter.give_back(&grant);
    state.store.close().await;
    assert_eq!(state.numbers(), [tat, ends, 0.25 * HOUR_US, rate, interval]);
    // A refusal writes nothing.
    let _ = state.limiter.try_acquire_many(4).await.unwrap();
    assert_eq!(state.numbers(), [tat, ends, 0.25 * HOUR_US, rate, interval]);
}

#[tokio::test]
async fn what_another_left_there_counts_as_none() {
    let state = State::new(Way::Gcra, 4).await;
    for other in ["3", "", "a text of forty bytes that is no limiter."] {
        state.ask("SET", "value", &[other]);
        assert_eq!(free(&state.limiter).await, 4);
        take(&state.limiter, 1).await;
        assert_eq!(free(&state.limiter).await, 3);
        assert_ne!(state.ask("PTTL", "value", &[]), "-1");
    }
    let prefix = unique("other");
    let store = redis_store().prefix(&prefix).build().unwrap();
    let layer = Way::Gcra.layer(&store, Limit::new(5, HOUR));
    let value = format!("{prefix}:{{a}}:five:value");
    RedisServer::shared().command(&["SET", &value, "3"]);
    assert!(send(&layer, "a").await.status().is_success());
    assert_eq!(numbers(&value)[3], 5.0);
    // A key of another type is an error, and leaves all as it is.
    RedisServer::shared().command(&["DEL", &value]);
    RedisServer::shared().command(&["SADD", &value, "3"]);
    let limiter = layer.limiter("five", ["a"]).unwrap();
    for error in [
        limiter.available_permits().await.unwrap_err(),
        limiter.release(1).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::ForeignState);
    }
    assert!(limiter.try_acquire().await.is_err());
}

/// Lua reads a text up to its first zero byte, and some arrival times begin with a digit and such a
/// byte.
#[tokio::test]
async fn a_log_never_takes_the_time_of_arrival_for_a_number() {
    let limit = Limit::new(11, secs(1));
    // One of eleven permits takes 90 910 us.
    let begins_with_8 = |ms: &u64| (((ms * 1000 + 90_910) as f64).to_bits() & 0xffff) == 0x38;
    let at = (1_704_153_600_000..).find(begins_with_8).unwrap();
    let clock = ManualClock::new();
    clock.set(millis(at));
    let store = redis_store().client_clock(clock).build().unwrap();
    let gcra = Way::Gcra.limited(&store, limit).await;
    let log = RateLimiter::new(&store, gcra.name()).unwrap();
    assert!(log.try_set_rate(limit).await.unwrap());
    take(&log, 11).await;
    take(&gcra, 1).await;
    // Back in the log all that was taken there is in use, and no 8 are left.
    let decision = log.try_acquire_many(2).await.unwrap();
    assert!(!decision.is_allowed(), "{decision:?}");
}

#[cfg(feature = "inspect")]
#[tokio::test]
async fn a_look_says_what_is_left() {
    let state = State::new(Way::Gcra, 5).await;
    take(&state.limiter, 2).await;
    let diagnosis = state.store.diagnose(state.limiter.name()).await.unwrap();
    assert_eq!(diagnosis.algorithm, Algorithm::Gcra);
    assert_eq!(diagnosis.value.as_deref(), Some("3"));
    assert_eq!(diagnosis.drift, None);
    let sound = |findings: Vec<Finding>| {
        findings
            .iter()
            .all(|finding| finding.kind() == FindingKind::OldRedisson)
    };
    assert!(sound(diagnosis.findings()), "{diagnosis}");
    assert!(diagnosis.to_string().contains("counted by GCRA"));

    // A rule's limiter has no hash, and lacks none.
    for limit in [Limit::new(5, HOUR), Limit::new(5, HOUR).per_client()] {
        let prefix = unique("look");
        let store = redis_store().prefix(&prefix).build().unwrap();
        send(&Way::Gcra.layer(&store, limit), "a").await;
        let diagnosis = store
            .diagnose(&format!("{prefix}:{{a}}:five"))
            .await
            .unwrap();
        assert_eq!(diagnosis.algorithm, Algorithm::Gcra);
        assert_eq!(diagnosis.value.as_deref(), Some("4"));
        let rate = ("rate", "5".to_owned());
        assert!(diagnosis.fields.contains(&rate), "{diagnosis}");
        assert!(sound(diagnosis.findings()), "{diagnosis}");
    }
}
