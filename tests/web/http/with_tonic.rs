//! tonic: a whole server or one service, seen by a gRPC client and on the wire.

use crate::scene::*;
use std::{net::Ipv4Addr, net::SocketAddr};

use http_body_util::BodyExt;
use hyper::body::Body as _;
use tonic::{
    Code, Status,
    body::Body,
    server::NamedService,
    transport::{Channel, Server, server::TcpIncoming},
};
use tower::Service;

use super::{
    listen, on_both_stores,
    orders::{COUNT, CREATE, OrdersClient, OrdersServer},
    send, send_from, send_http2, unique, until, with,
};

on_both_stores! {
    a_whole_server_is_limited_by_peer,
    one_service_is_limited_and_others_are_not,
    services_have_layers_of_their_own,
    methods_have_limits_of_their_own,
    methods_are_counted_apart_by_route,
    methods_of_one_service_are_counted_apart_by_route,
    a_refusal_is_trailers_only_on_the_wire,
    grpc_web_is_refused_in_its_own_words,
    every_refusal_has_its_code,
    only_failed_calls_count,
}

/// Binds, and hands on what a tonic server accepts from.
async fn incoming() -> (TcpIncoming, SocketAddr) {
    let (listener, address) = listen().await;
    (TcpIncoming::from(listener), address)
}

/// Serves the orders, all of them behind the layer.
async fn serve(layer: RateLimitLayer) -> SocketAddr {
    let (incoming, address) = incoming().await;
    let server = Server::builder()
        .accept_http1(true)
        .layer(layer)
        .add_service(OrdersServer::default());
    tokio::spawn(server.serve_with_incoming(incoming));
    address
}

async fn client(server: SocketAddr) -> OrdersClient {
    let channel = Channel::from_shared(format!("http://{server}")).unwrap();
    OrdersClient::new(channel.connect().await.unwrap())
}

fn is_refused(status: &Status) -> bool {
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert_eq!(status.message(), "too many requests");
    true
}

async fn a_whole_server_is_limited_by_peer(store: impl Store) {
    let layer = RateLimitLayer::new(&store, Limit::per_hour(2).by(PeerIp));
    let server = serve(layer).await;
    let mut client = client(server).await;
    let receipt = client.create("tea").await.unwrap();
    assert_eq!(
        (receipt.number, receipt.calls_left),
        (1, Some(1)),
        "the method sees the decision"
    );
    assert_eq!(client.count().await.unwrap().number, 1);
    assert!(is_refused(&client.create("tea").await.unwrap_err()));
    assert!(is_refused(&client.count().await.unwrap_err()));
    // Another peer, and a method that does not exist.
    let call = with(
        "POST",
        "/shop.v1.Orders/Nothing",
        &[("content-type", "application/grpc")],
    );
    let reply = send_from(Ipv4Addr::new(127, 0, 0, 2), server, call).await;
    assert_eq!(reply.header("grpc-status"), Some("12"));
}

/// A service beside the orders, that has nothing.
#[derive(Clone)]
struct Stock;

impl NamedService for Stock {
    const NAME: &'static str = "shop.v1.Stock";
}

impl Service<Request<Body>> for Stock {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        std::future::ready(Ok(Status::not_found("sold out").into_http()))
    }
}

async fn one_service_is_limited_and_others_are_not(store: impl Store) {
    let layer = RateLimitLayer::new(&store, Limit::per_hour(1).by(PeerIp));
    let (incoming, server) = incoming().await;
    let router = Server::builder()
        .accept_http1(true)
        .add_service(layer.layer(OrdersServer::default()))
        .add_service(Stock);
    tokio::spawn(router.serve_with_incoming(incoming));
    let mut client = client(server).await;
    assert_eq!(client.create("tea").await.unwrap().number, 1);
    assert!(is_refused(&client.create("tea").await.unwrap_err()));
    for _ in 0..2 {
        let call = with(
            "POST",
            "/shop.v1.Stock/Get",
            &[("content-type", "application/grpc")],
        );
        assert_eq!(send(server, call).await.header("grpc-status"), Some("5"));
    }
}

