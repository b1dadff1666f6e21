//! Spans: that of each call to Redis, and the fields that a decision adds to its caller's own.

use super::{by_key, request_of};
use crate::log::Log;
use kit::scene::*;
use tower_ratelimit::{Requests, Rules};
use tracing::{Instrument, Span, field::Empty, info_span};

/// The spans of calls, as the log has them when they end.
fn calls(log: &Log) -> Vec<String> {
    spans_in(&log.text())
}

fn spans_in(text: &str) -> Vec<String> {
    let is_call = |line: &&str| line.contains("ratelimit.store{");
    text.lines().filter(is_call).map(str::to_owned).collect()
}

#[tokio::test]
async fn a_call_is_a_span_without_a_key() {
    let mut server = RedisServer::start();
    let log = Log::default();
    let _capturing = log.capture_spans();
    let url = format!("{}/3", server.url().trim_end_matches('/'));
    let store = hasty(&url, millis(500)).build().unwrap();
    let layer = layer_of(&store, by_key(9));
    let decided = async || decide(&layer, request_of("a-secret")).await.source();
    until("Redis decides", async || decided().await == Source::Store).await;
    let said = log.take();
    let mut spans = spans_in(&said);
    // Those of a busy machine before.
    spans.retain(|said| !said.contains("error.type"));
    server.stop_process();
    assert_ne!(decided().await, Source::Store);
    server.resume();
    let said = said + &log.text();
    spans.extend(calls(&log));
    let (host, port) = (server.address().ip(), server.address().port());
    let of_call = |said: &&String| {
        said.contains("otel.kind=\"client\" db.system.name=\"redis\" db.namespace=\"3\"")
            && said.contains("db.operation.name=\"packed/decide\"")
            && said.contains(&format!("server.address=\"{host}\" server.port={port} "))
            && said.contains("ratelimit.callers=1")
            && !said.contains("status_code")
    };
    assert!(spans.iter().filter(of_call).count() >= 2, "{spans:#?}");
    let failed = |said: &&String| said.contains("error.type=\"timeout\"");
    assert_eq!(spans.iter().filter(failed).count(), 1, "{spans:#?}");
    assert!(
        !said.contains("a-secret") && !said.contains("db.query.text"),
        "{said}"
    );
}

#[tokio::test]
async fn a_call_that_redis_refuses_has_its_code() {
    let server = RedisServer::start();
    let log = Log::default();
    let _capturing = log.capture_spans();
    let store = patient(server.url()).build().unwrap();
    let limiter = limited(&store, Limit::per_hour(9)).await;
    let _ = take(&limiter, 1).await;
    assert!(calls(&log).iter().all(|said| !said.contains("WRONGTYPE")));
    // Every key of the limiter has another type now.
    for key in server.cli(&["KEYS", "*"]).lines() {
        server.command(&["DEL", key]);
        server.command(&["SADD", key, "something"]);
    }
    fails(limiter.try_acquire().await, ErrorKind::ForeignState);
    let spans = calls(&log);
    let refused = |said: &&String| {
        said.contains("db.response.status_code=\"WRONGTYPE\" error.type=\"foreign_state\"")
    };
    assert!(spans.iter().any(|said| refused(&said)), "{spans:#?}");
}

/// Decides in a span that declares the fields, or in one that does not, and returns that span.
async fn span_of(log: &Log, span: Span, layer: &RateLimitLayer, key: &str) -> String {
    drop(log.take());
    let mut request = request_of(key);
    if key.is_empty() {
        request.headers_mut().clear();
    }
    let _ = decide(layer, request).instrument(span).await;
    let text = log.text();
    let line = text
        .lines()
        .rfind(|line| line.contains(": close") && line.contains("request{"));
    let line = line.unwrap_or_else(|| panic!("no span: {text}"));
    let (_, fields) = line.split_once("request{").unwrap();
    fields.split_once('}').unwrap().0.to_owned()
}

fn declaring() -> Span {
    info_span!(
        "request",
        method = "GET",
        ratelimit.result = Empty,
        ratelimit.rule = Empty,
        ratelimit.source = Empty,
        ratelimit.remaining = Empty,
    )
}

fn fields(result: &str, source: &str, rest: &str) -> String {
    format!("method=\"GET\" ratelimit.result=\"{result}\" ratelimit.source=\"{source}\"{rest}")
}

