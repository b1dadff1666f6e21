//! Two spellings of a path that a service resolves to one handler meet the same rules. The handler
//! that answers says which spellings these are: routers, `ServeDir`, gateways and plain services.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use axum::{
    body::Body,
    extract::{Path, Request as Asked},
    response::IntoResponse,
    routing::any as on_any,
};
use percent_encoding::percent_decode_str;
use proptest::prelude::prop;
use tower::util::BoxCloneSyncService;
use tower_http::{normalize_path::NormalizePathLayer, services::ServeDir};
use tower_ratelimit::{Requests, Rules};

use super::{with_axum::serve, *};

type Site = BoxCloneSyncService<Request<Body>, Response<Body>, Infallible>;

/// What is asked for, in the usual spelling.
const PATHS: [&str; 6] = [
    "/dl/a.bin",
    "/dl/sub/b.bin",
    "/login",
    "/caf%C3%A9",
    "/api/users/me",
    "/api/users/7",
];

/// A folder of files, each of another length.
static FILES: LazyLock<std::path::PathBuf> = LazyLock::new(|| {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("spellings");
    for (length, path) in PATHS.iter().enumerate() {
        let path = percent_decode_str(path).decode_utf8().unwrap();
        let file = folder.join(path.trim_start_matches('/'));
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, "x".repeat(length + 1)).unwrap();
    }
    folder
});

fn layer() -> RateLimitLayer {
    let rule = |name| Limit::per_hour(1 << 30).by(Constant("all")).named(name);
    let rules = Rules::new()
        // Neither entry may take a spelling away from those behind it.
        .on("/{a}/{b}/{c}/{d}", Vec::new())
        .on("GET /dl/{folder}/{file}", rule("file_below"))
        .on("GET /dl/{file}", rule("file"))
        .on("/login/", rule("login"))
        .on("GET /café", rule("coffee"))
        .on("/api/users/me", rule("me"))
        .on("GET /api/users/{id}", rule("user"))
        .otherwise(rule("rest"));
    layer_by(&MemoryStore::new(), rules)
}

/// Answers with the name of a handler.
fn named(name: impl AsRef<str>) -> Response<Body> {
    let name = name.as_ref().escape_default().to_string();
    ([("x-handler", name)], "here").into_response()
}

/// Returns what a service may make of a path.
fn resolved(path: &str, decodes: bool, merges: bool, resolves: bool) -> String {
    let path = if decodes {
        percent_decode_str(path).decode_utf8_lossy().into_owned()
    } else {
        path.to_owned()
    };
    let mut segments = Vec::new();
    for segment in path.split('/').skip(1) {
        match segment {
            "" if merges => {}
            "." if resolves => {}
            ".." if resolves => _ = segments.pop(),
            _ => segments.push(segment),
        }
    }
    format!("/{}", segments.join("/"))
}

fn boxed<S>(service: S) -> Site
where
    S: Service<Request<Body>, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Response: IntoResponse,
    S::Future: Send + 'static,
{
    BoxCloneSyncService::new(service.map_response(IntoResponse::into_response))
}

fn routes() -> Router {
    let users = Router::new()
        .route(
            "/users/{id}",
            on_any(async |Path(id): Path<String>| named(format!("user {id}"))),
        )
        .route("/users/me", on_get(async || named("me")));
    Router::new()
        .route(
            "/dl/{file}",
            on_get(async |Path(file): Path<String>| named(file)),
        )
        .route(
            "/dl/sub/{*rest}",
            on_get(async |Path(rest): Path<String>| named(rest)),
        )
        .route("/login", on_any(async || named("login")))
        .route("/caf%C3%A9", on_get(async || named("coffee")))
        .nest("/api", users)
        .fallback(async |asked: Asked| named(format!("fallback {}", asked.uri().path())))
}

