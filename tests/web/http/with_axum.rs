//! axum: routers, nested routers, fallbacks.

use tower_ratelimit::Rules;

use super::*;

on_both_stores! {
    routes_are_counted_by_template,
    the_table_sees_whole_paths_in_nested_routers,
}

pub(crate) async fn serve(app: Router) -> SocketAddr {
    let (listener, address) = listen().await;
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(axum::serve(listener, app).into_future());
    address
}

async fn hello() -> &'static str {
    "hello"
}

/// Sends these requests, one after the other, and compares the statuses of their answers.
async fn meets(server: SocketAddr, expected: &[(&str, u16)]) {
    for (line, status) in expected {
        let reply = send(server, asking(line, &[])).await;
        assert_eq!(reply.status, *status, "{line}: {reply:?}");
    }
}

async fn routes_are_counted_by_template(store: impl Store) {
    let layer = RateLimitLayer::new(&store, Limit::per_hour(1).by(Route::new()));
    let users = Router::new().route("/users/{id}", on_get(hello).post(hello));
    let app = Router::new().route("/", on_get(hello)).nest("/api", users);
    let server = serve(app.layer(layer)).await;
    let expected = [
        ("GET /api/users/1", 200),
        ("GET /api/users/2", 429),
        ("HEAD /api/users/3", 429),
        ("POST /api/users/1", 200),
        ("GET /", 200),
        ("GET /?again", 429),
        ("GET /nowhere", 404),
        ("GET /elsewhere", 429),
        ("GET /api/nowhere", 429),
    ];
    meets(server, &expected).await;
    // A caller that says it speaks gRPC must not get a fresh limit with each path of a route.
    for path in ["/api/users/1", "/api/users/2"] {
        let call = with("POST", path, &[("content-type", "application/grpc")]);
        let refused = send(server, call).await;
        assert_eq!(refused.header("grpc-status"), Some("8"), "{path}");
    }
}

async fn the_table_sees_whole_paths_in_nested_routers(store: impl Store) {
    let rule = |name| Limit::per_hour(1).by(Constant("all")).named(name);
    let rules = Rules::new()
        .on("GET /api/v1/users/{name}", rule("users"))
        .on("/api/v1/files/{*rest}", rule("files"))
        .on("/static/{*rest}", rule("static"));
    let layer = layer_by(&store, rules);
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
    let expected = [
        ("GET /api/v1/users/7", 200),
        ("GET /api/v1/users/8", 429),
        ("POST /api/v1/users/8", 200),
        ("GET /users/8", 200),
        ("GET /api/v1/files/a", 200),
        ("GET /api/v1/files/a/b", 429),
        ("GET /static/logo", 200),
        ("GET /static/css/site", 429),
    ];
    meets(serve(app).await, &expected).await;
}
