//! Mistakes in a configuration: found when a layer is built, and named.

use super::*;
use serde::Deserialize;
use tower_ratelimit::{
    Clock, RateLimit,
    key::{ForwardedHeader, Key, NoKey},
};

fn otherwise(rules: impl IntoRules) -> Result<RateLimitLayer, ConfigError> {
    RateLimitLayer::builder(&MemoryStore::new())
        .otherwise(rules)
        .build()
}

/// Another rule of the name is in the way, in another layer.
#[track_caller]
fn assert_used_elsewhere(built: Result<RateLimitLayer, ConfigError>) {
    let said = "a rule of another layer on this store, or a `Limit::named`, is named \"default\" \
                and differs in limit, key, algorithm, ban or shared name";
    mistake(built, ConfigErrorKind::Duplicate, said);
}

/// The kind and the text of a mistake, see `mistakes.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Said {
    kind: String,
    says: String,
}

/// Every mistake has its kind, and what is shown holds the value at fault. Each is in the table.
#[track_caller]
pub(super) fn are_named<'a>(
    table: &str,
    mistakes: impl IntoIterator<Item = (&'a str, Option<ConfigError>)>,
) {
    let text = include_str!("mistakes.toml");
    let mut tables: BTreeMap<String, BTreeMap<String, Said>> = toml::from_str(text).unwrap();
    let mut table = tables.remove(table).unwrap();
    for (what, found) in mistakes {
        let Said { kind, says } = table.remove(what).expect(what);
        let found = found.expect(what);
        assert_eq!(found.to_string(), says, "{what}");
        assert_eq!(found.reason(), says, "{what}");
        assert_eq!(format!("{:?}", found.kind()), kind, "{what}");
        assert_eq!(found.place(), None, "only files have lines");
        // `main` prints the same words first, then the kind.
        assert_eq!(format!("{found:?}"), format!("{says} ({:?})", found.kind()));
    }
    assert!(table.is_empty(), "not made: {:?}", table.keys());
}

#[test]
fn every_mistake_of_a_rule_is_named() {
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
    let bad_header = Constant("k").or((PeerIp, FromHeader::new("x key").or_skip()));
    let session = (PeerIp, FromHeader::credential("x-session"));
    let secret = Secret::new("k1", "0123456789abcdef0123456789abcdef").unwrap();
    let digest = hour.by(FromHeader::new("x-key").digest(&secret));
    let cookie = hour.by((PeerIp, FromHeader::new("cookie").plain()));
    let in_all = FailurePolicy::Local(1.5);
    let shared = Rule::shared;
    let (users, orders) = (shared("user:<key>").named("users"), shared("orders"));
    let (mine, set) = (by_key(1).named("mine"), shared("api").or_init(hour));
    let mistakes = [
        ("a name with a blank", by_key(1).named("log in")),
        ("a tier with a blank", tiers(&["a b"])),
        ("no tiers", tiers(&[])),
        ("a tier twice", tiers(&["a", "a"])),
        ("an empty shared name", shared("")),
        ("a header's name with a blank", hour.by(bad_header)),
        ("a credential", hour.by(session)),
        ("no network", hour.by(ClientIp::behind(["10/8"]))),
        ("too many hops", hour.by(ClientIp::hops(65))),
        ("too short a prefix", hour.by(PeerIp.ipv6_prefix(1))),
        ("a shared name without its key", users),
        ("a key that the shared name lacks", orders.by(PeerIp)),
        ("a cost above the limit", export().cost(6)),
        ("a cost of nothing", export().cost(0)),
        ("a cost above that of a tier", tiers(&["a"]).cost(2)),
        ("a cost of nothing of a limit that is found", found(0)),
        ("a cost above the limit that is set", set.cost(2)),
        ("more than all keys", export().enforce_share(101)),
        ("more than all of a limit", export().on_failure(in_all)),
        ("a limit for one that is not shared", mine.or_init(hour)),
        ("a queue of none", by_key(1).wait(SECOND).queue(0)),
    ];
    let observed = [
        ("a digest that observers would see", digest),
        ("a credential that observers would see", cookie),
        ("no key that observers would see", shared("api")),
    ];
    let observed = observed.map(|(what, rule)| (what, rule.observe_keys()));
    let mistakes = mistakes.into_iter().chain(observed);
    are_named(
        "rule",
        mistakes.map(|(what, rule)| (what, otherwise(rule).err())),
    );
    // A limit that is not known yet can be any.
    for rule in [found(2), shared("api").cost(2)] {
        assert!(otherwise(rule).is_ok());
    }
}

