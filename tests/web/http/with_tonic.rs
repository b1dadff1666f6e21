//! tonic: a whole server or one service, seen by a gRPC client and on the wire.

use super::*;

on_both_stores! {
    methods_are_counted_apart_by_route,
}

/// Binds, and hands on what a tonic server accepts from.
async fn incoming() -> (TcpIncoming, SocketAddr) {
    let (listener, address) = listen().await;
    (TcpIncoming::from(listener), address)
}

/// Serves the orders, all of them behind the layer.
async fn serve(layer: RateLimitLayer) -> SocketAddr {
    let server = sockets::serve(Framework::Tonic, Socket::Tcp, layer).await;
    server.address()
}

/// A call of a method, by its path.
fn call(path: &str) -> Request<String> {
    with("POST", path, &[("content-type", "application/grpc")])
}

async fn grpc_status(server: SocketAddr, path: &str) -> u32 {
    let reply = send(server, call(path)).await;
    reply.header("grpc-status").unwrap().parse().unwrap()
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

async fn methods_are_counted_apart_by_route(store: impl Store) {
    let layer =
        |key: Route, name| RateLimitLayer::new(&store, Limit::per_hour(1).by(key).named(name));
    let around = layer(Route::services(["shop.v1.Orders"]), "around");
    // Within tonic's router a request has a template, which is that of all methods of a service.
    let within = layer(Route::new(), "within").layer(OrdersServer::default());
    let (incoming, inner) = incoming().await;
    let router = Server::builder().add_service(within);
    tokio::spawn(router.serve_with_incoming(incoming));
    let outer = serve(around).await;
    for server in [outer, inner] {
        let mut client = client(server).await;
        assert!(client.create("tea").await.is_ok());
        assert!(client.count().await.is_ok());
        assert!(is_refused(&client.create("tea").await.unwrap_err()));
        assert!(is_refused(&client.count().await.unwrap_err()));
    }
    // Services that are made up count together.
    for (path, status) in [("/a.B/C", 12), ("/d.E/F", 8)] {
        assert_eq!(grpc_status(outer, path).await, status, "{path}");
    }
}
