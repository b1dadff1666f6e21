//! Two layers around each other with the same rule: one line.

use kit::scene::*;

use super::Lines;

fn rule() -> Rule {
    Limit::per_hour(1000).by(Constant("all")).named("api")
}

async fn send(outer: &RateLimitLayer, inner: &RateLimitLayer, times: usize) {
    let service = outer.layer(inner.layer(service_fn(serve::<String>)));
    for _ in 0..times {
        let request = Request::new(String::new());
        service.clone().oneshot(request).await.unwrap();
    }
}

#[tokio::test]
async fn a_rule_of_two_layers_is_warned_about_once() {
    let log = Lines::alone().await;
    let store = MemoryStore::new();
    let layer = || RateLimitLayer::new(&store, rule());
    let (outer, inner) = (layer(), layer());
    send(&outer, &inner, 5).await;
    log.warns(&["rule=\"api\"", "`always()`"]);
    send(&outer, &inner.clone(), 5).await;
    // What is meant is no mistake: clones, both charging, another rule, one after the other.
    send(&outer, &outer.clone(), 5).await;
    let always = RateLimitLayer::builder(&store).otherwise(rule()).always();
    send(&outer, &always.build().unwrap(), 5).await;
    let other = RateLimitLayer::new(&store, rule().named("other"));
    send(&outer, &other, 5).await;
    send(&layer(), &other, 5).await;
    assert_eq!(log.taken(), [""; 0]);
}
