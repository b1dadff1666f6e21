//! Shadow rules: their counts, their reports, and that they refuse no request.

use super::*;

on_both_stores!(
    a_layer_tries_out_all_its_rules,
    mistakes_of_a_shadow_rule_refuse_nothing,
    a_limiter_that_is_tried_out_and_enforced_is_enforced,
);

fn rule(name: &str, permits: u64) -> Rule {
    by_key(permits).named(name)
}

async fn send(layer: &RateLimitLayer, request: Request<String>) -> (StatusCode, Option<Decision>) {
    let answer = answer(layer, request).await;
    (answer.status(), answer.extensions().get().cloned())
}

/// The same, and what became of the first limit.
async fn first(layer: &RateLimitLayer, request: Request<String>) -> (StatusCode, LimitState) {
    let (status, decision) = send(layer, request).await;
    let state = states(&decision.unwrap()).swap_remove(0);
    (status, state)
}

/// Name, whether it had room, whether it is shadow, permits left.
type LimitState = (String, bool, bool, Option<u64>);

fn states(decision: &Decision) -> Vec<LimitState> {
    let limits = decision.limits();
    let state = limits.map(|it| {
        let name = it.name().to_owned();
        (name, !it.is_refused(), it.is_shadow(), it.remaining())
    });
    state.collect()
}

async fn a_layer_tries_out_all_its_rules(store: impl Store) {
    for way in Way::OWN {
        let rule = way.rule(rule(&unique("alone"), 1));
        // The other limit is not reported: it refuses nothing, not even a cost above its rate.
        let costs = rule.cost_by(|parts| if parts.uri.path() == "/all" { 2 } else { 1 });
        let layer = RateLimitLayer::builder(&store).otherwise(costs);
        let layer = layer.shadow(true).build().unwrap();
        for (path, room) in [("/", true), ("/", false), ("/all", false)] {
            let request = asking(&format!("GET {path}"), &[("x-key", "a")]);
            let (status, decision) = send(&layer, request).await;
            assert_eq!(status, 200, "{way:?}");
            let decision = decision.unwrap();
            assert_eq!(decision.source(), Source::Store);
            assert_eq!(states(&decision)[0].1, room, "{way:?} {path}");
        }
    }
}

#[tokio::test]
async fn callers_see_nothing_of_a_shadow_rule() {
    let store = MemoryStore::new();
    let tried = layer_of(&store, [rule("tried", 1).shadow()]);
    let both = layer_of(&store, [rule("kept", 1), rule("tried", 1).shadow()]);
    for _ in 0..2 {
        let alone = answer(&tried, request("a")).await;
        assert!(alone.headers().is_empty(), "{alone:?}");
        for value in answer(&both, request("b")).await.headers().values() {
            assert!(!value.to_str().unwrap().contains("tried"), "{value:?}");
        }
    }
}

/// A request that a rule cannot count for itself passes it by, and meets the others.
async fn mistakes_of_a_shadow_rule_refuse_nothing(store: impl Store) {
    let unset = || Rule::shared(&unique("unset")).named("unset");
    let no_key = || Rule::new("no-key", Limit::per_hour(5), FromHeader::new("x-none"));
    let (tried, in_part) = (no_key().shadow(), no_key().enforce_share(99));
    for tried in [unset().shadow(), tried, in_part] {
        let alone = layer_of(&store, [tried.clone().on_failure(FailurePolicy::Deny)]);
        assert_eq!(send(&alone, request("a")).await.0, 200, "{tried:?}");
        let name = unique("kept");
        let both = layer_of(&store, [rule(&name, 1), tried.clone()]);
        for status in [200, 429] {
            let (answered, state) = first(&both, request("a")).await;
            assert_eq!((answered.as_u16(), &state.0), (status, &name), "{tried:?}");
        }
        // With the layer gone the names are free for what refuses.
    }
    for (enforced, status) in [(unset(), 503), (no_key(), 401)] {
        let layer = layer_of(&store, [enforced]);
        assert_eq!(send(&layer, request("a")).await.0, status);
    }
    let both = layer_of(&store, [rule("kept", 1), rule("tried", 1).shadow()]);
    assert_eq!(send(&both, anonymous()).await.0, 401);
}

#[tokio::test]
async fn a_failing_store_refuses_nothing_for_a_shadow_rule() {
    // No server listens there.
    let store = RedisStore::open("redis://127.0.0.1:1/").unwrap();
    let tried = || rule("tried", 1).on_failure(FailurePolicy::Deny).shadow();
    let alone = layer_of(&store, [tried()]);
    let (status, decision) = send(&alone, request("a")).await;
    assert_eq!(status, 200);
    assert_eq!(decision.unwrap().source(), Source::FailurePolicy);
    // Its policy does not count for others.
    let both = layer_of(&store, [rule("kept", 1), tried()]);
    assert_eq!(send(&both, request("a")).await.0, 200);
    let strict = rule("strict", 1).on_failure(FailurePolicy::Deny);
    let both = layer_of(&store, [strict, tried()]);
    assert_eq!(send(&both, request("a")).await.0, 503);
}