#[test]
fn every_other_mistake_is_named() {
    const MS: Duration = Duration::from_millis(1);
    let memory = MemoryStore::new();
    let redis = |set: fn(RedisStoreBuilder) -> RedisStoreBuilder| {
        let store = RedisStore::builder("redis://127.0.0.1/");
        set(store).build().err()
    };
    let secret = |id, bytes: &[u8]| Secret::new(id, bytes).err();
    let layer = || RateLimitLayer::builder(&memory);
    let twice = layer().on("/a", by_key(1)).otherwise(by_key(2));
    let no_queue = layer().otherwise(by_key(1)).queue(0);
    let limiter = || RateLimiter::new(&memory, "hot").unwrap();
    let window = || limiter().algorithm(Algorithm::FixedWindow);
    assert!(window().lease(Duration::ZERO).is_ok());
    let (second, microsecond) = (Limit::per_second(1), Duration::from_micros(1));
    let nowhere = RedisStore::open("ftp://127.0.0.1/");
    let no_method = layer().on_grpc("/a.B/C", by_key(1));
    let twice_in_one = layer().on("/a", [by_key(1), by_key(2)]);
    let in_place = layer().on("/a", by_key(1)).rules(Rules::new());
    are_named(
        "other",
        [
            ("no permits", Limit::try_new(0, MS).err()),
            ("half a millisecond", Limit::try_new(1, MS / 2).err()),
            ("a short keep-alive time", second.keep_alive(MS).err()),
            ("a secret's id with a blank", secret("k 1", &[0; 32])),
            ("a short secret", secret("k1", &[0; 31])),
            // What is shown must not be it.
            ("a secret the other way round", secret("hunter2", b"k1")),
            ("a prefix with a blank", redis(|it| it.prefix("my shop"))),
            ("a client id with a blank", redis(|it| it.client_id("a b"))),
            ("a breaker of too many", redis(|it| it.breaker(33))),
            ("a clock of 2200", redis(|it| it.client_clock(In2200))),
            ("no address of Redis", nowhere.err()),
            ("no path", layer().on("login", by_key(1)).build().err()),
            ("no gRPC method", no_method.build().err()),
            ("a name in two entries", twice.build().err()),
            ("a name twice in one", twice_in_one.build().err()),
            ("a layer's queue of none", no_queue.build().err()),
            ("rules in place of others", in_place.build().err()),
            ("an open brace", RateLimiter::new(&memory, "{orders").err()),
            ("a limiter's slots", limiter().slots(9).err()),
            ("a limiter's lease", limiter().lease(microsecond).err()),
            ("a lease of a window", window().lease(MS).err()),
        ],
    );
}

/// A clock of the year 2200
#[derive(Debug)]
struct In2200;

impl Clock for In2200 {
    fn now(&self) -> Duration {
        Duration::from_secs(7_258_118_400)
    }
}

/// Rules that know this limit: their own, that of a tier, or one to be set.
fn known(limit: Limit) -> [Rule; 3] {
    let tiers = Tiers::new([("day", Limit::per_day(9)), ("other", limit)], |_| "day");
    let shared = Rule::shared("api").or_init(limit);
    let own = limit.by(Constant("all")).named("api");
    [own, Rule::new("api", tiers, Constant("all")), shared]
}

/// Settings of a rule whose limit is known, see `known.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Known {
    limit: String,
    #[serde(default)]
    per_client: bool,
    #[serde(default)]
    keep_alive: bool,
    /// In ns
    lease: Option<u64>,
    slots: Option<u32>,
    algorithm: Option<String>,
    /// How the error begins
    says: Option<String>,
    own: Option<String>,
    redisson: Option<String>,
    shared: Option<String>,
}

impl Known {
    fn table(name: &str) -> Vec<Self> {
        let text = include_str!("known.toml");
        let mut tables: BTreeMap<String, Vec<Self>> = toml::from_str(text).unwrap();
        tables.remove(name).unwrap()
    }

    fn limit(&self) -> Limit {
        let mut limit: Limit = self.limit.parse().unwrap();
        if self.per_client {
            limit = limit.per_client();
        }
        if self.keep_alive {
            limit = limit.keep_alive(HOUR).unwrap();
        }
        limit
    }

