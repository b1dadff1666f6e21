//! Lists that decide before any rule and any store.

use super::{config::are_named, *};

/// Rules that refuse whatever their lists do not let pass.
fn strict() -> Rules {
    Rules::new().otherwise(by_key(1).on_failure(FailurePolicy::Deny))
}

/// On a store that cannot be asked.
fn builder(rules: Rules) -> RateLimitLayerBuilder {
    let store = RedisStore::open("redis://127.0.0.1:1/").unwrap();
    RateLimitLayer::builder(&store).rules(rules)
}

fn from(peer: &str) -> Request<String> {
    let mut request = request("a");
    let address = PeerAddr((peer.parse::<std::net::IpAddr>().unwrap(), 50_000).into());
    request.extensions_mut().insert(address);
    request
}

async fn send(rules: Rules, request: Request<String>) -> u16 {
    code(&builder(rules).build().unwrap(), request).await
}

const ASKED: u16 = 503;

/// Returns whether a list has a request: then it is denied and allowed before the store is asked.
async fn lists(listed: Requests, request: Request<String>) -> bool {
    let denied = send(strict().deny(listed.clone()), request.clone()).await;
    let allowed = send(strict().allow(listed), request).await;
    match (denied, allowed) {
        (403, 200) => true,
        (ASKED, ASKED) => false,
        other => panic!("{other:?}"),
    }
}

/// The sender chooses how often a path can be read: a list without paths is asked once.
#[tokio::test]
async fn a_closure_is_asked_once_however_a_path_is_spelled() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let listed = Requests::on_request(move |_| counted.fetch_add(1, Ordering::SeqCst) > 0);
    let mut request = request("a");
    *request.uri_mut() = "//a/./%62/../c/".parse().unwrap();
    assert_eq!(send(strict().deny(listed), request).await, ASKED);
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn networks_are_listed_by_all_bits_of_an_address() {
    // Of an IPv6 address, 56 bits count for keys.
    let networks = ["192.0.2.0/24", "2001:db8:0:1::/64", "::1"];
    for (peer, expected) in [
        ("192.0.2.7", true),
        ("::ffff:192.0.2.7", true),
        ("192.0.3.7", false),
        ("2001:db8:0:1::9", true),
        ("2001:db8:0:2::9", false),
        ("::1", true),
        ("::2", false),
    ] {
        let listed = Requests::from_networks(PeerIp, networks);
        assert_eq!(lists(listed, from(peer)).await, expected, "{peer}");
    }
    // An address that is not known is not let pass.
    for listed in [
        Requests::from_networks(PeerIp, networks),
        Requests::with_key(PeerIp, ["192.0.2.7"]),
    ] {
        assert_eq!(send(strict().deny(listed.clone()), request("a")).await, 500);
        assert_eq!(send(strict().allow(listed), request("a")).await, ASKED);
    }
}

#[tokio::test]
async fn keys_are_listed_as_they_are() {
    let listed = || Requests::with_key(FromHeader::new("x-tenant"), ["acme", "a,b", "%", ""]);
    for (tenant, expected) in [
        ("acme", true),
        ("a,b", true),
        ("%", true),
        ("acme2", false),
        ("ACME", false),
        ("%25", false),
        ("a", false),
        ("", false),
    ] {
        let asked = asking("GET /", &[("x-key", "a"), ("x-tenant", tenant)]);
        assert_eq!(lists(listed(), asked).await, expected, "{tenant:?}");
    }
    assert!(!lists(listed(), request("a")).await, "no tenant");
    // Where an alternative is found, it is not taken for the first.
    let key = FromHeader::new("x-tenant").or(FromHeader::new("x-key"));
    assert!(!lists(Requests::with_key(key, ["a"]), request("a")).await);
    // Credentials go nowhere, and need no digest.
    let key = FromHeader::new("authorization");
    let stolen = asking("GET /", &[("authorization", "Bearer stolen")]);
    assert!(lists(Requests::with_key(key, ["Bearer stolen"]), stolen).await);
}

#[tokio::test]
async fn methods_and_paths_are_listed() {
    let long = Requests::on_request(|parts| parts.uri.path().len() > 3);
    let (orders, list) = ("a.Orders", "a.Orders/List");
    for (listed, line, expected) in [
        (Requests::on("GET /health"), "GET /health", true),
        (Requests::on("GET /health"), "HEAD /health", true),
        (Requests::on("GET /health"), "POST /health", false),
        (Requests::on("/static/{*rest}"), "GET /static/a/b", true),
        (Requests::on("/static/{*rest}"), "GET /other/a", false),
        (Requests::on_grpc(orders), "POST /a.Orders/Create", true),
        (Requests::on_grpc(list), "POST /a.Orders/Create", false),
        (long.clone(), "GET /long", true),
        (long, "GET /a", false),
    ] {
        let asked = asking(line, &[("x-key", "a")]);
        assert_eq!(lists(listed, asked).await, expected, "{line}");
    }
}