/// Returns services of every kind behind the layer.
fn sites() -> Vec<(&'static str, Site)> {
    let plain = |decodes, merges, resolves| {
        boxed(
            layer().layer(service_fn(move |asked: Request<Body>| async move {
                let path = resolved(asked.uri().path(), decodes, merges, resolves);
                Ok::<_, Infallible>(named(path))
            })),
        )
    };
    let gateway = async |asked: Asked| named(resolved(asked.uri().path(), true, true, true));
    let gateway = Router::new().route("/{*path}", on_any(gateway));
    let all = ServeDir::new(&*FILES);
    let nested = ServeDir::new(FILES.join("dl"));
    let nested = Router::new()
        .nest_service("/dl", nested)
        .fallback_service(all.clone());
    let within = ServeDir::new(FILES.join("dl"));
    let within = Router::new().nest_service("/dl", layer().layer(within));
    let trimmed = NormalizePathLayer::trim_trailing_slash().layer(routes());
    vec![
        (
            "axum, the layer in the router",
            boxed(routes().layer(layer())),
        ),
        (
            "axum, the layer around the router",
            boxed(layer().layer(routes())),
        ),
        ("axum behind NormalizePath", boxed(layer().layer(trimmed))),
        ("nest_service", boxed(nested.layer(layer()))),
        ("nest_service, the layer within", boxed(within)),
        (
            "fallback_service",
            boxed(Router::new().fallback_service(all.clone()).layer(layer())),
        ),
        ("ServeDir alone", boxed(layer().layer(all))),
        ("a gateway", boxed(gateway.clone().layer(layer()))),
        ("a gateway, the layer around", boxed(layer().layer(gateway))),
        ("a plain service", plain(false, false, false)),
        ("one that decodes", plain(true, false, false)),
        ("one that merges slashes", plain(false, true, false)),
        ("one that decodes and merges", plain(true, true, false)),
        ("one that resolves all", plain(true, true, true)),
        (
            "one that resolves without decoding",
            plain(false, true, true),
        ),
        // As RFC 3986 does: `..` drops an empty segment, too.
        ("one that resolves alone", plain(false, false, true)),
        ("one that decodes and resolves", plain(true, false, true)),
    ]
}

/// Returns which handler answered, if one did, and the rules that the request met.
async fn ask(site: &Site, method: &str, uri: &str) -> (Option<String>, BTreeSet<String>) {
    let request = Request::builder().method(method).uri(uri);
    let request = request.body(Body::empty()).unwrap();
    let answer = site.clone().oneshot(request).await.unwrap();
    let field = |name: &str| answer.headers().get(name)?.to_str().ok();
    let policies = field("ratelimit-policy").unwrap_or_default().split(", ");
    let names = policies.filter_map(|policy| policy.split('"').nth(1));
    let rules = names.map(str::to_owned).collect();
    let handler = field("x-handler").or_else(|| field("content-length"));
    let handler = handler.filter(|_| answer.status() == 200);
    (handler.map(str::to_owned), rules)
}

/// Another spelling of a path: for each of its characters how it is written, and what stands in
/// front of it if that is a slash; then the end.
fn spelling() -> impl Strategy<Value = (usize, Vec<u8>, usize)> {
    (
        0..PATHS.len(),
        prop::collection::vec(any::<u8>(), 20),
        0..8_usize,
    )
}

fn spelled((path, dice, end): &(usize, Vec<u8>, usize)) -> String {
    let mut text = String::new();
    for (byte, dice) in PATHS[*path].bytes().zip(dice) {
        if byte == b'/' {
            let inserted = [
                "/",
                "/.",
                "/%2e",
                "/x/..",
                "/%61/%2E%2e",
                "//",
                "/./",
                "//..",
            ];
            text += inserted.get(usize::from(*dice)).unwrap_or(&"");
        }
        match dice {
            // A path begins with a slash in any case.
            200..210 if byte == b'/' && !text.is_empty() => text += "%2F",
            200..230 if byte.is_ascii_alphanumeric() && !PATHS[*path].contains('%') => {
                text += &format!("%{byte:02x}");
            }
            _ => text.push(char::from(byte)),
        }
    }
    text + ["/", "//", "/.", "/x/.."].get(*end).unwrap_or(&"")
}

