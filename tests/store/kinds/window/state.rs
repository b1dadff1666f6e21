//! The state in Redis: that of Redisson 3.7.1 to 3.13.2, by its description and not by this crate's
//! code.

use super::*;
use tower_ratelimit::{Finding, FindingKind};

impl State {
    fn value(&self) -> String {
        self.ask("GET", "value", &[])
    }

    fn has_window_of(&self, life: Duration) {
        let life = i64::try_from(life.as_millis()).unwrap();
        let left = self.left("value");
        assert!((life - 60_000..=life).contains(&left), "{left} of {life}");
        assert!(!self.exists("permits"));
    }
}

#[tokio::test]
async fn a_value_with_an_end_and_no_log() {
    let state = State::new::<Window>(5).await;
    assert_eq!(free(&state.limiter).await, 5);
    assert!(!state.exists("value"), "counting opens none");
    take(&state.limiter, 2).await;
    assert_eq!(state.value(), "3");
    assert_eq!(state.ask("TYPE", "value", &[]), "string");
    state.has_window_of(HOUR);
    assert_eq!(state.left(""), -1);
    let fields = ["rate", "interval", "type", "keepAliveTime"];
    let fields =
        RedisServer::shared().command(&[&["HMGET", state.limiter.name()], &fields[..]].concat());
    let bulk = |text: &str| Reply::Bulk(text.as_bytes().to_vec());
    let expected = ["5", "3600000", "0", "0"].map(bulk);
    assert_eq!(fields, Reply::Array(expected.into()));

    // Later takes leave the end alone.
    state.ask("PEXPIRE", "value", &["1800000"]);
    take(&state.limiter, 1).await;
    assert!(
        !state
            .limiter
            .try_acquire_many(3)
            .await
            .unwrap()
            .is_allowed()
    );
    assert_eq!(state.value(), "2");
    state.has_window_of(HOUR / 2);
}

/// Acts like an old Redisson: SET value rate PX interval, then DECRBY, and a refusal if value is
/// below.
#[tokio::test]
async fn an_old_redisson_shares_the_window() {
    let state = State::new::<Window>(5).await;
    state.ask("SET", "value", &["5", "PX", "3600000"]);
    state.ask("DECRBY", "value", &["3"]);
    assert_eq!(free(&state.limiter).await, 2);
    take(&state.limiter, 1).await;
    assert_eq!(state.ask("DECRBY", "value", &["1"]), "0");
    let refusal = refused(state.limiter.try_acquire().await.unwrap());
    let wait = i64::try_from(refusal.retry_after().unwrap().as_millis()).unwrap();
    assert!((0..=2000).contains(&(wait - 1 - state.left("value"))));
}

#[tokio::test]
async fn a_window_without_an_end_gets_one() {
    for verb in ["take", "count", "release", "repair", "update"] {
        let state = State::new::<Window>(5).await;
        // A sliding log, whose value outlives its entries.
        let logged = RateLimiter::new(&state.store, state.limiter.name()).unwrap();
        take(&logged, 2).await;
        assert_eq!((state.left("value"), state.left("permits")), (-1, -1));
        let limiter = &state.limiter;
        match verb {
            "take" => drop(take(limiter, 1).await),
            "count" => assert_eq!(free(limiter).await, 3),
            "release" => assert_eq!(limiter.release(1).await.unwrap(), 1),
            "repair" => assert_eq!(limiter.repair().await.unwrap(), 0),
            _ => assert!(limiter.update_rate(Limit::new(6, HOUR)).await.unwrap()),
        }
        state.has_window_of(HOUR);
    }
    // As the keep-alive time of a sliding log leaves it.
    let state = State::new::<Window>(5).await;
    take(&state.limiter, 1).await;
    state.ask("PEXPIRE", "value", &["99999999"]);
    assert_eq!(free(&state.limiter).await, 4);
    state.has_window_of(HOUR);
}

#[tokio::test]
async fn more_than_the_rate_is_mended() {
    let state = State::new::<Window>(5).await;
    take(&state.limiter, 1).await;
    state.ask("SET", "value", &["9", "KEEPTTL"]);
    assert_eq!(free(&state.limiter).await, 5);
    assert_eq!(state.limiter.repair().await.unwrap(), -4);
    assert_eq!(state.value(), "5");
    state.has_window_of(HOUR);
}

