//! Mistakes in a configuration: found when a layer is built, and named.

use crate::scene::*;
use http::request::Parts;
use tower::Service;
use tower_ratelimit::{IntoRules, RateLimit, Rules, key::FromParts};

use super::{Inner, by_key};

fn otherwise(rules: impl IntoRules) -> Result<RateLimitLayer, ConfigError> {
    RateLimitLayer::builder(&MemoryStore::new())
        .otherwise(rules)
        .build()
}

#[track_caller]
fn assert_duplicate(built: Result<RateLimitLayer, ConfigError>, name: &str) {
    let said = format!("two rules are named {name:?} and differ in limit or key: ");
    mistake(built, ConfigErrorKind::Duplicate, &said);
}

/// Every mistake has its kind, and what is shown holds the value at fault.
#[track_caller]
fn assert_mistake<T: std::fmt::Debug>(
    found: Result<T, ConfigError>,
    kind: ConfigErrorKind,
    said: &str,
) {
    let found = found.expect_err(said);
    assert_eq!(found.to_string(), said);
    assert_eq!((found.kind(), found.reason()), (kind, said));
    assert_eq!(found.place(), None, "only files have lines");
    // `main` prints the same words first, then the kind.
    assert_eq!(format!("{found:?}"), format!("{said} ({kind:?})"));
}

#[test]
fn every_mistake_of_a_rule_is_named() {
    use ConfigErrorKind as Kind;

    let hour = Limit::per_hour(1);
    let tiers = |names: &[&'static str]| {
        let tiers = names.iter().map(|name| (*name, hour));
        Rule::new("api", Tiers::new(tiers, |_| "a"), Constant("all"))
    };
    let found = |cost| {
        let found = limit_by(move |_| hour);
        Rule::new("api", found, Constant("k")).cost(cost)
    };
    let export = || by_key(5).named("export");
    let no_tiers = "rule \"api\" has no tiers, or two with one name";
    for (rule, kind, said) in [
        (
            by_key(1).named("log in"),
            Kind::Name,
            "a rule's name has one or more of A-Z a-z 0-9 . _ -, not \"log in\"",
        ),
        (
            tiers(&["a b"]),
            Kind::Name,
            "a rule's name has one or more of A-Z a-z 0-9 . _ -, not \"a b\"",
        ),
        (tiers(&[]), Kind::Rule, no_tiers),
        (tiers(&["a", "a"]), Kind::Rule, no_tiers),
        (
            Rule::shared(""),
            Kind::Name,
            "\"\" cannot name a limiter: it is empty",
        ),
        (
            hour.by(Constant("k").or((PeerIp, FromHeader::new("x key").or_skip()))),
            Kind::Key,
            "\"x key\" is not a header's name",
        ),
        (
            hour.by((PeerIp, FromHeader::credential("x-session"))),
            Kind::Key,
            "the header \"x-session\" holds a credential, which would be visible in Redis: \
             add `.digest(&secret)`, or `.plain()` if it may be visible",
        ),
        (
            Rule::from(Limit::per_hour(1_000_000_000_000_000)).named("big"),
            Kind::Rule,
            "rule \"big\" has 1000000000000000 permits, and response fields can carry at most \
             999999999999999: add `.hide_headers()`, or turn the fields off",
        ),
        (
            hour.by(ClientIp::behind(["10/8"])),
            Kind::Network,
            "\"10/8\" cannot be a network of trusted proxies: it is neither an address \
             nor a network such as `10.0.0.0/8`",
        ),
        (
            hour.by(ClientIp::hops(65)),
            Kind::Network,
            "1 to 64 proxies can be trusted, not 65: without a proxy count by `PeerIp`, \
             in a file by `peer`",
        ),
        (
            hour.by(PeerIp.ipv6_prefix(1)),
            Kind::Key,
            "32 to 128 bits of an IPv6 address can count, not 1",
        ),
        (
            Rule::shared("user:<key>").named("users"),
            Kind::Key,
            "rule \"users\" has no key: add `.by(..)`",
        ),
        (
            Rule::shared("orders").by(PeerIp),
            Kind::Key,
            "rule \"orders\" has a key, but no `<key>` in its shared name",
        ),
        (
            export().cost(6),
            Kind::Rule,
            "rule \"export\" costs 6 permits: the cost must be between 1 and the limit",
        ),
        (
            export().cost(0),
            Kind::Rule,
            "rule \"export\" costs 0 permits: the cost must be between 1 and the limit",
        ),
        (
            tiers(&["a"]).cost(2),
            Kind::Rule,
            "rule \"api\" costs 2 permits: the cost must be between 1 and the limit",
        ),
        (
            found(0),
            Kind::Rule,
            "rule \"api\" costs 0 permits: the cost must be between 1 and the limit",
        ),
        (
            Rule::shared("api").or_init(hour).cost(2),
            Kind::Rule,
            "rule \"api\" costs 2 permits: the cost must be between 1 and the limit",
        ),
        (
            export().enforce_share(101),
            Kind::Rule,
            "rule \"export\" is enforced for 0 to 100 percent of its keys, not 101",
        ),
        (
            export().on_failure(FailurePolicy::local(1.5)),
            Kind::Rule,
            "the rule \"export\" decides by 1.5 of its limit when the store fails: it \
             must be above 0 and 1 at most, one divided by the number of instances",
        ),
    ] {
        assert_mistake(otherwise(rule), kind, said);
    }
    // A limit that is not known yet can be any.
    for rule in [found(2), Rule::shared("api").cost(2)] {
        assert!(otherwise(rule).is_ok());
    }
    for (rule, said) in [
        (
            by_key(1).named("mine").or_init(hour),
            "rule \"mine\" is not shared: ",
        ),
        (
            by_key(1).wait(SECOND).queue(0),
            "rule \"default\" has a queue of 0 requests: ",
        ),
    ] {
        let error = otherwise(rule).expect_err(said);
        assert_eq!(error.kind(), Kind::Rule);
        assert!(error.to_string().starts_with(said), "{error}");
    }
    let layer = RateLimitLayer::builder(&MemoryStore::new()).otherwise(by_key(1));
    let error = layer.queue(0).build().unwrap_err();
    let said = "rule \"default\" has a queue of 0 requests: ";
    assert!(error.to_string().starts_with(said), "{error}");
}

