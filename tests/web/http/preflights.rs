//! A browser's preflight through each order of layers that the guide has or warns of.

use axum::{body::Body, routing};
use http::{
    HeaderName, HeaderValue, Method, header::AUTHORIZATION, header::CONTENT_TYPE,
    header::RETRY_AFTER,
};
use tower_http::cors::CorsLayer;

use super::{orders::CREATE, with_axum::serve, *};

const ORIGIN: &str = "https://shop.example";
const AGENT: &str = "Mozilla/5.0 (X11; Linux x86_64) Chrome/142.0.0.0";

/// Returns the preflight that Chrome sends before a script's `fetch` with credentials and JSON. It
/// does not identify the caller.
fn preflight(path: &str) -> Request<String> {
    let fields = [
        ("accept", "*/*"),
        (
            "access-control-request-headers",
            "authorization,content-type",
        ),
        ("access-control-request-method", "POST"),
        ("connection", "keep-alive"),
        ("origin", ORIGIN),
        ("sec-fetch-dest", "empty"),
        ("sec-fetch-mode", "cors"),
        ("sec-fetch-site", "cross-site"),
        ("user-agent", AGENT),
    ];
    with("OPTIONS", path, &fields)
}

/// Returns whether the browser goes on: Fetch standard, section 4.8, "CORS-preflight fetch".
fn is_passed(reply: &Reply) -> bool {
    let allows = |name, wanted| reply.header(name).is_some_and(|it| it.contains(wanted));
    (200..300).contains(&reply.status)
        && reply.header("access-control-allow-origin") == Some(ORIGIN)
        && allows("access-control-allow-methods", "POST")
        && allows("access-control-allow-headers", "authorization")
}

/// The request itself, from a user or from a stranger.
fn post(user: Option<&str>) -> Request<String> {
    let token = user.map(|user| format!("Bearer {user}"));
    let mut fields = vec![("origin", ORIGIN), ("content-type", "application/json")];
    fields.extend(token.as_deref().map(|token| ("authorization", token)));
    with("POST", "/", &fields)
}

fn cors() -> CorsLayer {
    let fields = ["ratelimit", "ratelimit-policy"].map(HeaderName::from_static);
    CorsLayer::new()
        .allow_origin(HeaderValue::from_static(ORIGIN))
        .allow_methods([Method::POST])
        .allow_headers([AUTHORIZATION, CONTENT_TYPE])
        .expose_headers(fields.into_iter().chain([RETRY_AFTER]).collect::<Vec<_>>())
}

#[derive(Clone)]
struct User(String);

#[allow(
    clippy::result_large_err,
    reason = "the signature that tower-http asks for"
)]
pub(super) fn authenticate(request: &mut Request<Body>) -> Result<(), Response<Body>> {
    let token = request.headers().get(AUTHORIZATION);
    let user = token.and_then(|token| token.to_str().ok()?.strip_prefix("Bearer "));
    let Some(user) = user.map(|user| User(user.to_owned())) else {
        let answer = Response::builder().status(StatusCode::UNAUTHORIZED);
        return Err(answer.body(Body::empty()).unwrap());
    };
    request.extensions_mut().insert(user);
    Ok(())
}

/// If CORS is inside of authentication, authentication must let preflights through.
#[allow(
    clippy::result_large_err,
    reason = "the signature that tower-http asks for"
)]
fn authenticate_but_preflights(request: &mut Request<Body>) -> Result<(), Response<Body>> {
    if request.method() == Method::OPTIONS {
        return Ok(());
    }
    authenticate(request)
}

fn app() -> Router {
    Router::new().route("/", routing::post(async || "sold"))
}

pub(super) fn by_user(permits: u64) -> Rule {
    let user = FromExtension::by(|user: &User| user.0.clone());
    Limit::per_hour(permits).by(user).named("users")
}

fn by_address(permits: u64) -> Rule {
    Limit::per_hour(permits).by(PeerIp).named("address")
}

fn limit(rule: Rule) -> RateLimitLayer {
    RateLimitLayer::new(&MemoryStore::new(), rule)
}

