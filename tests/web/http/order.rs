//! The layer beside compression, trace and authentication, in the order of the guide.
//! `preflights.rs` adds CORS.

use http_body_util::Full;
use tower_http::{classify::ServerErrorsFailureClass, decompression::Decompression};

use super::{
    preflights::{authenticate, by_user},
    with_axum::serve,
    *,
};

fn limit(permits: u64) -> RateLimitLayer {
    RateLimitLayer::new(&MemoryStore::new(), Limit::per_hour(permits).by(PeerIp))
}

fn app() -> Router {
    // Long enough to be worth compressing.
    Router::new().route("/", on_get(async || "hello ".repeat(100)))
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
        assert_eq!((head.status.as_u16(), body.len()), (429, 0), "{what}");
        assert!(head.headers.contains_key("ratelimit"), "{what}");
    }
}

#[tokio::test]
async fn trace_sees_refusals_and_calls_outages_failures() {
    let seen: Arc<Mutex<Vec<u16>>> = Arc::default();
    let failures: Arc<AtomicUsize> = Arc::default();
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

#[tokio::test]
async fn within_authentication_users_are_counted_and_strangers_are_not() {
    let store = MemoryStore::new();
    let users = RateLimitLayer::new(&store, by_user(1));
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
        // The response of the layer between has the fields, too.
        let guesses = format!("\"guesses\";r={left}");
        let mut lines = reply.headers.get_all("ratelimit").iter();
        let said = lines.any(|line| line.to_str().unwrap().contains(&guesses));
        assert!(said, "{guesses}: {reply:?}");
        if let Some(violated) = violated {
            let problem: serde_json::Value = serde_json::from_str(&reply.body).unwrap();
            assert_eq!(problem["violated-policies"], serde_json::json!([violated]));
        }
    }
}

/// An answer whose body is no text.
async fn bytes(to: SocketAddr, request: Request<String>) -> (http::response::Parts, Vec<u8>) {
    let (head, body) = send_http2(to, request).await.into_parts();
    (head, body.collect().await.unwrap().to_bytes().to_vec())
}

async fn unzipped(body: &[u8]) -> String {
    let zipped = Full::new(Bytes::copy_from_slice(body));
    let zipped = Response::builder()
        .header("content-encoding", "gzip")
        .body(zipped);
    let zipped = zipped.unwrap();
    let client = Decompression::new(service_fn(move |_: Request<String>| {
        std::future::ready(Ok::<_, Infallible>(zipped.clone()))
    }));
    let body = client.oneshot(get("/")).await.unwrap().into_body();
    let body = body.collect().await.expect("gzip").to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}
