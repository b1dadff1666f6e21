//! Leases of rules: through a layer, from a file.

use kit::scene::*;

const LEASE: Duration = millis(100);

async fn ask(layer: &RateLimitLayer, status: StatusCode) -> Decision {
    let inner = service_fn(|request: Request<()>| {
        let mut answer = answer_to(&request, "");
        *answer.status_mut() = status;
        std::future::ready(Ok::<_, Infallible>(answer))
    });
    let answer = layer.layer(inner).oneshot(Request::new(())).await.unwrap();
    decision_of(&answer).clone()
}

#[tokio::test]
async fn a_layer_counts_what_is_left_of_a_leased_limit_whether_it_tells_or_not() {
    for headers in [true, false] {
        let store = shared_by_clock(&ManualClock::new()).prefix(&unique("lease"));
        let store = store.build().unwrap();
        let rule = Limit::per_second(1000).by(Constant("all")).lease(LEASE);
        let mut builder = RateLimitLayer::builder(&store).otherwise([rule]);
        if !headers {
            builder = builder.headers([]);
        }
        let layer = builder.build().unwrap();
        let mut out_of_lease = 0;
        for request in 1..100 {
            let decision = ask(&layer, StatusCode::OK).await;
            out_of_lease += u32::from(decision.source() == Source::Lease);
            decision.assert_remaining(1000 - request);
        }
        assert!(out_of_lease > 80, "{out_of_lease}");
    }
}

/// In Redisson's format, a call that finds the limit of another process writes its own, and grants
/// by that no permits of before.
#[tokio::test]
async fn a_lease_ends_when_a_call_finds_the_limit_rewritten() {
    for rewritten in [false, true] {
        let (clock, prefix) = (ManualClock::new(), unique("lease"));
        let store = shared_by_clock(&clock).prefix(&prefix).redisson();
        let store = store.build().unwrap();
        let cost = |parts: &http::request::Parts| {
            let cost = parts.headers.get("cost");
            cost.map_or(1, |cost| cost.to_str().unwrap().parse().unwrap())
        };
        let rule = Rule::new("api", Limit::per_second(1000), Constant("all"));
        let layer = RateLimitLayer::new(&store, rule.lease(LEASE).cost_by(cost));
        let many = async || {
            let request = Request::builder().header("cost", 100).body(()).unwrap();
            decide(&layer, request).await
        };
        while ask(&layer, StatusCode::OK).await.source() != Source::Lease {}
        if rewritten {
            let other = patient(RedisServer::shared().url()).build().unwrap();
            let other = RateLimiter::new(&other, &format!("{prefix}:{{all}}:api")).unwrap();
            other.set_rate(Limit::per_second(500)).await.unwrap();
        }
        // More than the lease has, so that Redis is called.
        let decision = many().await;
        assert_eq!(decision.source(), Source::Store);
        assert_eq!(decision.limits().next().unwrap().permits(), 1000);
        let source = ask(&layer, StatusCode::OK).await.source();
        assert_eq!(source == Source::Lease, !rewritten, "{source:?}");
    }
}

#[tokio::test]
async fn what_an_answer_does_not_charge_is_given_back_to_the_lease() {
    let clock = ManualClock::new();
    let store = shared_by_clock(&clock).build().unwrap();
    let (name, limit) = (unique("lease"), Limit::per_second(1000));
    let rule = Rule::shared(&name)
        .or_init(limit)
        .lease(LEASE)
        .charge_if(|outcome| !outcome.is_success());
    let layer = RateLimitLayer::new(&store, rule);
    for _ in 0..30 {
        for status in [StatusCode::FORBIDDEN, StatusCode::OK, StatusCode::OK] {
            assert!(ask(&layer, status).await.is_allowed());
        }
    }
    store.close().await;
    let limiter = RateLimiter::new(&store, &name).unwrap();
    assert_eq!(free(&limiter).await, 970);
}
