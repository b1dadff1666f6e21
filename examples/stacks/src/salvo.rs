//! salvo: the layer by `.compat()`, behind a hoop that puts in the peer's address.

use salvo::prelude::*;
use tower_ratelimit::{
    ConfigError, Limit, RateLimitLayer, Store,
    key::{PeerAddr, PeerIp},
};

#[handler]
async fn peer(request: &mut Request) {
    if let Some(address) = request.remote_addr().clone().into_std() {
        request.extensions_mut().insert(PeerAddr(address));
    }
}

#[handler]
async fn orders() -> &'static str {
    "tea, cake\n"
}

/// # Errors
///
/// The name of the rule is taken in this store.
///
/// # Panics
///
/// Outside of a runtime of tokio: what `compat` makes is a task.
pub fn router(store: &impl Store) -> Result<Router, ConfigError> {
    let limit = RateLimitLayer::builder(store)
        .otherwise(Limit::per_minute(2).by(PeerIp).named("api"))
        .build()?;
    Ok(Router::with_path("orders")
        .hoop(peer)
        .hoop(limit.compat())
        .get(orders))
}

#[cfg(test)]
mod tests {
    use salvo::conn::Acceptor;
    use tower_ratelimit::MemoryStore;

    use super::*;
    use crate::ask::{ask, statuses};

    #[tokio::test]
    async fn each_address_has_a_limit() {
        let acceptor = TcpListener::new("127.0.0.1:0").bind().await;
        let server = acceptor.holdings()[0]
            .local_addr
            .clone()
            .into_std()
            .unwrap();
        let router = router(&MemoryStore::new()).unwrap();
        tokio::spawn(Server::new(acceptor).serve(router));
        assert_eq!(
            statuses(server, "GET /orders", &["", "", ""]).await,
            [200, 200, 429]
        );
        ask(server, "GET /orders", "", "").await.assert_refused();
    }
}
