//! Compares the index with a linear search, which defines the meaning of the table, and its check
//! with all requests of a small world.

mod definition;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use http::{Request, Uri};
use proptest::prelude::*;

use self::definition::{found, is_at, matches};
use super::*;

/// A pattern of a table, as it is written.
#[derive(Clone, Debug)]
enum Written {
    Route(String),
    Grpc(String),
    /// Requests with this header.
    Header(&'static str),
    /// A path, and a header that the request needs as well.
    With(Box<Self>, &'static str),
}

impl Written {
    fn pattern(&self) -> Pattern {
        match self {
            Self::Route(route) => Pattern::route(route).unwrap(),
            Self::Grpc(method) => Pattern::grpc(method).unwrap(),
            Self::Header(name) => {
                let name = *name;
                Pattern::default().and(Arc::new(move |parts| parts.headers.contains_key(name)))
            }
            Self::With(path, header) => {
                let header = Self::Header(header).pattern().conditions;
                header.into_iter().fold(path.pattern(), Pattern::and)
            }
        }
    }
}

/// Returns an index without the entries that are never reached, which are taken out.
fn reached(patterns: &mut Vec<Pattern>) -> Index {
    loop {
        match Index::new(patterns.clone()) {
            Ok(index) => return index,
            Err((late, early)) => {
                assert!(early < late);
                patterns.remove(late);
            }
        }
    }
}

/// Few segments, so that most routes match some request, and many routes are in two entries.
fn route() -> impl Strategy<Value = String> {
    let segment = prop_oneof![
        4 => prop::sample::select(vec!["a", "b", "a.B", "C", "%62"]),
        3 => Just("{x}"),
    ];
    let rest = prop_oneof![3 => Just(None), 1 => Just(Some("")), 1 => Just(Some("{*r}"))];
    (prop::collection::vec(segment, 0..4), rest).prop_map(|(mut segments, rest)| {
        segments.extend(rest);
        format!("/{}", segments.join("/"))
    })
}

fn written() -> impl Strategy<Value = Written> {
    let header = || prop::sample::select(vec!["x-a", "x-b"]);
    let method = prop::sample::select(vec!["", "", "GET ", "HEAD ", "POST "]);
    let route = (method, route()).prop_map(|(method, route)| format!("{method}{route}"));
    let grpc = prop::sample::select(vec!["a.B", "a.B/C", "a", "a/b"]);
    let path = prop_oneof![
        6 => route.prop_map(Written::Route),
        1 => grpc.prop_map(|method| Written::Grpc(method.to_owned())),
    ];
    prop_oneof![
        5 => path.clone(),
        1 => header().prop_map(Written::Header),
        2 => (path, header()).prop_map(|(path, header)| Written::With(Box::new(path), header)),
    ]
}

/// Paths that a request may have, and texts that are not paths.
fn uri() -> impl Strategy<Value = Uri> {
    let usual = prop::sample::select(vec!["a", "b", "a.B", "C", "c", "a@b"]);
    let odd = vec!["", ".", "..", "%61", "b%2Fa", "%2e", "%7Bx%7D", "%"];
    let segment = prop_oneof![6 => usual, 1 => Just(""), 1 => prop::sample::select(odd)];
    let path = prop::collection::vec(segment, 0..5).prop_map(|all| format!("/{}", all.join("/")));
    let odd = prop::sample::select(vec!["*", "example.com:80", "http://example.com", "/?a=/b"]);
    prop_oneof![20 => path, 1 => odd.prop_map(str::to_owned)].prop_map(|uri| uri.parse().unwrap())
}

fn request(method: &str, uri: Uri, headers: &[&'static str]) -> Parts {
    let mut request = Request::builder().method(method).uri(uri);
    for name in headers {
        request = request.header(*name, "1");
    }
    request.body(()).unwrap().into_parts().0
}

/// Returns a path that a route matches.
fn filled(route: &str) -> String {
    route.replace("{x}", "a").replace("{*r}", "b/C")
}

/// Puts into the extensions what axum's router puts there: the route that serves the request, and
/// the whole path.
#[cfg(feature = "axum")]
fn routed(parts: &mut Parts, route: Option<&str>, whole: Option<Uri>) {
    use axum::{
        Extension, Router,
        extract::{MatchedPath, OriginalUri},
        routing::any,
    };
    use tower::ServiceExt;

    if let Some(route) = route {
        let handler = async |matched: MatchedPath| Extension(matched);
        let router = Router::<()>::new().route(route, any(handler));
        let request = Request::builder().uri(filled(route));
        let asked = router.oneshot(request.body(axum::body::Body::empty()).unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread();
        let answer = { runtime }.build().unwrap().block_on(asked).unwrap();
        let matched = answer.extensions().get::<MatchedPath>().unwrap();
        parts.extensions.insert(matched.clone());
    }
    if let Some(whole) = whole {
        parts.extensions.insert(OriginalUri(whole));
    }
}

#[cfg(not(feature = "axum"))]
fn routed(_: &mut Parts, _: Option<&str>, _: Option<Uri>) {}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(inside) { 2000 } else { 200 }))]