    fn algorithm(&self) -> Option<Algorithm> {
        let of = |name: &str| match name {
            "FixedWindow" => Algorithm::FixedWindow,
            "Gcra" => Algorithm::Gcra,
            "Calendar" => Algorithm::Calendar,
            other => panic!("{other}"),
        };
        self.algorithm.as_deref().map(of)
    }

    /// A rule of its own, of a tier, and a shared one where that can have the algorithm.
    fn rules(&self) -> Vec<Rule> {
        let ours = [Some(Algorithm::Gcra), Some(Algorithm::Calendar)];
        let ways = if ours.contains(&self.algorithm()) {
            2
        } else {
            3
        };
        let rules = known(self.limit()).into_iter().take(ways);
        let set = |mut rule: Rule| {
            rule = rule.lease(Duration::from_nanos(self.lease.unwrap_or(0)));
            if let Some(slots) = self.slots {
                rule = rule.slots(slots);
            }
            match self.algorithm() {
                Some(algorithm) => rule.algorithm(algorithm),
                None => rule,
            }
        };
        rules.map(set).collect()
    }
}

/// An error of this kind that begins so, or none.
#[track_caller]
fn ends<T: std::fmt::Debug>(built: Result<T, ConfigError>, says: Option<&str>) {
    let Some(says) = says else {
        return drop(built.unwrap());
    };
    let error = built.unwrap_err();
    assert_eq!(error.kind(), ConfigErrorKind::Limit);
    // Of a tier some have its name, too.
    let said = error.to_string().replace("api.other", "api");
    assert!(said.starts_with(says), "{said} and not {says}");
}

#[test]
fn what_a_known_limit_cannot_have_is_named() {
    for row in Known::table("redisson") {
        for rule in row.rules() {
            let built = RateLimitLayer::builder(&MemoryStore::builder().redisson().build());
            ends(built.otherwise(rule).build(), row.says.as_deref());
        }
    }
    // Elsewhere it is not known.
    let short = limit_by(|_| Limit::new(5, millis(999)));
    let (found, shared) = (Rule::new("api", short, PeerIp), Rule::shared("api"));
    let (slots, lease) = (shared.clone().slots(10_000), shared.lease(HOUR));
    let store = MemoryStore::builder().redisson().build();
    for rule in [found.slots(1000), slots, lease] {
        let built = RateLimitLayer::builder(&store).otherwise(rule);
        assert!(built.build().is_ok());
    }
}

/// A rule's own limiters are in our format, unless its store keeps all in Redisson's.
#[test]
fn what_one_format_alone_has_is_named() {
    let mut rows = Known::table("formats");
    if cfg!(feature = "calendar") {
        rows.extend(Known::table("calendar"));
    }
    for row in rows {
        for is_redisson in [false, true] {
            let (mut memory, mut redis) = (
                MemoryStore::builder(),
                RedisStore::builder("redis://127.0.0.1:1/"),
            );
            if is_redisson {
                (memory, redis) = (memory.redisson(), redis.redisson());
            }
            let says = if is_redisson { &row.redisson } else { &row.own };
            let [says, shared] =
                [says, &row.shared].map(|it| it.as_deref().or(row.says.as_deref()));
            for (rule, says) in row.rules().into_iter().zip([says, says, shared]) {
                let in_memory = RateLimitLayer::builder(&memory.clone().build());
                ends(in_memory.otherwise(rule.clone()).build(), says);
                let in_redis = RateLimitLayer::builder(&redis.clone().build().unwrap());
                ends(in_redis.otherwise(rule).build(), says);
            }
            if row.lease.is_none() && row.slots.is_none() {
                let named = row.limit().named("api");
                let named = match row.algorithm() {
                    Some(algorithm) => named.algorithm(algorithm),
                    None => named,
                };
                ends(named.keyed(&memory.build()), says);
            }
        }
    }
    let dear = "rule \"api\" costs 3 permits: the cost must be between 1 and the limit";
    let [several, ..] = known("2/s and 9/h".parse().unwrap());
    mistake(otherwise(several.cost(3)), ConfigErrorKind::Rule, dear);
}

