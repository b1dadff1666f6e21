//! utoipa: the refusal in OpenAPI, with its fields.

use axum::Router;
use tower_ratelimit::{ConfigError, Limit, RateLimitLayer, Store, key::PeerIp};
use utoipa::{IntoResponses, ToSchema, openapi::OpenApi};
use utoipa_axum::{router::OpenApiRouter, routes};

/// What is wrong, by RFC 9457.
#[derive(ToSchema)]
#[allow(dead_code, reason = "utoipa reads its fields alone")]
struct Problem {
    r#type: String,
    title: String,
    status: u16,
    detail: String,
    /// The names of the limits that refused.
    #[schema(rename = "violated-policies")]
    violated_policies: Vec<String>,
}

// `to_schema`: utoipa does not carry a schema from here into the document's components.
/// Too many requests: wait as long as `retry-after` says.
#[derive(IntoResponses)]
#[response(
    status = 429,
    content_type = "application/problem+json",
    headers(
        ("retry-after" = u64, description = "seconds until the request may be sent again"),
        ("ratelimit" = String, description = "for each limit, permits left and seconds until more"),
        ("ratelimit-policy" = String, description = "for each limit, permits and seconds"),
    )
)]
#[allow(dead_code, reason = "utoipa reads its field alone")]
struct TooManyRequests(#[to_schema] Problem);

/// Lists the orders.
#[utoipa::path(get, path = "/orders", responses((status = 200, body = String), TooManyRequests))]
async fn orders() -> &'static str {
    "tea, cake\n"
}

/// # Errors
///
/// The name of the rule is taken in this store.
pub fn app(store: &impl Store) -> Result<(Router, OpenApi), ConfigError> {
    let limit = RateLimitLayer::builder(store)
        .otherwise(Limit::per_minute(2).by(PeerIp).named("api"))
        .build()?;
    let (router, openapi) = OpenApiRouter::new()
        .routes(routes!(orders))
        .split_for_parts();
    Ok((router.layer(limit), openapi))
}

#[cfg(test)]
mod tests {
    use tower_ratelimit::MemoryStore;

    use super::*;
    use crate::ask::{ask, assert_documented, serve, statuses};

    #[tokio::test]
    async fn the_document_has_what_the_refusal_has() {
        let (router, openapi) = app(&MemoryStore::new()).unwrap();
        let server = serve(router).await;
        assert_eq!(statuses(server, "GET /orders", &["", ""]).await, [200, 200]);
        let refused = ask(server, "GET /orders", "", "").await;
        assert_documented(&refused, &serde_json::to_value(openapi).unwrap());
    }
}
