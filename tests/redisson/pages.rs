//! Each limiter that the pages and the documentation of the code share with Java: made as its
//! example makes it, and read and spent by Redisson by the name that the example has.

use std::{collections::BTreeSet, fs};

use http::request::Parts;

use super::{
    oracle::{self, JavaClock, Oracle, versions},
    snippets::SECRET,
};
use kit::{files, scene::*};

/// Rust and Java by one clock, which stands still.
struct Both {
    server: RedisServer,
    java: Oracle,
    clock: ManualClock,
    own: RedisStore,
    redisson: RedisStore,
}

impl Both {
    fn new(version: &str) -> Self {
        let (server, clock) = (RedisServer::start(), ManualClock::new());
        let store = || by_clock(&server, &clock).deny_cache(Duration::ZERO);
        Self {
            java: Oracle::start(version, server.port(), JavaClock::Fake),
            own: store().build().unwrap(),
            redisson: store().redisson().build().unwrap(),
            clock,
            server,
        }
    }

    fn java(&mut self, verb: &str, name: &str, limit: Limit) -> String {
        let now = Clock::now(&self.clock).as_millis();
        let request = oracle::Request::new(verb).text("name", name);
        let request = request.number("now", i64::try_from(now).unwrap());
        let request = request.number("rate", limit.permits().cast_signed());
        let interval = i64::try_from(limit.interval().as_millis()).unwrap();
        self.java
            .ask(&request.number("interval", interval))
            .unwrap()
    }

    /// Spends of both sides in turns, and compares what each says that is left.
    async fn share(&mut self, example: &Example) {
        for taken in [0, 2] {
            example.spend().await;
            for (limiter, (name, limit)) in example.limiters.iter().zip(&example.limits) {
                assert_eq!(limiter.name(), name);
                let config = format!("0 {} {}", limit.permits(), limit.interval().as_millis());
                assert_eq!(self.java("config", name, *limit), config, "{name}");
                let left = limit.permits() - taken - 1;
                let available = self.java("available", name, *limit);
                assert_eq!(available, left.to_string(), "{name}");
                assert_eq!(self.java("tryAcquire", name, *limit), "true", "{name}");
                assert_eq!(free(limiter).await, left - 1, "{name}");
            }
        }
        self.server.cli(&["FLUSHALL"]);
    }
}

/// What one example makes: its limiters, of which a request or a call takes one permit each.
struct Example {
    limits: Vec<(String, Limit)>,
    limiters: Vec<RateLimiter>,
    request: Option<(RateLimitLayer, Parts)>,
}

impl Example {
    /// By `RateLimiter::new`, and `RateLimiter::all` where there are several.
    async fn exact(store: &RedisStore, limits: &[(&str, Limit)]) -> Self {
        let mut limiters = Vec::new();
        for (name, limit) in limits {
            let limiter = RateLimiter::new(store, name).unwrap();
            assert!(limiter.try_set_rate(*limit).await.unwrap());
            limiters.push(limiter);
        }
        let limits = limits
            .iter()
            .map(|(name, limit)| ((*name).to_owned(), *limit));
        Self {
            limits: limits.collect(),
            limiters,
            request: None,
        }
    }

    /// By the rules that apply to a request.
    fn of(layer: RateLimitLayer, parts: Parts, limits: &[(&str, Limit)]) -> Self {
        let limits = limits
            .iter()
            .map(|(name, limit)| ((*name).to_owned(), *limit));
        Self {
            limits: limits.collect(),
            limiters: layer.limiters_of(&parts),
            request: Some((layer, parts)),
        }
    }

    async fn spend(&self) {
        assert_eq!(self.limiters.len(), self.limits.len());
        let decision = match &self.request {
            Some((layer, parts)) => decide(layer, Request::from_parts(parts.clone(), ())).await,
            None => {
                let all = RateLimiter::all(&self.limiters).unwrap();
                all.try_acquire().await.unwrap()
            }
        };
        granted(decision);
    }
}

fn parts(headers: &[(&str, &str)]) -> Parts {
    let request = headers
        .iter()
        .fold(Request::builder(), |request, (name, value)| {
            request.header(*name, *value)
        });
    request.body(()).unwrap().into_parts().0
}

/// Adds the address that a request comes from.
fn from(address: &str, mut parts: Parts) -> Parts {
    let address = (address.parse::<std::net::IpAddr>().unwrap(), 4711);
    parts.extensions.insert(PeerAddr(address.into()));
    parts
}

