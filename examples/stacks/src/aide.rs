//! aide: the refusal in OpenAPI, with its fields.

use aide::{
    axum::{ApiRouter, routing::get_with},
    openapi::{Header, HeaderStyle, OpenApi, ParameterSchemaOrContent, ReferenceOr, SchemaObject},
    transform::TransformOperation,
};
use axum::{Json, Router};
use schemars::{JsonSchema, json_schema};
use tower_ratelimit::{ConfigError, Limit, RateLimitLayer, Store, key::PeerIp};

/// Too many requests: wait as long as `retry-after` says.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "aide reads its fields alone")]
struct Problem {
    r#type: String,
    title: String,
    status: u16,
    detail: String,
    /// The names of the limits that refused.
    #[schemars(rename = "violated-policies")]
    violated_policies: Vec<String>,
}

/// For `get_with` and its like.
fn limited(operation: TransformOperation<'_>) -> TransformOperation<'_> {
    operation.response_with::<429, Json<Problem>, _>(|mut refused| {
        let answer = refused.inner();
        let problem = answer.content.swap_remove("application/json");
        let kind = "application/problem+json".to_owned();
        answer.content.insert(kind, problem.unwrap_or_default());
        let fields = ["retry-after", "ratelimit", "ratelimit-policy"];
        let fields = fields.map(|name| (name.to_owned(), ReferenceOr::Item(field())));
        answer.headers.extend(fields);
        refused
    })
}

fn field() -> Header {
    Header {
        description: None,
        style: HeaderStyle::Simple,
        required: false,
        deprecated: None,
        format: ParameterSchemaOrContent::Schema(SchemaObject {
            json_schema: json_schema!({ "type": "string" }),
            example: None,
            external_docs: None,
        }),
        example: None,
        examples: Default::default(),
        extensions: Default::default(),
    }
}

/// # Errors
///
/// The name of the rule is taken in this store.
pub fn app(store: &impl Store) -> Result<(Router, OpenApi), ConfigError> {
    let limit = RateLimitLayer::builder(store)
        .otherwise(Limit::per_minute(2).by(PeerIp).named("api"))
        .build()?;
    let mut openapi = OpenApi::default();
    let router = ApiRouter::new()
        .api_route("/orders", get_with(async || "tea, cake\n", limited))
        .finish_api(&mut openapi)
        .layer(limit);
    Ok((router, openapi))
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