/// Where a closure finds them, the request is refused as a mistake, whatever the failure policy.
#[tokio::test]
async fn several_limits_that_cannot_be_counted_are_no_outage() {
    let several = || limit_by(|_| Limit::per_second(2).and(Limit::per_hour(9)));
    let rule = Rule::new("api", several(), Constant("all")).algorithm(Algorithm::Gcra);
    let rule = rule.on_failure(FailurePolicy::Allow);
    let layer = otherwise(rule).unwrap();
    let refusal = refused(decide(&layer, anonymous()).await);
    assert_eq!(refusal.error().map(Error::kind), Some(ErrorKind::Limit));
    // Also for a limiter that was counted by another limit.
    let by_plan = limit_by(|parts| match parts.headers.get("x-plan") {
        None => Limit::per_hour(9),
        Some(_) => Limit::per_second(2).and(Limit::per_hour(9)),
    });
    let rule = Rule::new("plan", by_plan, Constant("all")).algorithm(Algorithm::Gcra);
    let layer = otherwise(rule).unwrap();
    for (plan, allowed) in [("x-none", true), ("x-plan", false), ("x-none", true)] {
        let decision = decide(&layer, asking("GET /", &[(plan, "both")])).await;
        assert_eq!(decision.is_allowed(), allowed);
    }
    let layer = otherwise(Rule::new("api", several(), Constant("all"))).unwrap();
    assert_eq!(code(&layer, anonymous()).await, 200);
}

#[test]
fn one_name_is_one_rule_on_all_layers_of_a_store() {
    let store = MemoryStore::new();
    let build = |rule: Rule| RateLimitLayer::builder(&store).otherwise(rule).build();
    let first = build(by_key(1)).unwrap();
    let same = build(by_key(1)).unwrap();
    // Another limit.
    assert_used_elsewhere(build(by_key(2)));
    let other_key = Limit::per_hour(1).by(FromHeader::new("x-other"));
    // Another key.
    assert_used_elsewhere(build(other_key.clone()));
    // Another way to count.
    assert_used_elsewhere(build(by_key(1).algorithm(Algorithm::FixedWindow)));
    assert_used_elsewhere(build(by_key(1).ban(tower_ratelimit::Ban::after(3))));
    assert!(build(by_key(2).named("second")).is_ok());
    assert!(otherwise(by_key(2)).is_ok(), "another store");
    let clone = RateLimitLayer::builder(&store.clone()).otherwise(by_key(2));
    assert!(clone.build().is_err(), "the same store");

    // Services hold the layer; the name is free when the last of them is gone.
    let service = first.layer(Inner::default());
    drop((first, same));
    assert_used_elsewhere(build(other_key.clone()));
    drop(service);
    assert!(build(other_key).is_ok());
}

#[test]
fn a_tier_is_named_as_a_rule_is() {
    let tiers = Tiers::new([("free", Limit::per_hour(1))], |_| "free");
    let both = RateLimitLayer::builder(&MemoryStore::new())
        .on("/a", Rule::new("api", tiers, Constant("k")))
        .otherwise(by_key(1).named("api.free"));
    let said = "two rules are named \"api.free\" and differ in limit, key, algorithm, ban";
    mistake(both.build(), ConfigErrorKind::Duplicate, said);
}

/// Answers and metrics name each of several limits, in whatever order they come.
#[test]
fn each_of_several_limits_is_named_as_a_rule_is() {
    let several = Limit::per_second(10).and(Limit::per_hour(500));
    let api = || several.by(Constant("a")).named("api");
    let tiers = Tiers::new([("free", several)], |_| "free");
    let tiers = || Rule::new("api", tiers.clone(), Constant("a"));
    let other = |name: &str| Limit::per_minute(5).by(Constant("b")).named(name);
    let two = |name: &str| {
        Limit::per_minute(60)
            .and(several)
            .by(Constant("b"))
            .named(name)
    };
    let said = |name: &str| format!("two rules are named {name:?} and differ in limit, key");
    for (rules, name) in [
        ([api(), other("api.1h")], "api.1h"),
        ([other("api.1h"), api()], "api.1h"),
        ([api(), two("api.1h")], "api.1h"),
        ([tiers(), other("api.free.1h")], "api.free.1h"),
    ] {
        mistake(otherwise(rules), ConfigErrorKind::Duplicate, &said(name));
    }
    for name in ["api.1s", "api.1m", "api.2h", "ap", "api.1h.1h"] {
        assert!(otherwise([api(), other(name)]).is_ok(), "{name}");
    }
    let store = MemoryStore::new();
    let layer = layer_of(&store, api());
    let same = layer_of(&store, api());
    let build = |rule| RateLimitLayer::builder(&store).otherwise(rule).build();
    let said = "a rule of another layer on this store, or a `Limit::named`, is named \"api.1h\"";
    mistake(build(other("api.1h")), ConfigErrorKind::Duplicate, said);
    let keyed = Limit::per_minute(5).named("api.1h").keyed(&store);
    let said = "another limit or rule of this store is named \"api.1h\"";
    mistake(keyed, ConfigErrorKind::Duplicate, said);
    // A reload may take the name.
    drop(same);
    layer
        .reload(Rules::new().otherwise(other("api.1h")))
        .unwrap();
}

