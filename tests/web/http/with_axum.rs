//! axum: routers, nested routers, fallbacks, middleware, connect info.

use crate::scene::*;
use std::{net::Ipv4Addr, net::SocketAddr};

use axum::{
    Extension, Router,
    body::{Body, Bytes},
    extract::Request,
    middleware::{Next, from_fn},
    response::Response,
    routing::{get as on_get, post as on_post},
};
use http_body::Frame;
use tower_ratelimit::Rules;

use super::{Reply, get, listen, on_both_stores, send, send_from, send_http2, unique, with};

on_both_stores! {
    peers_are_counted_by_address,
    a_caller_that_waits_as_announced_is_admitted,
    routes_are_counted_by_template,
    a_content_type_makes_no_route_another,
    a_route_layer_spares_what_no_route_serves,
    the_table_sees_whole_paths_in_nested_routers,
    users_are_those_of_an_outer_middleware,
    plans_and_costs,
    one_layer_on_many_routers_is_one_limiter,
    head_is_refused_without_a_body,
    handlers_see_what_is_left,
    a_layer_around_and_within_charges_once,
    only_failed_logins_count,
    a_stream_is_charged_what_was_sent_of_it,
}

/// A client apart from that at 127.0.0.1.
const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

pub(crate) async fn serve(app: Router) -> SocketAddr {
    let (listener, address) = listen().await;
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(axum::serve(listener, app).into_future());
    address
}

async fn hello() -> &'static str {
    "hello"
}

fn refuses(reply: &Reply) -> bool {
    match reply.status {
        200 | 404 => false,
        429 => {
            reply.retry_after();
            true
        }
        other => panic!("{other}: {reply:?}"),
    }
}

async fn peers_are_counted_by_address(store: impl Store) {
    let layer = RateLimitLayer::new(&store, Limit::per_hour(2).by(PeerIp));
    let server = serve(Router::new().route("/", on_get(hello)).layer(layer)).await;
    for _ in 0..2 {
        let reply = send(server, get("/")).await;
        assert_eq!((reply.status, reply.body.as_str()), (200, "hello"));
    }
    let refused = send(server, get("/")).await;
    assert_eq!(refused.status, 429);
    assert!(
        (3595..=3600).contains(&refused.retry_after()),
        "{refused:?}"
    );
    assert_eq!(refused.header("cache-control"), Some("no-store"));
    let said = format!(
        "too many requests: retry after {} seconds",
        refused.retry_after()
    );
    assert_eq!(refused.detail(), said);
    assert_eq!(
        refused.header("content-length"),
        Some(&*refused.body.len().to_string())
    );

    assert_eq!(send_from(OTHER, server, get("/")).await.status, 200);
}

async fn a_caller_that_waits_as_announced_is_admitted(store: impl Store) {
    // Two seconds, so that a busy machine still sends two requests within them.
    let limit = Limit::new(1, Duration::from_secs(2));
    let layer = RateLimitLayer::new(&store, limit.by(PeerIp));
    let server = serve(Router::new().route("/", on_get(hello)).layer(layer)).await;
    for _ in 0..2 {
        assert_eq!(send(server, get("/")).await.status, 200);
        let refused = send(server, get("/")).await;
        assert_eq!(refused.status, 429);
        assert!(refused.retry_after() <= 2, "{refused:?}");
        // What the answer asks for is what is tested: not a moment more.
        tokio::time::sleep(Duration::from_secs(refused.retry_after())).await;
    }
}

#[tokio::test]
async fn without_connect_info_the_server_is_at_fault() {
    let layer = RateLimitLayer::new(&MemoryStore::new(), Limit::per_hour(1).by(PeerIp));
    let (listener, server) = listen().await;
    let app = Router::new().route("/", on_get(hello)).layer(layer);
    tokio::spawn(axum::serve(listener, app).into_future());
    let reply = send(server, get("/")).await;
    assert_eq!(reply.status, 500);
    assert_eq!(
        reply.detail(),
        "the request lacks what it is limited by: peer address"
    );
}

async fn routes_are_counted_by_template(store: impl Store) {
    let layer = RateLimitLayer::new(&store, Limit::per_hour(1).by(Route::new()));
    let users = Router::new().route("/users/{id}", on_get(hello).post(hello));
    let app = Router::new().route("/", on_get(hello)).nest("/api", users);
    let server = serve(app.layer(layer)).await;
    for (method, path, status) in [
        ("GET", "/api/users/1", 200),
        ("GET", "/api/users/2", 429),
        ("HEAD", "/api/users/3", 429),
        ("POST", "/api/users/1", 200),
        ("GET", "/", 200),
        ("GET", "/?again", 429),
        ("GET", "/nowhere", 404),
        ("GET", "/elsewhere", 429),
        ("GET", "/api/nowhere", 429),
    ] {
        let reply = send(server, with(method, path, &[])).await;
        assert_eq!(reply.status, status, "{method} {path}");
    }
}

