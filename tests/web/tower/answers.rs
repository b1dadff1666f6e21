//! The responses to refused callers, and which callers are refused.

use crate::scene::*;
use bytes::Bytes;
use http::{HeaderValue, Method, request::Parts};
use http_body::Body as _;
use http_body_util::BodyExt;
use tower_ratelimit::Rules;
use tower_ratelimit::{RateLimitBody, key::FromParts};

use super::{Inner, anonymous, by_key, redis, request, status, unique};

pub(super) type Answer = Response<RateLimitBody<String>>;

pub(super) fn layer(rule: impl Into<Rule>) -> RateLimitLayer {
    RateLimitLayer::new(&MemoryStore::new(), rule)
}

pub(super) async fn answer(layer: &RateLimitLayer, request: Request<String>) -> Answer {
    layer
        .layer(Inner::default())
        .oneshot(request)
        .await
        .unwrap()
}

pub(super) async fn code(layer: &RateLimitLayer, request: Request<String>) -> u16 {
    answer(layer, request).await.status().as_u16()
}

pub(super) fn header_of<'a>(answer: &'a Answer, name: &str) -> Option<&'a str> {
    answer
        .headers()
        .get(name)
        .map(|value| value.to_str().unwrap())
}

/// Returns the `detail` of the problem details.
pub(super) async fn detail(answer: Answer) -> String {
    let problem: serde_json::Value = serde_json::from_str(&text(answer).await).unwrap();
    problem["detail"].as_str().unwrap().to_owned()
}

