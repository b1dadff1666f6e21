//! axum: two requests a minute for each address.

#![allow(clippy::print_stdout, reason = "an example prints its results")]

use std::{io, net::SocketAddr};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_ratelimit::{Limit, MemoryStore, RateLimitLayer, key::PeerIp};

#[tokio::main]
async fn main() -> io::Result<()> {
    let layer = RateLimitLayer::new(&MemoryStore::new(), Limit::per_minute(2).by(PeerIp));
    let app = Router::new()
        .route("/", get(async || "hello\n"))
        .layer(layer);

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on http://{}", listener.local_addr()?);
    // Stores the peer's address in each request, where `PeerIp` finds it.
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await
}
