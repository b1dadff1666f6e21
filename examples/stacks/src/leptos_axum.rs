//! leptos_axum: pages and server functions are routes of an axum router, which the layer wraps.

use axum::Router;
use leptos::prelude::*;
use leptos_axum::{LeptosRoutes, generate_route_list};
use tower_ratelimit::{ConfigError, Limit, RateLimitLayer, Store, key::PeerIp};

#[component]
fn Shop() -> impl IntoView {
    view! { <p>"tea, cake"</p> }
}

#[server(prefix = "/api", endpoint = "order")]
async fn order() -> Result<u32, ServerFnError> {
    Ok(1)
}

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
    let options = LeptosOptions::builder().output_name("shop").build();
    Ok(Router::new()
        .leptos_routes(&options, generate_route_list(Shop), Shop)
        .layer(limit)
        .with_state(options))
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
        let form = "content-type: application/x-www-form-urlencoded\r\n";
        let done = ask(server, "POST /api/order", form, "").await;
        assert_eq!((done.status(), done.body()), (200, "1"), "{done:?}");
        ask(server, "POST /api/order", form, "")
            .await
            .assert_refused();
    }
}
