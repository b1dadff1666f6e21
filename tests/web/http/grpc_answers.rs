//! The responses to refused calls, in all content types, over both versions of HTTP, by all
//! servers.

use hyper::body::Body as _;
use hyper_util::client::legacy::Client;
use tonic::body::Body;
use tonic_prost::ProstCodec;
use tonic_types::StatusExt;
use tonic_web::GrpcWebClientService;

use super::{
    orders::{Nothing, Receipt},
    sockets::serve_hyper,
    *,
};

on_both_stores! {
    refusals_of_axum,
    refusals_of_hyper,
    refusals_of_tonic,
    tonic_webs_client_reads_a_refusal,
}

/// The time after which a client may come back.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Pushback {
    /// When the hour is over that the limit counts by
    WithinTheHour,
    Never,
    Nothing,
}

/// The method that is called, and what a refusal says.
const REFUSALS: [(&str, Code, &str, Pushback); 5] = [
    (
        "/shop.v1.Orders/Count",
        Code::ResourceExhausted,
        "too many requests",
        Pushback::WithinTheHour,
    ),
    (
        "/a.Limit/Below",
        Code::ResourceExhausted,
        "the request costs more than its limit allows",
        Pushback::Never,
    ),
    (
        "/a.Key/Missing",
        Code::Unauthenticated,
        "the request lacks what it is limited by: x-key",
        Pushback::Never,
    ),
    (
        "/a.Limit/Unknown",
        Code::Unavailable,
        "the rate limiter is unavailable",
        Pushback::Nothing,
    ),
    // The last, because tonic's server always notes the peer.
    (
        "/a.Peer/Missing",
        Code::Internal,
        "the request lacks what it is limited by: peer address",
        Pushback::Never,
    ),
];

const CONTENT_TYPES: [&str; 6] = [
    "application/grpc",
    "application/grpc+proto",
    "application/grpc-web",
    "application/grpc-web+proto",
    "application/grpc-web-text",
    "application/grpc-web-text+proto",
];

fn limits(store: &impl Store) -> RateLimitLayer {
    let hour = Limit::per_hour(1);
    let all = || hour.by(Constant("all"));
    let unset = Rule::shared("never-set").on_failure(FailurePolicy::Allow);
    let layer = RateLimitLayer::builder(store)
        .on_grpc("shop.v1.Orders/Count", all().named("count"))
        .on_grpc("a.Limit/Below", all().named("below").cost_by(|_| 2))
        .on_grpc(
            "a.Key/Missing",
            hour.by(FromHeader::new("x-key")).named("key"),
        )
        .on_grpc("a.Limit/Unknown", unset)
        .on_grpc("a.Peer/Missing", hour.by(PeerIp).named("peer"));
    layer.build().unwrap()
}

async fn refusals_of_tonic(store: impl Store) {
    let server = serve_tonic(limits(&store)).await;
    check(server, &REFUSALS[..4]).await;
    // Other requests than gRPC on the same port get HTTP responses.
    let json = with("POST", COUNT, &[("content-type", "application/json")]);
    assert_eq!(send(server, json).await.status, 429);
}

async fn refusals_of_axum(store: impl Store) {
    let (listener, server) = listen().await;
    let routes = Routes::new(OrdersServer::default()).into_axum_router();
    let app = Router::new().merge(routes).layer(limits(&store));
    tokio::spawn(axum::serve(listener, app).into_future());
    check(server, &REFUSALS).await;
}

async fn refusals_of_hyper(store: impl Store) {
    let orders = service_fn(async |request: Request<Incoming>| {
        let answer = OrdersServer::default().call(request.map(Body::new)).await;
        Ok::<Response<Body>, Infallible>(answer.unwrap())
    });
    // As where the accept loop forgets to note the peer.
    let forget = |mut request: Request<Incoming>| {
        request.extensions_mut().remove::<PeerAddr>();
        request
    };
    let server = serve_hyper(limits(&store).layer(orders).map_request(forget)).await;
    check(server, &REFUSALS).await;
}

/// Serves the orders as gRPC and as gRPC-Web. The limit is outside of the translation and sees both
/// unchanged.
async fn serve_tonic(layer: RateLimitLayer) -> SocketAddr {
    let (listener, address) = listen().await;
    let server = Server::builder()
        .accept_http1(true)
        .layer(layer)
        .layer(GrpcWebLayer::new())
        .add_service(OrdersServer::default());
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    address
}

