//! hyper alone: no framework notes the peer's address, so the accept loop does.

use crate::scene::*;
use std::net::SocketAddr;

use bytes::Bytes;
use http::Method;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};

use super::{Reply, get, listen, on_both_stores, send, send_http2};

on_both_stores! { both_versions_share_a_limit, without_an_address_the_server_is_at_fault }

/// Serves HTTP/1 and HTTP/2 on one port. Records the peer's address if `notes_peer`.
pub(crate) async fn serve(layer: RateLimitLayer, notes_peer: bool) -> SocketAddr {
    let (listener, address) = listen().await;
    let service = layer.layer(service_fn(async |request: Request<Incoming>| {
        // Over HTTP/2 hyper sends whatever body there is, and clients take it for an error.
        let head = request.method() == Method::HEAD;
        let body = Bytes::from_static(if head { b"" } else { b"hello" });
        Ok::<_, Infallible>(Response::new(Full::new(body)))
    }));
    tokio::spawn(async move {
        loop {
            let (stream, peer) = listener.accept().await.unwrap();
            let service = service
                .clone()
                .map_request(move |mut request: Request<Incoming>| {
                    if notes_peer {
                        request.extensions_mut().insert(PeerAddr(peer));
                    }
                    request
                });
            tokio::spawn(async move {
                let server = auto::Builder::new(TokioExecutor::new());
                let service = TowerToHyperService::new(service);
                server.serve_connection(TokioIo::new(stream), service).await
            });
        }
    });
    address
}

async fn both_versions_share_a_limit(store: impl Store) {
    let layer = RateLimitLayer::new(&store, Limit::per_hour(2).by(PeerIp));
    let server = serve(layer, true).await;
    assert_eq!(send(server, get("/")).await.body, "hello");
    let second = Reply::read(send_http2(server, get("/")).await).await;
    assert_eq!((second.status, second.body.as_str()), (200, "hello"));

    for refused in [
        send(server, get("/")).await,
        Reply::read(send_http2(server, get("/")).await).await,
    ] {
        assert_eq!(refused.status, 429);
        let said = format!(
            "too many requests: retry after {} seconds",
            refused.retry_after()
        );
        assert_eq!(refused.detail(), said);
        assert_eq!(
            refused.header("content-length"),
            Some(&*refused.body.len().to_string())
        );
    }
}

async fn without_an_address_the_server_is_at_fault(store: impl Store) {
    let layer = RateLimitLayer::new(&store, Limit::per_hour(2).by(PeerIp));
    let server = serve(layer, false).await;
    assert_eq!(send(server, get("/")).await.status, 500);
    assert_eq!(send_http2(server, get("/")).await.status(), 500);
}