    /// In any table, the index finds the first entry that matches, for each reading of the path.
    #[test]
    fn the_first_that_matches_is_found(
        table in prop::collection::vec(written(), 0..12),
        method in prop::sample::select(vec!["GET", "HEAD", "POST", "CONNECT", "BREW"]),
        uris in prop::collection::vec(uri(), 1..12),
        headers in prop::sample::subsequence(vec!["x-a", "x-b"], 0..=2),
        template in prop::option::of(route()),
        whole in prop::option::of(uri()),
    ) {
        let all: Vec<_> = table.iter().map(Written::pattern).collect();
        let alone: Vec<_> = all.iter().cloned().map(Index::one).collect();
        let mut patterns = all.clone();
        let index = reached(&mut patterns);
        // axum's router accepts the name of a parameter only once.
        let template = template.filter(|route| route.matches("{x}").count() < 2);
        // It serves a request by a route that matches the whole path, and records both.
        let whole = match &template {
            Some(route) => Some(filled(route).parse().unwrap()),
            None => whole,
        };
        for uri in uris {
            let mut parts = request(method, uri, &headers);
            routed(&mut parts, template.as_deref(), whole.clone());
            let in_order = |index: &Index| {
                let mut entries: Vec<_> = index.find(&parts).iter().collect();
                entries.sort_unstable();
                entries
            };
            prop_assert_eq!(in_order(&index), found(&patterns, &parts), "{:?}", parts.uri);
            for (pattern, alone) in all.iter().zip(&alone) {
                let expected = found(std::slice::from_ref(pattern), &parts);
                prop_assert_eq!(in_order(alone), expected, "{:?}", parts.uri);
            }
            let any = alone.iter().any(|alone| alone.may_match(&parts));
            prop_assert_eq!(index.may_match(&parts), any, "none is missed: {:?}", parts.uri);
        }
    }
}

/// A closure is called once, and only if no earlier entry matches.
#[test]
fn closures_are_asked_in_turn() {
    let asked = Arc::new(AtomicUsize::new(0));
    let closure = |answer: bool| {
        let asked = Arc::clone(&asked);
        Pattern::default().and(Arc::new(move |_| {
            asked.fetch_add(1, Ordering::Relaxed);
            answer
        }))
    };
    let route = |route| Pattern::route(route).unwrap();
    let index = Index::new(vec![
        closure(false),
        route("/a"),
        closure(false),
        route("/b").and(closure(false).conditions.remove(0)),
        route("/{x}"),
        closure(true),
    ])
    .unwrap();
    for (path, found, calls) in [
        ("/a", Some(1), 1),
        ("/b", Some(4), 3),
        ("/c", Some(4), 2),
        ("/c/d", Some(5), 3),
    ] {
        asked.store(0, Ordering::Relaxed);
        let parts = request("GET", Uri::from_static(path), &[]);
        assert!(index.find(&parts).iter().eq([found]), "{path}");
        assert_eq!(asked.load(Ordering::Relaxed), calls, "{path}");
    }
}

/// Returns how many nodes and entries the index visits for a request.
fn steps(index: &Index, path: &str) -> usize {
    let parts = request("POST", path.parse().unwrap(), &[]);
    let mut search = index.search(&parts);
    search.template(None, path).path(path).grpc(path).or_other();
    search.steps
}

