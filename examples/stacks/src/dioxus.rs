//! dioxus, fullstack: pages and server functions are routes of an axum router, which the layer
//! wraps.

use axum::Router;
use dioxus::prelude::*;
use tower_ratelimit::{ConfigError, Limit, RateLimitLayer, Store, key::PeerIp};

#[allow(non_snake_case, reason = "a component")]
fn Shop() -> Element {
    rsx! { "tea, cake" }
}

#[post("/api/order")]
async fn order() -> ServerFnResult<u32> {
    Ok(1)
}

/// To be served by `axum::serve` with the peer's address: `dioxus::serve` does not record it.
///
/// # Errors
///
/// The name of a rule is taken in this store.
pub fn app(store: &impl Store) -> Result<Router, ConfigError> {
    let limit = RateLimitLayer::builder(store)
        .on(
            "POST /api/order",
            Limit::per_minute(1).by(PeerIp).named("order"),
        )
        .otherwise(Limit::per_minute(2).by(PeerIp).named("pages"))
        .build()?;
    // Without the static files of a build, which `serve_dioxus_application` adds.
    let app = Router::new().serve_api_application(ServeConfig::new(), Shop);
    Ok(app.layer(limit))
}

#[cfg(test)]
mod tests {
    use tower_ratelimit::MemoryStore;

    use super::*;
    use crate::ask::{ask, serve, statuses};

    #[tokio::test]
    async fn pages_and_server_functions_have_limits() {
        let server = serve(app(&MemoryStore::new()).unwrap()).await;
        assert_eq!(
            statuses(server, "GET /", &["", "", ""]).await,
            [200, 200, 429]
        );
        let done = ask(server, "POST /api/order", "", "").await;
        assert_eq!((done.status(), done.body()), (200, "1"), "{done:?}");
        ask(server, "POST /api/order", "", "")
            .await
            .assert_refused();
    }
}
