//! Lists that decide before any rule and any store.

use crate::scene::*;
use std::net::{IpAddr, SocketAddr};

use http::Method;
use tower_ratelimit::{RateLimitLayerBuilder, Requests, Rules, key::FromParts};

use super::{Inner, by_key};

/// Rules that refuse whatever their lists do not let pass, on a store that cannot be asked.
fn strict() -> Rules {
    Rules::new().otherwise(by_key(1).on_failure(FailurePolicy::Deny))
}

fn builder(rules: Rules) -> RateLimitLayerBuilder {
    let store = RedisStore::open("redis://127.0.0.1:1/").unwrap();
    RateLimitLayer::builder(&store).rules(rules)
}

fn from(peer: &str) -> Request<String> {
    let mut request = request("GET", "/", &[("x-key", "a")]);
    let peer: IpAddr = peer.parse().unwrap();
    let address = PeerAddr(SocketAddr::new(peer, 50_000));
    request.extensions_mut().insert(address);
    request
}

fn request(method: &str, path: &str, headers: &[(&str, &str)]) -> Request<String> {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(String::new()).unwrap()
}

async fn send(rules: Rules, request: Request<String>) -> StatusCode {
    send_to(builder(rules), request).await
}

async fn send_to(layer: RateLimitLayerBuilder, request: Request<String>) -> StatusCode {
    let layer = layer.build().unwrap();
    let service = layer.layer(Inner::default());
    service.oneshot(request).await.unwrap().status()
}

const ASKED: u16 = 503;

#[tokio::test]
async fn networks_are_denied_and_allowed_by_all_bits_of_an_address() {
    // Of an IPv6 address, 56 bits count for keys.
    let networks = ["192.0.2.0/24", "2001:db8:0:1::/64", "::1"];
    for (peer, listed) in [
        ("192.0.2.7", true),
        ("::ffff:192.0.2.7", true),
        ("192.0.3.7", false),
        ("2001:db8:0:1::9", true),
        ("2001:db8:0:2::9", false),
        ("::1", true),
        ("::2", false),
    ] {
        let denied = strict().deny(Requests::from_networks(PeerIp, networks));
        let expected = if listed { 403 } else { ASKED };
        assert_eq!(send(denied, from(peer)).await, expected, "{peer}");
        let allowed = strict().allow(Requests::from_networks(PeerIp, networks));
        let expected = if listed { 200 } else { ASKED };
        assert_eq!(send(allowed, from(peer)).await, expected, "{peer}");
    }
}

#[tokio::test]
async fn the_clients_address_counts_behind_proxies() {
    let client = || ClientIp::behind(["10.0.0.0/8"]);
    let denied = || strict().deny(Requests::from_networks(client(), ["192.0.2.0/24"]));
    for (peer, forwarded, expected) in [
        ("10.0.0.1", "192.0.2.7", 403),
        ("10.0.0.1", "192.0.2.7, 198.51.100.1", ASKED),
        ("198.51.100.1", "192.0.2.7", ASKED),
        ("192.0.2.7", "198.51.100.1", 403),
    ] {
        let mut request = from(peer);
        let value = forwarded.parse().unwrap();
        request.headers_mut().insert("x-forwarded-for", value);
        assert_eq!(
            send(denied(), request).await,
            expected,
            "{peer} {forwarded}"
        );
    }
}

#[tokio::test]
async fn an_address_that_is_not_known_is_not_let_pass() {
    let listed = || Requests::from_networks(PeerIp, ["192.0.2.0/24"]);
    let nowhere = || request("GET", "/", &[("x-key", "a")]);
    assert_eq!(send(strict().deny(listed()), nowhere()).await, 500);
    assert_eq!(send(strict().allow(listed()), nowhere()).await, ASKED);
}

#[tokio::test]
async fn keys_are_listed_as_they_are() {
    let listed = || Requests::with_key(FromHeader::new("x-tenant"), ["acme", "a,b", "%", ""]);
    for (tenant, is_listed) in [
        (Some("acme"), true),
        (Some("a,b"), true),
        (Some("%"), true),
        (Some("acme2"), false),
        (Some("ACME"), false),
        (Some("%25"), false),
        (Some("a"), false),
        (Some(""), false),
        (None, false),
    ] {
        let mut headers = vec![("x-key", "a")];
        headers.extend(tenant.map(|tenant| ("x-tenant", tenant)));
        let asked = || request("GET", "/", &headers);
        let expected = if is_listed { 403 } else { ASKED };
        assert_eq!(
            send(strict().deny(listed()), asked()).await,
            expected,
            "{tenant:?}"
        );
        let expected = if is_listed { 200 } else { ASKED };
        assert_eq!(
            send(strict().allow(listed()), asked()).await,
            expected,
            "{tenant:?}"
        );
    }
    // Where an alternative is found, it is not taken for the first.
    let key = FromHeader::new("x-tenant").or(FromHeader::new("x-key"));
    let denied = strict().deny(Requests::with_key(key, ["a"]));
    assert_eq!(
        send(denied, request("GET", "/", &[("x-key", "a")])).await,
        ASKED
    );
    // Credentials go nowhere, and need no digest.
    let key = FromHeader::new("authorization");
    let denied = strict().deny(Requests::with_key(key, ["Bearer stolen"]));
    let stolen = request("GET", "/", &[("authorization", "Bearer stolen")]);
    assert_eq!(send(denied, stolen).await, 403);
}

