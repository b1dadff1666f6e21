//! The spans of requests and of calls to a real Redis, as they reach an exporter.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

use std::time::Duration;

use axum::{Router, body::Body, http::Request};
use kit::RedisServer;
use opentelemetry::{
    Value,
    trace::{SpanId, SpanKind},
};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use tower::ServiceExt;
use tower_ratelimit::RedisStore;
use tower_ratelimit_opentelemetry::{service, subscriber};

const KEY: &str = "tenant-of-ann";

/// Longer than anything here takes, on the busiest machine.
const LONG: Duration = Duration::from_secs(120);

/// Sends a request and returns the span of it and those of the calls that it has made, if any.
async fn spans_of(service: &Router, exporter: &InMemorySpanExporter) -> (SpanData, Vec<SpanData>) {
    exporter.reset();
    let request = Request::get("/items").header("x-tenant", KEY);
    let response = service
        .clone()
        .oneshot(request.body(Body::empty()).unwrap())
        .await;
    // Its span ends with the body.
    drop(response.unwrap());
    let mut spans = exporter.get_finished_spans().unwrap();
    let is_request = |span: &SpanData| span.name == "request";
    let at = spans.iter().position(is_request).expect("its own span");
    let request = spans.remove(at);
    (request, spans)
}

fn attribute(span: &SpanData, key: &str) -> Option<Value> {
    let attribute = span.attributes.iter().find(|it| it.key.as_str() == key);
    attribute.map(|it| it.value.clone())
}

/// Checks text and numbers among the attributes of a span.
#[track_caller]
fn has(span: &SpanData, expected: &[(&str, Value)]) {
    for (key, value) in expected {
        assert_eq!(
            attribute(span, key).as_ref(),
            Some(value),
            "{key}: {span:#?}"
        );
    }
}

fn no_key_in(spans: &[SpanData]) {
    let text = format!("{spans:?}");
    assert!(
        !text.contains(KEY) && !text.contains("db.query.text"),
        "{text}"
    );
}

#[tokio::test]
async fn a_call_to_redis_is_a_child_of_its_request() {
    let server = RedisServer::start();
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder()
        .with_simple_exporter(exporter.clone())
        .build();
    let _subscribed = tracing::subscriber::set_default(subscriber(&provider));
    let url = format!("{}2", server.url());
    // No answer of a busy machine is the policy's, and what is known is not forgotten meanwhile.
    let store = RedisStore::builder(&url).connect_timeout(LONG);
    let store = store.response_timeout(LONG).deadline(LONG);
    let store = store.deny_cache(Duration::from_secs(60));
    let service = service(&store.build().unwrap());

    let (request, calls) = spans_of(&service, &exporter).await;
    has(
        &request,
        &[
            ("ratelimit.result", "allow".into()),
            ("ratelimit.rule", "api".into()),
            ("ratelimit.source", "store".into()),
            ("ratelimit.remaining", 1.into()),
            ("http.route", "/items".into()),
        ],
    );
    assert_eq!(request.span_kind, SpanKind::Server);
    assert_eq!(request.parent_span_id, SpanId::INVALID);
    let call = calls.last().expect("a call to Redis");
    for call in &calls {
        assert_eq!(call.name, "ratelimit.store");
        assert_eq!(call.span_kind, SpanKind::Client);
        assert_eq!(call.parent_span_id, request.span_context.span_id());
        let trace = request.span_context.trace_id();
        assert_eq!(call.span_context.trace_id(), trace);
    }
    has(
        call,
        &[
            ("db.system.name", "redis".into()),
            ("db.namespace", "2".into()),
            ("db.operation.name", "packed/decide".into()),
            ("server.address", "127.0.0.1".into()),
            ("server.port", i64::from(server.address().port()).into()),
            ("ratelimit.callers", 1.into()),
        ],
    );
    assert_eq!(attribute(call, "error.type"), None);
    no_key_in(&calls);
    no_key_in(&[request]);

    let _ = spans_of(&service, &exporter).await;
    let (refused, _) = spans_of(&service, &exporter).await;
    has(&refused, &[("ratelimit.result", "deny".into())]);
    // The refusal still stands, and no call is made.
    let (repeated, calls) = spans_of(&service, &exporter).await;
    has(
        &repeated,
        &[
            ("ratelimit.result", "deny".into()),
            ("ratelimit.source", "cache".into()),
        ],
    );
    assert!(calls.is_empty(), "{calls:#?}");
    no_key_in(&[refused, repeated]);
}
