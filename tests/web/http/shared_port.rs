//! One port that serves HTTP and gRPC out of one budget.

use super::*;

on_both_stores! {
    http_and_grpc_share_a_budget,
    http_and_grpc_share_a_budget_by_two_entries_of_a_table,
}

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

async fn http_and_grpc_share_a_budget(store: impl Store) {
    check(serve(RateLimitLayer::new(&store, Limit::per_hour(3).by(PeerIp))).await).await;
}

/// The same rule in two entries is one limiter.
async fn http_and_grpc_share_a_budget_by_two_entries_of_a_table(store: impl Store) {
    let orders = || Limit::per_hour(3).by(PeerIp).named("orders");
    let layer = RateLimitLayer::builder(&store)
        .on("GET /orders", orders())
        .on_grpc("shop.v1.Orders", orders());
    check(serve(layer.build().unwrap()).await).await;
}