async fn a_content_type_makes_no_route_another(store: impl Store) {
    // A caller that says it speaks gRPC must not get a fresh limit with each path of a route.
    let layer = RateLimitLayer::new(&store, Limit::per_hour(1).by(Route::new()));
    let app = Router::new().route("/users/{id}", on_post(hello));
    let server = serve(app.layer(layer)).await;
    let call = |path| with("POST", path, &[("content-type", "application/grpc")]);
    let first = send(server, with("POST", "/users/1", &[])).await;
    assert_eq!(first.body, "hello");
    for path in ["/users/1", "/users/2"] {
        let refused = send(server, call(path)).await;
        assert_eq!(
            refused.header("grpc-status"),
            Some("8"),
            "{path}: {refused:?}"
        );
    }
}

async fn a_route_layer_spares_what_no_route_serves(store: impl Store) {
    let layer = RateLimitLayer::new(&store, Limit::per_hour(1).by(Constant("all")));
    let app = Router::new()
        .route("/limited", on_get(hello))
        .route_layer(layer)
        .route("/later", on_get(hello));
    let server = serve(app).await;
    for (path, status) in [
        ("/nowhere", 404),
        ("/limited", 200),
        ("/limited", 429),
        ("/nowhere", 404),
        ("/later", 200),
    ] {
        assert_eq!(send(server, get(path)).await.status, status, "{path}");
    }
}

async fn the_table_sees_whole_paths_in_nested_routers(store: impl Store) {
    let rule = |name| Limit::per_hour(1).by(Constant("all")).named(name);
    let rules = Rules::new()
        .on("GET /api/v1/users/{name}", rule("users"))
        .on("/api/v1/files/{*rest}", rule("files"))
        .on("/static/{*rest}", rule("static"));
    let layer = RateLimitLayer::builder(&store)
        .rules(rules)
        .build()
        .unwrap();
    // Within the innermost router, where the request's own path lacks its beginning.
    let inner = Router::new()
        .route("/users/{id}", on_get(hello).post(hello))
        .route("/files/{*path}", on_get(hello))
        .layer(layer.clone());
    let files = Router::new().fallback(hello).layer(layer);
    let app = Router::new()
        .nest("/api", Router::new().nest("/v1", inner))
        .nest_service("/static", files)
        .route("/users/{id}", on_get(hello));
    let server = serve(app).await;
    for (method, path, status) in [
        ("GET", "/api/v1/users/7", 200),
        ("GET", "/api/v1/users/8", 429),
        ("POST", "/api/v1/users/8", 200),
        ("GET", "/users/8", 200),
        ("GET", "/api/v1/files/a", 200),
        ("GET", "/api/v1/files/a/b", 429),
        ("GET", "/static/logo", 200),
        ("GET", "/static/css/site", 429),
    ] {
        let reply = send(server, with(method, path, &[])).await;
        assert_eq!(reply.status, status, "{method} {path}");
    }
}

#[derive(Clone, Debug)]
struct User {
    name: String,
    paying: bool,
}

/// Stands for a login: who the caller is, and what it pays.
async fn login(mut request: Request, next: Next) -> Response {
    let headers = request.headers();
    let name = headers
        .get("x-user")
        .map(|name| name.to_str().unwrap().to_owned());
    let paying = headers.get("x-plan").is_some_and(|plan| plan == "paid");
    if let Some(name) = name {
        request.extensions_mut().insert(User { name, paying });
    }
    next.run(request).await
}

fn by_user() -> impl KeyExtractor {
    FromExtension::by(|user: &User| user.name.clone())
}

