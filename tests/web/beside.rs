//! Every layer of tower-http that constrains the body, outside and inside of the rate limit: each
//! pair compiles for hyper, and on axum and tonic lets one request pass and refuses the next.

#![cfg(all(feature = "axum", feature = "tonic"))]

use crate::orders;
use kit::scene::*;
use std::convert;

use crate::orders::OrdersServer;
use axum::{Router, routing::post};
use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use tonic::service::Routes;
use tonic_web::GrpcWebLayer;
use tower::{BoxError, Service};
use tower_http::{
    add_extension::AddExtensionLayer,
    catch_panic::CatchPanicLayer,
    compression::CompressionLayer,
    cors::CorsLayer,
    csrf::CsrfLayer,
    decompression::{DecompressionLayer, RequestDecompressionLayer},
    limit::RequestBodyLimitLayer,
    map_request_body::MapRequestBodyLayer,
    map_response_body::MapResponseBodyLayer,
    metrics::InFlightRequestsLayer,
    normalize_path::NormalizePathLayer,
    on_early_drop::{EarlyDropsAsFailures, OnEarlyDropLayer},
    propagate_header::PropagateHeaderLayer,
    sensitive_headers::SetSensitiveHeadersLayer,
    set_header::SetResponseHeaderLayer,
    timeout::{
        RequestBodyDeadlineLayer, RequestBodyTimeoutLayer, ResponseBodyDeadlineLayer,
        ResponseBodyTimeoutLayer, TimeoutLayer,
    },
    trace::{DefaultOnFailure, TraceLayer},
    validate_request::ValidateRequestHeaderLayer,
};

const LONG: Duration = Duration::from_secs(60);
const TRACE: HeaderName = HeaderName::from_static("x-trace");

fn limit() -> RateLimitLayer {
    RateLimitLayer::new(&MemoryStore::new(), Limit::per_hour(1))
}

/// A request that all of these layers let pass.
fn request<B>(body: B, content_type: &'static str) -> Request<B> {
    Request::post(orders::CREATE)
        .header(header::HOST, "shop.example")
        .header(header::ACCEPT, "*/*")
        .header(header::CONTENT_TYPE, content_type)
        .body(body)
        .unwrap()
}

async fn refused_once_spent<B>(what: &str, mut ask: impl AsyncFnMut() -> Response<B>)
where
    B: Body,
{
    let passed = ask().await;
    assert_eq!(passed.status(), StatusCode::OK, "{what}");
    assert!(passed.into_body().collect().await.is_ok(), "{what}");
    let refused = ask().await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS, "{what}");
    assert!(
        refused.headers().contains_key(header::RETRY_AFTER),
        "{what}"
    );
    let body = refused.into_body().collect().await;
    let body = body.ok().expect("a whole body").to_bytes();
    assert!(body.starts_with(b"{\"type\""), "{what}: {body:?}");
}

async fn on_axum(what: &str, app: Router) {
    refused_once_spent(what, async || {
        let call = request(axum::body::Body::from("tea"), "text/plain");
        app.clone().oneshot(call).await.unwrap()
    })
    .await;
}

/// Compiles if hyper-util can serve it.
fn on_hyper<S, B>(_: S)
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + Sync + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
}

/// Asks as a caller of gRPC-Web does, with the bounds of tonic's `Server`.
async fn on_tonic<S, B>(what: &str, service: S)
where
    S: Service<Request<tonic::body::Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Error: Into<BoxError> + Send,
    S::Future: Send,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let ask = async || {
        // A message of no bytes, which is an order of nothing.
        let call = Full::new(Bytes::from_static(&[0; 5]));
        let call = request(tonic::body::Body::new(call), "application/grpc-web+proto");
        let answer = service.clone().oneshot(call).await.map_err(Into::into);
        let (head, body) = answer.unwrap().into_parts();
        let body = body.collect().await.map_err(Into::into);
        (head, body.unwrap().to_bytes())
    };
    let (passed, body) = ask().await;
    assert_eq!(passed.status, StatusCode::OK, "{what}");
    let trailers = body.windows(13).any(|it| it == b"grpc-status:0");
    assert!(trailers, "{what}: {body:?}");
    let (refused, _) = ask().await;
    assert_eq!(refused.headers["grpc-status"], "8", "{what}");
}

/// Stands each layer outside and inside of ours on each kind of server.
macro_rules! beside {
    ($($name:ident: $layer:expr;)*) => { $(
        #[tokio::test]
        async fn $name() {
            let app = || Router::new().route(orders::CREATE, post(async || "hello"));
            on_axum("outside", app().layer(($layer, limit()))).await;
            on_axum("inside", app().layer((limit(), $layer))).await;

            on_hyper(($layer, limit()).layer(service_fn(serve)));
            on_hyper((limit(), $layer).layer(service_fn(serve)));

            let orders = || Routes::new(OrdersServer::default()).prepare();
            let web = GrpcWebLayer::new;
            on_tonic("outside", ($layer, limit(), web()).layer(orders())).await;
            on_tonic("between", ($layer, web(), limit()).layer(orders())).await;
            on_tonic("inside", (limit(), $layer, web()).layer(orders())).await;
        }
    )* };
}

beside! {
    add_extension: AddExtensionLayer::new(7);
    catch_panic: CatchPanicLayer::new();
    compression: CompressionLayer::new();
    cors: CorsLayer::permissive();
    csrf: CsrfLayer::new();
    decompression: DecompressionLayer::new();
    request_decompression: RequestDecompressionLayer::new();
    request_body_limit: RequestBodyLimitLayer::new(4096);
    map_request_body: MapRequestBodyLayer::new(convert::identity);
    map_response_body: MapResponseBodyLayer::new(axum::body::Body::new);
    in_flight: InFlightRequestsLayer::pair().0;
    normalize_path: NormalizePathLayer::trim_trailing_slash();
    on_early_drop: OnEarlyDropLayer::new(EarlyDropsAsFailures::new(DefaultOnFailure::new()));
    propagate_header: PropagateHeaderLayer::new(TRACE);
    sensitive_headers: SetSensitiveHeadersLayer::new([header::AUTHORIZATION]);
    set_header: SetResponseHeaderLayer::overriding(TRACE, HeaderValue::from_static("a"));
    timeout: TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, LONG);
    request_body_timeout: RequestBodyTimeoutLayer::new(LONG);
    request_body_deadline: RequestBodyDeadlineLayer::new(LONG);
    response_body_timeout: ResponseBodyTimeoutLayer::new(LONG);
    response_body_deadline: ResponseBodyDeadlineLayer::new(LONG);
    trace: TraceLayer::new_for_http();
    trace_of_grpc: TraceLayer::new_for_grpc();
    validate_request: ValidateRequestHeaderLayer::accept("text/plain");
}
