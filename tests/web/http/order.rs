//! The layer beside others: CORS, compression, trace, authentication. The order is that of the
//! guide.

use crate::scene::*;
use std::net::SocketAddr;

use axum::{Router, body::Body, routing::get as on_get};
use bytes::Bytes;
use http::{HeaderName, Method, header::AUTHORIZATION, header::RETRY_AFTER};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use tower_http::{
    classify::ServerErrorsFailureClass,
    compression::CompressionLayer,
    cors::{AllowOrigin, CorsLayer},
    decompression::Decompression,
    trace::TraceLayer,
    validate_request::ValidateRequestHeaderLayer,
};

use super::{connect, get, send, with, with_axum::serve};

const ORIGIN: &str = "https://shop.example";

fn limit(permits: u64) -> RateLimitLayer {
    RateLimitLayer::new(&MemoryStore::new(), Limit::per_hour(permits).by(PeerIp))
}

fn app() -> Router {
    // Long enough to be worth compressing.
    Router::new().route("/", on_get(async || "hello ".repeat(100)))
}

/// Returns a CORS layer for the page of a shop.
fn cors() -> CorsLayer {
    let fields = [
        HeaderName::from_static("ratelimit"),
        HeaderName::from_static("ratelimit-policy"),
        RETRY_AFTER,
    ];
    CorsLayer::new()
        .allow_origin(AllowOrigin::exact(ORIGIN.parse().unwrap()))
        .allow_methods([Method::GET])
        .expose_headers(fields)
}

/// Returns the preflight that a browser sends before the page's request.
fn preflight() -> Request<String> {
    let headers = [
        ("origin", ORIGIN),
        ("access-control-request-method", "GET"),
        ("access-control-request-headers", "x-user"),
    ];
    with("OPTIONS", "/", &headers)
}

fn from_page() -> Request<String> {
    with("GET", "/", &[("origin", ORIGIN)])
}

#[tokio::test]
async fn within_cors_preflights_are_free_and_refusals_are_readable() {
    let server = serve(app().layer(limit(1)).layer(cors())).await;
    for _ in 0..5 {
        let reply = send(server, preflight()).await;
        assert_eq!(reply.status, 200);
        assert_eq!(reply.header("access-control-allow-methods"), Some("GET"));
        assert_eq!(reply.header("ratelimit"), None, "not counted");
    }
    for (status, left) in [(200, "r=0"), (429, "r=0")] {
        let reply = send(server, from_page()).await;
        assert_eq!(reply.status, status);
        // Without the first a script sees a network error, without the second no fields.
        assert_eq!(reply.header("access-control-allow-origin"), Some(ORIGIN));
        let exposed = reply.header("access-control-expose-headers").unwrap();
        for field in ["ratelimit", "ratelimit-policy"] {
            assert!(exposed.split(',').any(|name| name == field), "{exposed}");
            assert!(reply.header(field).is_some(), "{field}");
        }
        assert!(reply.header("ratelimit").unwrap().contains(left));
        assert!(exposed.contains("retry-after"), "{exposed}");
    }
    assert_eq!(send(server, preflight()).await.status, 200, "even now");
}

/// Why the guide wants CORS outside.
#[tokio::test]
async fn around_cors_preflights_are_counted_and_refusals_are_unreadable() {
    let server = serve(app().layer(cors()).layer(limit(2))).await;
    assert_eq!(send(server, preflight()).await.status, 200);
    assert_eq!(send(server, from_page()).await.status, 200);
    let refused = send(server, from_page()).await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.header("access-control-allow-origin"), None);
}

