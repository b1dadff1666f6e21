//! What a text that is no state is, and what a diagnosis says of one that is.

use super::*;
use serde_json::{Value, json};
use tower_ratelimit::inspect::Finding;

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
