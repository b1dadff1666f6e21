//! The extensions that a layer sets, for inner handlers and outer layers.

use super::*;
use http::Extensions;

fn name_of(decision: &Decision) -> (String, bool) {
    let limit = decision.limits().next().unwrap();
    (limit.name().to_owned(), decision.is_allowed())
}

/// The rules whose decisions are there, in their order, and whether they allowed.
fn all(extensions: &Extensions) -> Vec<(String, bool)> {
    let decisions = extensions.get::<Decisions>().expect("decisions");
    decisions.iter().map(name_of).collect()
}

fn last(extensions: &Extensions) -> (String, bool) {
    name_of(extensions.get().expect("a decision"))
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
async fn a_decision_is_in_the_request_and_in_the_response() {
    for layer in [
        RateLimitLayer::new(&MemoryStore::new(), by_key(2)),
        RateLimitLayer::new(&redis().build().unwrap(), by_key(2)),
    ] {
        let (seen, inner) = watched();
        let service = layer.layer(inner);
        let answer = service.clone().oneshot(request("a")).await.unwrap();
        let within = seen.lock().unwrap().clone();
        for extensions in [&within, answer.extensions()] {
            let decision = extensions.get::<Decision>().unwrap();
            assert!(decision.is_allowed());
            assert_eq!(decision.source(), Source::Store);
            assert_eq!(decision.limits().len(), 1, "{decision:?}");
            let limit = decision.limits().next().unwrap();
            let found = (limit.name(), limit.permits(), limit.remaining());
            assert_eq!(found, ("default", 2, Some(1)));
            let list = extensions.get::<Decisions>();
            assert!(list.is_none(), "one layer, one decision");
        }

        assert_eq!(status(&service, request("a")).await, StatusCode::OK);
        let refused = service.clone().oneshot(request("a")).await.unwrap();
        assert_eq!(last(refused.extensions()), ("default".to_owned(), false));
    }
}

#[tokio::test]
async fn without_extensions_a_decision_is_left_nowhere_and_a_charge_is_known_within() {
    let layer = RateLimitLayer::builder(&MemoryStore::new()).otherwise(by_key(2));
    let layer = layer.extensions(false).build().unwrap();
    let (seen, inner) = watched();
    // Around itself: by the charge it knows that it has met the request.
    let service = layer.layer(layer.layer(inner));
    for left in ["1", "0"] {
        let answer = service.clone().oneshot(request("a")).await.unwrap();
        let within = seen.lock().unwrap().clone();
        for extensions in [&within, answer.extensions()] {
            assert!(extensions.get::<Decision>().is_none());
        }
        assert!(within.get::<Charge>().is_some());
        let field = answer.headers()["ratelimit"].to_str().unwrap();
        assert!(field.contains(&format!(";r={left}")), "{field}");
    }
    let refused = service.clone().oneshot(request("a")).await.unwrap();
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(refused.extensions().get::<Decision>().is_none());
}

#[tokio::test]
async fn nested_layers_leave_all_decisions() {
    let store = MemoryStore::new();
    let (seen, inner) = watched();
    let service = named(&store, "third", 1).layer(inner);
    let service = named(&store, "second", 5).layer(service);
    let service = named(&store, "first", 5).layer(service);
    let answer = service.clone().oneshot(request("a")).await.unwrap();
    let mut made = ["first", "second", "third"].map(|name| (name.to_owned(), true));
    let within = seen.lock().unwrap().clone();
    for extensions in [&within, answer.extensions()] {
        assert_eq!(all(extensions), made);
        assert_eq!(last(extensions), made[2]);
    }
    // A refusal within is what outer layers see.
    let refused = service.oneshot(request("a")).await.unwrap();
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    made[2].1 = false;
    assert_eq!(all(refused.extensions()), made);
    assert_eq!(last(refused.extensions()), made[2]);
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