#[tokio::test]
async fn methods_and_paths_are_listed() {
    let key: &[(&str, &str)] = &[("x-key", "a")];
    for (listed, method, path, is_listed) in [
        (Requests::method(Method::GET), "GET", "/any", true),
        (Requests::method(Method::GET), "HEAD", "/any", false),
        (Requests::on("GET /health"), "GET", "/health", true),
        (Requests::on("GET /health"), "HEAD", "/health", true),
        (Requests::on("GET /health"), "POST", "/health", false),
        (Requests::on("/static/{*rest}"), "GET", "/static/a/b", true),
        (Requests::on("/static/{*rest}"), "GET", "/other/a", false),
        (
            Requests::on_grpc("shop.Orders"),
            "POST",
            "/shop.Orders/Create",
            true,
        ),
        (
            Requests::on_grpc("shop.Orders/List"),
            "POST",
            "/shop.Orders/Create",
            false,
        ),
        (
            Requests::on_request(|parts| parts.uri.path().len() > 3),
            "GET",
            "/long",
            true,
        ),
        (
            Requests::on_request(|parts| parts.uri.path().len() > 3),
            "GET",
            "/a",
            false,
        ),
    ] {
        let expected = if is_listed { 200 } else { ASKED };
        let allowed = strict().allow(listed.clone());
        assert_eq!(
            send(allowed, request(method, path, key)).await,
            expected,
            "{method} {path}"
        );
        let expected = if is_listed { 403 } else { ASKED };
        let rules = Rules::new().deny(listed).otherwise(by_key(1));
        let expected = if is_listed { expected } else { 200 };
        // The rule of this table has the default policy: what is asked passes.
        assert_eq!(
            send(rules, request(method, path, key)).await,
            expected,
            "{method} {path}"
        );
    }
}

#[tokio::test]
async fn deny_goes_before_allow_and_both_before_rules() {
    let all = || Requests::on_request(|_| true);
    let none = || Requests::on_request(|_| false);
    let asked = || request("GET", "/", &[("x-key", "a")]);
    let both = || strict().allow(all()).deny(none()).deny(all());
    assert_eq!(send(both(), asked()).await, 403);
    assert_eq!(
        send(strict().deny(none()).allow(none()).allow(all()), asked()).await,
        200
    );
    // A request that lacks its key is refused by a rule, and so not if it is allowed.
    assert_eq!(send(strict(), request("GET", "/", &[])).await, 401);
    assert_eq!(
        send(strict().allow(all()), request("GET", "/", &[])).await,
        200
    );
    assert_eq!(send_to(builder(both()).enabled(false), asked()).await, 200);
}

#[tokio::test]
async fn what_is_allowed_is_not_counted() {
    let store = MemoryStore::new();
    let rules = Rules::new()
        .allow(Requests::on("/health"))
        .otherwise(by_key(1));
    let builder = RateLimitLayer::builder(&store).rules(rules);
    let layer = builder.build().unwrap();
    let service = layer.layer(Inner::default());
    for _ in 0..3 {
        let asked = request("GET", "/health", &[("x-key", "a")]);
        let answer = service.clone().oneshot(asked).await.unwrap();
        assert_eq!(answer.status(), 200);
        assert!(answer.extensions().get::<Decision>().is_none());
        assert!(answer.headers().is_empty());
    }
    assert!(store.is_empty());
}

