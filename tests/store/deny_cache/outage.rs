//! Refused callers stay refused during an outage of Redis.

use crate::scene::*;

async fn ask(layer: &RateLimitLayer, user: &str) -> (StatusCode, Decision) {
    let request = Request::builder().header("x-user", user).body(()).unwrap();
    let answer = send(layer, request).await;
    (answer.status(), decision_of(&answer).clone())
}

async fn stays_refused(mut gone: impl FnMut(&mut RedisServer), deadline: Duration) {
    let mut server = RedisServer::start();
    let clock = ManualClock::new();
    let store = patient(server.url())
        .client_clock(clock.clone())
        .deadline(deadline)
        .build()
        .unwrap();
    let rule = Limit::per_minute(1).by(FromHeader::new("x-user"));
    let layer = RateLimitLayer::new(&store, rule.on_failure(FailurePolicy::Allow));
    assert_eq!(ask(&layer, "ann").await.0, StatusCode::OK);
    assert_eq!(ask(&layer, "ann").await.1.source(), Source::Store);
    gone(&mut server);

    // Within the cap, and long after it.
    for (later, left) in [(500, 59_500), (59_499, 1)] {
        clock.advance(millis(later));
        let (status, decision) = ask(&layer, "ann").await;
        assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "{decision:?}");
        assert_eq!(decision.source(), Source::Cache);
        decision.assert_retry_after(millis(left));
    }
    // These are unknown to the process.
    let (status, decision) = ask(&layer, "bob").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(decision.source(), Source::FailurePolicy);
    clock.advance(millis(1));
    let (status, decision) = ask(&layer, "ann").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(decision.source(), Source::FailurePolicy);
}

#[tokio::test]
async fn a_refusal_outlives_a_server_that_is_down() {
    stays_refused(RedisServer::kill, secs(5)).await;
}

#[tokio::test]
async fn a_refusal_outlives_a_server_that_is_silent() {
    stays_refused(RedisServer::stop_process, millis(300)).await;
}