async fn users_are_those_of_an_outer_middleware(store: impl Store) {
    let layer = RateLimitLayer::new(&store, Limit::per_hour(1).by(by_user()));
    let app = Router::new().route("/", on_get(hello));
    let server = serve(app.clone().layer(layer.clone()).layer(from_fn(login))).await;
    let as_user = |name| with("GET", "/", &[("x-user", name)]);
    assert_eq!(send(server, as_user("ann")).await.status, 200);
    assert_eq!(send_from(OTHER, server, as_user("ann")).await.status, 429);
    assert_eq!(send(server, as_user("bob")).await.status, 200);
    let unknown = send(server, get("/")).await;
    assert_eq!(unknown.status, 401);
    assert_eq!(
        unknown.detail(),
        "the request lacks what it is limited by: identity"
    );

    // The other way round the limit comes before the login.
    let wrong = serve(app.layer(from_fn(login)).layer(layer)).await;
    assert_eq!(send(wrong, as_user("eve")).await.status, 401);
}

async fn plans_and_costs(store: impl Store) {
    let plans = Tiers::new(
        [("free", Limit::per_hour(1)), ("paid", Limit::per_hour(2))],
        |parts| match parts.extensions.get::<User>() {
            Some(user) if user.paying => "paid",
            _ => "free",
        },
    );
    let export = Limit::per_hour(20)
        .by(FromHeader::new("x-user").or(PeerIp))
        .named("export")
        .cost(10);
    let layer = RateLimitLayer::builder(&store)
        .on("GET /export", [export])
        .otherwise([Rule::new("api", plans, by_user())])
        .build()
        .unwrap();
    let app = Router::new()
        .route("/", on_get(hello))
        .route("/export", on_get(hello));
    let server = serve(app.layer(layer).layer(from_fn(login))).await;
    let of = |path, user, plan| with("GET", path, &[("x-user", user), ("x-plan", plan)]);
    for (request, refused) in [
        (of("/", "ann", "free"), false),
        (of("/", "ann", "free"), true),
        (of("/", "bob", "paid"), false),
        (of("/", "bob", "paid"), false),
        (of("/", "bob", "paid"), true),
        (of("/export", "ann", "free"), false),
        (of("/export", "ann", "free"), false),
        (of("/export", "ann", "free"), true),
        (get("/export"), false),
    ] {
        let what = format!("{request:?}");
        assert_eq!(refuses(&send(server, request).await), refused, "{what}");
    }
}

async fn one_layer_on_many_routers_is_one_limiter(store: impl Store) {
    let layer = RateLimitLayer::new(&store, Limit::per_hour(3).by(PeerIp));
    let one = Router::new()
        .route("/one", on_get(hello))
        .layer(layer.clone());
    let two = Router::new().route("/two", on_get(hello).layer(layer.clone()));
    let three = Router::new()
        .route("/three", on_post(hello))
        .route_layer(layer);
    let server = serve(one.merge(two).merge(three).route("/free", on_get(hello))).await;
    for (method, path, status) in [
        ("GET", "/one", 200),
        ("GET", "/two", 200),
        ("POST", "/three", 200),
        ("GET", "/one", 429),
        ("GET", "/two", 429),
        ("POST", "/three", 429),
        ("GET", "/free", 200),
    ] {
        let reply = send(server, with(method, path, &[])).await;
        assert_eq!(reply.status, status, "{method} {path}");
    }
}

async fn head_is_refused_without_a_body(store: impl Store) {
    let layer = RateLimitLayer::new(&store, Limit::per_hour(1).by(PeerIp));
    let server = serve(Router::new().route("/", on_get(hello)).layer(layer)).await;
    let passed = send(server, with("HEAD", "/", &[])).await;
    assert_eq!((passed.status, passed.body.as_str()), (200, ""));
    let refused = send(server, with("HEAD", "/", &[])).await;
    assert_eq!((refused.status, refused.body.as_str()), (429, ""));
    assert!(refused.retry_after() > 3000);
    // As long as the answer to a GET would be.
    let got = send(server, get("/")).await;
    assert_eq!(
        refused.header("content-length"),
        Some(&*got.body.len().to_string())
    );
}

async fn handlers_see_what_is_left(store: impl Store) {
    async fn left(Extension(decision): Extension<Decision>) -> String {
        assert_eq!(decision.limits().len(), 1, "{decision:?}");
        let limit = decision.limits().next().unwrap();
        format!("{:?} of {}", limit.remaining(), limit.permits())
    }
    async fn expose_decision(request: Request, next: Next) -> Response {
        let mut answer = next.run(request).await;
        let allowed = answer
            .extensions()
            .get::<Decision>()
            .map(Decision::is_allowed);
        let value = format!("{allowed:?}").parse().unwrap();
        answer.headers_mut().insert("x-allowed", value);
        answer
    }
    let layer = RateLimitLayer::new(&store, Limit::per_hour(2).by(PeerIp));
    let app = Router::new().route("/", on_get(left));
    let server = serve(app.layer(layer).layer(from_fn(expose_decision))).await;
    for (body, allowed) in [
        (Some("Some(1) of 2"), "Some(true)"),
        (Some("Some(0) of 2"), "Some(true)"),
        (None, "Some(false)"),
    ] {
        let reply = send(server, get("/")).await;
        if let Some(body) = body {
            assert_eq!(reply.body, body);
        }
        assert_eq!(reply.header("x-allowed"), Some(allowed));
    }
}

