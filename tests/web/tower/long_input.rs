//! Very long inputs from callers: refused as a key, and never more expensive than their bytes.

#![allow(clippy::print_stdout, reason = "times are shown, and not asserted")]

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

/// The least processor time of several tries in which a layer with this key decides on a request.
fn least(key: impl KeyExtractor, parts: &Parts) -> u64 {
    let by_key = layer(Limit::per_hour(u64::from(u32::MAX)).by(key));
    let run = || {
        let runtime = runtime();
        let times = (0..5).map(|_| {
            let begin = processor_time();
            for _ in 0..4 {
                let request = Request::from_parts(parts.clone(), String::new());
                runtime.block_on(code(&by_key, request));
            }
            (processor_time() - begin) / 4
        });
        times.min().unwrap()
    };
    thread::scope(|scope| scope.spawn(run).join()).unwrap()
}

/// A request of this path and header, each made of so many bytes.
fn long(uri: &str, header: &str, piece: &str, bytes: usize) -> Parts {
    let value = piece.repeat(bytes / piece.len());
    let peer = PeerAddr("192.0.2.1:9".parse().unwrap());
    let request = Request::builder().uri(uri).header(header, value);
    request.extension(peer).body(()).unwrap().into_parts().0
}

/// Ten times as many bytes cost ten times as much, whatever reads them. The tests of forwarding
/// headers have theirs.
#[test]
fn keys_cost_what_their_bytes_cost() {
    let header = |parts: &Parts| Some(parts.headers.get("x-key")?.as_bytes().to_vec());
    let (few, many) = (10_000, 100_000);
    let compare = |what: &str, [least, most]: [u64; 2]| {
        println!("{what}: {least} ns for {few} bytes, {most} ns for {many}");
        // The least of few bytes may be the noise of the clock; a square would be a hundred times
        // as much.
        assert!(most <= 20 * least.max(20_000), "{what}: {least} {most}");
    };
    for piece in ["y", "%{"] {
        let parts = [few, many].map(|bytes| long("/", "x-key", piece, bytes));
        let closure = || FromParts(header);
        let digest = || closure().digest(&secret());
        compare("a closure", parts.each_ref().map(|it| least(closure(), it)));
        compare("a digest", parts.each_ref().map(|it| least(digest(), it)));
    }
    for path in [
        "/".repeat(60_000),
        "/a".repeat(30_000),
        format!("/{}", "a".repeat(60_000)),
    ] {
        let parts = long(&path, "x-key", "y", 10);
        let time = least(Route::new(), &parts);
        println!("{}..: {time} ns for {} bytes", &path[..4], path.len());
    }
}

/// The bytes beyond the maximum length are not read.
#[test]
fn a_header_that_is_refused_costs_nothing_by_its_length() {
    let extract = |len: usize| {
        let parts = long("/", "x-key", "y", len);
        let begin = processor_time();
        for _ in 0..20 {
            let found = FromHeader::new("x-key").extract(&parts, &mut Key::default());
            assert_eq!(found.is_ok(), len <= LONGEST);
        }
        processor_time() - begin
    };
    let least = |len| (0..3).map(|_| extract(len)).min().unwrap();
    let (taken, refused) = (least(LONGEST), least(1 << 20));
    println!("20 headers: {taken} ns at 16 KiB, {refused} ns at 1 MiB");
    assert!(refused <= taken, "{refused} {taken}");
}
