//! Very long inputs from callers: refused as a key, and never more expensive than their bytes.

use super::{
    answers::{detail, layer},
    *,
};
use tower_ratelimit::key::Key;

/// The default maximum length of a header.
const LONGEST: usize = 16 << 10;

fn secret() -> Secret {
    Secret::new("k1", [7; 32]).unwrap()
}

#[tokio::test]
async fn a_header_beyond_its_length_is_refused_by_name() {
    let store = MemoryStore::new();
    let key = || FromHeader::new("x-key");
    let by_key = RateLimitLayer::new(&store, Limit::per_hour(1).by(key()));
    let refused = answer(&by_key, request(&"y".repeat(LONGEST + 1))).await;
    assert_eq!(refused.status(), 431);
    // Waiting does not help.
    assert_eq!(header_of(&refused, "retry-after"), None);
    assert_eq!(refusal(&refused).kind(), RefusalKind::KeyTooLong);
    assert_eq!(refusal(&refused).missing(), Some("x-key"));
    let said = "the request has more than 16384 bytes of what it is limited by: x-key";
    assert_eq!(detail(refused).await, said);
    assert!(store.is_empty(), "the store was never asked");
    assert_eq!(code(&by_key, request(&"y".repeat(LONGEST))).await, 200);
    assert_eq!(code(&by_key, request(&"y".repeat(LONGEST))).await, 429);

    // Otherwise a caller could hide its identity with a long value.
    let key = || key().max_len(10);
    let hour = Limit::per_hour(1);
    for rule in [
        hour.by(key()),
        hour.by(key().digest(&secret())),
        hour.by(key().or(Route::new())),
        hour.by(FromHeader::new("x-none").or(key()).or_shared()),
        hour.by(key().or_skip()),
        hour.by((Route::new(), key())),
    ] {
        let layer = layer(rule);
        assert_eq!(code(&layer, request(&"y".repeat(11))).await, 431);
        assert_eq!(code(&layer, request(&"y".repeat(10))).await, 200);
    }
    let tried = layer(Limit::per_hour(1).by(key()).shadow());
    assert_eq!(code(&tried, request(&"y".repeat(11))).await, 200);
}

/// All lines of a cookie are one value, and so is their length.
#[tokio::test]
async fn cookies_are_measured_together() {
    let cookies = layer(Limit::per_hour(9).by(FromHeader::new("cookie").plain().max_len(10)));
    for (lines, status) in [
        (&["a=1", "b=234"][..], 200),
        (&["a=1", "b=2345"], 431),
        (&["a=1", "b", "cde"], 431),
        (&["a=1; b=234"], 200),
        (&["a=1; b=2345"], 431),
    ] {
        let lines: Vec<_> = lines.iter().map(|line| ("cookie", *line)).collect();
        let found = code(&cookies, asking("GET /", &lines)).await;
        assert_eq!(found, status, "{lines:?}");
    }
}

#[tokio::test]
async fn a_grpc_caller_must_not_come_back() {
    let by_key = layer(Limit::per_hour(1).by(FromHeader::new("x-key").max_len(10)));
    let key = "y".repeat(11);
    let fields = [("x-key", &*key), ("content-type", "application/grpc")];
    let refused = answer(&by_key, asking("POST /", &fields)).await;
    let message = "the request has more than 10 bytes of what it is limited by: x-key";
    for (name, value) in [
        ("grpc-status", "3"),
        ("grpc-message", message),
        ("grpc-retry-pushback-ms", "-1"),
    ] {
        assert_eq!(header_of(&refused, name), Some(value));
    }
}

/// A step that is quadratic in a key would cost 256 times as much for 16 times as many bytes.
#[tokio::test]
async fn long_keys_are_read_in_one_go() {
    let header = || FromParts(|parts: &Parts| Some(parts.headers["x-key"].as_bytes().to_vec()));
    for piece in ["y", "%{"] {
        for rule in [
            Limit::per_hour(1).by(header()),
            Limit::per_hour(1).by(header().digest(&secret())),
        ] {
            let layer = layer(rule);
            let mut costs = [0; 2];
            for (cost, pieces) in costs.iter_mut().zip([1 << 17, 1 << 21]) {
                let key = piece.repeat(pieces);
                let begin = processor_time();
                for status in [200, 429] {
                    assert_eq!(code(&layer, request(&key)).await, status);
                }
                *cost = processor_time() - begin;
            }
            let [least, most] = costs;
            assert!(most <= 100 * least.max(20_000), "{piece}: {least} {most}");
        }
    }
}

/// The bytes beyond the maximum length are not read.
#[test]
fn a_header_that_is_refused_costs_nothing_by_its_length() {
    let extract = |len: usize| {
        let parts = request(&"y".repeat(len)).into_parts().0;
        let begin = processor_time();
        for _ in 0..20 {
            let found = FromHeader::new("x-key").extract(&parts, &mut Key::default());
            assert_eq!(found.is_ok(), len <= LONGEST);
        }
        processor_time() - begin
    };
    let least = |len| (0..3).map(|_| extract(len)).min().unwrap();
    let (taken, refused) = (least(LONGEST), least(1 << 20));
    assert!(refused <= taken, "{refused} {taken}");
}
