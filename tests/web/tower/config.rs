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

fn duplicate(name: &str) -> ConfigError {
    ConfigError::DuplicateName(name.to_owned())
}

/// Every variant can be reached, and what is shown holds the value at fault.
#[test]
fn every_mistake_is_named() {
    const MS: Duration = Duration::from_millis(1);
    let memory = MemoryStore::new();
    let all = Constant("all");
    let error = |result: Result<RateLimitLayer, ConfigError>| result.unwrap_err();

    let cases: Vec<(ConfigError, ConfigError, &str)> = vec![
        (
            Limit::try_new(0, MS).unwrap_err(),
            ConfigError::Permits(0),
            "not 0",
        ),
        (
            Limit::try_new(1, MS / 2).unwrap_err(),
            ConfigError::Interval(MS / 2),
            "500µs",
        ),
        (
            Limit::per_second(1).keep_alive(MS).unwrap_err(),
            ConfigError::KeepAlive {
                keep_alive: MS,
                interval: 1000 * MS,
            },
            "1ms",
        ),
        (
            RedisStore::builder("redis://127.0.0.1/")
                .prefix("my shop")
                .build()
                .unwrap_err(),
            ConfigError::Prefix("my shop".to_owned()),
            "\"my shop\"",
        ),
        (
            error(otherwise(by_key(1).named("log in"))),
            ConfigError::RuleName("log in".to_owned()),
            "\"log in\"",
        ),
        (
            error(otherwise(Rule::new(
                "api",
                Tiers::new([("a b", Limit::per_hour(1))], |_| "a b"),
                all,
            ))),
            ConfigError::RuleName("a b".to_owned()),
            "\"a b\"",
        ),
        (
            RateLimiter::new(&memory, "{orders").unwrap_err(),
            ConfigError::SharedName {
                name: "{orders".to_owned(),
                reason: "it has a `{` that is not closed",
            },
            "\"{orders\"",
        ),
        (
            error(otherwise(Rule::shared(""))),
            ConfigError::SharedName {
                name: String::new(),
                reason: "it is empty",
            },
            "\"\"",
        ),
        (
            error(
                RateLimitLayer::builder(&memory)
                    .on("login", by_key(1))
                    .build(),
            ),
            ConfigError::Pattern {
                pattern: "login".to_owned(),
                reason: "the path does not begin with `/`",
            },
            "\"login\"",
        ),
        (
            error(
                RateLimitLayer::builder(&memory)
                    .on_grpc("/shop.Orders/Create", by_key(1))
                    .build(),
            ),
            ConfigError::Pattern {
                pattern: "/shop.Orders/Create".to_owned(),
                reason: "a gRPC method is written `package.Service/Method`",
            },
            "\"/shop.Orders/Create\"",
        ),
        (
            error(otherwise(Limit::per_hour(1).by(
                Constant("k").or((PeerIp, FromHeader::new("x key").or_skip())),
            ))),
            ConfigError::HeaderName("x key".to_owned()),
            "\"x key\"",
        ),
        (
            error(otherwise(
                Limit::per_hour(1).by((PeerIp, FromHeader::credential("x-session"))),
            )),
            ConfigError::Credential("x-session".to_owned()),
            "\"x-session\"",
        ),
        (
            Secret::new("k 1", [0; 32]).unwrap_err(),
            ConfigError::SecretId,
            "key id",
        ),
        (
            Secret::new("k1", [0; 31]).unwrap_err(),
            ConfigError::SecretTooShort(31),
            "not 31",
        ),
        (
            // The other way round: what is shown must not be it.
            Secret::new("hunter2", "k1").unwrap_err(),
            ConfigError::SecretTooShort(2),
            "a secret of a key needs at least 32 bytes, not 2",
        ),
        (
            error(otherwise(
                Limit::per_hour(1_000_000_000_000_000).by(all).named("big"),
            )),
            ConfigError::HeaderPermits {
                rule: "big".to_owned(),
                permits: 1_000_000_000_000_000,
            },
            "\"big\" has 1000000000000000 permits",
        ),
        (
            error(otherwise(Limit::per_hour(1).by(ClientIp::behind(["10/8"])))),
            ConfigError::TrustedProxy {
                network: "10/8".to_owned(),
                reason: "it is no address, and no network as `10.0.0.0/8`",
            },
            "\"10/8\"",
        ),
        (
            error(otherwise(Limit::per_hour(1).by(ClientIp::hops(65)))),
            ConfigError::Hops(65),
            "not 65",
        ),
        (
            error(otherwise(Limit::per_hour(1).by(PeerIp.ipv6_prefix(1)))),
            ConfigError::AddressPrefix {
                version: 6,
                bits: 1,
            },
            "not 1",
        ),
        (
            error(
                RateLimitLayer::builder(&memory)
                    .on("/a", by_key(1))
                    .otherwise(by_key(2))
                    .build(),
            ),
            duplicate("default"),
            "\"default\"",
        ),
        (
            error(otherwise(Rule::shared("user:<key>").named("users"))),
            ConfigError::MissingKey("users".to_owned()),
            "\"users\"",
        ),
        (
            error(otherwise(Rule::shared("orders").by(PeerIp))),
            ConfigError::UnusedKey("orders".to_owned()),
            "\"orders\"",
        ),
        (
            error(otherwise(by_key(5).named("export").cost(6))),
            ConfigError::Cost {
                rule: "export".to_owned(),
                cost: 6,
            },
            "\"export\" costs 6",
        ),
        (
            error(otherwise(by_key(5).named("export").cost(0))),
            ConfigError::Cost {
                rule: "export".to_owned(),
                cost: 0,
            },
            "\"export\" costs 0",
        ),
        (
            error(otherwise(by_key(5).named("export").enforce_share(101))),
            ConfigError::EnforceShare {
                rule: "export".to_owned(),
                percent: 101,
            },
            "\"export\" is enforced for 0 to 100 percent of its keys, not 101",
        ),
        (
            error(otherwise(
                by_key(5)
                    .named("export")
                    .on_failure(FailurePolicy::local(1.5)),
            )),
            ConfigError::LocalShare {
                rule: "export".to_owned(),
                share: "1.5".to_owned(),
            },
            "\"export\" decides by 1.5 of its limit when the store fails",
        ),
        (
            RedisStore::builder("redis://127.0.0.1/")
                .breaker(33)
                .build()
                .unwrap_err(),
            ConfigError::Breaker(33),
            "opens after 32 failures at most, not after 33",
        ),
        (
            error(otherwise(Rule::new("api", Tiers::new([], |_| "free"), all))),
            ConfigError::Tiers("api".to_owned()),
            "\"api\"",
        ),
        (
            error(
                RateLimitLayer::builder(&memory)
                    .on("/a", [by_key(1), by_key(2)])
                    .build(),
            ),
            ConfigError::DuplicateName("default".to_owned()),
            "\"default\"",
        ),
        (
            RedisStore::open("ftp://127.0.0.1/").unwrap_err(),
            ConfigError::Url(String::new()),
            "redis://[user:password@]host[:port][/db]",
        ),
        (
            RedisStore::builder("redis://127.0.0.1/")
                .client_id("a b")
                .build()
                .unwrap_err(),
            ConfigError::ClientId("a b".to_owned()),
            "\"a b\"",
        ),
    ];
    for (found, expected, shown) in cases {
        // The words are the client's, and the address may hold a password: that it is the address is all to tell.
        if !matches!(found, ConfigError::Url(_)) {
            assert_eq!(found, expected);
        }
        assert!(
            found.to_string().contains(shown),
            "{found} should name {shown}"
        );
        // What `main` prints of it: the same words first, then the variant with its fields.
        let debug = format!("{found:?}");
        let variant = debug.strip_prefix(&format!("{found} ("));
        let variant = variant.and_then(|rest| rest.strip_suffix(')'));
        assert!(variant.is_some_and(|it| !it.is_empty()), "{debug}");
    }
}

