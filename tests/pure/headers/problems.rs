//! The bodies of refusals.

use super::*;
use http::request::Parts;
use serde_json::{Value, json};
use tower_ratelimit::{Ban, key::Key, key::NoKey};

const TYPES: &str = "https://iana.org/assignments/http-problem-types#";

fn problem(answer: &Answer) -> Value {
    assert_eq!(answer.one("content-type"), "application/problem+json");
    assert_eq!(answer.one("cache-control"), "no-store");
    // A line of its own in a terminal.
    assert!(answer.body.ends_with("}\n"), "{:?}", answer.body);
    serde_json::from_str(&answer.body).unwrap()
}

/// A layer that bans the caller.
async fn banned() -> RateLimitLayer {
    let (store, _clock) = MemoryStore::builder().build_manual();
    let rule = by_key(Limit::per_minute(1))
        .named("login")
        .ban(Ban::after(1));
    let layer = RateLimitLayer::new(&store, rule);
    for status in [200, 429] {
        assert_eq!(ask(&layer, get(&[])).await.status, status);
    }
    layer
}

/// A layer that refuses its second request, and has refused none yet.
async fn spent(name: &str) -> RateLimitLayer {
    let (store, _clock) = MemoryStore::builder().build_manual();
    let layer = RateLimitLayer::new(&store, by_key(Limit::per_minute(1)).named(name));
    assert_eq!(ask(&layer, get(&[])).await.status, 200);
    layer
}

#[tokio::test]
async fn every_refusal_is_a_problem() {
    // What a caller sends is in none of them.
    let sent: &[(&str, &str)] = &[("x-key", "a"), ("x-evil", "\"},{")];
    let down = RedisStore::open("redis://127.0.0.1:1/").unwrap();
    let minute = Limit::per_minute(1);
    let closed = by_key(minute).on_failure(FailurePolicy::Deny);
    let on = |rule: Rule| RateLimitLayer::new(&MemoryStore::new(), rule);
    for (layer, status, title, detail) in [
        (
            spent("api.free").await,
            429,
            "Quota Exceeded",
            "too many requests: retry after 60 seconds",
        ),
        (
            on(by_key(minute).cost_by(|_| 2)),
            429,
            "Too Many Requests",
            "the request costs more than its limit allows",
        ),
        (
            on(minute.by(FromHeader::new("x-user"))),
            401,
            "Unauthorized",
            "the request lacks what it is limited by: x-user",
        ),
        (
            on(minute.by(PeerIp)),
            500,
            "Internal Server Error",
            "the request lacks what it is limited by: peer address",
        ),
        (
            RateLimitLayer::new(&down, closed),
            503,
            "Temporary Reduced Capacity",
            "the rate limiter is unavailable",
        ),
        (
            banned().await,
            429,
            "Abnormal Usage Detected",
            "too many requests were refused: retry after 900 seconds",
        ),
    ] {
        let mut expected = json!({
            "type": "about:blank", "title": title, "status": status, "detail": detail,
        });
        let (kind, violated) = match title {
            "Quota Exceeded" => ("quota-exceeded", Some("api.free")),
            "Temporary Reduced Capacity" => ("temporary-reduced-capacity", None),
            "Abnormal Usage Detected" => ("abnormal-usage-detected", Some("login")),
            _ => ("", None),
        };
        if !kind.is_empty() {
            expected["type"] = format!("{TYPES}{kind}").into();
        }
        if let Some(rule) = violated {
            expected["violated-policies"] = json!([rule]);
        }
        let refused = ask(&layer, get(sent)).await;
        assert_eq!(problem(&refused), expected);
        assert_eq!(refused.status, status, "{title}");

        let plain = [sent, &[("accept", "text/plain")]].concat();
        let plain_answer = ask(&layer, get(&plain)).await;
        assert_eq!(plain_answer.status, status, "{title}");
        let text = "text/plain; charset=utf-8";
        assert_eq!(plain_answer.one("content-type"), text, "{title}");
        assert_eq!(plain_answer.one("cache-control"), "no-store", "{title}");
        let as_for_json = refused.limit_fields();
        assert_eq!(plain_answer.limit_fields(), as_for_json, "{title}");
        assert_eq!(plain_answer.body.trim_end(), detail);
    }
}

/// The name of a missing key is the user's own text, and may contain anything.
#[tokio::test]
async fn whatever_is_lacking_is_escaped() {
    #[derive(Debug)]
    struct Odd;
    impl KeyExtractor for Odd {
        fn extract(&self, _: &Parts, _: &mut Key) -> Result<(), NoKey> {
            Err(NoKey::missing("a \"key\"\\\n\u{0}\u{1f} ü/\u{7f} 🚦"))
        }
    }
    let layer = RateLimitLayer::new(&MemoryStore::new(), Limit::per_minute(1).by(Odd));
    let refused = ask(&layer, get(&[])).await;
    assert_eq!(
        problem(&refused)["detail"],
        "the request lacks what it is limited by: a \"key\"\\\n\u{0}\u{1f} ü/\u{7f} 🚦"
    );
}

#[tokio::test]
async fn head_has_the_fields_of_get_and_no_body() {
    let layer = spent("api").await;
    // The length of each answer is its own.
    for accept in ["application/json", "text/plain"] {
        let accept = [("accept", accept)];
        let got = ask(&layer, get(&accept)).await;
        let head = ask(&layer, request("HEAD", &accept)).await;
        assert_eq!((head.status, head.body.as_str()), (429, ""), "{accept:?}");
        assert_eq!(head.limit_fields(), got.limit_fields(), "{accept:?}");
        assert_eq!(head.one("content-type"), got.one("content-type"));
        assert_eq!(head.one("content-length"), got.body.len().to_string());
    }
}
