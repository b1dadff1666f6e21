//! One port that serves HTTP and gRPC out of one budget.

use super::*;

on_both_stores! { http_and_grpc_share_a_budget }

/// axum's routes and tonic's on one listener, behind one layer.
async fn serve(layer: RateLimitLayer) -> SocketAddr {
    let grpc = Routes::new(OrdersServer::default()).into_axum_router();
    let app = Router::new().route("/orders", on_get(async || "none yet"));
    with_axum::serve(app.merge(grpc).layer(layer)).await
}

async fn check(server: SocketAddr) {
    let channel = Channel::from_shared(format!("http://{server}")).unwrap();
    let mut client = OrdersClient::new(channel.connect().await.unwrap());
    assert_eq!(send(server, get("/orders")).await.body, "none yet");
    let receipt = client.create("tea").await.unwrap();
    assert_eq!(receipt.calls_left, Some(1), "HTTP has taken the first");
    assert_eq!(send(server, get("/orders")).await.status, 200);

    // Each is refused in its own words for what the other has taken, too.
    let refused = send(server, get("/orders")).await;
    assert_eq!(refused.status, 429);
    assert!(refused.retry_after() <= 3600);
    assert_eq!(refused.header("grpc-status"), None);
    let refused = client.create("tea").await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!(client.count().await.unwrap_err().code(), refused.code());

    // Another peer has a budget of its own, by either protocol.
    let other = Ipv4Addr::new(127, 0, 0, 2);
    let call = with("POST", COUNT, &[("content-type", "application/grpc")]);
    let answer = send_from(other, server, call).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("grpc-retry-pushback-ms"), None);
    for status in [200, 200, 429] {
        let answer = send_from(other, server, get("/orders")).await;
        assert_eq!(answer.status, status);
    }
}

/// The same rule in two entries is one limiter.
async fn http_and_grpc_share_a_budget(store: impl Store) {
    let rule = |name| Limit::per_hour(3).by(PeerIp).named(name);
    check(serve(RateLimitLayer::new(&store, rule("all"))).await).await;
    let in_two_entries = RateLimitLayer::builder(&store)
        .on("GET /orders", rule("orders"))
        .on_grpc("shop.v1.Orders", rule("orders"));
    check(serve(in_two_entries.build().unwrap()).await).await;
}