#[test]
fn costs_are_checked_where_they_are_known() {
    let tiers = || {
        Tiers::new(
            [("free", Limit::per_hour(1)), ("paid", Limit::per_hour(9))],
            |_| "free",
        )
    };
    let cost = |cost| ConfigError::Cost {
        rule: "api".to_owned(),
        cost,
    };
    assert_eq!(
        otherwise(Rule::new("api", tiers(), Constant("k")).cost(2)).unwrap_err(),
        cost(2)
    );
    let found = limit_by(|_| Limit::per_hour(1));
    assert_eq!(
        otherwise(Rule::new("api", found.clone(), Constant("k")).cost(0)).unwrap_err(),
        cost(0)
    );
    assert!(otherwise(Rule::new("api", found, Constant("k")).cost(2)).is_ok());
    let shared = || Rule::shared("api").or_init(Limit::per_hour(1));
    assert_eq!(otherwise(shared().cost(2)).unwrap_err(), cost(2));
    assert!(
        otherwise(Rule::shared("api").cost(2)).is_ok(),
        "the stored limit is not known yet"
    );
    let twice = Tiers::new(
        [("a", Limit::per_hour(1)), ("a", Limit::per_hour(2))],
        |_| "a",
    );
    assert_eq!(
        otherwise(Rule::new("api", twice, Constant("k"))).unwrap_err(),
        ConfigError::Tiers("api".to_owned())
    );
}

