//! Refused callers stay refused during an outage of Redis.

use crate::scene::*;

async fn ask(layer: &RateLimitLayer, user: &str) -> Decision {
    let request = Request::builder().header("x-user", user).body(()).unwrap();
    decide(layer, request).await
}

async fn stays_refused(mut gone: impl FnMut(&mut RedisServer), deadline: Duration) {
    let mut server = RedisServer::start();
    let clock = ManualClock::new();
    let store = by_clock(&server, &clock).deadline(deadline);
    let store = store.build().unwrap();
    let rule = Limit::per_minute(1).by(FromHeader::new("x-user"));
    let layer = RateLimitLayer::new(&store, rule.on_failure(FailurePolicy::Allow));
    ask(&layer, "ann").await.assert_allowed();
    assert_eq!(ask(&layer, "ann").await.source(), Source::Store);
    gone(&mut server);

    // Within the cap, and long after it.
    for (later, left) in [(500, 59_500), (59_499, 1)] {
        clock.advance(millis(later));
        let decision = ask(&layer, "ann").await;
        assert_eq!(decision.source(), Source::Cache);
        decision.assert_retry_after(millis(left));
    }
    // One is unknown to the process, and then both are.
    for (user, later) in [("bob", 0), ("ann", 1)] {
        clock.advance(millis(later));
        let decision = ask(&layer, user).await;
        decision.assert_allowed();
        assert_eq!(decision.source(), Source::FailurePolicy, "{user}");
    }
}

#[tokio::test]
async fn a_refusal_outlives_a_server_that_is_down() {
    stays_refused(RedisServer::kill, secs(5)).await;
}

#[tokio::test]
async fn a_refusal_outlives_a_server_that_is_silent() {
    stays_refused(RedisServer::stop_process, millis(300)).await;
}