async fn check(server: SocketAddr, refusals: &[(&str, Code, &str, Pushback)]) {
    // The one permit that there is.
    let first = with("POST", COUNT, &[("content-type", CONTENT_TYPES[0])]);
    send_http2(server, first).await;
    for content_type in CONTENT_TYPES {
        for (path, code, message, pushback) in refusals {
            let case = format!("{content_type} {path}");
            let call = || {
                let fields = [("content-type", content_type), ("te", "trailers")];
                with("POST", path, &fields)
            };
            let http1 = send(server, call()).await;
            assert_eq!((http1.status, http1.body.as_str()), (200, ""), "{case}");
            let http2 = send_http2(server, call()).await;
            assert_eq!(http2.status(), 200, "{case}");
            assert!(http2.body().is_end_stream(), "{case}: Trailers-Only");
            for headers in [&http1.headers, http2.headers()] {
                let field = |name| headers.get(name).map(|value| value.to_str().unwrap());
                assert_eq!(field("content-type"), Some(content_type), "{case}");
                // RFC 6585, section 4, holds for what stands in a 429's place, too.
                assert_eq!(field("cache-control"), Some("no-store"), "{case}");
                let status = Status::from_header_map(headers).unwrap();
                assert_eq!(status.code(), *code, "{case}");
                assert_eq!(status.message(), *message, "{case}");
                assert_eq!(read(headers, &status), *pushback, "{case}: {headers:?}");
                let limit = path.rsplit('/').next().unwrap().to_lowercase();
                let expected = (*code == Code::ResourceExhausted).then_some(limit);
                assert_eq!(refused_by(&status), expected, "{case}: {headers:?}");
                // Those are HTTP's, and say the same in its words.
                for name in ["retry-after", "ratelimit", "ratelimit-policy"] {
                    assert!(!headers.contains_key(name), "{case}: {name}");
                }
            }
        }
    }
}

/// Returns the names of the limits that refuse, or `None` if the status is not that of a limit.
fn refused_by(status: &Status) -> Option<String> {
    let info = status.get_details_error_info()?;
    assert_eq!(info.reason, "RATE_LIMIT_EXCEEDED");
    assert_eq!(info.domain, "tower-ratelimit");
    assert!(info.metadata.keys().all(|name| name == "limits"));
    Some(info.metadata.get("limits").cloned().unwrap_or_default())
}

/// Returns the value of both fields, which must agree.
fn read(headers: &HeaderMap, status: &Status) -> Pushback {
    let pushback = headers.get("grpc-retry-pushback-ms");
    let pushback = pushback.map(|value| value.to_str().unwrap());
    let Some(info) = status.get_details_retry_info() else {
        let has_details = headers.contains_key("grpc-status-details-bin");
        assert_eq!(has_details, status.code() == Code::ResourceExhausted);
        return match pushback {
            None => Pushback::Nothing,
            Some("-1") => Pushback::Never,
            Some(other) => panic!("no RetryInfo, and a pushback of {other}"),
        };
    };
    let delay = info.retry_delay.unwrap();
    assert_eq!(pushback, Some(&*delay.as_millis().to_string()));
    assert!(delay > Duration::ZERO && delay <= HOUR, "{delay:?}");
    Pushback::WithinTheHour
}

/// A client of gRPC-Web that we did not write, over HTTP/1.1 as in a browser.
async fn tonic_webs_client_reads_a_refusal(store: impl Store) {
    let server = serve_tonic(limits(&store)).await;
    let http = Client::builder(TokioExecutor::new()).build_http();
    let origin = format!("http://{server}").parse().unwrap();
    let mut client = tonic::client::Grpc::with_origin(GrpcWebClientService::new(http), origin);
    let mut count = async || {
        client.ready().await.unwrap();
        let codec = ProstCodec::<Nothing, Receipt>::default();
        let request = tonic::Request::new(Nothing {});
        let path = http::uri::PathAndQuery::from_static(COUNT);
        client.unary(request, path, codec).await
    };
    let receipt = count().await.unwrap().into_inner();
    assert_eq!(receipt.calls_left, Some(0));
    let refused = count().await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!(refused.message(), "too many requests");
    let pushback = read(&refused.metadata().clone().into_headers(), &refused);
    assert_eq!(pushback, Pushback::WithinTheHour);
    assert_eq!(refused_by(&refused).as_deref(), Some("count"));
}

/// A client tells a limit from another reason for RESOURCE_EXHAUSTED, also while it is banned, and
/// learns no name that the limit keeps to itself.
#[tokio::test]
async fn a_refusal_names_the_limits_that_refuse() {
    let (store, _clock) = MemoryStore::builder().build_manual();
    let limit = |permits, name| Limit::per_hour(permits).by(Constant("all")).named(name);
    let banning =
        limit(1, "banning").ban(tower_ratelimit::Ban::after(1).within(HOUR).lasting(HOUR));
    let layer = RateLimitLayer::builder(&store)
        .on_grpc(
            "a.B/Several",
            [limit(1, "tight"), limit(9, "wide"), limit(1, "too")],
        )
        .on_grpc("a.B/Hidden", limit(1, "hidden").hide_headers())
        .on_grpc("a.B/Banned", banning);
    let server = serve_tonic(layer.build().unwrap()).await;
    for (method, limits) in [
        ("Several", "tight,too"),
        ("Hidden", ""),
        ("Banned", "banning"),
    ] {
        let path = format!("/a.B/{method}");
        for _ in 0..3 {
            let call = with("POST", &path, &[("content-type", CONTENT_TYPES[0])]);
            let answer = send_http2(server, call).await;
            let status = Status::from_header_map(answer.headers()).unwrap();
            if status.code() == Code::ResourceExhausted {
                assert_eq!(refused_by(&status).as_deref(), Some(limits), "{method}");
            } else {
                // By tonic, which has no such method: the first call, which the limit admits.
                assert_eq!(status.code(), Code::Unimplemented, "{method}");
            }
        }
    }
}