#[test]
fn the_rules_of_an_entry_have_different_names() {
    let alike = || ConfigError::DuplicateName("default".to_owned());
    let build = |rules| {
        RateLimitLayer::builder(&MemoryStore::new())
            .rules(rules)
            .build()
    };
    let twice = vec![by_key(1), by_key(1)];
    assert_eq!(otherwise(twice.clone()).unwrap_err(), alike());
    assert_eq!(
        build(Rules::new().on_grpc("a.B/C", twice)).unwrap_err(),
        alike()
    );
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
    assert_eq!(
        build(by_key(2)).unwrap_err(),
        duplicate("default"),
        "another limit"
    );
    let other_key = Limit::per_hour(1).by(FromHeader::new("x-other"));
    assert_eq!(
        build(other_key.clone()).unwrap_err(),
        duplicate("default"),
        "another key"
    );
    assert!(build(by_key(2).named("second")).is_ok());
    assert!(
        RateLimitLayer::builder(&MemoryStore::new())
            .otherwise(by_key(2))
            .build()
            .is_ok()
    );
    // A clone of the store is the same store.
    let clone = store.clone();
    assert!(
        RateLimitLayer::builder(&clone)
            .otherwise(by_key(2))
            .build()
            .is_err()
    );

    // Services hold the layer; the name is free when the last of them is gone.
    let service = first.layer(Inner::default());
    drop((first, same));
    assert_eq!(build(other_key.clone()).unwrap_err(), duplicate("default"));
    drop(service);
    assert!(build(other_key).is_ok());
}

#[test]
fn a_tier_is_named_as_a_rule_is() {
    let tiers = Tiers::new([("free", Limit::per_hour(1))], |_| "free");
    let both = RateLimitLayer::builder(&MemoryStore::new())
        .on("/a", Rule::new("api", tiers, Constant("k")))
        .otherwise(by_key(1).named("api.free"));
    assert_eq!(both.build().unwrap_err(), duplicate("api.free"));
}

/// The type of a closure has no name of its own: two of one function must not be taken for each other.
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
    assert_eq!(build(a, b).unwrap_err(), duplicate("default"));

    let low = FromExtension::by(|user: &u64| (user & 1).to_string());
    let high = FromExtension::by(|user: &u64| (user >> 1).to_string());
    let (low, high) = (low.or(PeerIp), high.or(PeerIp));
    assert_eq!(
        build(Limit::per_hour(1).by(low), Limit::per_hour(1).by(high)).unwrap_err(),
        duplicate("default")
    );

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

#[test]
fn a_limit_to_set_is_for_shared_rules() {
    let error = otherwise(by_key(1).named("mine").or_init(Limit::per_second(1))).unwrap_err();
    assert_eq!(error, ConfigError::NotShared("mine".to_owned()));
    assert!(error.to_string().contains("mine"), "{error}");
}

/// What they cost is charged and settled as one, so they must agree on how.
#[test]
fn rules_of_one_limiter_agree() {
    let shared = |name: &str| {
        Rule::shared("org")
            .or_init(Limit::per_hour(100))
            .named(name)
    };
    let (one, other) = (|| shared("one"), || shared("other"));
    assert!(otherwise([one(), other()]).is_ok());
    let error = || ConfigError::OneLimiter(["one".to_owned(), "other".to_owned()]);
    for rules in [
        [one().charge_if(|_| false), other()],
        [one(), other().charge_if(|_| false)],
        [one(), other().algorithm(Algorithm::FixedWindow)],
        [one(), other().algorithm(Algorithm::Gcra)],
    ] {
        assert_eq!(otherwise(rules).unwrap_err(), error());
    }
}
