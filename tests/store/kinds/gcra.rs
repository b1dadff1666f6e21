//! GCRA limiters: what is known by a name, and what a diagnosis says of a state.

use super::*;
use serde_json::{Value, json};
use tower_ratelimit::inspect::Finding;

on_both_stores!(
    a_rate_that_cannot_be_counted_is_refused,
    a_name_alone_has_no_limit,
);

/// If the limit comes with a request, there is a typed error then: no failure policy admits the
/// request.
async fn a_rate_that_cannot_be_counted_is_refused(store: impl Store) {
    let faster = Limit::per_second(1_000_001);
    let named = faster.named("fast").algorithm(Algorithm::Gcra);
    mistake(
        named.single(&store),
        ConfigErrorKind::Limit,
        "1000001 permits in 1s are more than one in each microsecond",
    );
    let rule = Rule::new("fast", limit_by(move |_| faster), Constant("all"));
    let rule = rule.algorithm(Algorithm::Gcra);
    let layer = RateLimitLayer::new(&store, rule.on_failure(FailurePolicy::Allow));
    let answer = send(&layer, "a").await;
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    let refusal = refused(decision_of(&answer).clone());
    assert_eq!(refusal.error().unwrap().kind(), ErrorKind::Limit);
}

/// By the calendar, too: what needs the limit is an error that says what has one.
async fn a_name_alone_has_no_limit(store: impl Settles) {
    let gcra = Way::Gcra.limited(&store, Limit::new(5, HOUR)).await;
    let quota = Limit::monthly(5).named(&unique("quota")).single(&store);
    let quota = quota.unwrap();
    for (limiter, algorithm) in [(gcra, Algorithm::Gcra), (quota, Algorithm::Calendar)] {
        let grant = take(&limiter, 2).await;
        let by_name = RateLimiter::new(&store, limiter.name()).unwrap();
        let by_name = by_name.algorithm(algorithm);
        let said = fails(by_name.try_acquire().await, ErrorKind::Limit).to_string();
        for right in [
            "Limit::named(",
            ".single(",
            ".keyed(",
            "RateLimitLayer::limiter",
        ] {
            assert!(said.contains(right), "{said}");
        }
        fails(by_name.try_acquire_for(1, SECOND).await, ErrorKind::Limit);
        fails(by_name.acquire().await, ErrorKind::Limit);
        fails(by_name.available_permits().await, ErrorKind::Limit);
        fails(by_name.release(1).await, ErrorKind::Limit);
        fails(by_name.limit().await, ErrorKind::Limit);
        let all = RateLimiter::all([&limiter, &limited(&store, Limit::per_hour(9)).await]);
        granted(all.unwrap().try_acquire().await.unwrap());
        let all = RateLimiter::all([&by_name, &limited(&store, Limit::per_hour(9)).await]);
        fails(all.unwrap().try_acquire().await, ErrorKind::Limit);
        for limiter in [&limiter, &by_name] {
            let other = Limit::per_minute(9);
            fails(limiter.set_rate(other).await, ErrorKind::Limit);
            fails(limiter.try_set_rate(other).await, ErrorKind::Limit);
            fails(limiter.update_rate(other).await, ErrorKind::Limit);
            fails(limiter.expire(HOUR).await, ErrorKind::Limit);
            fails(limiter.clear_expire().await, ErrorKind::Limit);
            fails(limiter.rename(&unique("other")).await, ErrorKind::Limit);
            assert_eq!(limiter.repair().await.unwrap(), 0);
        }
        // What the name is enough for.
        by_name.give_back(&grant);
        store.settled().await;
        assert_eq!(free(&limiter).await, 4);
        let left = by_name.time_to_live().await.unwrap();
        assert!(matches!(left, TimeToLive::Left(_)), "{left:?}");
        by_name.ban_for(HOUR).await.unwrap();
        assert!(limiter.banned_until().await.unwrap().is_some());
        assert!(by_name.unban().await.unwrap());
        assert!(by_name.delete().await.unwrap());
        assert!(!by_name.exists().await.unwrap());
        assert_eq!(free(&limiter).await, 5);
        mistake(
            by_name.slots(10),
            ConfigErrorKind::Limit,
            &format!("{:?} cannot have 10 slots", limiter.name()),
        );
    }
    for rule in [
        Rule::shared("orders"),
        Rule::shared("orders").or_init(Limit::per_hour(5)),
    ] {
        for (algorithm, by) in [
            (Algorithm::Gcra, "GCRA"),
            (Algorithm::Calendar, "the calendar"),
        ] {
            let layer = RateLimitLayer::builder(&store);
            let layer = layer.otherwise(rule.clone().algorithm(algorithm)).build();
            let said = format!("rule \"orders\" cannot share a limit by {by}, as Java knows none");
            mistake(layer, ConfigErrorKind::Limit, &said);
        }
    }
}

/// Zero means the server's clock to a script.
#[tokio::test]
async fn a_clock_that_begins_at_zero_counts() {
    let clock = ManualClock::new();
    clock.set(Duration::ZERO);
    let store = redis_store().client_clock(clock.clone()).build().unwrap();
    let limiter = Way::Gcra.limited(&store, Limit::new(1, 10 * SECOND)).await;
    take(&limiter, 1).await;
    clock.advance(millis(1));
    assert!(wait(&limiter, 1).await.unwrap() <= 10 * SECOND);
    clock.advance(10 * SECOND);
    take(&limiter, 1).await;
}

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
    let prefix = unique("look");
    let store = redis_store().prefix(&prefix).build().unwrap();
    send(&Way::Gcra.layer(&store, Limit::new(5, HOUR)), "a").await;
    let of_rule = format!("{prefix}:{{a}}:five");
    let diagnosis = store.diagnose(&of_rule).await.unwrap();
    assert_eq!(diagnosis.algorithm(), Algorithm::Gcra);
    let data = json!(diagnosis);
    assert_eq!(data["value"], "4");
    assert_eq!(data["stored"]["rate"], "5", "{diagnosis}");
    assert!(sound(diagnosis.findings()), "{diagnosis}");
}