#[tokio::test]
async fn a_limit_is_changed_within_the_window() {
    let state = State::new::<Window>(5).await;
    let limiter = &state.limiter;
    take(limiter, 4).await;
    assert!(limiter.update_rate(Limit::new(2, HOUR)).await.unwrap());
    assert_eq!(state.value(), "-2");
    assert_eq!(free(limiter).await, 0);
    assert!(limiter.update_rate(Limit::new(9, HOUR / 4)).await.unwrap());
    assert_eq!(state.value(), "5");
    state.has_window_of(HOUR / 4);
    assert!(limiter.update_rate(Limit::new(9, HOUR)).await.unwrap());
    state.has_window_of(HOUR / 4);
    assert!(limiter.reset_rate(Limit::new(3, HOUR)).await.unwrap());
    assert!(!state.exists("value"));
    assert_eq!(free(limiter).await, 3);
}

#[tokio::test]
async fn permits_are_released_to_the_open_window_alone() {
    let state = State::new::<Window>(5).await;
    assert_eq!(state.limiter.release(3).await.unwrap(), 0);
    take(&state.limiter, 4).await;
    assert_eq!(state.limiter.release(1).await.unwrap(), 1);
    assert_eq!(state.limiter.release(u32::MAX).await.unwrap(), 3);
    assert_eq!(state.limiter.release(1).await.unwrap(), 0);
    assert_eq!(state.value(), "5");
}

#[tokio::test]
async fn a_window_keeps_its_end_whatever_the_limiters_life() {
    let state = State::new::<Window>(5).await;
    let limiter = &state.limiter;
    take(limiter, 1).await;
    assert!(limiter.expire(10 * HOUR).await.unwrap());
    state.has_window_of(HOUR);
    let less = limiter.expire_when(HOUR / 2, ExpireWhen::Less).await;
    assert!(less.unwrap());
    state.has_window_of(HOUR / 2);
    let more = limiter.expire_when(HOUR, ExpireWhen::Less).await;
    assert!(!more.unwrap());
    assert!(limiter.clear_expire().await.unwrap());
    state.has_window_of(HOUR / 2);

    // A limiter that is to vanish takes a window along that is opened later.
    state.ask("DEL", "value", &[]);
    limiter.expire(HOUR / 4).await.unwrap();
    take(limiter, 1).await;
    state.has_window_of(HOUR / 4);

    let vanishing = Limit::new(5, HOUR).keep_alive(3 * HOUR).unwrap();
    limiter.set_rate(vanishing).await.unwrap();
    take(limiter, 1).await;
    // Where more than half of its life, and more than a window, is left, a call leaves it alone.
    state.ask("PEXPIRE", "", &["7200000"]);
    take(limiter, 1).await;
    let left = state.left("");
    assert!((3_600_000..=7_200_000).contains(&left), "{left}");
    state.has_window_of(HOUR);
}

#[cfg(feature = "inspect")]
#[tokio::test]
async fn a_look_at_a_window_misses_no_log() {
    let state = State::new::<Window>(5).await;
    take(&state.limiter, 2).await;
    let diagnosis = state.store.diagnose(state.limiter.name()).await.unwrap();
    assert_eq!(diagnosis.algorithm, Algorithm::FixedWindow);
    let findings = diagnosis.findings();
    let about_the_log = |finding: &Finding| {
        matches!(
            finding.kind(),
            FindingKind::Drift | FindingKind::LogMissing | FindingKind::ValueMissing
        )
    };
    assert!(!findings.iter().any(about_the_log), "{findings:?}");
    assert!(diagnosis.to_string().contains("counted by a fixed window"));
    // A lost log looks different: such a value has no end.
    state.ask("PERSIST", "value", &[]);
    let diagnosis = state.store.diagnose(state.limiter.name()).await.unwrap();
    assert_eq!(diagnosis.algorithm, Algorithm::SlidingLog);
    assert!(diagnosis.findings().iter().any(about_the_log));
}
