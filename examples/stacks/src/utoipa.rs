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
// In place, as utoipa does not carry a schema from here into the document's components.
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
    use std::collections::BTreeSet;

    use serde_json::Value;
    use tower_ratelimit::MemoryStore;

    use super::*;
    use crate::ask::{ask, serve, statuses};

    fn keys(of: &Value) -> BTreeSet<&str> {
        of.as_object().unwrap().keys().map(String::as_str).collect()
    }

    #[tokio::test]
    async fn the_document_has_what_the_refusal_has() {
        let (router, openapi) = app(&MemoryStore::new()).unwrap();
        let openapi = serde_json::to_value(openapi).unwrap();
        let documented = &openapi["paths"]["/orders"]["get"]["responses"]["429"];

        let server = serve(router).await;
        assert_eq!(statuses(server, "GET /orders", &["", ""]).await, [200, 200]);
        let refused = ask(server, "GET /orders", "", "").await;
        refused.assert_refused();
        let fields = ["ratelimit", "ratelimit-policy", "retry-after"];
        assert!(
            fields.iter().all(|it| refused.field(it).is_some()),
            "{refused:?}"
        );
        assert_eq!(keys(&documented["headers"]), BTreeSet::from(fields));
        let content = &documented["content"][refused.field("content-type").unwrap()];
        let problem: Value = serde_json::from_str(refused.body()).unwrap();
        assert_eq!(keys(&problem), keys(&content["schema"]["properties"]));
    }
}