/// The law, with the number of spellings for which it was put to the test on each kind of site.
#[test]
fn one_handler_has_one_set_of_rules() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let (runtime, sites) = (runtime.unwrap(), sites());
    let tried = Mutex::new(BTreeMap::<_, usize>::new());
    let methods = prop::sample::select(vec!["GET", "GET", "HEAD", "CONNECT", "QUERY"]);
    let inputs = (spelling(), methods, any::<bool>());
    check(300, &inputs, |(spelling, method, absolute)| {
        let (usual, text) = (PATHS[spelling.0], spelled(&spelling));
        let uri = if absolute {
            format!("http://shop.example{text}")
        } else {
            text
        };
        // HEAD and the CONNECT of a WebSocket are to meet what GET meets.
        let usual_method = if method == "QUERY" { "QUERY" } else { "GET" };
        for (name, site) in &sites {
            runtime.block_on(async {
                let (handler, mut met) = ask(site, usual_method, usual).await;
                // `/login` has no entry, and `/login/` has one: the guide says so.
                if met.len() > 1 {
                    met.remove("rest");
                }
                let (answered, rules) = ask(site, method, &uri).await;
                if handler.is_some() && answered == handler {
                    assert!(
                        rules.is_superset(&met),
                        "{name}, {method} {uri}: {rules:?}, {met:?}"
                    );
                    *tried.lock().unwrap().entry(*name).or_default() += usize::from(uri != usual);
                }
            });
        }
    });
    let tried = tried.into_inner().unwrap();
    assert_eq!(tried.len(), sites.len(), "{tried:?}");
    assert!(tried.values().all(|tried| *tried >= 10), "{tried:?}");
}

/// Sends a request line as it is. Returns the status.
async fn sent(server: SocketAddr, line: &str) -> u16 {
    let mut stream = TcpStream::connect(server).await.unwrap();
    let head = format!("{line}\r\nhost: shop.example\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

fn limited(pattern: &str) -> RateLimitLayer {
    let rule = Limit::per_hour(2).by(Constant("all"));
    let layer = RateLimitLayer::builder(&MemoryStore::new()).on(pattern, rule);
    layer.build().unwrap()
}

/// axum has compared the route, and not what its parameter holds.
#[tokio::test]
async fn what_a_parameter_holds_may_be_a_path_for_the_service_behind() {
    for line in [
        "GET /dl/a.bin HTTP/1.1",
        "GET /dl/.%2Fa.bin HTTP/1.1",
        "GET /dl/%2Fa.bin HTTP/1.0",
    ] {
        let app = Router::new().route_service("/dl/{file}", ServeDir::new(&*FILES));
        let server = serve(app.layer(limited("GET /dl/a.bin"))).await;
        for expected in [200, 200, 429] {
            assert_eq!(sent(server, line).await, expected, "{line}");
        }
    }
}

/// A list that lets requests pass has only those that no service reads otherwise.
#[tokio::test]
async fn a_spelling_is_denied_and_not_allowed() {
    let rule = || Limit::per_hour(1 << 30).by(Constant("all"));
    for (path, denied, free) in [
        ("/health", true, true),
        ("/health/", true, false),
        ("//health", true, false),
        ("/%68ealth", true, false),
        ("/x/../health", true, false),
        ("/health/../login", false, false),
        ("/login", false, false),
    ] {
        let rules = Rules::new().otherwise(rule()).deny(Requests::on("/health"));
        let deny = RateLimitLayer::builder(&MemoryStore::new()).rules(rules);
        let rules = Rules::new()
            .otherwise(rule())
            .allow(Requests::on("/health"));
        let allow = RateLimitLayer::builder(&MemoryStore::new()).rules(rules);
        let request = || asking(&format!("GET {path}"), &[]);
        let answer = kit::scene::send(&deny.build().unwrap(), request()).await;
        assert_eq!(answer.status() == 403, denied, "{path}");
        let answer = kit::scene::send(&allow.build().unwrap(), request()).await;
        assert_eq!(!answer.headers().contains_key("ratelimit"), free, "{path}");
    }
}