#[tokio::test]
async fn compression_breaks_no_body_on_either_side() {
    let outside = app().layer(limit(1)).layer(CompressionLayer::new());
    let inside = app().layer(CompressionLayer::new()).layer(limit(1));
    for (what, app, refusal_encoded) in [("outside", outside, true), ("inside", inside, false)] {
        let server = serve(app).await;
        let ask = |method| {
            let accept = [("accept-encoding", "gzip")];
            bytes(server, with(method, "/", &accept))
        };
        let (passed, body) = ask("GET").await;
        assert_eq!(passed.status, 200);
        assert_eq!(passed.headers["content-encoding"], "gzip");
        assert_eq!(unzipped(&body).await, "hello ".repeat(100));
        assert!(passed.headers.contains_key("ratelimit"), "{what}");

        let (refused, body) = ask("GET").await;
        assert_eq!(refused.status, 429, "{what}");
        let encoded = refused.headers.contains_key("content-encoding");
        assert_eq!(encoded, refusal_encoded, "{what}");
        let text = if encoded {
            unzipped(&body).await
        } else {
            String::from_utf8(body).unwrap()
        };
        let problem: serde_json::Value = serde_json::from_str(&text).expect(what);
        assert_eq!(problem["violated-policies"][0], "default");
        if let Some(length) = refused.headers.get("content-length") {
            assert_eq!(*length, *text.len().to_string());
        }

        let (head, body) = ask("HEAD").await;
        assert_eq!(
            (head.status, body.len()),
            (StatusCode::TOO_MANY_REQUESTS, 0)
        );
        assert!(head.headers.contains_key("ratelimit"), "{what}");
    }
}

#[tokio::test]
async fn trace_sees_refusals_and_calls_outages_failures() {
    let (seen, failures) = (
        Arc::new(Mutex::new(Vec::new())),
        Arc::new(AtomicUsize::new(0)),
    );
    let down = RedisStore::open("redis://127.0.0.1:1/").unwrap();
    let closed = Limit::per_hour(1)
        .by(PeerIp)
        .on_failure(FailurePolicy::Deny);
    for (layer, statuses, failed) in [
        (limit(1), vec![200, 429, 429], 0),
        (RateLimitLayer::new(&down, closed), vec![503, 503, 503], 3),
    ] {
        seen.lock().unwrap().clear();
        failures.store(0, Ordering::SeqCst);
        let (noted, counted) = (Arc::clone(&seen), Arc::clone(&failures));
        let trace = TraceLayer::new_for_http()
            .on_response(
                move |response: &Response<_>, _: Duration, _: &tracing::Span| {
                    noted.lock().unwrap().push(response.status().as_u16());
                },
            )
            .on_failure(
                move |_: ServerErrorsFailureClass, _: Duration, _: &tracing::Span| {
                    counted.fetch_add(1, Ordering::SeqCst);
                },
            );
        let server = serve(app().layer(layer).layer(trace)).await;
        for expected in &statuses {
            assert_eq!(send(server, get("/")).await.status, *expected);
        }
        assert_eq!(*seen.lock().unwrap(), statuses);
        assert_eq!(failures.load(Ordering::SeqCst), failed);
    }
}

/// The caller, as the outer layer has identified it.
#[derive(Clone)]
struct User(String);

/// Lets pass who shows a token, and notes whose it is.
#[allow(
    clippy::result_large_err,
    reason = "the signature that tower-http asks for"
)]
fn authenticate(request: &mut Request<Body>) -> Result<(), Response<Body>> {
    let token = request.headers().get(AUTHORIZATION);
    let user = token.and_then(|token| token.to_str().ok()?.strip_prefix("Bearer "));
    let Some(user) = user.map(|user| User(user.to_owned())) else {
        let answer = Response::builder()
            .status(StatusCode::UNAUTHORIZED)
            .header(header::WWW_AUTHENTICATE, "Bearer");
        return Err(answer.body(Body::empty()).unwrap());
    };
    request.extensions_mut().insert(user);
    Ok(())
}

