//! tonic: two calls of a method a minute for each address. Serves, calls itself three times, and
//! ends.

#![allow(clippy::print_stdout, reason = "an example prints its results")]

mod orders;

use std::error::Error;

use tokio::net::TcpListener;
use tonic::transport::{Channel, Server, server::TcpIncoming};
use tower_ratelimit::{Limit, MemoryStore, RateLimitLayer, key::PeerIp};

use orders::{OrdersClient, OrdersServer};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let layer = RateLimitLayer::builder(&MemoryStore::new())
        .on_grpc(
            "shop.v1.Orders/Create",
            Limit::per_minute(2).by(PeerIp).named("create"),
        )
        .build()?;

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = format!("http://{}", listener.local_addr()?);
    println!("listening on {address}");
    // `add_service(layer.layer(service))` would limit a single service.
    let server = Server::builder()
        .layer(layer)
        .add_service(OrdersServer::default());
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));

    let mut client = OrdersClient::new(Channel::from_shared(address)?.connect().await?);
    for _ in 0..3 {
        match client.create("tea").await {
            Ok(receipt) => println!(
                "order {}, calls left: {:?}",
                receipt.number, receipt.calls_left
            ),
            Err(status) => println!("{:?}: {}", status.code(), status.message()),
        }
    }
    // The method has a limit, the service has none.
    println!("orders so far: {}", client.count().await?.number);
    Ok(())
}