#[tokio::test]
async fn a_denied_request_is_answered_in_its_protocol() {
    let rules = strict().deny(Requests::on_request(|_| true));
    let layer = builder(rules).build().unwrap();
    let inner = Inner::default();
    let service = layer.layer(inner.clone());
    let asked = request("GET", "/", &[("x-key", "a")]);
    let answer = service.clone().oneshot(asked).await.unwrap();
    let (head, body) = answer.into_parts();
    assert_eq!(head.status, 403);
    assert_eq!(head.headers["content-type"], "application/problem+json");
    assert_eq!(head.headers["cache-control"], "no-store");
    assert!(!head.headers.contains_key("retry-after"));
    let body = http_body_util::BodyExt::collect(body)
        .await
        .unwrap()
        .to_bytes();
    let problem: serde_json::Value = serde_json::from_slice(&body).unwrap();
    let expected = serde_json::json!({
        "type": "about:blank", "title": "Forbidden", "status": 403, "detail": "the request is blocked",
    });
    assert_eq!(problem, expected);
    let decision = head.extensions.get::<Decision>().unwrap();
    let Decision::Deny(refusal) = decision else {
        panic!("no refusal");
    };
    assert_eq!(
        (refusal.kind(), decision.source()),
        (RefusalKind::Blocked, Source::Layer)
    );
    assert_eq!(refusal.retry_after(), None);

    let call = request("POST", "/a.B/C", &[("content-type", "application/grpc")]);
    let answer = service.oneshot(call).await.unwrap();
    assert_eq!(answer.status(), 200);
    for (name, value) in [("grpc-status", "7"), ("grpc-retry-pushback-ms", "-1")] {
        assert_eq!(answer.headers()[name], value);
    }
    assert!(!answer.headers().contains_key("grpc-status-details-bin"));
    assert_eq!(inner.calls(), 0);
}

#[test]
fn mistakes_in_lists_are_named() {
    let error = |requests: Requests| {
        let error = builder(strict().deny(requests.clone())).build();
        let error = error.unwrap_err();
        let allowed = builder(strict().allow(requests)).build();
        assert_eq!(allowed.unwrap_err(), error);
        error
    };
    for (network, reason) in [
        (
            "10/8",
            "it is neither an address nor a network such as `10.0.0.0/8`",
        ),
        ("10.0.0.1/8", "it has bits beyond its prefix"),
        (
            "",
            "it is neither an address nor a network such as `10.0.0.0/8`",
        ),
    ] {
        let network = network.to_owned();
        let found = error(Requests::from_networks(PeerIp, ["192.0.2.1", &network]));
        assert_eq!(found.kind(), ConfigErrorKind::Network);
        let said = format!("{network:?} cannot be in a list of networks: {reason}");
        assert_eq!(found.to_string(), said);
    }
    let found = error(Requests::from_networks(ClientIp::hops(65), ["::/0"]));
    assert_eq!(found.kind(), ConfigErrorKind::Network);
    assert!(
        found
            .to_string()
            .starts_with("1 to 64 proxies can be trusted, not 65: ")
    );
    let found = error(Requests::with_key(FromHeader::new("x key"), ["a"]));
    assert_eq!(found.kind(), ConfigErrorKind::Key);
    assert_eq!(found.to_string(), "\"x key\" is not a header's name");
    for found in [
        error(Requests::on("health")),
        error(Requests::on_grpc("/a")),
    ] {
        assert_eq!(found.kind(), ConfigErrorKind::Pattern);
        assert!(
            found
                .to_string()
                .contains("is not `/path` or `METHOD /path`: ")
        );
    }
    // The identities in a list are not shown.
    let listed = Requests::with_key(FromParts(|_: &_| Some("ann")), ["ann"]);
    let rules = Rules::new()
        .deny(listed)
        .otherwise(Limit::per_hour(1).by(Constant("all")));
    assert!(!format!("{rules:?}").contains("ann"), "{rules:?}");
}

/// Two rules can name one limiter for some keys. Different algorithms cannot count it in one call:
/// it is refused, whatever the failure policy.
#[tokio::test]
async fn one_limiter_by_two_algorithms_admits_nothing() {
    let limit = Limit::per_minute(1_000);
    let shared = |name| {
        Rule::shared(name)
            .or_init(limit)
            .on_failure(FailurePolicy::Allow)
    };
    let each = shared("orders:<key>")
        .by(FromHeader::new("x-id"))
        .named("each");
    let vip = shared("orders:vip")
        .algorithm(Algorithm::FixedWindow)
        .named("vip");
    let rules = Rules::new().otherwise([each, vip]);
    for (id, status) in [
        ("ann", StatusCode::OK),
        ("vip", StatusCode::SERVICE_UNAVAILABLE),
    ] {
        let request = Request::builder()
            .header("x-id", id)
            .body(String::new())
            .unwrap();
        let layer = RateLimitLayer::builder(&MemoryStore::new()).rules(rules.clone());
        assert_eq!(send_to(layer, request).await, status, "{id}");
    }
}