#[tokio::test]
async fn within_authentication_users_are_counted_and_strangers_are_not() {
    let store = MemoryStore::new();
    let by_user = FromExtension::by(|user: &User| user.0.clone());
    let users = RateLimitLayer::new(&store, Limit::per_hour(1).by(by_user).named("users"));
    // Callers that guess tokens are counted by address, outside.
    let guesses = RateLimitLayer::new(&store, Limit::per_hour(6).by(PeerIp).named("guesses"));
    let auth = ValidateRequestHeaderLayer::custom(authenticate);
    let server = serve(app().layer(users).layer(auth).layer(guesses)).await;
    let as_user = |user: &str| with("GET", "/", &[("authorization", &format!("Bearer {user}"))]);
    let mut left = 6;
    for (request, status, violated) in [
        (get("/"), 401, None),
        (as_user("ann"), 200, None),
        (as_user("ann"), 429, Some("users")),
        (get("/"), 401, None),
        (as_user("bob"), 200, None),
        (as_user("bob"), 429, Some("users")),
        (as_user("cyd"), 429, Some("guesses")),
    ] {
        let reply = send(server, request).await;
        assert_eq!(reply.status, status, "{reply:?}");
        left -= i32::from(left > 0);
        let has_fields = reply.header("ratelimit").is_some();
        assert!(
            has_fields,
            "the response of the layer between has the fields too"
        );
        let guesses = format!("\"guesses\";r={left}");
        let lines = reply.headers.get_all("ratelimit");
        let said = lines
            .iter()
            .any(|line| line.to_str().unwrap().contains(&guesses));
        assert!(said, "{guesses}: {reply:?}");
        if let Some(violated) = violated {
            let problem: serde_json::Value = serde_json::from_str(&reply.body).unwrap();
            assert_eq!(problem["violated-policies"], serde_json::json!([violated]));
        }
    }
}

#[tokio::test]
async fn all_of_them_together() {
    let limit = RateLimitLayer::builder(&MemoryStore::new())
        .otherwise(Rule::from(Limit::per_hour(1)))
        .on_refusal(
            |_: &Refusal, _: &http::request::Parts, mut answer: Response<Bytes>| {
                let plans = "</plans>; rel=\"help\"".parse().unwrap();
                answer.headers_mut().insert(header::LINK, plans);
                answer
            },
        )
        .build()
        .unwrap();
    let app = app()
        .layer(CompressionLayer::new())
        .layer(limit)
        .layer(ValidateRequestHeaderLayer::custom(authenticate))
        .layer(cors())
        .layer(TraceLayer::new_for_http());
    let server = serve(app).await;
    assert_eq!(send(server, preflight()).await.status, 200);
    assert_eq!(send(server, from_page()).await.status, 401);
    let known = || {
        let headers = [("origin", ORIGIN), ("authorization", "Bearer ann")];
        with("GET", "/", &headers)
    };
    assert_eq!(send(server, known()).await.status, 200);
    let refused = send(server, known()).await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.header("link"), Some("</plans>; rel=\"help\""));
    assert_eq!(refused.header("access-control-allow-origin"), Some(ORIGIN));
    assert!(refused.detail().starts_with("too many requests"));
}

/// An answer whose body is no text.
async fn bytes(to: SocketAddr, mut request: Request<String>) -> (http::response::Parts, Vec<u8>) {
    let io = TokioIo::new(connect([127, 0, 0, 1].into(), to).await);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
    tokio::spawn(connection);
    let host = to.to_string().parse().unwrap();
    request.headers_mut().insert("host", host);
    let (head, body) = sender.send_request(request).await.unwrap().into_parts();
    (head, body.collect().await.unwrap().to_bytes().to_vec())
}

async fn unzipped(body: &[u8]) -> String {
    let zipped = Full::new(Bytes::copy_from_slice(body));
    let zipped = Response::builder()
        .header("content-encoding", "gzip")
        .body(zipped)
        .unwrap();
    let client = Decompression::new(service_fn(move |_: Request<String>| {
        std::future::ready(Ok::<_, Infallible>(zipped.clone()))
    }));
    let body = client.oneshot(get("/")).await.unwrap().into_body();
    let body = body.collect().await.expect("gzip").to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}
