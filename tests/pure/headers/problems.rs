//! The bodies of refusals.

use crate::scene::*;
use http::request::Parts;
use serde_json::{Value, json};
use tower_ratelimit::{HeaderStyle, key::Key, key::NoKey};

use super::{Answer, ask, by_key, get, request, still};

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

fn problem(answer: &Answer) -> Value {
    assert_eq!(answer.one("content-type"), "application/problem+json");
    assert_eq!(answer.one("cache-control"), "no-store");
    // A line of its own in a terminal.
    assert!(answer.body.ends_with("}\n"), "{:?}", answer.body);
    serde_json::from_str(&answer.body).unwrap()
}

/// A layer that refuses its second request, and has refused none yet.
async fn spent(name: &str) -> RateLimitLayer {
    let (store, _clock) = still();
    let layer = RateLimitLayer::new(&store, by_key(Limit::per_minute(1)).named(name));
    assert_eq!(ask(&layer, get(&[])).await.status, 200);
    layer
}

#[tokio::test]
async fn every_refusal_is_a_problem() {
    // What a caller sends is in none of them.
    let sent: &[(&str, &str)] = &[("x-key", "a"), ("x-evil", "\"},{")];
    let down = RedisStore::open("redis://127.0.0.1:1/").unwrap();
    let closed = by_key(Limit::per_minute(1)).on_failure(FailurePolicy::Deny);
    let memory = MemoryStore::new();
    let layers: [(RateLimitLayer, Value); 5] = [
        (
            spent("api.free").await,
            json!({
                "type": QUOTA_EXCEEDED,
                "title": "Quota Exceeded",
                "status": 429,
                "detail": "too many requests: retry after 60 seconds",
                "violated-policies": ["api.free"],
            }),
        ),
        (
            RateLimitLayer::new(&memory, by_key(Limit::per_minute(1)).cost_by(|_| 2)),
            json!({
                "type": "about:blank",
                "title": "Too Many Requests",
                "status": 429,
                "detail": "the request costs more than its limit allows",
            }),
        ),
        (
            RateLimitLayer::new(
                &memory,
                Limit::per_minute(1)
                    .by(FromHeader::new("x-user"))
                    .named("user"),
            ),
            json!({
                "type": "about:blank",
                "title": "Unauthorized",
                "status": 401,
                "detail": "the request lacks what it is limited by: x-user",
            }),
        ),
        (
            RateLimitLayer::new(&memory, Limit::per_minute(1).by(PeerIp).named("ip")),
            json!({
                "type": "about:blank",
                "title": "Internal Server Error",
                "status": 500,
                "detail": "the request lacks what it is limited by: peer address",
            }),
        ),
        (
            RateLimitLayer::new(&down, closed),
            json!({
                "type": "about:blank",
                "title": "Service Unavailable",
                "status": 503,
                "detail": "the rate limiter is unavailable",
            }),
        ),
    ];
    for (layer, expected) in &layers {
        let refused = ask(layer, get(sent)).await;
        assert_eq!(problem(&refused), *expected);
        assert_eq!(u64::from(refused.status), expected["status"]);

        let plain = [sent, &[("accept", "text/plain")]].concat();
        let plain_answer = ask(layer, get(&plain)).await;
        assert_eq!(plain_answer.status, refused.status);
        assert_eq!(
            plain_answer.one("content-type"),
            "text/plain; charset=utf-8"
        );
        assert_eq!(plain_answer.one("cache-control"), "no-store");
        assert_eq!(
            plain_answer.limit_fields(),
            refused.limit_fields(),
            "fields are as for JSON"
        );
        assert_eq!(
            Value::from(plain_answer.body.trim_end()),
            expected["detail"]
        );
    }
}

/// The name of a missing key is the user's own text, and may contain anything.
#[tokio::test]
async fn whatever_is_lacking_is_escaped() {
    #[derive(Debug)]
    struct Odd;
    impl KeyExtractor for Odd {
        fn extract(&self, _: &Parts, _: &mut Key) -> Result<(), NoKey> {
            Err(NoKey::missing("a \"key\"\\\n\u{0}\u{1f} ü"))
        }
    }
    let layer = RateLimitLayer::new(&MemoryStore::new(), Limit::per_minute(1).by(Odd));
    let refused = ask(&layer, get(&[])).await;
    assert_eq!(
        problem(&refused)["detail"],
        "the request lacks what it is limited by: a \"key\"\\\n\u{0}\u{1f} ü"
    );
}

#[tokio::test]
async fn head_has_the_fields_of_get_and_no_body() {
    let layer = spent("api").await;
    let got = ask(&layer, get(&[])).await;
    let head = ask(&layer, request("HEAD", &[])).await;
    assert_eq!((head.status, head.body.as_str()), (429, ""));
    assert_eq!(head.limit_fields(), got.limit_fields());
    assert_eq!(head.one("content-type"), got.one("content-type"));
    assert_eq!(head.one("content-length"), got.body.len().to_string());
    // The length of another answer is its own.
    let plain = [("accept", "text/plain")];
    let (got, head) = (
        ask(&layer, get(&plain)).await,
        ask(&layer, request("HEAD", &plain)).await,
    );
    assert_eq!(head.one("content-length"), got.body.len().to_string());
}

#[tokio::test]
async fn the_hook_has_the_last_word() {
    let (store, _clock) = still();
    let layer = RateLimitLayer::builder(&store)
        .otherwise(Rule::from(Limit::per_minute(1)))
        .headers([HeaderStyle::Draft11])
        .on_refusal(|_: &Refusal, _: &Parts, answer: Response<bytes::Bytes>| {
            let (mut head, body) = answer.into_parts();
            // Everything is there to be changed, the body of HEAD included.
            assert!(head.headers.contains_key("ratelimit"));
            assert!(body.starts_with(b"{"));
            head.headers.remove("ratelimit-policy");
            Response::from_parts(head, bytes::Bytes::from_static(b"later"))
        })
        .build()
        .unwrap();
    assert_eq!(ask(&layer, get(&[])).await.status, 200);
    let refused = ask(&layer, get(&[])).await;
    assert_eq!(refused.body, "later");
    assert_eq!(refused.all("ratelimit-policy"), [""; 0]);
    let head = ask(&layer, request("HEAD", &[])).await;
    assert_eq!((head.body.as_str(), head.one("content-length")), ("", "5"));
}
