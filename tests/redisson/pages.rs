//! The limiters of the page on names, made as it says: read and spent by Redisson by the names that
//! stand there.

use http::request::Parts;

use super::{
    oracle::{self, JavaClock, Oracle, versions},
    snippets::SECRET,
};
use kit::scene::*;

/// Rust and Java by one clock, which stands still.
struct Both {
    java: Oracle,
    clock: ManualClock,
    store: RedisStore,
    server: RedisServer,
}

impl Both {
    fn new(version: &str) -> Self {
        let (server, clock) = (RedisServer::start(), ManualClock::new());
        let store = by_clock(&server, &clock).deny_cache(Duration::ZERO);
        Self {
            java: Oracle::start(version, server.port(), JavaClock::Fake),
            store: store.redisson().build().unwrap(),
            clock,
            server,
        }
    }

    fn java(&mut self, verb: &str, name: &str) -> String {
        let now = Clock::now(&self.clock).as_millis();
        let request = oracle::Request::new(verb).text("name", name);
        let request = request.number("now", i64::try_from(now).unwrap());
        self.java.ask(&request).unwrap()
    }

    /// Spends of both sides in turns, of as many permits an hour, and compares what each says that
    /// is left.
    async fn share(
        &mut self,
        (name, hourly): (&str, u64),
        limiter: &RateLimiter,
        spend: impl AsyncFn() -> Decision,
    ) {
        assert_eq!(limiter.name(), name);
        for taken in [0, 2] {
            granted(spend().await);
            assert_eq!(self.java("config", name), format!("0 {hourly} 3600000"));
            let left = hourly - taken - 1;
            assert_eq!(self.java("available", name), left.to_string(), "{name}");
            assert_eq!(self.java("tryAcquire", name), "true", "{name}");
            assert_eq!(free(limiter).await, left - 1, "{name}");
        }
        self.server.cli(&["FLUSHALL"]);
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

#[tokio::test]
async fn the_limiters_of_the_page_are_shared() {
    let page = include_str!("../../src/docs/keys.md");
    let names = page.lines().filter_map(|line| {
        let name = line.strip_prefix("  `")?.strip_suffix('`')?;
        name.starts_with("ratelimit:{").then_some(name)
    });
    let names: Vec<_> = names.collect();
    for version in versions() {
        println!("Redisson {version}");
        let mut both = Both::new(&version);
        let keys = keys().await;
        assert_eq!(names.len(), keys.len());
        for (name, (rule, parts)) in names.iter().zip(keys) {
            let layer = layer_of(&both.store, rule);
            let limiter = layer.limiters_of(&parts).remove(0);
            let spend = async || decide(&layer, Request::from_parts(parts.clone(), ())).await;
            both.share((name, 5), &limiter, spend).await;
        }
        // Without HTTP the page has these.
        let mails = Limit::per_hour(20).named("mails");
        let keyed = mails.clone().keyed(&both.store).unwrap().of("ann");
        let single = mails.single(&both.store).unwrap();
        for (limiter, name) in [(keyed, "{ann}"), (single, "{all}")] {
            let name = format!("ratelimit:{name}:mails");
            let spend = async || limiter.try_acquire().await.unwrap();
            both.share((&name, 20), &limiter, spend).await;
        }
    }
}
