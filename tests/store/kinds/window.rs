//! Fixed windows: the state in Redis, where it is shared with Redisson 3.7.1 to 3.13.2 or with a
//! log. See also `keys.toml`.

use super::*;
use tower_ratelimit::inspect::Finding;

/// Acts like an old Redisson: SET value rate PX interval, then DECRBY, and a refusal if value is
/// below.
#[tokio::test]
async fn an_old_redisson_shares_the_window() {
    let state = State::new(Way::Window, 5).await;
    state.ask("SET", "value", &["5", "PX", "3600000"]);
    state.ask("DECRBY", "value", &["3"]);
    assert_eq!(free(&state.limiter).await, 2);
    take(&state.limiter, 1).await;
    assert_eq!(state.ask("DECRBY", "value", &["1"]), "0");
    let refusal = refused(state.limiter.try_acquire().await.unwrap());
    let wait = i64::try_from(refusal.retry_after().unwrap().as_millis()).unwrap();
    assert!((0..=2000).contains(&(wait - 1 - state.left("value"))));
}

#[cfg(feature = "inspect")]
#[tokio::test]
async fn a_look_at_a_window_misses_no_log() {
    let state = State::new(Way::Window, 5).await;
    take(&state.limiter, 2).await;
    let diagnosis = state.store.diagnose(state.limiter.name()).await.unwrap();
    assert_eq!(diagnosis.algorithm(), Algorithm::FixedWindow);
    let findings = diagnosis.findings();
    let about_the_log =
        |finding: &Finding| matches!(finding.code(), "drift" | "log_missing" | "value_missing");
    assert!(!findings.iter().any(about_the_log), "{findings:?}");
    assert!(diagnosis.to_string().contains("counted by a fixed window"));
    // A lost log looks different: such a value has no end.
    state.ask("PERSIST", "value", &[]);
    let diagnosis = state.store.diagnose(state.limiter.name()).await.unwrap();
    assert_eq!(diagnosis.algorithm(), Algorithm::SlidingLog);
    assert!(diagnosis.findings().iter().any(about_the_log));
}
