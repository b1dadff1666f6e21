//! An axum service whose requests and calls to Redis are spans of OpenTelemetry.

use axum::{
    Router,
    extract::{MatchedPath, Request},
    routing::get,
};
use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tower_http::trace::TraceLayer;
use tower_ratelimit::{Limit, RateLimitLayer, RedisStore, key::FromHeader};
use tracing::{Level, Span, Subscriber, field::Empty, info_span};
use tracing_subscriber::{filter::Targets, layer::SubscriberExt};

/// Returns the service: two requests a minute for each tenant.
pub fn service(store: &RedisStore) -> Router {
    let rule = Limit::per_minute(2).by(FromHeader::new("x-tenant"));
    Router::new()
        .route("/items", get(async || "tea, cake\n"))
        .layer(RateLimitLayer::new(store, rule.named("api")))
        // Around the limit, which adds its decision to this layer's span.
        .layer(TraceLayer::new_for_http().make_span_with(span_of))
}

/// Returns the span of a request. What the limit decides is recorded in the fields that are empty.
fn span_of(request: &Request) -> Span {
    let route = request.extensions().get::<MatchedPath>();
    info_span!(
        "request",
        otel.kind = "server",
        http.request.method = request.method().as_str(),
        http.route = route.map(MatchedPath::as_str),
        ratelimit.result = Empty,
        ratelimit.rule = Empty,
        ratelimit.source = Empty,
        ratelimit.remaining = Empty,
    )
}

/// Returns the subscriber that hands spans to OpenTelemetry.
pub fn subscriber(provider: &SdkTracerProvider) -> impl Subscriber + Send + Sync + use<> {
    let tracer = provider.tracer("tower-ratelimit-opentelemetry");
    let spans = tracing_opentelemetry::layer()
        .with_tracer(tracer)
        .with_location(false)
        .with_threads(false);
    // The calls to Redis are spans of level DEBUG.
    let levels = Targets::new()
        .with_default(Level::INFO)
        .with_target("tower_ratelimit", Level::DEBUG);
    tracing_subscriber::registry().with(levels).with(spans)
}