#[tokio::test]
async fn deny_goes_before_allow_and_both_before_rules() {
    let all = || Requests::on_request(|_| true);
    let none = || Requests::on_request(|_| false);
    let both = || strict().allow(all()).deny(none()).deny(all());
    let allowed = strict().deny(none()).allow(none()).allow(all());
    for (rules, key, expected) in [
        (both(), "a", 403),
        (allowed, "a", 200),
        // A request that lacks its key is refused by a rule, and so not if it is allowed.
        (strict(), "", 401),
        (strict().allow(all()), "", 200),
    ] {
        let what = format!("{rules:?} {key:?}");
        assert_eq!(send(rules, request(key)).await, expected, "{what}");
    }
    let off = builder(both()).enabled(false).build().unwrap();
    assert_eq!(code(&off, request("a")).await, 200);
}

#[tokio::test]
async fn a_denied_request_is_answered_in_its_protocol() {
    let rules = strict().deny(Requests::on_request(|_| true));
    let layer = builder(rules).build().unwrap();
    let denied = answer(&layer, request("a")).await;
    assert_eq!(denied.status(), 403);
    for (name, value) in [
        ("content-type", Some("application/problem+json")),
        ("cache-control", Some("no-store")),
        ("retry-after", None),
    ] {
        assert_eq!(header_of(&denied, name), value, "{name}");
    }
    let refusal = refusal(&denied);
    assert_eq!(refusal.kind(), RefusalKind::Blocked);
    assert_eq!(refusal.retry_after(), None);
    assert_eq!(decision_of(&denied).source(), Source::None);
    let expected = serde_json::json!({
        "type": "about:blank", "title": "Forbidden", "status": 403, "detail": "the request is blocked",
    });
    assert_eq!(problem(denied).await, expected);

    let call = asking("POST /a.B/C", &[("content-type", "application/grpc")]);
    let inner = Inner::default();
    let denied = layer.layer(inner.clone()).oneshot(call).await.unwrap();
    assert_eq!(denied.status(), 200);
    assert_eq!(header_of(&denied, "grpc-status"), Some("7"));
    assert_eq!(header_of(&denied, "grpc-retry-pushback-ms"), Some("-1"));
    assert_eq!(header_of(&denied, "grpc-status-details-bin"), None);
    assert_eq!(inner.calls(), 0);
}

#[test]
fn mistakes_in_lists_are_named() {
    let networks = |network: &str| Requests::from_networks(PeerIp, ["192.0.2.1", network]);
    let no_header = Requests::with_key(FromHeader::new("x key"), ["a"]);
    let listed = [
        ("no network", networks("10/8")),
        ("an empty network", networks("")),
        ("bits beyond a prefix", networks("10.0.0.1/8")),
        ("no header", no_header),
        ("no path", Requests::on("health")),
        ("no gRPC method", Requests::on_grpc("/a")),
    ];
    for add in [Rules::deny, Rules::allow] {
        let built = listed.clone().map(|(what, listed)| {
            let layer = builder(add(strict(), listed)).build();
            (what, layer.err())
        });
        are_named("list", built);
    }
    // The identities in a list are not shown.
    let listed = Requests::with_key(FromParts(|_: &_| Some("ann")), ["ann"]);
    let rules = strict().deny(listed);
    assert!(!format!("{rules:?}").contains("ann"), "{rules:?}");
}

/// The stricter rule has no limit of its own: that of the other is stored.
#[tokio::test]
async fn one_limiter_by_two_rules_has_the_limit_that_one_of_them_brings() {
    let shared = || Rule::shared("orders:<key>").by(FromHeader::new("x-key"));
    let lenient = shared().or_init(Limit::per_minute(2));
    let lenient = lenient.on_failure(FailurePolicy::Allow).named("lenient");
    for rules in [
        [lenient.clone(), shared().named("strict")],
        [shared().named("strict"), lenient],
    ] {
        let layer = layer_of(&MemoryStore::new(), rules);
        // One permit for each rule.
        assert_eq!(code(&layer, request("ann")).await, 200);
        assert_eq!(code(&layer, request("ann")).await, 429);
    }
}

/// Two rules can name one limiter for some keys. Different algorithms cannot count it in one call:
/// it is refused, whatever the failure policy.
#[tokio::test]
async fn one_limiter_by_two_algorithms_admits_nothing() {
    let shared = |name| {
        let rule = Rule::shared(name).or_init(Limit::per_minute(1_000));
        rule.on_failure(FailurePolicy::Allow)
    };
    let each = shared("orders:<key>").by(FromHeader::new("x-key"));
    let vip = shared("orders:vip").algorithm(Algorithm::FixedWindow);
    let rules = [each.named("each"), vip.named("vip")];
    for (key, status) in [("ann", 200), ("vip", 503)] {
        let layer = layer_of(&MemoryStore::new(), rules.clone());
        assert_eq!(code(&layer, request(key)).await, status, "{key}");
    }
}