async fn services_have_layers_of_their_own(store: impl Store) {
    let layer = |permits, name| {
        let limit = Limit::per_hour(permits).by(PeerIp).named(name);
        RateLimitLayer::builder(&store)
            .otherwise(limit)
            .build()
            .unwrap()
    };
    let (incoming, server) = incoming().await;
    let router = Server::builder()
        .accept_http1(true)
        .add_service(layer(1, "orders").layer(OrdersServer::default()))
        .add_service(layer(2, "stock").layer(Stock));
    tokio::spawn(router.serve_with_incoming(incoming));
    let stock = || {
        let fields = [("content-type", "application/grpc")];
        send(server, with("POST", "/shop.v1.Stock/Get", &fields))
    };
    let mut client = client(server).await;
    assert_eq!(stock().await.header("grpc-status"), Some("5"));
    assert_eq!(client.create("tea").await.unwrap().calls_left, Some(0));
    assert!(is_refused(&client.create("tea").await.unwrap_err()));
    // What the one refuses leaves the other's count alone.
    for status in ["5", "8"] {
        assert_eq!(stock().await.header("grpc-status"), Some(status));
    }
    // A service without its own layer has no limit of its own.
    let call = with(
        "POST",
        "/shop.v1.Nothing/Get",
        &[("content-type", "application/grpc")],
    );
    assert_eq!(send(server, call).await.header("grpc-status"), Some("12"));
}

async fn methods_have_limits_of_their_own(store: impl Store) {
    let layer = RateLimitLayer::builder(&store)
        .on_grpc(
            "shop.v1.Orders/Create",
            Limit::per_hour(1).by(PeerIp).named("create"),
        )
        .on_grpc(
            "shop.v1.Orders",
            Limit::per_hour(3).by(PeerIp).named("orders"),
        )
        .build()
        .unwrap();
    let mut client = client(serve(layer).await).await;
    assert!(client.create("tea").await.is_ok());
    assert!(is_refused(&client.create("tea").await.unwrap_err()));
    for _ in 0..3 {
        assert_eq!(client.count().await.unwrap().number, 1);
    }
    assert!(is_refused(&client.count().await.unwrap_err()));
}

async fn methods_are_counted_apart_by_route(store: impl Store) {
    let routes = Route::services(["shop.v1.Orders"]);
    let layer = RateLimitLayer::new(&store, Limit::per_hour(1).by(routes));
    let server = serve(layer).await;
    let mut client = client(server).await;
    assert!(client.create("tea").await.is_ok());
    assert!(client.count().await.is_ok());
    assert!(is_refused(&client.create("tea").await.unwrap_err()));
    assert!(is_refused(&client.count().await.unwrap_err()));
    // Services that are made up count together.
    for (path, status) in [("/a.B/C", "12"), ("/d.E/F", "8")] {
        let call = with("POST", path, &[("content-type", "application/grpc")]);
        assert_eq!(
            send(server, call).await.header("grpc-status"),
            Some(status),
            "{path}"
        );
    }
}

/// Within tonic's router a request has a template, which is the same for all methods of a service.
async fn methods_of_one_service_are_counted_apart_by_route(store: impl Store) {
    let layer = RateLimitLayer::new(&store, Limit::per_hour(1).by(Route::new()));
    let (incoming, server) = incoming().await;
    let router = Server::builder().add_service(layer.layer(OrdersServer::default()));
    tokio::spawn(router.serve_with_incoming(incoming));
    let mut client = client(server).await;
    assert!(client.create("tea").await.is_ok());
    assert!(client.count().await.is_ok());
    assert!(is_refused(&client.create("tea").await.unwrap_err()));
}