/// Returns an index with this many entries, of all kinds that can be looked up.
fn table(entries: usize) -> Index {
    let pattern = |entry: usize| match entry % 4 {
        0 => Pattern::route(&format!("/a/r{entry}")),
        1 => Pattern::route(&format!("POST /a/{{x}}/r{entry}")),
        2 => Pattern::route(&format!("/b/r{entry}/{{*r}}")),
        _ => Pattern::grpc(&format!("shop.v{entry}.Orders/Create")),
    };
    Index::new((0..entries).map(|entry| pattern(entry).unwrap()).collect()).unwrap()
}

#[test]
fn the_cost_of_a_request_grows_neither_with_the_table_nor_with_its_path() {
    let (few, many) = (table(100), table(10_000));
    let usual = [
        "/a/r96",
        "/a/7/r97",
        "/b/r98/c/d",
        "/shop.v99.Orders/Create",
        "/c",
        "/",
    ];
    // A path of 60 KB leads no further than the routes.
    let long = [
        "/".repeat(60_000),
        "/a".repeat(30_000),
        format!("/{}", "a".repeat(60_000)),
        format!("/a/{}", "a".repeat(60_000)),
        format!("/b/r98/{}", "a/".repeat(30_000)),
    ];
    for path in usual.into_iter().chain(long.iter().map(String::as_str)) {
        let (less, more) = (steps(&few, path), steps(&many, path));
        let begins = path.get(..10).unwrap_or(path);
        assert_eq!(less, more, "{begins}");
        assert!(more <= 8, "{begins}: {more}");
    }
}

#[test]
fn paths_and_methods_match_as_in_axums_router() {
    for (pattern, asked, expected) in [
        ("/", "GET /", true),
        ("/", "DELETE /", true),
        ("/", "GET /a", false),
        ("/login", "GET /login", true),
        ("/login", "GET /login?next=/", true),
        ("/login", "GET /login/", true),
        ("/login/", "GET /login", true),
        ("/login", "GET //login", true),
        ("/login", "GET /./log%69n", true),
        ("/login", "GET /x/../login", true),
        ("/login", "GET /login%2F", true),
        ("/login", "GET /login;x", false),
        ("/caf%c3%a9", "GET /caf%C3%A9", true),
        ("/café", "GET /caf%C3%A9", true),
        ("GET /a b", "GET /a%20b", true),
        ("/login", "GET /Login", false),
        ("POST /login", "POST /login", true),
        ("POST /login", "GET /login", false),
        ("GET /", "HEAD /", true),
        ("HEAD /", "GET /", false),
        ("GET /", "CONNECT /", true),
        ("CONNECT /", "GET /", false),
        ("CONNECT /", "CONNECT /", true),
        ("/{*rest}", "CONNECT a.example:443", false),
        ("GET /", "QUERY /", false),
        ("QUERY /", "QUERY /", true),
        ("/users/{id}", "GET /users/7", true),
        ("/users/{id}", "GET /users/", false),
        ("/users/{id}", "GET /users/7/posts", false),
        ("/users/{id}/posts", "GET /users/7/posts", true),
        ("/files/{*path}", "GET /files/a/b", true),
        ("/files/{*path}", "GET /files/", false),
        ("/files/{*path}", "GET /files//", true),
        ("/files/{*path}", "GET /files", false),
        ("grpc a.B/C", "POST /a.B/C", true),
        ("grpc a.B/C", "POST /a.B/D", false),
        ("grpc a.B", "POST /a.B/D", true),
        ("grpc a.B", "POST /a.BX/D", false),
        ("grpc a.B", "POST /rpc/a.B/D", true),
        ("grpc a.B/D", "POST /rpc/v1/a.B/D", true),
        ("grpc a.B/D", "POST /rpc//a%2EB/D", true),
        ("grpc a.B", "POST /rpc/a.B/D/E", false),
        // Some servers accept other methods than POST for a call.
        ("grpc a.B/C", "GET /a.B/C", true),
        ("grpc a.B", "GET /a.B/D", true),
    ] {
        let (method, path) = asked.split_once(' ').unwrap();
        let index = Index::new(patterns(&[pattern])).unwrap();
        let parts = request(method, path.parse().unwrap(), &[]);
        assert_eq!(index.may_match(&parts), expected, "{pattern} {asked}");
    }
}

fn patterns(texts: &[&str]) -> Vec<Pattern> {
    let pattern = |text: &&str| match text.strip_prefix("grpc ") {
        Some(method) => Pattern::grpc(method).unwrap(),
        None => Pattern::route(text).unwrap(),
    };
    texts.iter().map(pattern).collect()
}

