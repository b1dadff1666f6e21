//! axum over real sockets: a proxy that is trusted, and a client that connects past it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use axum::{Router, routing::get};
use http::Request;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpSocket};
use tower_ratelimit::{Limit, MemoryStore, RateLimitLayer, key::ClientIp};

const PROXY: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// Linux answers for all of 127.0.0.0/8 without being told to.
const CLIENT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

async fn serve(host: &str) -> SocketAddr {
    let client = ClientIp::behind(["127.0.0.1"]);
    let layer = RateLimitLayer::new(&MemoryStore::new(), Limit::per_hour(1).by(client));
    let app = Router::new().route("/", get(async || "hello")).layer(layer);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    let listener = TcpListener::bind((host, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(axum::serve(listener, app).into_future());
    SocketAddr::new(IpAddr::V4(PROXY), port)
}

async fn status(from: Ipv4Addr, to: SocketAddr, forwarded_for: &str) -> u16 {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(IpAddr::V4(from), 0)).unwrap();
    let stream = TokioIo::new(socket.connect(to).await.unwrap());
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let request = Request::builder()
        .header("host", "localhost")
        .header("x-forwarded-for", forwarded_for);
    let answer = sender.send_request(request.body(String::new()).unwrap());
    answer.await.unwrap().status().as_u16()
}

async fn only_the_proxy_is_believed(server: SocketAddr) {
    // Two clients of the proxy, the first with a made-up address before its own.
    assert_eq!(status(PROXY, server, "198.51.100.1").await, 200);
    assert_eq!(
        status(PROXY, server, "203.0.113.9, 198.51.100.1").await,
        429
    );
    assert_eq!(status(PROXY, server, "198.51.100.2").await, 200);
    // Past the proxy, whatever is written, one client is one client.
    assert_eq!(status(CLIENT, server, "198.51.100.3").await, 200);
    assert_eq!(status(CLIENT, server, "198.51.100.4").await, 429);
    // It took nothing from whom it named.
    assert_eq!(status(PROXY, server, "198.51.100.3").await, 200);
}

#[tokio::test]
async fn on_a_listener_of_ipv4() {
    only_the_proxy_is_believed(serve("127.0.0.1").await).await;
}

/// There, addresses of IPv4 are written as IPv6.
#[tokio::test]
async fn on_a_dual_stack_listener() {
    only_the_proxy_is_believed(serve("::").await).await;
}