async fn a_refusal_is_trailers_only_on_the_wire(store: impl Store) {
    let layer = RateLimitLayer::new(&store, Limit::per_hour(1).by(Constant("all")));
    let server = serve(layer).await;
    assert!(client(server).await.count().await.is_ok());

    let call = with(
        "POST",
        CREATE,
        &[
            ("content-type", "application/grpc+proto"),
            ("te", "trailers"),
        ],
    );
    let mut answer = send_http2(server, call).await;
    assert_eq!(answer.status(), 200);
    let header = |name| {
        answer
            .headers()
            .get(name)
            .map(|value| value.to_str().unwrap())
    };
    assert_eq!(header("grpc-status"), Some("8"));
    assert_eq!(header("grpc-message"), Some("too many requests"));
    assert_eq!(header("content-type"), Some("application/grpc+proto"));
    assert!(answer.body().is_end_stream(), "the head ends the stream");
    assert!(
        answer.body_mut().frame().await.is_none(),
        "neither data nor trailers"
    );
}

async fn grpc_web_is_refused_in_its_own_words(store: impl Store) {
    let layer = RateLimitLayer::new(&store, Limit::per_hour(1).by(Constant("all")));
    let server = serve(layer).await;
    assert!(client(server).await.count().await.is_ok());
    for content_type in [
        "application/grpc-web",
        "application/grpc-web+proto",
        "application/grpc-web-text",
    ] {
        let call = || with("POST", COUNT, &[("content-type", content_type)]);
        let http1 = send(server, call()).await;
        assert_eq!(
            (http1.status, http1.body.as_str()),
            (200, ""),
            "{content_type}"
        );
        assert_eq!(http1.header("grpc-status"), Some("8"));
        assert_eq!(http1.header("content-type"), Some(content_type));
        let http2 = send_http2(server, call()).await;
        assert_eq!(http2.headers()["grpc-status"], "8");
        assert_eq!(http2.headers()["content-type"], content_type);
    }
    // Other requests than gRPC on the same port get HTTP responses.
    assert_eq!(
        send(
            server,
            with("POST", COUNT, &[("content-type", "application/json")])
        )
        .await
        .status,
        429
    );
}

async fn every_refusal_has_its_code(store: impl Store) {
    let layer = RateLimitLayer::builder(&store)
        .on_grpc(
            "shop.v1.Orders/Create",
            Limit::per_hour(1)
                .by(FromHeader::new("x-key"))
                .named("keyed"),
        )
        .otherwise(Rule::shared("never-set").on_failure(FailurePolicy::Allow))
        .build()
        .unwrap();
    let mut client = client(serve(layer).await).await;
    let status = client.create("tea").await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (
            Code::Unauthenticated,
            "the request lacks what it is limited by: x-key"
        )
    );
    let status = client.count().await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::Unavailable, "the rate limiter is unavailable")
    );
}

/// A status comes behind the body, or with the head where there is none.
async fn only_failed_calls_count(store: impl Store) {
    let name = unique("calls");
    let limit = Limit::per_hour(100);
    let failures = Rule::shared(&name)
        .or_init(limit)
        .charge_if(|outcome| !outcome.is_success());
    let unimplemented = Rule::shared(&name)
        .charge_if(|outcome| outcome.grpc_status() == Some(12))
        .or_init(limit);
    for rule in [failures, unimplemented] {
        let server = serve(RateLimitLayer::new(&store, rule)).await;
        let limiter = RateLimiter::new(&store, &name).unwrap();
        let mut client = client(server).await;
        let before = client.create("tea").await.unwrap().calls_left.unwrap() + 1;
        until("it is so", async || {
            limiter.available_permits().await.unwrap() == before
        })
        .await;
        assert_eq!(client.count().await.unwrap().calls_left, Some(before - 1));
        until("it is so", async || {
            limiter.available_permits().await.unwrap() == before
        })
        .await;

        let call = with(
            "POST",
            "/shop.v1.Orders/Nothing",
            &[("content-type", "application/grpc")],
        );
        let reply = send(server, call).await;
        assert_eq!(reply.header("grpc-status"), Some("12"));
        assert_eq!(limiter.available_permits().await.unwrap(), before - 1);
    }
}