/// Those with exact names: of `RateLimiter::new` here, of `Rule::shared` below.
async fn exact_ones(both: &mut Both) -> BTreeSet<String> {
    let five_seconds = Limit::new(50, secs(5));
    let ten = Limit::per_second(10);
    let mut seen = BTreeSet::new();
    for limits in [
        &[("orders", ten)][..],
        &[("name", ten)],
        &[("log", five_seconds)],
        &[("tokens", Limit::per_minute(1000))],
        &[("mails", Limit::per_minute(9))],
        &[
            ("minute", Limit::per_minute(600)),
            ("second", Limit::per_second(20)),
        ],
        &[("{mail}:s", ten), ("{mail}:h", Limit::per_hour(10))],
        &[("a{b}c", ten)],
    ] {
        let example = Example::exact(&both.own, limits).await;
        both.share(&example).await;
        seen.extend(limits.iter().map(|(name, _)| (*name).to_owned()));
    }
    let feed = Limit::per_minute(100_000);
    let mut example = Example::exact(&both.own, &[("feed", feed)]).await;
    let limiter = example.limiters.remove(0);
    example.limiters.push(limiter.slots(1000).unwrap());
    both.share(&example).await;

    let feed_rule = Rule::shared("feed").or_init(feed).slots(1000);
    let each = Rule::shared("orders:<key>").by(FromHeader::new("x-tenant"));
    for (written, rule, name, limit) in [
        ("orders", Rule::shared("orders").or_init(ten), "orders", ten),
        ("name", Rule::shared("name").or_init(ten), "name", ten),
        ("feed", feed_rule, "feed", feed),
        ("orders:<key>", each.or_init(ten), "orders:acme", ten),
    ] {
        let layer = layer_of(&both.own, rule);
        let parts = parts(&[("x-tenant", "acme")]);
        let example = Example::of(layer, parts, &[(name, limit)]);
        both.share(&example).await;
        seen.insert(written.to_owned());
    }
    seen
}

/// As the page on migration has it: Java's limit stays in force until the code has one.
async fn limits_that_java_sets(both: &mut Both) {
    let (set, limit) = (Limit::per_hour(7), Limit::per_hour(9));
    for rule in [Rule::shared("name"), Rule::shared("name").or_init(limit)] {
        assert_eq!(both.java("trySetRate", "name", set), "true");
        let layer = layer_of(&both.own, rule);
        let example = Example::of(layer, parts(&[]), &[("name", set)]);
        both.share(&example).await;
    }
    assert_eq!(both.java("trySetRate", "name", set), "true");
    let example = Example {
        limits: vec![("name".to_owned(), set)],
        limiters: vec![RateLimiter::new(&both.own, "name").unwrap()],
        request: None,
    };
    both.share(&example).await;
}

/// The rules of the page on names, each with the request that it gives.
async fn keys() -> Vec<(Rule, Parts)> {
    let five = Limit::per_hour(5);
    let forwarded = |address| parts(&[("x-forwarded-for", address)]);
    let account = || FromHeader::new("x-account");
    let secret = Secret::new("k1", SECRET).unwrap();
    let digested = FromHeader::new("authorization").digest(&secret);
    let behind = ClientIp::behind(["10.0.0.0/8"]);
    let hops = ClientIp::hops(1).ipv6_prefix(64);
    let none = || parts(&[]);
    vec![
        (five.by(PeerIp), from("192.0.2.7", none())),
        (five.by(PeerIp), from("2001:db8:1:2ff::9", none())),
        (five.by(behind), from("10.0.0.1", forwarded("192.0.2.7"))),
        (
            five.by(hops),
            from("10.0.0.1", forwarded("2001:db8:1:2ff::9")),
        ),
        (five.by(account()), parts(&[("x-account", "a b")])),
        (
            five.by((FromHeader::new("x-tenant"), PeerIp)),
            from("192.0.2.7", parts(&[("x-tenant", "acme")])),
        ),
        (five.by(account().or(PeerIp)), from("192.0.2.7", none())),
        (five.by(digested), parts(&[("authorization", "Bearer abc")])),
        (five.by(Route::new()), routed().await),
    ]
}

/// Returns the head of `GET /users/7` as a handler of axum gets it.
async fn routed() -> Parts {
    let (sender, head) = std::sync::mpsc::channel();
    let handler = async move |parts: Parts| sender.send(parts).unwrap();
    let router = axum::Router::new().route("/users/{id}", axum::routing::get(handler));
    let request = Request::get("/users/7").body(axum::body::Body::empty());
    router.oneshot(request.unwrap()).await.unwrap();
    head.recv().unwrap()
}

