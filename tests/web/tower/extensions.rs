//! The extensions that a layer sets, for inner handlers and outer layers.

use crate::scene::*;
use http::Extensions;
use tower::Service;
use tower_ratelimit::Decisions;

use super::{Inner, anonymous, by_key, redis, request, status};

/// The rules whose decisions are there, in their order, and whether they allowed.
fn all(extensions: &Extensions) -> Vec<(String, bool)> {
    let of = |decision: &Decision| {
        (
            decision.limits().next().unwrap().name().to_owned(),
            decision.is_allowed(),
        )
    };
    extensions.get::<Decisions>().map_or(vec![], |decisions| {
        decisions.as_slice().iter().map(of).collect()
    })
}

fn last(extensions: &Extensions) -> (String, bool) {
    let decision = extensions.get::<Decision>().expect("a decision");
    (
        decision.limits().next().unwrap().name().to_owned(),
        decision.is_allowed(),
    )
}

fn named(store: &MemoryStore, name: &str, permits: u64) -> RateLimitLayer {
    RateLimitLayer::new(
        store,
        Limit::per_hour(permits)
            .by(FromHeader::new("x-key"))
            .named(name),
    )
}

/// Keeps the extensions of the requests that reach it.
fn watched() -> (
    Arc<Mutex<Extensions>>,
    impl Service<Request<String>, Response = Response<String>, Error = Infallible, Future: Send> + Clone,
) {
    let seen = Arc::new(Mutex::new(Extensions::new()));
    let keep = Arc::clone(&seen);
    let service = service_fn(move |request: Request<String>| {
        *keep.lock().unwrap() = request.into_parts().0.extensions;
        std::future::ready(Ok(Response::new(String::new())))
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
            assert_eq!(
                (limit.name(), limit.permits(), limit.remaining()),
                ("default", 2, Some(1))
            );
            assert!(
                extensions.get::<Decisions>().is_none(),
                "one layer, one decision"
            );
        }

        assert_eq!(status(&service, request("a")).await, StatusCode::OK);
        let refused = service.clone().oneshot(request("a")).await.unwrap();
        assert_eq!(last(refused.extensions()), ("default".to_owned(), false));
    }
}

#[tokio::test]
async fn what_is_left_is_not_counted_unless_it_is_asked_for() {
    let layer = RateLimitLayer::builder(&MemoryStore::new());
    let layer = layer
        .otherwise(by_key(1))
        .count_remaining(false)
        .build()
        .unwrap();
    let service = layer.layer(Inner::default());
    let passed = service.clone().oneshot(request("a")).await.unwrap();
    let limit = decision_of(&passed).limits().next().unwrap();
    assert_eq!(limit.remaining(), None);
    let refused = service.oneshot(request("a")).await.unwrap();
    let limit = decision_of(&refused).limits().next().unwrap();
    assert_eq!(limit.remaining(), Some(0));
}

#[tokio::test]
async fn nested_layers_leave_all_decisions() {
    let store = MemoryStore::new();
    let (seen, inner) = watched();
    let service = named(&store, "third", 5).layer(inner);
    let service = named(&store, "second", 5).layer(service);
    let service = named(&store, "first", 5).layer(service);
    let answer = service.oneshot(request("a")).await.unwrap();

    let made = ["first", "second", "third"].map(|name| (name.to_owned(), true));
    let within = seen.lock().unwrap().clone();
    assert_eq!(all(&within), made);
    assert_eq!(last(&within), made[2]);
    assert_eq!(
        all(answer.extensions()),
        made,
        "in the response as in the request"
    );
    assert_eq!(last(answer.extensions()), made[2]);
}

#[tokio::test]
async fn a_refusal_within_is_what_outer_layers_see() {
    let store = MemoryStore::new();
    let service = named(&store, "inner", 1).layer(Inner::default());
    let service = named(&store, "outer", 5).layer(service);
    assert_eq!(status(&service, request("a")).await, StatusCode::OK);
    let refused = service.oneshot(request("a")).await.unwrap();
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(last(refused.extensions()), ("inner".to_owned(), false));
    assert_eq!(
        all(refused.extensions()),
        [("outer".to_owned(), true), ("inner".to_owned(), false)]
    );
}

#[tokio::test]
async fn a_layer_that_is_off_touches_nothing() {
    let store = MemoryStore::new();
    let layer = RateLimitLayer::builder(&store)
        .otherwise(by_key(1))
        .enabled(false)
        .build()
        .unwrap();
    let (seen, inner) = watched();
    let service = layer.layer(inner);
    for sent in [request("a"), request("a"), anonymous()] {
        let passed = service.clone().oneshot(sent).await.unwrap();
        assert_eq!(passed.status(), StatusCode::OK);
        assert!(passed.extensions().is_empty());
        assert!(seen.lock().unwrap().is_empty());
    }
    assert!(store.is_empty(), "the store was never asked");

    // Nor is a server that is not there.
    let down = RedisStore::open("redis://127.0.0.1:1/").unwrap();
    let closed = by_key(1).on_failure(FailurePolicy::Deny);
    let layer = RateLimitLayer::builder(&down)
        .otherwise(closed)
        .enabled(false)
        .build()
        .unwrap();
    assert_eq!(
        status(&layer.layer(Inner::default()), request("a")).await,
        StatusCode::OK
    );
}

#[tokio::test]
async fn a_request_that_no_rule_concerns_passes_untouched() {
    let store = MemoryStore::new();
    let layer = RateLimitLayer::builder(&store)
        .on("/limited", by_key(1))
        .build()
        .unwrap();
    let (seen, inner) = watched();
    let service = layer.layer(inner);
    for _ in 0..3 {
        let passed = service.clone().oneshot(request("a")).await.unwrap();
        assert_eq!(passed.status(), StatusCode::OK);
        assert!(passed.extensions().is_empty() && seen.lock().unwrap().is_empty());
    }
    assert!(store.is_empty(), "the store was never asked");
}