/// What a closure returns is known only when a request comes: it may be several limits.
#[test]
fn a_name_that_several_limits_of_a_closure_may_have_is_no_other_rules() {
    let chosen = |name: &str| {
        Rule::new(
            name,
            limit_by(|_| Limit::per_second(10).and(Limit::per_hour(500))),
            Constant("a"),
        )
    };
    let api = chosen("api");
    let other = |name: &str| Limit::per_minute(5).by(Constant("b")).named(name);
    let said =
        "a rule or `Limit::named` is named \"api.1h\", which may also be one of several limits";
    for rules in [
        [api.clone(), other("api.1h")],
        [other("api.1h"), api.clone()],
        [api.clone(), chosen("api.1h")],
    ] {
        mistake(otherwise(rules), ConfigErrorKind::Duplicate, said);
    }
    for name in [
        "api.60s",
        "api.h",
        "api.1h.x",
        "ap",
        "api.1h.1h",
        "api.free",
    ] {
        assert!(otherwise([api.clone(), other(name)]).is_ok(), "{name}");
    }
    let twice = RateLimitLayer::builder(&MemoryStore::new()).on("/a", api.clone());
    assert!(twice.otherwise(api.clone()).build().is_ok());
    let store = MemoryStore::new();
    let build = |rule| RateLimitLayer::builder(&store).otherwise(rule).build();
    let (layer, same) = (layer_of(&store, api.clone()), layer_of(&store, api));
    mistake(build(other("api.1h")), ConfigErrorKind::Duplicate, said);
    let keyed = Limit::per_minute(5).named("api.1h").keyed(&store);
    let named = "another limit or rule of this store is named \"api.1h\"";
    mistake(keyed, ConfigErrorKind::Duplicate, named);
    // A reload may take the name, and give it back.
    drop(same);
    let reload = |rule| layer.reload(Rules::new().otherwise(rule));
    reload(other("api.1h")).unwrap();
    reload(chosen("api")).unwrap();
}