/// Returns whether a script may read the answer, and the fields of the limit in it.
fn is_readable(reply: &Reply) -> bool {
    let exposed = reply.header("access-control-expose-headers");
    let exposes = |name| exposed.is_some_and(|names| names.split(',').any(|it| it == name));
    reply.header("access-control-allow-origin") == Some(ORIGIN)
        && ["ratelimit", "ratelimit-policy", "retry-after"]
            .into_iter()
            .all(exposes)
        && reply.header("ratelimit").is_some()
}

/// Sends preflights, which all pass, and returns the responses to the user's requests after
/// them.
async fn after_preflights<const N: usize>(
    server: SocketAddr,
    preflights: usize,
    requests: [Option<&str>; N],
) -> [u16; N] {
    for number in 0..preflights {
        let reply = send(server, preflight("/")).await;
        assert!(is_passed(&reply), "preflight {number}: {reply:?}");
    }
    let mut statuses = [0; N];
    for (status, user) in statuses.iter_mut().zip(requests) {
        let reply = send(server, post(user)).await;
        *status = if is_readable(&reply) { reply.status } else { 0 };
    }
    statuses
}

const ANN: Option<&str> = Some("ann");

#[tokio::test]
async fn cors_outside_answers_before_the_limit_whatever_that_counts_by() {
    let auth = || ValidateRequestHeaderLayer::custom(authenticate);
    for (what, app) in [
        ("address", app().layer(limit(by_address(1))).layer(cors())),
        (
            "the user, found out between",
            app().layer(limit(by_user(1))).layer(auth()).layer(cors()),
        ),
        (
            "everything of the guide",
            app()
                .layer(CompressionLayer::new())
                .layer(limit(by_user(1)))
                .layer(auth())
                .layer(cors())
                .layer(TraceLayer::new_for_http()),
        ),
        (
            "strangers by address, outside of authentication",
            app()
                .layer(limit(by_user(1)))
                .layer(auth())
                .layer(limit(by_address(2)))
                .layer(cors()),
        ),
    ] {
        let server = serve(app).await;
        let found = after_preflights(server, 5, [ANN, ANN]).await;
        assert_eq!(found, [200, 429], "{what}");
        let even_now = send(server, preflight("/")).await;
        assert!(is_passed(&even_now), "{what}: {even_now:?}");
    }
}

#[tokio::test]
async fn an_address_outside_of_cors_counts_preflights_too() {
    // Two requests of a page, each with its preflight.
    let server = serve(app().layer(cors()).layer(limit(by_address(4)))).await;
    for _ in 0..2 {
        assert_eq!(after_preflights(server, 1, [ANN]).await, [200]);
    }
    // Why the guide wants CORS outside: the script sees a network error.
    let refused = send(server, preflight("/")).await;
    assert_eq!(refused.status, 429);
    assert!(!is_passed(&refused));
}

#[tokio::test]
async fn users_outside_of_cors_are_counted_without_their_preflights() {
    let auth = ValidateRequestHeaderLayer::custom(authenticate_but_preflights);
    let app = app().layer(cors()).layer(limit(by_user(1))).layer(auth);
    let found = after_preflights(serve(app).await, 5, [ANN]).await;
    assert_eq!(found, [200]);
}

/// The guide: the limit outside of `GrpcWebLayer`, CORS outside of both.
#[tokio::test]
async fn preflights_of_grpc_web_are_answered_outside_and_counted_inside() {
    let orders = Routes::new(OrdersServer::default()).into_axum_router();
    let app = || orders.clone().layer(GrpcWebLayer::new());
    let limit = || {
        let layer = RateLimitLayer::builder(&MemoryStore::new());
        let layer = layer.on_grpc("shop.v1.Orders", by_address(3));
        layer.build().unwrap()
    };
    for (what, app, expected) in [
        ("CORS outside", app().layer(limit()).layer(cors()), 5),
        ("CORS between", app().layer(cors()).layer(limit()), 3),
    ] {
        let server = serve(app).await;
        let mut passed = 0;
        for _ in 0..5 {
            let reply = send(server, preflight(CREATE)).await;
            assert!(reply.header("grpc-status").is_none(), "{what}: {reply:?}");
            passed += usize::from(is_passed(&reply));
        }
        assert_eq!(passed, expected, "{what}");
    }
}