/// Returns how many permits of a shared limiter are used, out of a thousand million.
async fn used(store: &impl Store, limiter: &str) -> u64 {
    let limiter = RateLimiter::new(store, limiter).unwrap();
    LARGE.permits() - limiter.available_permits().await.unwrap()
}

const LARGE: Limit = Limit::per_hour(1_000_000_000);

async fn a_layer_around_and_within_charges_once(store: impl Store) {
    // Where no rule concerned the request, there is nothing to correct.
    async fn charged(charge: Option<Extension<Charge>>) -> &'static str {
        if charge.is_some() { "charged" } else { "free" }
    }
    let layer = RateLimitLayer::builder(&store)
        .on("/free", Vec::new())
        .otherwise(Limit::per_hour(2).by(PeerIp))
        .build()
        .unwrap();
    let routes = Router::new()
        .route("/", on_get(charged))
        .route_layer(layer.clone())
        .layer(layer.clone());
    let app = Router::new()
        .nest("/api", routes)
        .route("/free", on_get(charged))
        .layer(layer);
    let server = serve(app).await;
    for (path, status, body) in [
        ("/api", 200, "charged"),
        ("/free", 200, "free"),
        ("/api", 200, "charged"),
        ("/api", 429, "too many"),
        ("/free", 200, "free"),
    ] {
        let reply = send(server, get(path)).await;
        assert_eq!(reply.status, status, "{path}");
        assert!(reply.body.contains(body), "{reply:?}");
    }
}

async fn only_failed_logins_count(store: impl Store) {
    async fn login(password: String) -> StatusCode {
        if password == "right" {
            StatusCode::NO_CONTENT
        } else {
            StatusCode::UNAUTHORIZED
        }
    }
    let name = unique("login");
    let failures = Rule::shared(&name)
        .or_init(LARGE)
        .charge_if(|outcome| outcome.status() == StatusCode::UNAUTHORIZED);
    let layer = RateLimitLayer::new(&store, failures);
    let server = serve(Router::new().route("/login", on_post(login)).layer(layer)).await;
    let mut failed = 0;
    for password in ["right", "wrong", "right", "", "right"] {
        let mut request = with("POST", "/login", &[]);
        *request.body_mut() = password.to_owned();
        let reply = send(server, request).await;
        assert_eq!(reply.status, if password == "right" { 204 } else { 401 });
        failed += u64::from(password != "right");
        until("it is so", async || used(&store, &name).await == failed).await;
    }
}

/// As many rows as somebody reads, each charged when it is sent.
struct Endless {
    charge: Charge,
    rows: Arc<AtomicU64>,
}

impl http_body::Body for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        assert!(self.charge.add(1));
        self.rows.fetch_add(1, Ordering::SeqCst);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[b'x'; 4096])))))
    }
}

async fn a_stream_is_charged_what_was_sent_of_it(store: impl Store) {
    let name = unique("rows");
    let layer = RateLimitLayer::new(&store, Rule::shared(&name).or_init(LARGE).cost(5));
    let rows = Arc::new(AtomicU64::new(0));
    let (sent, kept) = (Arc::clone(&rows), Arc::new(Mutex::new(None)));
    let keep = Arc::clone(&kept);
    let export = async move |Extension(charge): Extension<Charge>| {
        *keep.lock().unwrap() = Some(charge.clone());
        charge.set(0);
        let rows = Arc::clone(&sent);
        Body::new(Endless { charge, rows })
    };
    let server = serve(Router::new().route("/", on_get(export)).layer(layer)).await;
    let answer = send_http2(server, get("/")).await;
    assert_eq!(answer.status(), 200);
    until("it is so", async || rows.load(Ordering::SeqCst) > 10).await;
    // The caller hangs up without an end in sight.
    drop(answer);
    let charge = kept.lock().unwrap().clone().unwrap();
    until("it is so", async || !charge.add(0)).await;
    let rows = rows.load(Ordering::SeqCst);
    until("it is so", async || used(&store, &name).await == rows).await;
}