#[test]
fn every_other_mistake_is_named() {
    use ConfigErrorKind as Kind;

    const MS: Duration = Duration::from_millis(1);
    let memory = MemoryStore::new();
    let redis = || RedisStore::builder("redis://127.0.0.1/");
    for (limit, said) in [
        (
            Limit::try_new(0, MS),
            "a limit takes 1 to 2^53 - 1 permits, not 0",
        ),
        (
            Limit::try_new(1, MS / 2),
            "an interval is of whole milliseconds, at least one and at most a century, \
             not 500µs",
        ),
        (
            Limit::per_second(1).keep_alive(MS),
            "a keep-alive time of 1ms is shorter than the interval of 1s",
        ),
    ] {
        assert_mistake(limit, Kind::Limit, said);
    }
    for (secret, said) in [
        (
            Secret::new("k 1", [0; 32]),
            "a secret's key id has 1 to 16 of A-Z a-z 0-9 . _ -",
        ),
        (
            Secret::new("k1", [0; 31]),
            "a secret of a key needs at least 32 bytes, not 31",
        ),
        (
            // The other way round: what is shown must not be it.
            Secret::new("hunter2", b"k1"),
            "a secret of a key needs at least 32 bytes, not 2",
        ),
    ] {
        assert_mistake(secret, Kind::Secret, said);
    }
    for (store, kind, said) in [
        (
            redis().prefix("my shop").build(),
            Kind::Name,
            "a prefix has one or more of A-Z a-z 0-9 . _ -, not \"my shop\"",
        ),
        (
            redis().client_id("a b").build(),
            Kind::Name,
            "a client id has one or more of A-Z a-z 0-9 . _ -, not \"a b\"",
        ),
        (
            redis().breaker(33).build(),
            Kind::Store,
            "a breaker opens after 32 failures at most, not after 33: 0 switches it off",
        ),
        (
            RedisStore::open("ftp://127.0.0.1/"),
            Kind::Store,
            "the address of Redis cannot be read: the scheme is not `redis`, `rediss` \
             or `redis+unix`; write `redis://[user:password@]host[:port][/db]`",
        ),
    ] {
        assert_mistake(store, kind, said);
    }
    let builder = || RateLimitLayer::builder(&memory);
    let duplicate =
        "two rules are named \"default\" and differ in limit or key: rename one of them";
    for (layer, kind, said) in [
        (
            builder().on("login", by_key(1)),
            Kind::Pattern,
            "\"login\" is not `/path` or `METHOD /path`: the path does not begin with `/`",
        ),
        (
            builder().on_grpc("/a.B/C", by_key(1)),
            Kind::Pattern,
            "\"/a.B/C\" is not `/path` or `METHOD /path`: a gRPC method is \
             written `package.Service/Method`",
        ),
        (
            builder().on("/a", by_key(1)).otherwise(by_key(2)),
            Kind::Duplicate,
            duplicate,
        ),
        (
            builder().on("/a", [by_key(1), by_key(2)]),
            Kind::Duplicate,
            duplicate,
        ),
    ] {
        assert_mistake(layer.build(), kind, said);
    }
    let named = "\"{orders\" cannot name a limiter: it has a `{` that is not closed";
    assert_mistake(RateLimiter::new(&memory, "{orders"), Kind::Name, named);
}

#[test]
fn the_rules_of_an_entry_have_different_names() {
    let build = |rules| {
        RateLimitLayer::builder(&MemoryStore::new())
            .rules(rules)
            .build()
    };
    let twice = vec![by_key(1), by_key(1)];
    assert_duplicate(otherwise(twice.clone()), "default");
    assert_duplicate(build(Rules::new().on_grpc("a.B/C", twice)), "default");
    let different = [by_key(1).named("second"), by_key(2).named("hour")];
    assert!(otherwise(different).is_ok());
    assert!(otherwise([by_key(1)]).is_ok());
}

