//! Compares the index with a linear search, which defines the meaning of the table.

#![allow(clippy::print_stdout, reason = "times are shown, and not asserted")]

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use http::{Request, Uri};
use proptest::prelude::*;

use super::*;

/// A pattern of a table, as it is written.
#[derive(Clone, Debug)]
enum Written {
    Route(String),
    Grpc(String),
    /// Requests with this header.
    Header(&'static str),
    /// A place, and a header that the request needs as well.
    With(Box<Self>, &'static str),
}

impl Written {
    fn pattern(&self) -> Pattern {
        match self {
            Self::Route(route) => Pattern::route(route).unwrap(),
            Self::Grpc(method) => Pattern::grpc(method).unwrap(),
            Self::Header(name) => {
                let name = *name;
                Pattern::Predicate(Arc::new(move |parts| parts.headers.contains_key(name)))
            }
            Self::With(place, header) => {
                Pattern::All(vec![place.pattern(), Self::Header(header).pattern()])
            }
        }
    }
}

/// Few segments, so that most routes match some request, and many routes are in two entries.
fn route() -> impl Strategy<Value = String> {
    let segment = prop_oneof![
        4 => prop::sample::select(vec!["a", "b", "a.B", "C"]),
        1 => Just(""),
        3 => Just("{x}"),
    ];
    let rest = prop_oneof![3 => Just(None), 1 => Just(Some("{*r}"))];
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
    let place = prop_oneof![
        6 => route.prop_map(Written::Route),
        1 => grpc.prop_map(|method| Written::Grpc(method.to_owned())),
    ];
    prop_oneof![
        5 => place.clone(),
        1 => header().prop_map(Written::Header),
        2 => (place, header()).prop_map(|(place, header)| Written::With(Box::new(place), header)),
    ]
}

/// Paths that a request may have, and texts that are not paths.
fn uri() -> impl Strategy<Value = Uri> {
    let segment = prop::sample::select(vec!["a", "b", "a.B", "C", "", "c", "%7Bx%7D"]);
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
        let path = route.replace("{x}", "1").replace("{*r}", "2/3");
        let request = Request::builder().uri(path);
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

    /// Whatever the table, the index finds the first entry that matches.
    #[test]
    fn the_first_that_matches_is_found(
        table in prop::collection::vec(written(), 0..12),
        method in prop::sample::select(vec!["GET", "HEAD", "POST", "BREW"]),
        uris in prop::collection::vec(uri(), 1..12),
        headers in prop::sample::subsequence(vec!["x-a", "x-b"], 0..=2),
        template in prop::option::of(route()),
        whole in prop::option::of(uri()),
    ) {
        let patterns: Vec<_> = table.iter().map(Written::pattern).collect();
        let index = Index::new(patterns.clone());
        // axum's router accepts the name of a parameter only once.
        let template = template.filter(|route| route.matches("{x}").count() < 2);
        for uri in uris {
            let mut parts = request(method, uri, &headers);
            routed(&mut parts, template.as_deref(), whole.clone());
            let first = patterns.iter().position(|pattern| pattern.matches(&parts));
            prop_assert_eq!(index.find(&parts), first, "{:?}", parts.uri);
        }
    }
}

/// A closure is called once, and only if no earlier entry matches.
#[test]
fn closures_are_asked_in_turn() {
    let asked = Arc::new(AtomicUsize::new(0));
    let closure = |answer: bool| {
        let asked = Arc::clone(&asked);
        Pattern::Predicate(Arc::new(move |_| {
            asked.fetch_add(1, Ordering::Relaxed);
            answer
        }))
    };
    let route = |route| Pattern::route(route).unwrap();
    let index = Index::new(vec![
        closure(false),
        route("/a"),
        closure(false),
        Pattern::All(vec![route("/b"), closure(false)]),
        route("/{x}"),
        closure(true),
    ]);
    for (path, found, calls) in [
        ("/a", Some(1), 1),
        ("/b", Some(4), 3),
        ("/c", Some(4), 2),
        ("/c/d", Some(5), 3),
    ] {
        asked.store(0, Ordering::Relaxed);
        let parts = request("GET", Uri::from_static(path), &[]);
        assert_eq!(index.find(&parts), found, "{path}");
        assert_eq!(asked.load(Ordering::Relaxed), calls, "{path}");
    }
}

/// Returns how many nodes and entries the index visits for a request.
fn steps(index: &Index, path: &str) -> usize {
    let parts = request("POST", path.parse().unwrap(), &[]);
    let mut search = Search {
        index,
        parts: &parts,
        found: index.patterns.len(),
        steps: 0,
    };
    search.run();
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
    Index::new((0..entries).map(|entry| pattern(entry).unwrap()).collect())
}

/// Returns the processor time of one request in nanoseconds, the least of several tries.
fn nanos(index: &Index, path: &str) -> u64 {
    let now = || -> u64 {
        // Linux updates the counter whenever it schedules.
        std::thread::yield_now();
        let stat = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        stat.split(' ').next().unwrap().parse().unwrap()
    };
    let parts = request("POST", path.parse().unwrap(), &[]);
    let time = || {
        let begin = now();
        for _ in 0..5_000 {
            std::hint::black_box(index.find(std::hint::black_box(&parts)));
        }
        (now() - begin) / 5_000
    };
    (0..3).map(|_| time()).min().unwrap()
}

#[test]
fn the_cost_of_a_request_does_not_grow_with_the_table() {
    let (few, many) = (table(100), table(10_000));
    for path in [
        "/a/r96",
        "/a/7/r97",
        "/b/r98/c/d",
        "/shop.v99.Orders/Create",
        "/c",
        "/",
    ] {
        let (less, more) = (steps(&few, path), steps(&many, path));
        assert_eq!(less, more, "{path}");
        assert!(more <= 8, "{path}: {more}");
        let times = [&few, &many].map(|index| nanos(index, path));
        println!(
            "{path}: {} and {} ns among 100 and 10,000 entries",
            times[0], times[1]
        );
    }
}

/// A path of 60 KB is read once.
#[test]
fn a_long_path_leads_no_further_than_the_routes() {
    let index = table(10_000);
    for path in [
        "/".repeat(60_000),
        "/a".repeat(30_000),
        format!("/{}", "a".repeat(60_000)),
        format!("/a/{}", "a".repeat(60_000)),
        format!("/b/r98/{}", "a/".repeat(30_000)),
    ] {
        let steps = steps(&index, &path);
        assert!(steps <= 8, "{}: {steps}", &path[..10]);
        println!(
            "{}..: {} ns for {} bytes",
            &path[..10],
            nanos(&index, &path),
            path.len()
        );
    }
}