#[tokio::test]
async fn a_full_store_refuses_nothing_for_a_shadow_rule() {
    let store = MemoryStore::builder().max_limiters(1).build();
    // Too large to be counted by an estimate, or not.
    for (user, permits, expected) in [("a", 1 << 32, Source::Store), ("b", 1, Source::Estimate)] {
        let tried = rule(&format!("tried-{user}"), permits).shadow();
        let layer = layer_of(&store, [rule("kept", 2), tried]);
        for status in [200, 200, 429] {
            let (answered, decision) = send(&layer, request(user)).await;
            let source = decision.unwrap().source();
            assert_eq!((answered.as_u16(), source), (status, expected));
        }
    }
}

#[tokio::test]
async fn a_share_of_the_keys_is_enforced_and_always_the_same() {
    let stores = [MemoryStore::new(), MemoryStore::new()];
    let mut enforced = [(); 2].map(|()| Vec::new());
    for (store, enforced) in stores.iter().zip(&mut enforced) {
        let layer = layer_of(store, [rule("api", 1).enforce_share(30)]);
        for key in 0..200 {
            let key = key.to_string();
            assert_eq!(send(&layer, request(&key)).await.0, 200);
            let (status, (_, room, is_shadow, _)) = first(&layer, request(&key)).await;
            assert!(!room);
            assert_eq!(is_shadow, status == 200);
            if status == 429 {
                enforced.push(key);
            }
        }
    }
    let [first, second] = enforced;
    assert_eq!(first, second);
    assert!((40..80).contains(&first.len()), "{} of 200", first.len());
}

/// A limiter that one rule of a list tries out and another enforces is charged by the latter alone.
async fn a_limiter_that_is_tried_out_and_enforced_is_enforced(store: impl Store) {
    let name = unique("both");
    let limiter = RateLimiter::new(&store, &name).unwrap();
    limiter.try_set_rate(Limit::per_hour(3)).await.unwrap();
    let of = |label: &str| Rule::shared(&name).named(label);
    for rules in [
        [of("kept"), of("tried").cost(3).shadow()],
        [of("tried").cost(3).shadow(), of("kept")],
    ] {
        let before = limiter.available_permits().await.unwrap();
        let layer = layer_of(&store, rules);
        let (status, state) = first(&layer, request("a")).await;
        assert_eq!((status.as_u16(), &*state.0), (200, "kept"));
        assert_eq!(limiter.available_permits().await.unwrap(), before - 1);
    }
}

/// Permits that were not taken are not settled: neither given back nor charged.
async fn settling(store: impl Store) {
    let layer = layer_of(&store, [rule("tried", 2).cost(2).shadow()]);
    let service = layer.layer(service_fn(async |request: Request<String>| {
        let says = request.headers()["x-says"].to_str().unwrap();
        let charge = request.extensions().get::<Grant>().unwrap();
        charge.set(says.parse().unwrap());
        Ok::<_, Infallible>(answer_to(&request, ""))
    }));
    // Taken and kept; not taken, and so neither refunded nor charged; and the same again.
    for (says, room) in [("2", true), ("0", false), ("50", false), ("0", false)] {
        let asked = asking("GET /", &[("x-key", "a"), ("x-says", says)]);
        let answer = service.clone().oneshot(asked).await.unwrap();
        assert_eq!(answer.status(), 200, "{says}");
        let expected = ("tried".to_owned(), room, true, Some(0));
        assert_eq!(states(decision_of(&answer)), [expected], "{says}");
    }
}

#[tokio::test]
async fn what_was_not_taken_is_not_settled() {
    settling(MemoryStore::new()).await;
    let store = redis().build().unwrap();
    settling(store.clone()).await;
    store.close().await;
    let layer = layer_of(&store, [rule("tried", 2).shadow()]);
    let (_, state) = first(&layer, request("a")).await;
    assert!(!state.1, "{state:?}");
}

/// Extractors that excuse a missing key are no mistake.
#[tokio::test]
async fn a_key_that_may_be_missing_is_skipped_as_ever() {
    let key = FromHeader::new("x-key").or_skip();
    let rule = Limit::per_hour(1).by(key).enforce_share(100);
    let layer = layer_of(&MemoryStore::new(), [rule]);
    assert_eq!(send(&layer, anonymous()).await.0, 200);
    assert_eq!(send(&layer, request("a")).await.0, 200);
    assert_eq!(send(&layer, request("a")).await.0, 429);
}
