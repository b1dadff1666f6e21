//! GCRA limiters: the state in Redis, receipts, changed limits, the queue, HTTP, and renamed
//! limiters.

mod clocks;
mod state;

use super::*;
use crate::scene::on_both_stores;

on_both_stores!(
    a_rate_that_cannot_be_counted_is_refused,
    a_rules_limiter_is_read_and_deleted,
);

/// If the limit comes with a request or a verb, there is a typed error then: no failure policy
/// admits the request.
async fn a_rate_that_cannot_be_counted_is_refused(store: impl Store) {
    let faster = Limit::per_second(1_000_001);
    let limiter = Way::Gcra.named(&store, &unique("fast"));
    for error in [
        limiter.try_set_rate(faster).await.unwrap_err(),
        limiter.set_rate(faster).await.unwrap_err(),
        limiter.update_rate(faster).await.unwrap_err(),
        limiter.reset_rate(faster).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Limit);
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains("1000001"), "{source}");
    }
    assert!(!limiter.exists().await.unwrap());

    let rule = Rule::new("fast", limit_by(move |_| faster), Constant("all"));
    let rule = rule.algorithm(Algorithm::Gcra);
    let layer = RateLimitLayer::new(&store, rule.on_failure(FailurePolicy::Allow));
    let answer = send(&layer, "a").await;
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    let refusal = refused(decision_of(&answer).clone());
    assert_eq!(refusal.error().unwrap().kind(), ErrorKind::Limit);

    // One that was set for another algorithm.
    let logged = RateLimiter::new(&store, limiter.name()).unwrap();
    logged.set_rate(faster).await.unwrap();
    for error in [
        limiter.try_acquire().await.unwrap_err(),
        limiter.available_permits().await.unwrap_err(),
        limiter.release(1).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::ForeignState);
    }
}

/// A changed limit of the code counts from the next call, with the permits in use; a process that
/// has just rewritten it leaves it alone.
#[tokio::test]
async fn the_limit_of_the_code_counts_from_the_next_call_on() {
    let prefix = unique("plan");
    let (first, second) = (
        redis_store().prefix(&prefix).build().unwrap(),
        redis_store().prefix(&prefix).build().unwrap(),
    );
    let layer = |store: &RedisStore, permits| {
        let rule = Rule::new("plan", Limit::new(permits, HOUR), FromHeader::new("x-key"));
        RateLimitLayer::new(store, rule.algorithm(Algorithm::Gcra))
    };
    let (ten, four) = (layer(&first, 10), layer(&second, 4));
    let state = async |layer: &RateLimitLayer| {
        let answer = send(layer, "a").await;
        let limit = decision_of(&answer).limits().next().unwrap();
        (
            answer.status().is_success(),
            limit.permits(),
            limit.remaining(),
        )
    };
    assert_eq!(state(&ten).await, (true, 10, Some(9)));
    assert_eq!(state(&ten).await, (true, 10, Some(8)));
    // Two are in use: by the lower limit, too.
    assert_eq!(state(&four).await, (true, 4, Some(1)));
    // The other process writes its own again, and this one leaves it alone for a minute.
    assert_eq!(state(&ten).await, (true, 10, Some(6)));
    assert_eq!(state(&four).await, (true, 10, Some(5)));
    assert_eq!(state(&four).await, (true, 10, Some(4)));
    // Another caller's is not touched by that.
    let answer = send(&four, "b").await;
    assert_eq!(decision_of(&answer).limits().next().unwrap().permits(), 4);
}

/// The limiter of a rule, by the rule's limit.
async fn a_rules_limiter_is_read_and_deleted(store: impl Store) {
    for limit in [Limit::new(5, HOUR), Limit::new(5, HOUR).per_client()] {
        let layer = Way::Gcra.layer(&store, limit);
        let limiter = layer.limiter("five", ["a"]).unwrap();
        assert!(!limiter.exists().await.unwrap());
        send(&layer, "a").await;
        send(&layer, "a").await;
        assert_eq!(free(&limiter).await, 3);
        let limit = limiter.limit().await.unwrap().unwrap();
        assert_eq!((limit.permits(), limit.interval()), (5, HOUR));
        let left = limiter.time_to_live().await.unwrap();
        assert!(matches!(left, TimeToLive::Left(_)));
        assert_eq!(limiter.release(1).await.unwrap(), 1);
        assert_eq!(free(&limiter).await, 4);
        assert!(limiter.delete().await.unwrap());
        assert!(!limiter.exists().await.unwrap());
        let answer = send(&layer, "a").await;
        decision_of(&answer).assert_remaining(4);
        assert!(limiter.delete().await.unwrap());
    }
}
