//! Several rules on one request.

use super::world::{ask, left_of};
use kit::scene::*;

on_both_by_a_clock!(
    a_limiter_of_two_rules_is_charged_once_for_both,
    a_missing_key_charges_no_limit,
    a_rule_that_does_not_concern_the_request_is_left_out,
);

fn seconds(permits: u64) -> Limit {
    Limit::new(permits, secs(10))
}

fn of_all(permits: u64, name: &str) -> Rule {
    seconds(permits).by(Constant("all")).named(name)
}

fn by_user(permits: u64, name: &str) -> Rule {
    seconds(permits).by(FromHeader::new("user")).named(name)
}

/// Refused for an error of this kind.
async fn is_unavailable(layer: &RateLimitLayer, headers: &[(&str, &str)], kind: ErrorKind) {
    let (status, decision) = ask(layer, headers).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(refused(decision).error().unwrap().kind(), kind);
}

async fn a_limiter_of_two_rules_is_charged_once_for_both(store: impl Store, _: ManualClock) {
    let name = unique("both");
    let limiter = RateLimiter::new(&store, &name).unwrap();
    let shared = |label: &str| Rule::shared(&name).named(label).or_init(seconds(10));
    let layer = layer_of(
        &store,
        [
            shared("one").cost(3),
            shared("two").cost(4),
            of_all(9, "other"),
        ],
    );
    let granted = granted(ask(&layer, &[]).await.1);
    assert_eq!(permits_taken(&granted).len(), 2);
    assert_eq!(free(&limiter).await, 3);
    // Each of the two alone would have room.
    let refused = refused(ask(&layer, &[]).await.1);
    assert_eq!(refused.retry_after(), Some(secs(10)));
    assert_eq!(free(&limiter).await, 3);
    assert_eq!(left_of(&layer, "other", "all").await, 8);
}

async fn a_missing_key_charges_no_limit(store: impl Store, _: ManualClock) {
    let layer = layer_of(&store, [of_all(5, "all"), by_user(5, "user")]);
    // Makes the limiters.
    assert_eq!(ask(&layer, &[("user", "ann")]).await.0, StatusCode::OK);
    let (status, decision) = ask(&layer, &[]).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    let refusal = refused(decision);
    assert_eq!(refusal.kind(), RefusalKind::MissingKey);
    assert_eq!(refusal.missing(), Some("user"));
    assert_eq!(left_of(&layer, "all", "all").await, 4);
}

async fn a_rule_that_does_not_concern_the_request_is_left_out(store: impl Store, _: ManualClock) {
    let user = seconds(1).by(FromHeader::new("user").or_skip());
    let layer = layer_of(
        &store,
        [
            of_all(5, "all"),
            user.named("user"),
            seconds(1).by(Constant("free")).named("free").cost_by(|_| 0),
        ],
    );
    for _ in 0..2 {
        let granted = granted(ask(&layer, &[]).await.1);
        assert_eq!(granted.limits().count(), 1);
    }
    let granted = granted(ask(&layer, &[("user", "ann")]).await.1);
    assert_eq!(granted.limits().count(), 2);
    assert_eq!(left_of(&layer, "all", "all").await, 2);
}

#[tokio::test]
async fn a_rate_type_is_that_of_the_stored_limit() {
    let redis = shared_redis().prefix(&unique("typed")).redisson();
    another_rate_type_charges_no_limit(MemoryStore::builder().redisson().build()).await;
    another_rate_type_charges_no_limit(redis.build().unwrap()).await;
}

async fn another_rate_type_charges_no_limit(store: impl Store) {
    let layer = layer_of(
        &store,
        [
            of_all(5, "all"),
            of_all(5, "typed").on_failure(FailurePolicy::Deny),
        ],
    );
    assert_eq!(ask(&layer, &[]).await.0, StatusCode::OK);
    let of_rule = layer.limiter("typed", ["all"]).unwrap();
    let stored = RateLimiter::new(&store, of_rule.name()).unwrap();
    assert!(stored.update_rate(seconds(5).per_client()).await.unwrap());
    is_unavailable(&layer, &[], ErrorKind::RateTypeDiffers).await;
    assert_eq!(left_of(&layer, "all", "all").await, 4);
    assert_eq!(free(&stored).await, 5);
}

/// If the store cannot decide, the strictest of the rules' policies does.
#[tokio::test]
async fn the_strictest_policy_counts() {
    let (allow, deny) = (FailurePolicy::Allow, FailurePolicy::Deny);
    for (policies, status) in [
        ([allow, allow], StatusCode::OK),
        ([allow, deny], StatusCode::SERVICE_UNAVAILABLE),
        ([deny, allow], StatusCode::SERVICE_UNAVAILABLE),
    ] {
        let store = RedisStore::open("redis://127.0.0.1:1/").unwrap();
        let [first, second] = policies;
        let (a, b) = (of_all(5, "a"), of_all(5, "b"));
        let layer = layer_of(&store, [a.on_failure(first), b.on_failure(second)]);
        let answer = ask(&layer, &[]).await;
        assert_eq!(answer.0, status, "{policies:?}");
        assert_eq!(answer.1.source(), Source::FailurePolicy);
    }
}

#[tokio::test]
async fn a_full_store_refuses_the_whole_list() {
    let (store, clock) = MemoryStore::builder().max_limiters(4).build_manual();
    // Too large to be counted by an estimate.
    let permits = 2 * u64::from(u32::MAX);
    let rules = ["a", "b", "c"].map(|name| by_user(permits, name).cost(u32::MAX));
    let layer = layer_of(&store, rules);
    assert_eq!(ask(&layer, &[("user", "ann")]).await.0, StatusCode::OK);
    is_unavailable(&layer, &[("user", "bob")], ErrorKind::Full).await;
    // Who is known is still counted.
    let granted = granted(ask(&layer, &[("user", "ann")]).await.1);
    assert_eq!(granted.limits().next().unwrap().remaining(), Some(0));

    // When the known limiters are idle, there is room for newcomers in every shard.
    for newcomer in 0..200 {
        clock.advance(secs(10));
        let user = format!("user-{newcomer}");
        let (status, _) = ask(&layer, &[("user", &user)]).await;
        assert_eq!(status, StatusCode::OK, "{user}");
        assert!(store.len() <= 4);
    }
}

/// A newcomer may take the place of an idle limiter of its own list, which then finds another.
#[tokio::test]
async fn a_list_makes_room_for_all_of_itself() {
    let (store, clock) = MemoryStore::builder().max_limiters(3).build_manual();
    let order = seconds(2).by(FromHeader::new("order").or_skip());
    let layer = layer_of(&store, [by_user(2, "user"), order.named("order")]);
    for number in 0..100 {
        let name = format!("number-{number}");
        assert_eq!(ask(&layer, &[("user", &name)]).await.0, StatusCode::OK);
        clock.advance(secs(10));
        let (status, _) = ask(&layer, &[("user", &name), ("order", &name)]).await;
        assert_eq!(status, StatusCode::OK, "{name}");
        clock.advance(secs(10));
    }
}
