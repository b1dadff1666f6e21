//! The extensions that a layer sets, for inner handlers and outer layers.

use super::*;
use http::Extensions;

/// The rules of these grants, in their order.
fn rules<'a>(grants: impl Iterator<Item = &'a Grant>) -> Vec<String> {
    let name = |grant: &Grant| grant.limits().next().unwrap().name().to_owned();
    grants.map(name).collect()
}

fn grant_in(extensions: &Mutex<Extensions>) -> Grant {
    let extensions = extensions.lock().unwrap();
    extensions.get::<Grant>().expect("a grant").clone()
}

fn decision_in<B>(answer: &Response<B>) -> Option<&Decision> {
    answer.extensions().get()
}

fn named(store: &MemoryStore, name: &str, permits: u64) -> RateLimitLayer {
    RateLimitLayer::new(store, by_key(permits).named(name))
}

/// Keeps the extensions of the requests that reach it.
pub(super) fn watched() -> (
    Arc<Mutex<Extensions>>,
    impl Service<Request<String>, Response = Response<String>, Error = Infallible, Future: Send> + Clone,
) {
    let seen = Arc::new(Mutex::new(Extensions::new()));
    let keep = Arc::clone(&seen);
    let service = service_fn(move |request: Request<String>| {
        *keep.lock().unwrap() = request.into_parts().0.extensions;
        std::future::ready(Ok(Response::new("inner".to_owned())))
    });
    (seen, service)
}

#[tokio::test]
async fn a_grant_is_in_the_request_and_a_refusal_in_the_response() {
    async fn check(store: impl Store) {
        let (seen, inner) = watched();
        let service = RateLimitLayer::new(&store, by_key(2)).layer(inner);
        let answer = service.clone().oneshot(request("a")).await.unwrap();
        let grant = grant_in(&seen);
        assert_eq!(grant.source(), Source::Store);
        assert_eq!(grant.layers().count(), 1);
        assert_eq!(grant.limits().count(), 1, "{grant:?}");
        let limit = grant.limits().next().unwrap();
        let found = (limit.name(), limit.permits(), limit.remaining());
        assert_eq!(found, ("default", 2, Some(1)));
        assert!(answer.extensions().is_empty(), "{answer:?}");

        assert_eq!(status(&service, request("a")).await, StatusCode::OK);
        let refused = service.oneshot(request("a")).await.unwrap();
        let decision = decision_of(&refused);
        decision.assert_refused_as(RefusalKind::OverLimit);
        assert_eq!(decision.layers().count(), 0);
    }
    check(MemoryStore::new()).await;
    check(redis().build().unwrap()).await;
}

#[tokio::test]
async fn a_layer_that_is_asked_to_leaves_its_decision_in_the_response() {
    let layer = RateLimitLayer::builder(&MemoryStore::new()).otherwise(by_key(1));
    let layer = layer.decision_in_response().build().unwrap();
    let (_, inner) = watched();
    let service = layer.layer(inner);
    let answer = service.clone().oneshot(request("a")).await.unwrap();
    Decision::of(&answer).assert_allowed().assert_remaining(0);
    let refused = service.oneshot(request("a")).await.unwrap();
    Decision::of(&refused).assert_refused();
}

#[tokio::test]
async fn nested_layers_leave_a_list_of_grants() {
    let store = MemoryStore::new();
    let (seen, inner) = watched();
    let service = named(&store, "third", 1).layer(inner);
    let service = named(&store, "second", 5).layer(service);
    let service = named(&store, "first", 5).layer(service);
    let answer = service.clone().oneshot(request("a")).await.unwrap();
    let made = ["third", "second", "first"];
    assert_eq!(rules(grant_in(&seen).layers()), made);
    // Outer layers compare it with their own.
    let innermost = decision_in(&answer).expect("the innermost decision");
    assert!(innermost.is_allowed());
    assert_eq!(rules(innermost.layers()), made);
    // A refusal within is the decision that outer layers see.
    let refused = service.oneshot(request("a")).await.unwrap();
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    let refusal = decision_of(&refused).assert_refused();
    assert_eq!(refusal.limits().next().unwrap().name(), "third");
    assert_eq!(rules(refusal.layers()), made[1..]);
}

/// A layer that was asked to leaves its own decision only if no inner layer has left one.
#[tokio::test]
async fn the_decision_in_a_response_is_the_innermost_ones() {
    let store = MemoryStore::new();
    let (_, inner) = watched();
    let outer = RateLimitLayer::builder(&store).otherwise(by_key(9).named("outer"));
    let outer = outer.decision_in_response().build().unwrap();
    let service = outer.layer(named(&store, "inner", 9).layer(inner));
    let answer = service.oneshot(request("a")).await.unwrap();
    assert_eq!(rules(decision_of(&answer).layers()), ["inner", "outer"]);
}

#[tokio::test]
async fn what_no_rule_counts_passes_untouched() {
    let store = MemoryStore::new();
    let builder = || RateLimitLayer::builder(&store);
    let signs = [
        ("origin", "https://shop.example"),
        ("access-control-request-method", "POST"),
    ];
    let of = |rule: Rule| builder().otherwise(rule);
    let off = || of(by_key(1)).enabled(false);
    let elsewhere = builder().on("/limited", by_key(1));
    let allowed = Rules::new().allow(Requests::on("/")).otherwise(by_key(1));
    let skips = Limit::per_hour(1).by(FromHeader::new("x-key").or_skip());
    for (what, layer, request) in [
        ("it is off", off(), request("a")),
        ("no key, and it is off", off(), anonymous()),
        ("no entry has it", elsewhere, request("a")),
        ("it is allowed", builder().rules(allowed), request("a")),
        ("its key may be missing", of(skips), anonymous()),
        ("it is free", of(by_key(1).cost_by(|_| 0)), request("a")),
        ("a preflight", of(by_key(1)), asking("OPTIONS /", &signs)),
    ] {
        let (seen, inner) = watched();
        let service = layer.build().unwrap().layer(inner);
        for _ in 0..3 {
            let passed = service.clone().oneshot(request.clone()).await.unwrap();
            assert_eq!(passed.status(), StatusCode::OK, "{what}");
            assert!(passed.headers().is_empty(), "{what}: {passed:?}");
            assert!(passed.extensions().is_empty(), "{what}: {passed:?}");
            assert!(seen.lock().unwrap().is_empty(), "{what}");
        }
        assert!(store.is_empty(), "{what}: the store was never asked");
    }

    // Nor is a server asked that is not there.
    let down = RedisStore::open("redis://127.0.0.1:1/").unwrap();
    let closed = by_key(1).on_failure(FailurePolicy::Deny);
    let layer = RateLimitLayer::builder(&down).otherwise(closed);
    let service = layer
        .enabled(false)
        .build()
        .unwrap()
        .layer(Inner::default());
    assert_eq!(status(&service, request("a")).await, StatusCode::OK);
}