#[test]
fn one_name_is_one_rule_on_all_layers_of_a_store() {
    let store = MemoryStore::new();
    let build = |rule: Rule| RateLimitLayer::builder(&store).otherwise(rule).build();
    let first = build(by_key(1)).unwrap();
    let same = build(by_key(1)).unwrap();
    // Another limit.
    assert_duplicate(build(by_key(2)), "default");
    let other_key = Limit::per_hour(1).by(FromHeader::new("x-other"));
    // Another key.
    assert_duplicate(build(other_key.clone()), "default");
    assert!(build(by_key(2).named("second")).is_ok());
    assert!(otherwise(by_key(2)).is_ok(), "another store");
    let clone = RateLimitLayer::builder(&store.clone()).otherwise(by_key(2));
    assert!(clone.build().is_err(), "the same store");

    // Services hold the layer; the name is free when the last of them is gone.
    let service = first.layer(Inner::default());
    drop((first, same));
    assert_duplicate(build(other_key.clone()), "default");
    drop(service);
    assert!(build(other_key).is_ok());
}

#[test]
fn a_tier_is_named_as_a_rule_is() {
    let tiers = Tiers::new([("free", Limit::per_hour(1))], |_| "free");
    let both = RateLimitLayer::builder(&MemoryStore::new())
        .on("/a", Rule::new("api", tiers, Constant("k")))
        .otherwise(by_key(1).named("api.free"));
    assert_duplicate(both.build(), "api.free");
}

/// Closures' types have no names of their own: two closures of one function must not be confused.
#[test]
fn closures_are_different_keys() {
    let build = |a: Rule, b: Rule| {
        RateLimitLayer::builder(&MemoryStore::new())
            .on("/a", a)
            .otherwise(b)
            .build()
    };
    let header = |parts: &Parts, name: &str| Some(parts.headers.get(name)?.as_bytes().to_vec());

    let a = Limit::per_hour(1).by(FromParts(move |parts: &Parts| header(parts, "a")));
    let b = Limit::per_hour(1).by(FromParts(move |parts: &Parts| header(parts, "b")));
    assert!(build(a.clone(), a.clone()).is_ok());
    assert_duplicate(build(a, b), "default");

    let low = FromExtension::by(|user: &u64| (user & 1).to_string());
    let high = FromExtension::by(|user: &u64| (user >> 1).to_string());
    let (low, high) = (low.or(PeerIp), high.or(PeerIp));
    let built = build(Limit::per_hour(1).by(low), Limit::per_hour(1).by(high));
    assert_duplicate(built, "default");

    // The same code is the same key, wherever it is built.
    let built =
        || Limit::per_hour(1).by(FromParts(|parts: &Parts| Some(parts.uri.path().to_owned())));
    assert!(build(built(), built()).is_ok());
}

#[test]
#[should_panic(expected = "\"log in\"")]
fn the_short_way_panics_with_the_same_words() {
    let _ = RateLimitLayer::new(&MemoryStore::new(), by_key(1).named("log in"));
}

/// Compiles only if the limit leaves the error type alone and the future can be spawned.
#[test]
fn the_error_is_the_inner_services() {
    fn check<S>(_: &S)
    where
        S: Service<Request<String>, Error = Infallible, Future: Send + 'static>
            + Clone
            + Send
            + Sync
            + 'static,
    {
    }
    let service: RateLimit<Inner> = otherwise(by_key(1)).unwrap().layer(Inner::default());
    check(&service);

    // Neither a body that cannot be shared nor one that cannot be moved keeps it from being built.
    struct Pinned(std::marker::PhantomPinned);
    let _ = Pinned(std::marker::PhantomPinned);
    let inner = service_fn(async |_: Request<std::cell::Cell<Pinned>>| {
        Ok::<_, Infallible>(Response::new(String::new()))
    });
    fn sendable<B, S: Service<Request<B>, Future: Send>>(_: &S) {}
    sendable(&otherwise(by_key(1)).unwrap().layer(inner));
}

/// Their costs are charged and settled as one, so they must agree in algorithm and slots.
#[test]
fn rules_of_one_limiter_agree() {
    let shared = |name: &str| {
        Rule::shared("org")
            .or_init(Limit::per_hour(100))
            .named(name)
    };
    let (one, other) = (|| shared("one"), || shared("other"));
    assert!(otherwise([one(), other()]).is_ok());
    let said = "rules \"one\" and \"other\" of one entry charge the same limiter: ";
    for rules in [
        [one().charge_if(|_| false), other()],
        [one(), other().charge_if(|_| false)],
        [one(), other().algorithm(Algorithm::FixedWindow)],
        [one(), other().algorithm(Algorithm::Gcra)],
    ] {
        mistake(otherwise(rules), ConfigErrorKind::Rule, said);
    }
}
