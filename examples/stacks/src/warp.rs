//! warp: its filters as a service, which the layer wraps.

use std::io;

use hyper::{Request, body::Incoming};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::net::TcpListener;
use tower::ServiceExt;
use tower_ratelimit::{
    Layer, Limit, RateLimitLayer, Store,
    key::{PeerAddr, PeerIp},
};
use warp::Filter;

/// Serves filters behind a limit. `warp::serve` takes filters alone, so hyper serves this; and axum
/// cannot: warp wants a body that is `Sync`.
///
/// # Errors
///
/// The listener fails.
pub async fn serve(listener: TcpListener, limit: &RateLimitLayer) -> io::Result<()> {
    let filters = warp::path!("orders").map(|| "tea, cake\n".to_owned());
    let service = limit.layer(warp::service(filters));
    loop {
        let (stream, peer) = listener.accept().await?;
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

/// # Errors
///
/// The name of the rule is taken in this store.
pub fn limit(store: &impl Store) -> Result<RateLimitLayer, tower_ratelimit::ConfigError> {
    RateLimitLayer::builder(store)
        .otherwise(Limit::per_minute(2).by(PeerIp).named("api"))
        .build()
}

#[cfg(test)]
mod tests {
    use tower_ratelimit::MemoryStore;

    use super::*;
    use crate::ask::{ask, statuses};

    #[tokio::test]
    async fn each_address_has_a_limit() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = listener.local_addr().unwrap();
        let limit = limit(&MemoryStore::new()).unwrap();
        tokio::spawn(async move { serve(listener, &limit).await });
        assert_eq!(
            statuses(server, "GET /orders", &["", "", ""]).await,
            [200, 200, 429]
        );
        ask(server, "GET /orders", "", "").await.assert_refused();
    }
}
