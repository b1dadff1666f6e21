//! Many requests on a spent key, and how few of them reach Redis.

use kit::scene::*;

const CROWD: usize = 32;

fn layer(store: &RedisStore) -> RateLimitLayer {
    let hourly = |name: &str| Limit::per_hour(1).by(Constant("all")).named(name);
    let minutely = Limit::per_minute(1_000_000).by(Constant("all"));
    // A list, so that it is one more than the simplest.
    let rules = [hourly("hourly"), minutely.named("minutely")];
    layer_of(store, rules)
}

/// Requests that come at the same time; whether all were refused.
async fn crowd(layer: &RateLimitLayer) -> bool {
    let mut crowd = JoinSet::new();
    for _ in 0..CROWD {
        crowd.spawn(layer.layer(service_fn(serve)).oneshot(Request::new(())));
    }
    let answers = crowd.join_all().await;
    let refused = |answer: &Result<Response<_>, _>| {
        answer.as_ref().unwrap().status() == StatusCode::TOO_MANY_REQUESTS
    };
    answers.iter().all(refused)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_on_a_spent_key_costs_two_calls_in_each_cap() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let cap = secs(60);
    let store = by_clock(&server, &clock).deny_cache(cap);
    let layer = layer(&store.build().unwrap());
    assert!(!crowd(&layer).await, "the first is let pass");
    assert!(crowd(&layer).await);
    let before = server.scripts_called();
    const CAPS: u64 = 10;
    for _ in 0..CAPS * 60 {
        clock.advance(secs(1));
        assert!(crowd(&layer).await);
    }
    let calls = server.scripts_called() - before;
    println!("{calls} calls in {CAPS} caps");
    assert!((CAPS..=2 * CAPS).contains(&calls), "{calls}");
}
