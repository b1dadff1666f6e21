//! hyper without a framework: two requests a minute for each address, over HTTP/1 and HTTP/2.

#![allow(clippy::print_stdout, reason = "an example prints its results")]

use std::{convert::Infallible, io};

use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::net::TcpListener;
use tower::{ServiceBuilder, ServiceExt};
use tower_ratelimit::{
    Limit, MemoryStore, RateLimitLayer,
    key::{PeerAddr, PeerIp},
};

async fn hello(_: Request<Incoming>) -> Result<Response<String>, Infallible> {
    Ok(Response::new("hello\n".to_owned()))
}

#[tokio::main]
async fn main() -> io::Result<()> {
    let service = ServiceBuilder::new()
        .layer(RateLimitLayer::new(
            &MemoryStore::new(),
            Limit::per_minute(2).by(PeerIp),
        ))
        .service_fn(hello);

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on http://{}", listener.local_addr()?);
    loop {
        let (stream, peer) = listener.accept().await?;
        // Without a framework, the server itself must record the peer's address, which `PeerIp`
        // needs.
        let service = service
            .clone()
            .map_request(move |mut request: Request<Incoming>| {
                request.extensions_mut().insert(PeerAddr(peer));
                request
            });
        tokio::spawn(async move {
            let connection = auto::Builder::new(TokioExecutor::new());
            // A client that disconnects is no error of the server.
            let _ = connection
                .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service))
                .await;
        });
    }
}