async fn text(answer: Answer) -> String {
    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn refusal(answer: &Answer) -> Refusal {
    match answer.extensions().get::<Decision>() {
        Some(Decision::Deny(refusal)) => refusal.clone(),
        other => panic!("{other:?}"),
    }
}

/// The same request as a gRPC call.
fn grpc(mut request: Request<String>, content_type: &'static str) -> Request<String> {
    *request.method_mut() = Method::POST;
    let value = HeaderValue::from_static(content_type);
    request.headers_mut().insert(header::CONTENT_TYPE, value);
    request
}

/// Returns a store without a server: the port is reserved, and below those that systems assign.
fn down() -> RedisStore {
    RedisStore::builder("redis://127.0.0.1:1/")
        .deadline(Duration::from_secs(5))
        .build()
        .unwrap()
}

#[tokio::test]
async fn over_the_limit() {
    let clock = ManualClock::new();
    let store = MemoryStore::new().clock(clock.clone());
    let layer = RateLimitLayer::new(&store, Limit::per_minute(1).by(FromHeader::new("x-key")));
    assert_eq!(code(&layer, request("a")).await, 200);
    clock.advance(Duration::from_millis(1));

    let refused = answer(&layer, request("a")).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(
        header_of(&refused, "retry-after"),
        Some("60"),
        "59.999 seconds, rounded up"
    );
    assert_eq!(header_of(&refused, "cache-control"), Some("no-store"));
    assert_eq!(
        header_of(&refused, "content-type"),
        Some("application/problem+json")
    );
    assert_eq!(refusal(&refused).kind(), RefusalKind::OverLimit);
    assert_eq!(refusal(&refused).retry_after(), Some(millis(59_999)));
    assert_eq!(
        detail(refused).await,
        "too many requests: retry after 60 seconds"
    );

    // A caller that waits exactly this long is admitted, a moment earlier it is not.
    clock.advance(Duration::from_millis(59_998));
    let early = answer(&layer, request("a")).await;
    assert_eq!(header_of(&early, "retry-after"), Some("1"), "never zero");
    assert_eq!(
        detail(early).await,
        "too many requests: retry after 1 second"
    );
    clock.advance(Duration::from_millis(1));
    assert_eq!(code(&layer, request("a")).await, 200);
}

#[tokio::test]
async fn a_missing_key_is_the_callers_fault_unless_it_is_the_peers_address() {
    let lacking = answer(&layer(by_key(1)), anonymous()).await;
    assert_eq!(lacking.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(
        header_of(&lacking, "retry-after"),
        None,
        "waiting does not help"
    );
    assert_eq!(refusal(&lacking).missing(), Some("x-key"));
    let decision = lacking.extensions().get::<Decision>().unwrap();
    assert_eq!(decision.source(), Source::Layer);
    assert_eq!(
        detail(lacking).await,
        "the request lacks what it is limited by: x-key"
    );

    let by_ip = layer(Limit::per_hour(1).by(PeerIp));
    let forgotten = answer(&by_ip, anonymous()).await;
    assert_eq!(forgotten.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(
        detail(forgotten).await,
        "the request lacks what it is limited by: peer address"
    );
    let mut noted = anonymous();
    noted
        .extensions_mut()
        .insert(PeerAddr("192.0.2.1:9".parse().unwrap()));
    assert_eq!(code(&by_ip, noted).await, 200);

    let by_user = layer(Limit::per_hour(1).by(FromExtension::<u64>::key()));
    assert_eq!(code(&by_user, anonymous()).await, 401);
    let mut known = anonymous();
    known.extensions_mut().insert(7_u64);
    assert_eq!(code(&by_user, known).await, 200);
    let by_closure = layer(Limit::per_hour(1).by(FromParts(|_: &Parts| None::<&str>)));
    assert_eq!(code(&by_closure, anonymous()).await, 401);
}

#[tokio::test]
async fn a_missing_key_can_be_excused() {
    let or = layer(Limit::per_hour(1).by(FromHeader::new("x-key").or(FromHeader::new("x-other"))));
    let other = |key: &str| {
        let request = Request::builder().header("x-other", key);
        request.body(String::new()).unwrap()
    };
    // The two are apart, though they read the same.
    assert_eq!(code(&or, request("a")).await, 200);
    assert_eq!(code(&or, other("a")).await, 200);
    assert_eq!(code(&or, other("a")).await, 429);
    let neither = answer(&or, anonymous()).await;
    assert_eq!(refusal(&neither).missing(), Some("x-key"));

    let shared = layer(Limit::per_hour(1).by(FromHeader::new("x-key").or_shared()));
    assert_eq!(code(&shared, anonymous()).await, 200);
    assert_eq!(code(&shared, request("a")).await, 200);
    assert_eq!(code(&shared, request("shared")).await, 200);
    assert_eq!(code(&shared, anonymous()).await, 429);

    let store = MemoryStore::new();
    let skip = RateLimitLayer::new(
        &store,
        Limit::per_hour(1).by(FromHeader::new("x-key").or_skip()),
    );
    for _ in 0..3 {
        let passed = answer(&skip, anonymous()).await;
        assert_eq!(passed.status(), StatusCode::OK);
        assert!(passed.extensions().get::<Decision>().is_none());
    }
    assert!(store.is_empty(), "the store was never asked");
    assert_eq!(code(&skip, request("a")).await, 200);
    assert_eq!(code(&skip, request("a")).await, 429);
}

/// Otherwise the caller could choose another identity, or none.
#[tokio::test]
async fn a_key_sent_twice_is_refused() {
    let key = || FromHeader::new("x-key");
    for layer in [
        layer(Limit::per_hour(1).by(key())),
        layer(Limit::per_hour(1).by(key().or(Constant("all")))),
        layer(Limit::per_hour(1).by(key().or_shared())),
        layer(Limit::per_hour(1).by(key().or_skip())),
    ] {
        for _ in 0..2 {
            let mut twice = request("a");
            twice.headers_mut().append("x-key", "b".parse().unwrap());
            let refused = answer(&layer, twice).await;
            assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
            assert_eq!(refusal(&refused).missing(), Some("x-key"));
            let expected = "the request says more than once what it is limited by: x-key";
            assert_eq!(detail(refused).await, expected);
        }
        assert_eq!(code(&layer, request("a")).await, 200);
    }
}

#[tokio::test]
async fn a_grpc_caller_gets_a_grpc_status() {
    let over_limit = layer(by_key(1));
    assert_eq!(code(&over_limit, request("a")).await, 200);
    let above_rate = layer(by_key(1).cost_by(|_| 2));
    let by_ip = layer(Limit::per_hour(1).by(PeerIp));
    let unset = layer(Rule::shared("never-set"));
    for (layer, sent, status) in [
        (&over_limit, request("a"), "8"),
        (&above_rate, request("a"), "8"),
        (&over_limit, anonymous(), "16"),
        (&by_ip, anonymous(), "13"),
        (&unset, anonymous(), "14"),
    ] {
        for content_type in [
            "application/grpc",
            "application/grpc+proto",
            "application/grpc-web-text",
        ] {
            let mut again = Request::new(String::new());
            *again.headers_mut() = sent.headers().clone();
            let response = answer(layer, grpc(again, content_type)).await;
            assert_eq!(response.status(), StatusCode::OK);
            assert_eq!(header_of(&response, "grpc-status"), Some(status));
            assert_eq!(header_of(&response, "content-type"), Some(content_type));
            // RFC 6585, section 4, holds for what stands in a 429's place, too.
            assert_eq!(header_of(&response, "cache-control"), Some("no-store"));
            let message = header_of(&response, "grpc-message").unwrap();
            assert!(!message.is_empty() && !message.contains('%'), "{message}");
            // Only an empty body that says so at once makes a Trailers-Only answer.
            assert!(response.body().is_end_stream());
            assert_eq!(response.body().size_hint().exact(), Some(0));
            assert_eq!(text(response).await, "");
        }
    }
}

/// A content type makes no call of gRPC: who asks for a page must not take a refusal for a 200.
#[tokio::test]
async fn a_grpc_call_is_a_post() {
    let layer = layer(by_key(1));
    for (method, granted, refused) in [
        (Method::GET, 200, 429),
        (Method::PUT, 200, 429),
        (Method::POST, 200, 200),
    ] {
        let ask = async || {
            let mut asked = grpc(request(method.as_str()), "application/grpc");
            *asked.method_mut() = method.clone();
            answer(&layer, asked).await
        };
        let is_http = method != Method::POST;
        let first = ask().await;
        assert_eq!(first.status(), granted, "{method}");
        assert_eq!(first.headers().contains_key("ratelimit"), is_http);
        let second = ask().await;
        assert_eq!(second.status(), refused, "{method}");
        assert_eq!(second.headers().contains_key("retry-after"), is_http);
        assert_eq!(second.headers().contains_key("grpc-status"), !is_http);
    }
}

#[tokio::test]
async fn bodies_know_their_size() {
    let layer = layer(by_key(1));
    let mut passed = answer(&layer, request("a")).await;
    assert_eq!(
        passed.body().size_hint().exact(),
        Some(5),
        "that of the inner body"
    );
    assert!(!passed.body().is_end_stream());
    passed.body_mut().frame().await.unwrap().unwrap();
    assert!(passed.body().is_end_stream());

    let mut refused = answer(&layer, request("a")).await;
    let size = refused.body().size_hint().exact().unwrap();
    assert!(!refused.body().is_end_stream());
    let frame = refused
        .body_mut()
        .frame()
        .await
        .unwrap()
        .unwrap()
        .into_data()
        .unwrap();
    assert_eq!(frame.len() as u64, size);
    assert!(refused.body().is_end_stream());
    assert_eq!(refused.body().size_hint().exact(), Some(0));
    assert!(refused.body_mut().frame().await.is_none());
}

#[tokio::test]
async fn head_counts_as_get_and_is_refused_alike() {
    let rule = Limit::per_hour(1).by(Constant("all"));
    let layer = RateLimitLayer::builder(&MemoryStore::new())
        .on("GET /", rule)
        .build()
        .unwrap();
    let head = || {
        let request = Request::builder().method(Method::HEAD).uri("/");
        request.body(String::new()).unwrap()
    };
    assert_eq!(code(&layer, head()).await, 200);
    let refused = answer(&layer, head()).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header_of(&refused, "retry-after"), Some("3600"));
    assert_eq!(code(&layer, request("")).await, 429);
}

#[tokio::test]
async fn the_hook_edits_refusals_and_nothing_else() {
    let seen = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&seen);
    let layer = RateLimitLayer::builder(&MemoryStore::new())
        .otherwise(by_key(1))
        .on_refusal(
            move |refusal: &Refusal, parts: &Parts, mut answer: Response<Bytes>| {
                counted.fetch_add(1, Ordering::SeqCst);
                let path = HeaderValue::from_str(parts.uri.path()).unwrap();
                answer.headers_mut().insert("x-path", path);
                if refusal.kind() == RefusalKind::MissingKey {
                    *answer.status_mut() = StatusCode::FORBIDDEN;
                    return answer.map(|_| Bytes::from_static(b"who?"));
                }
                answer
            },
        )
        .build()
        .unwrap();

    let passed = answer(&layer, request("a")).await;
    assert_eq!(
        (header_of(&passed, "x-path"), seen.load(Ordering::SeqCst)),
        (None, 0)
    );

    let refused = answer(&layer, request("a")).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header_of(&refused, "x-path"), Some("/"));
    assert!(
        header_of(&refused, "retry-after").is_some(),
        "what it leaves alone stays"
    );

    let unknown = answer(&layer, anonymous()).await;
    assert_eq!(unknown.status(), StatusCode::FORBIDDEN);
    assert_eq!(refusal(&unknown).kind(), RefusalKind::MissingKey);
    assert_eq!(unknown.body().size_hint().exact(), Some(4));
    assert_eq!(text(unknown).await, "who?");

    let call = answer(&layer, grpc(request("a"), "application/grpc")).await;
    assert_eq!(
        (header_of(&call, "grpc-status"), header_of(&call, "x-path")),
        (Some("8"), Some("/"))
    );
    assert_eq!(seen.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn costs() {
    let store = MemoryStore::new();
    let cost = |parts: &Parts| parts.uri.path().len() as u32 - 1;
    let layer = RateLimitLayer::new(&store, by_key(4).cost_by(cost));
    let of = |path: &str| {
        let request = Request::builder().uri(path).header("x-key", "a");
        request.body(String::new()).unwrap()
    };
    for _ in 0..5 {
        let free = answer(&layer, of("/")).await;
        assert_eq!(free.status(), StatusCode::OK);
        assert!(
            free.extensions().get::<Decision>().is_none(),
            "the rule does not concern it"
        );
    }
    assert!(store.is_empty(), "the store was never asked");

    let above = answer(&layer, of("/12345")).await;
    assert_eq!(above.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refusal(&above).kind(), RefusalKind::AboveRate);
    assert_eq!(
        header_of(&above, "retry-after"),
        None,
        "waiting does not help"
    );
    assert_eq!(
        detail(above).await,
        "the request costs more than its limit allows"
    );

    assert_eq!(code(&layer, of("/123")).await, 200);
    assert_eq!(code(&layer, of("/12")).await, 429, "one permit is left");
    assert_eq!(code(&layer, of("/1")).await, 200);

    let fixed = self::layer(by_key(4).cost(2));
    for expected in [200, 200, 429] {
        assert_eq!(code(&fixed, request("a")).await, expected);
    }
}

#[tokio::test]
async fn tiers_count_apart_and_an_unknown_one_is_the_first() {
    let tiers = Tiers::new(
        [("free", Limit::per_hour(1)), ("paid", Limit::per_hour(3))],
        |parts| match parts.uri.path() {
            "/paid" => "paid",
            "/free" => "free",
            _ => "invented",
        },
    );
    let layer = layer(Rule::new("api", tiers, FromHeader::new("x-key")));
    let of = |path: &str| {
        let request = Request::builder().uri(path).header("x-key", "a");
        request.body(String::new()).unwrap()
    };
    let passed = answer(&layer, of("/free")).await;
    let limit = decision_of(&passed).limits().next().unwrap();
    assert_eq!((limit.name(), limit.permits()), ("api.free", 1));
    assert_eq!(code(&layer, of("/free")).await, 429);
    assert_eq!(
        code(&layer, of("/other")).await,
        429,
        "the first tier, and its count"
    );
    for expected in [200, 200, 200, 429] {
        assert_eq!(code(&layer, of("/paid")).await, expected);
    }
}

#[tokio::test]
async fn a_limit_from_the_request_keeps_what_was_used() {
    let limit = limit_by(|parts| Limit::per_hour(if parts.uri.path() == "/more" { 3 } else { 1 }));
    let layer = layer(Rule::new("api", limit, FromHeader::new("x-key")));
    let more = || {
        let request = Request::builder().uri("/more").header("x-key", "a");
        request.body(String::new()).unwrap()
    };
    assert_eq!(code(&layer, request("a")).await, 200);
    assert_eq!(code(&layer, request("a")).await, 429);
    assert_eq!(code(&layer, more()).await, 200);
    assert_eq!(code(&layer, more()).await, 200);
    assert_eq!(code(&layer, more()).await, 429);
    assert_eq!(code(&layer, request("b")).await, 200);
}

#[tokio::test]
async fn without_redis_the_policy_decides() {
    let open = RateLimitLayer::new(&down(), by_key(1).on_failure(FailurePolicy::Allow));
    for _ in 0..3 {
        let passed = answer(&open, request("a")).await;
        assert_eq!(passed.status(), StatusCode::OK);
        let decision = passed.extensions().get::<Decision>().unwrap();
        assert_eq!(decision.source(), Source::FailurePolicy);
        assert_eq!(decision.limits().len(), 0);
    }

    // By default each process keeps the limit.
    let kept = RateLimitLayer::new(&down(), by_key(1));
    for status in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
        let answer = answer(&kept, request("a")).await;
        assert_eq!(answer.status(), status);
        let decision = answer.extensions().get::<Decision>().unwrap();
        assert_eq!(decision.source(), Source::Local);
    }

    let closed = RateLimitLayer::new(&down(), by_key(1).on_failure(FailurePolicy::Deny));
    let refused = answer(&closed, request("a")).await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(refusal(&refused).kind(), RefusalKind::Unavailable);
    assert!(refusal(&refused).error().is_some());
    assert_eq!(detail(refused).await, "the rate limiter is unavailable");
    // The missing key is still reported.
    assert_eq!(code(&open, anonymous()).await, 401);
}

#[tokio::test]
async fn two_failures_refuse_whatever_the_policy_is() {
    let full = MemoryStore::new().max_limiters(1);
    // Too large to be counted by an estimate.
    let layer = RateLimitLayer::new(&full, by_key(65_536).on_failure(FailurePolicy::Allow));
    assert_eq!(code(&layer, request("a")).await, 200);
    assert_eq!(code(&layer, request("b")).await, 503);

    let name = unique("shared");
    let (memory, redis) = (MemoryStore::new(), redis().build().unwrap());
    for (layer, limiter) in [
        (
            RateLimitLayer::new(&memory, Rule::shared(&name)),
            RateLimiter::new(&memory, &name),
        ),
        (
            RateLimitLayer::new(&redis, Rule::shared(&name)),
            RateLimiter::new(&redis, &name),
        ),
    ] {
        assert_eq!(code(&layer, anonymous()).await, 503, "its limit is not set");
        assert!(
            limiter
                .unwrap()
                .try_set_rate(Limit::per_hour(1))
                .await
                .unwrap()
        );
        assert_eq!(code(&layer, anonymous()).await, 200);
        assert_eq!(code(&layer, anonymous()).await, 429);
    }
}

#[tokio::test]
async fn the_table_chooses_the_rule() -> Result<(), ConfigError> {
    let rules = Rules::new()
        .on(
            "POST /login",
            [Limit::per_hour(1)
                .by(FromHeader::new("x-key"))
                .named("login")],
        )
        .on_grpc(
            "shop.Orders/Create",
            Limit::per_hour(1).by(Constant("all")).named("create"),
        )
        .on_request(
            |parts| parts.headers.contains_key("x-bulk"),
            Limit::per_hour(1),
        );
    let layer = RateLimitLayer::builder(&MemoryStore::new())
        .rules(rules)
        .build()?;
    let service = layer.layer(service_fn(async |request: Request<String>| {
        let limit = request
            .extensions()
            .get::<Decision>()
            .map(|decision| decision.limits().next().unwrap().name().to_owned());
        Ok::<_, Infallible>(Response::new(limit.unwrap_or("none".to_owned())))
    }));
    for (method, path, header, rule) in [
        ("POST", "/login", "x-key", "login"),
        ("GET", "/login", "x-key", "none"),
        ("POST", "/shop.Orders/Create", "x-key", "create"),
        ("POST", "/shop.Orders/Delete", "x-key", "none"),
        ("GET", "/", "x-bulk", "default"),
        ("GET", "/", "x-key", "none"),
    ] {
        let sent = || {
            let request = Request::builder()
                .method(method)
                .uri(path)
                .header(header, "a");
            request.body(String::new()).unwrap()
        };
        let answer = service.clone().oneshot(sent()).await.unwrap();
        assert_eq!(text(answer).await, rule, "{method} {path}");
        let expected = if rule == "none" {
            StatusCode::OK
        } else {
            StatusCode::TOO_MANY_REQUESTS
        };
        assert_eq!(status(&service, sent()).await, expected, "{method} {path}");
    }
    Ok(())
}