#[tokio::test]
async fn a_decision_is_in_the_fields_that_its_caller_has_declared() {
    let mut server = RedisServer::start();
    let log = Log::default();
    let _capturing = log.capture_spans();
    let store = patient(server.url()).deny_cache(secs(60)).build().unwrap();
    let layer = layer_of(&store, by_key(2).named("login"));
    let login = " ratelimit.rule=\"login\"";
    for (key, result, source, left) in [
        ("a", "allow", "store", Some(1)),
        ("a", "allow", "store", Some(0)),
        ("a", "deny", "store", Some(0)),
        ("a", "deny", "cache", Some(0)),
        ("", "missing_key", "none", None),
    ] {
        let left = left.map(|left| format!(" ratelimit.remaining={left}"));
        let rest = format!("{login}{}", left.unwrap_or_default());
        let said = span_of(&log, declaring(), &layer, key).await;
        assert_eq!(said, fields(result, source, &rest));
        let undeclared = info_span!("request", method = "GET");
        let other = layer_of(&store, by_key(2).named("other"));
        assert_eq!(
            span_of(&log, undeclared, &other, key).await,
            "method=\"GET\""
        );
    }
    // One of the fields alone is no mistake.
    let part = info_span!("request", ratelimit.rule = Empty);
    assert_eq!(span_of(&log, part, &layer, "a").await, login.trim_start());

    server.kill();
    for (policy, result) in [
        (FailurePolicy::Allow, "allow"),
        (FailurePolicy::Deny, "unavailable"),
    ] {
        let rule = by_key(2).named("down").on_failure(policy);
        let said = span_of(&log, declaring(), &layer_of(&store, rule), "a").await;
        assert_eq!(said, fields(result, "policy", " ratelimit.rule=\"down\""));
    }
}

#[tokio::test]
async fn of_several_rules_the_one_that_decides_is_named() {
    let log = Log::default();
    let _capturing = log.capture_spans();
    let rules = Rules::new().deny(Requests::on("/blocked")).otherwise([
        by_key(9).named("wide"),
        by_key(2).named("narrow"),
        by_key(1).named("shadow").shadow(),
    ]);
    let builder = RateLimitLayer::builder(&MemoryStore::new());
    let layer = builder.rules(rules).build().unwrap();
    for (result, left) in [("allow", 1), ("allow", 0), ("deny", 0)] {
        let rest = format!(" ratelimit.rule=\"narrow\" ratelimit.remaining={left}");
        let said = span_of(&log, declaring(), &layer, "a").await;
        assert_eq!(said, fields(result, "store", &rest));
    }
    let mut listed = request_of("a");
    *listed.uri_mut() = "/blocked".parse().unwrap();
    drop(log.take());
    let _ = decide(&layer, listed).instrument(declaring()).await;
    let said = log.text();
    assert!(
        said.contains(&fields("denied_by_list", "none", "}")),
        "{said}"
    );
}

#[tokio::test]
async fn a_caller_that_leaves_is_cancelled_in_its_own_span() {
    let server = RedisServer::start();
    let log = Log::default();
    let _capturing = log.capture_spans();
    let store = patient(server.url()).build().unwrap();
    let layer = layer_of(&store, by_key(2).named("login"));
    let own = declaring();
    let mut deciding = Box::pin(decide(&layer, request_of("a")).instrument(own.clone()));
    assert!(poll(&mut deciding).is_pending());
    // Not dropped where its span is current.
    let elsewhere = info_span!("elsewhere", ratelimit.result = Empty);
    elsewhere.in_scope(|| drop(deciding));
    drop((own, elsewhere));
    let said = log.text();
    let expected = fields("cancelled", "none", " ratelimit.rule=\"login\"");
    assert!(said.contains(&expected), "{said}");
    assert!(!said.contains("elsewhere{"), "{said}");
}

/// A batch is one span, and says how many requests share it.
#[tokio::test]
async fn a_batch_is_one_span() {
    let server = RedisServer::start();
    let log = Log::default();
    let _capturing = log.capture_spans();
    let store = patient(server.url()).build().unwrap();
    let layer = layer_of(&store, by_key(9));
    let _ = decide(&layer, request_of("first")).await;
    drop(log.take());
    let mut callers = JoinSet::new();
    for caller in 0..60 {
        let layer = layer.clone();
        callers
            .spawn(async move { decide(&layer, request_of(&format!("key-{}", caller / 6))).await });
    }
    assert!(callers.join_all().await.iter().all(Decision::is_allowed));
    let spans = calls(&log);
    let number = |said: &String| {
        let (_, rest) = said.split_once("ratelimit.callers=").unwrap();
        let end = rest.find(|it: char| !it.is_ascii_digit()).unwrap();
        rest[..end].parse::<usize>().unwrap()
    };
    let shared: usize = spans.iter().map(number).sum();
    assert_eq!(shared, 60, "{spans:#?}");
    let is_own = |said: &String| said.contains("db.operation.name=\"packed/decide\"");
    assert!(spans.iter().all(is_own), "{spans:#?}");
    // More than those of one key.
    let batches: usize = spans
        .iter()
        .map(number)
        .filter(|callers| *callers > 6)
        .sum();
    assert!(batches > 30 && spans.len() < 10, "{spans:#?}");
}