/// Of a store with `redisson()`.
async fn those_of_rules(both: &mut Both) {
    let page = include_str!("../../src/docs/keys.md");
    let names = page.lines().filter_map(|line| {
        let name = line.strip_prefix("  `")?.strip_suffix('`')?;
        name.starts_with("ratelimit:{").then_some(name)
    });
    let (names, keys): (Vec<_>, _) = (names.collect(), keys().await);
    assert_eq!(names.len(), keys.len());
    for (name, (rule, parts)) in names.into_iter().zip(keys) {
        let layer = layer_of(&both.redisson, rule);
        let example = Example::of(layer, parts, &[(name, Limit::per_hour(5))]);
        both.share(&example).await;
    }
    // Without HTTP the page has these.
    let mails = Limit::per_hour(20).named("mails");
    let keyed = mails.clone().keyed(&both.redisson).unwrap().of("ann");
    let single = mails.single(&both.redisson).unwrap();
    for (limiter, name) in [(keyed, "{ann}"), (single, "{all}")] {
        let example = Example {
            limits: vec![(format!("ratelimit:{name}:mails"), Limit::per_hour(20))],
            limiters: vec![limiter],
            request: None,
        };
        both.share(&example).await;
    }
}

/// The recipe of a reserve for a class, of which Java takes one permit of each.
async fn reserve(both: &mut Both) {
    let (hundred, eighty) = (Limit::per_minute(100), Limit::per_minute(80));
    let all = hundred.by(Constant("backend")).named("all");
    let background = eighty.by(Constant("backend")).named("background");
    let layer = layer_of(&both.redisson, [all, background]);
    let limits = [
        ("ratelimit:{backend}:all", hundred),
        ("ratelimit:{backend}:background", eighty),
    ];
    let example = Example::of(layer, parts(&[]), &limits);
    both.share(&example).await;
}

#[tokio::test]
async fn the_limiters_of_the_pages_are_shared() {
    let written = written();
    for version in versions() {
        println!("Redisson {version}");
        let mut both = Both::new(&version);
        let mut seen = exact_ones(&mut both).await;
        limits_that_java_sets(&mut both).await;
        those_of_rules(&mut both).await;
        reserve(&mut both).await;
        // In the guide, and for the store that keeps all so.
        let layer = layer_of(
            &both.redisson,
            Limit::per_hour(5).by(FromHeader::new("x-key")),
        );
        let ann = ("ratelimit:{ann}:default", Limit::per_hour(5));
        let example = Example::of(layer, parts(&[("x-key", "ann")]), &[ann]);
        both.share(&example).await;
        seen.insert(ann.0.to_owned());
        let missing: Vec<_> = written.difference(&seen).collect();
        assert!(missing.is_empty(), "no example here has these: {missing:?}");
    }
}

/// Returns the names that stand in README, pages and documentation where a limiter is made. Left
/// out are those that no Redis has, and those that Java composes, which `snippets.rs` runs.
fn written() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for text in texts() {
        for call in ["RateLimiter::new(", "Rule::shared(", "getRateLimiter("] {
            for (at, _) in text.match_indices(call) {
                let arguments = &text[at + call.len()..];
                let Some((before, rest)) = arguments.split_once('"') else {
                    continue;
                };
                let (name, after) = rest.split_once('"').expect("a whole text");
                let is_name = before.len() < 40 && !before.contains([';', '.']);
                if is_name && !after.starts_with(" +") {
                    names.insert(name.to_owned());
                }
            }
        }
    }
    names.retain(|name| !name.starts_with("memory:") && !name.starts_with(".."));
    assert!(names.len() > 10, "{names:?}");
    names
}

/// Returns the README, the pages, and the comments of the code.
fn texts() -> Vec<String> {
    let read = |path| fs::read_to_string(path).unwrap();
    let pages = [files("README.md", "md"), files("src", "md")].concat();
    let comments = |path| {
        let text = read(path);
        let lines = text.lines().map(str::trim_start);
        let lines = lines.filter_map(|it| it.strip_prefix("///").or(it.strip_prefix("//!")));
        lines.collect::<Vec<_>>().join("\n")
    };
    let code = files("src", "rs").into_iter().map(comments);
    pages.into_iter().map(read).chain(code).collect()
}