/// Rules of one key that follow each other look for it once in a request.
#[tokio::test]
async fn a_key_of_several_rules_is_looked_for_once() {
    #[derive(Debug)]
    struct Counted(&'static str, Arc<AtomicUsize>);
    impl KeyExtractor for Counted {
        fn extract(&self, parts: &Parts, key: &mut Key) -> Result<(), NoKey> {
            self.1.fetch_add(1, Ordering::Relaxed);
            let value = parts.headers.get(self.0).ok_or(NoKey::missing(self.0))?;
            key.push(value.as_bytes());
            Ok(())
        }

        fn fingerprint(&self) -> Option<u64> {
            self.0.len().try_into().ok()
        }
    }
    let looked = Arc::new(AtomicUsize::new(0));
    let by = |header, name: &str, permits| {
        let key = Counted(header, Arc::clone(&looked));
        Limit::per_hour(permits).by(key).named(name)
    };
    let rules = [
        by("user", "first", 3),
        by("user", "second", 2),
        by("tenant", "third", 9),
        by("user", "fourth", 9),
    ];
    let store = MemoryStore::new();
    let layer = layer_of(&store, rules);
    let ask = |user, tenant| {
        let request = Request::builder()
            .header("user", user)
            .header("tenant", tenant);
        code(&layer, request.body(String::new()).unwrap())
    };
    assert_eq!(ask("ann", "x").await, 200);
    assert_eq!(looked.load(Ordering::Relaxed), 3);
    assert_eq!(ask("ann", "y").await, 200);
    assert_eq!(ask("ann", "z").await, 429);
    assert_eq!(ask("bob", "x").await, 200);
}

/// Rules of one name must have the same key, with all of its settings. What cannot be compared is
/// the same as itself alone, in clones of its rule: closures' types have no names of their own, and
/// two closures of one function must not be confused.
#[test]
fn different_keys_are_not_confused() {
    #[derive(Debug)]
    struct Silent(&'static str);
    impl KeyExtractor for Silent {
        fn extract(&self, _: &Parts, key: &mut Key) -> Result<(), NoKey> {
            key.push(self.0);
            Ok(())
        }
    }
    fn by(key: impl KeyExtractor) -> Rule {
        Limit::per_hour(1).by(key)
    }
    fn captured(name: &'static str) -> Rule {
        let header = move |parts: &Parts| Some(parts.headers.get(name)?.as_bytes().to_vec());
        by(FromParts(header))
    }
    fn peer(name: &'static str) -> Rule {
        let peer = move |parts: &Parts| parts.headers.get(name)?.to_str().ok()?.parse().ok();
        by(client().peer(peer))
    }
    fn pointer(of: fn(&String) -> String) -> Rule {
        by(FromExtension::by(of))
    }
    fn digest(secret: &str) -> Rule {
        by(PeerIp.digest(&Secret::new("k1", secret.repeat(32)).unwrap()))
    }
    fn client() -> ClientIp {
        ClientIp::behind(["10.0.0.0/8"])
    }
    let unknown: [fn() -> Rule; 8] = [
        || captured("a"),
        || captured("b"),
        || peer("a"),
        || peer("b"),
        || pointer(String::clone),
        || pointer(|it| it.to_uppercase()),
        || by((Silent("a"), PeerIp)),
        || by((Silent("b"), PeerIp)),
    ];
    // The same code is the same key, wherever it is built.
    let known: [fn() -> Rule; 25] = [
        || by(FromHeader::new("a")),
        || by(FromHeader::new("b")),
        || by(FromHeader::new("a").max_len(9)),
        || by(FromHeader::new("a").max_len(8)),
        || by((FromHeader::new("a"), Route::default()).or_skip()),
        || by((FromHeader::new("b"), Route::default()).or_skip()),
        || by(FromHeader::new("a").or(PeerIp).or_shared()),
        || by(FromHeader::new("b").or(PeerIp).or_shared()),
        || digest("a"),
        || digest("b"),
        || by(Constant("a")),
        || by(Constant("b")),
        || by(Route::services(["a"])),
        || by(Route::services(["b"])),
        || by(client()),
        || by(client().ipv6_prefix(64)),
        || by(client().header(ForwardedHeader::Forwarded)),
        || by(client().peer(|_| None)),
        || by(ClientIp::behind(["10.0.0.0/9"])),
        || by(ClientIp::hops(1)),
        || by(FromParts(|parts: &Parts| Some(parts.uri.path().to_owned()))),
        || by(FromExtension::by(|user: &u64| (user & 1).to_string()).or(PeerIp)),
        || by(FromExtension::by(|user: &u64| (user >> 1).to_string()).or(PeerIp)),
        || by(FromExtension::<String>::key()),
        || by(FromExtension::by(|it: &String| it.clone())),
    ];
    let keys: Vec<_> = unknown.into_iter().chain(known).collect();
    for (at, key) in keys.iter().enumerate() {
        let store = MemoryStore::new();
        let build = |rule: Rule| RateLimitLayer::builder(&store).otherwise(rule).build();
        let rule = key();
        let _first = build(rule.clone()).unwrap();
        assert!(build(rule).is_ok(), "a clone of {at}");
        for (other, made) in keys.iter().map(|key| build(key())).enumerate() {
            let is_same = other == at && at >= unknown.len();
            assert_eq!(made.is_ok(), is_same, "{at} and {other}");
        }
    }
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
    let shared = || Rule::shared("org").or_init(Limit::per_hour(100));
    let (one, other) = (|| shared().named("one"), || shared().named("other"));
    assert!(otherwise([one(), other()]).is_ok());
    let said = "rules \"one\" and \"other\" of one entry charge the same limiter: ";
    for rules in [
        [one().charge_if(|_| false), other()],
        [one(), other().charge_if(|_| false)],
        [one(), other().algorithm(Algorithm::FixedWindow)],
        [one().slots(10), other().slots(20)],
    ] {
        mistake(otherwise(rules), ConfigErrorKind::Rule, said);
    }
}