fn unreached(texts: &[&str]) -> Option<(usize, usize)> {
    Index::new(patterns(texts)).err()
}

/// Cases for which the property below generates no requests.
#[test]
fn an_entry_behind_a_wider_one_is_never_reached() {
    for (patterns, expected) in [
        (&["/a/{*rest}", "/a/"][..], None),
        (&["/caf%c3%a9", "/café"], Some((1, 0))),
        (&["/%61", "/a"], Some((1, 0))),
        (&["GET /a", "CONNECT /a"], Some((1, 0))),
        (&["CONNECT /a", "GET /a", "QUERY /a"], None),
        (
            &["/{a}/b", "/a/c", "/{x}/{y}", "/a/b/c", "/z/b"],
            Some((4, 0)),
        ),
        (&["grpc a.B", "grpc a.B/C"], Some((1, 0))),
        (&["grpc a.B/C", "grpc a.B"], None),
        (&["grpc a.B/C", "grpc a.B/D", "grpc a.B/C"], Some((2, 0))),
        (&["grpc a.B", "grpc a.BC/D"], None),
        (&["grpc a.B", "grpc a.B"], Some((1, 0))),
    ] {
        assert_eq!(unreached(patterns), expected, "{patterns:?}");
    }
}

/// The length of a path or a table must not exhaust the stack or take quadratic time.
#[test]
fn long_paths_and_long_tables_are_taken() {
    let long = "/{a}".repeat(100_000);
    assert_eq!(unreached(&[&long, &"/b".repeat(100_000)]), Some((1, 0)));
    let many: Vec<_> = (0..10_000).map(|number| format!("/a/{number}")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    assert_eq!(unreached(&many), None);
    // Entries with further conditions at one path are not compared with each other.
    let narrow = || Pattern::route("/a").unwrap().and(Arc::new(|_| true));
    assert!(Index::new((0..100_000).map(|_| narrow()).collect()).is_ok());
}

fn pattern() -> impl Strategy<Value = String> {
    let segment = prop_oneof![3 => "[ab]", 2 => Just("{x}".to_owned())];
    let method = prop_oneof![Just(""), Just("GET "), Just("HEAD "), Just("POST ")];
    let segments = prop::collection::vec(segment, 0..3);
    let last = prop_oneof![1 => Just(""), 2 => Just("a"), 1 => Just("{x}"), 2 => Just("{*rest}")];
    (method, segments, last).prop_map(|(method, mut segments, last)| {
        segments.push(last.to_owned());
        format!("{method}/{}", segments.join("/"))
    })
}

proptest! {
    /// An entry is reported as unreached exactly if no request meets it first.
    #[test]
    fn unreached_is_what_no_request_meets(texts in prop::collection::vec(pattern(), 2..6)) {
        let texts: Vec<_> = texts.iter().map(String::as_str).collect();
        let table = patterns(&texts);
        let requests = requests();
        let covered = |late: usize, early: usize| {
            let (late, early) = (&table[late], &table[early]);
            let meets = |pattern: &Pattern, parts: &Parts| {
                matches(pattern, parts, &|path| is_at(path, parts.uri.path()))
            };
            let mut met = requests.iter().filter(|parts| meets(late, parts));
            met.all(|parts| meets(early, parts))
        };
        let pairs = (0..table.len()).flat_map(|late| (0..late).map(move |early| (late, early)));
        let mut expected = pairs.filter(|(late, early)| covered(*late, *early));
        match unreached(&texts) {
            Some((late, early)) => {
                prop_assert!(covered(late, early));
                prop_assert_eq!(expected.next().map(|(late, _)| late), Some(late));
            }
            None => prop_assert_eq!(expected.next(), None),
        }
    }
}

/// Returns all paths of up to four segments out of three texts and the empty one, with three
/// methods.
fn requests() -> Vec<Parts> {
    let texts = ["", "a", "b", "c"];
    let mut paths: Vec<String> = vec![String::new()];
    let mut all = Vec::new();
    for _ in 0..4 {
        paths = paths
            .iter()
            .flat_map(|path| texts.map(|text| format!("{path}/{text}")))
            .collect();
        all.extend(paths.iter().cloned());
    }
    let by_method = |path: &String| {
        ["GET", "HEAD", "POST"].map(|method| request(method, path.parse().unwrap(), &[]))
    };
    all.iter().flat_map(by_method).collect()
}
