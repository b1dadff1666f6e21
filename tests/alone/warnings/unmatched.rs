//! Entries that match nothing: one line, after a thousand requests.

use axum::{Router, body::Body, routing::get};
use kit::scene::*;
use tower_ratelimit::RateLimitLayerBuilder;
use tower_ratelimit::Rules;

use super::Lines;

fn rule() -> Rule {
    Limit::per_hour(1_000_000).by(Constant("all"))
}

fn builder() -> RateLimitLayerBuilder {
    RateLimitLayer::builder(&MemoryStore::new()).otherwise(rule())
}

async fn send(layer: &RateLimitLayer, path: &str, times: usize) {
    let service = layer.layer(service_fn(serve::<String>));
    for _ in 0..times {
        let request = Request::builder().uri(path).body(String::new()).unwrap();
        service.clone().oneshot(request).await.unwrap();
    }
}

#[tokio::test]
async fn an_entry_that_matches_nothing_is_warned_about_once() {
    let log = Lines::alone().await;
    let layer = builder()
        .on("/met", rule())
        .on("POST /login", rule())
        .on_grpc("shop.Orders", rule())
        .on("/exempt", Vec::new())
        .build()
        .unwrap();
    send(&layer, "/met", 1).await;
    send(&layer, "/", 998).await;
    assert_eq!(log.taken(), [""; 0]);
    send(&layer.clone(), "/", 1).await;
    let patterns = "patterns=[\"POST /login\", \"shop.Orders\"]";
    log.warns(&[patterns, "requests=1000", "hint="]);
    send(&layer, "/", 3000).await;
    assert_eq!(log.taken(), [""; 0]);
}

#[tokio::test]
async fn entries_that_match_are_not_warned_about() {
    let log = Lines::alone().await;
    let layer = builder().on("/a", rule()).on("/b", rule()).build().unwrap();
    send(&layer, "/", 900).await;
    for path in ["/a", "/b"] {
        send(&layer, path, 1).await;
    }
    send(&layer, "/", 3000).await;
    assert_eq!(log.taken(), [""; 0]);
    // No entries, and what is denied or allowed meets none.
    send(&builder().build().unwrap(), "/", 1500).await;
    let all = tower_ratelimit::Requests::on_request(|_| true);
    let rules = Rules::new().on("/a", rule()).allow(all).otherwise(rule());
    let allowed = RateLimitLayer::builder(&MemoryStore::new()).rules(rules);
    send(&allowed.build().unwrap(), "/", 1500).await;
    assert_eq!(log.taken(), [""; 0]);
}

#[tokio::test]
async fn a_long_table_makes_a_short_line() {
    let log = Lines::alone().await;
    let mut builder = builder();
    for number in 0..5000 {
        builder = builder.on(&format!("/a/{number}"), rule());
    }
    let layer = builder.build().unwrap();
    send(&layer, "/", 1000).await;
    log.warns(&["\"/a/9\", \"..\"]"]);
}

/// The mistake it is made for: within `nest` a pattern is the whole path all the same.
#[tokio::test]
async fn a_forgotten_prefix_is_warned_about() {
    let log = Lines::alone().await;
    for (pattern, warnings) in [("/login", 1), ("/api/login", 0)] {
        let layer = builder().on(pattern, rule()).build().unwrap();
        let inner = Router::new()
            .route("/login", get(async || "hello"))
            .layer(layer);
        let app: Router = Router::new().nest("/api", inner);
        for _ in 0..1000 {
            let request = Request::builder().uri("/api/login");
            let request = request.body(Body::empty()).unwrap();
            let answer = app.clone().oneshot(request).await.unwrap();
            assert_eq!(answer.status(), 200);
        }
        match warnings {
            0 => assert_eq!(log.taken(), [""; 0]),
            _ => log.warns(&["axum's `nest`"]),
        }
    }
}

/// Rules that come later are watched as those before.
#[cfg(feature = "config")]
#[tokio::test]
async fn a_reload_counts_requests_from_zero() {
    let log = Lines::alone().await;
    let layer = builder().on("/a", rule()).build().unwrap();
    send(&layer, "/", 1000).await;
    assert_eq!(log.taken().len(), 1);
    let rules = Rules::new().on("/b", rule()).otherwise(rule());
    layer.reload(rules).unwrap();
    send(&layer, "/", 999).await;
    assert_eq!(log.taken(), [""; 0]);
    send(&layer, "/", 1).await;
    log.warns(&["\"/b\""]);
}
