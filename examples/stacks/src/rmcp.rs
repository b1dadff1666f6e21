//! rmcp: a server of MCP over streamable HTTP. The layer limits requests, and a `RateLimiter` in
//! the tool its calls: `tools/call` is in the body, where no layer looks.

use std::sync::Arc;

use axum::{
    Router,
    extract::Request,
    http::{StatusCode, header::AUTHORIZATION, request::Parts},
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
};
use rmcp::{
    ErrorData,
    handler::server::tool::Extension,
    model::{CallToolResult, ContentBlock},
    tool, tool_router,
    transport::streamable_http_server::{
        StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
    },
};
use serde_json::json;
use tower_ratelimit::{
    ConfigError, Decision, Keyed, Limit, RateLimitLayer, Store, key::FromExtension,
};

/// Who calls, by a token that [`verify`] has checked.
#[derive(Clone, Debug)]
struct Caller(String);

/// Stands for your check of the token.
async fn verify(mut request: Request, next: Next) -> Response {
    let field = request
        .headers()
        .get(AUTHORIZATION)
        .and_then(|field| field.to_str().ok());
    let Some(caller) = field.and_then(|field| field.strip_prefix("Bearer token-of-")) else {
        return StatusCode::UNAUTHORIZED.into_response();
    };
    let caller = Caller(caller.to_owned());
    request.extensions_mut().insert(caller);
    next.run(request).await
}

/// Stands for yours.
#[derive(Clone, Debug)]
struct Tools {
    searches: Keyed,
}

#[tool_router(server_handler)]
impl Tools {
    #[tool(description = "Searches the shop")]
    async fn search(&self, Extension(http): Extension<Parts>) -> Result<CallToolResult, ErrorData> {
        let Some(Caller(caller)) = http.extensions.get() else {
            return Err(ErrorData::invalid_request("no caller", None));
        };
        match self.searches.of(caller).try_acquire().await {
            Ok(Decision::Allow(_)) => Ok(CallToolResult::success(vec![ContentBlock::text("tea")])),
            // An error of the tool, which the model reads, and not one of the protocol.
            Ok(Decision::Deny(refusal)) => Ok(CallToolResult::structured_error(json!({
                "error": "too many searches",
                "retryAfterSeconds": refusal.retry_after().map(|wait| wait.as_secs_f64().ceil()),
            }))),
            Err(_) => Err(ErrorData::internal_error("no limiter", None)),
        }
    }
}

/// # Errors
///
/// The name of a rule or limiter is taken in this store.
pub fn app(store: &impl Store) -> Result<Router, ConfigError> {
    let searches = Limit::per_minute(2).named("search").keyed(store)?;
    let mcp = StreamableHttpService::new(
        move || {
            Ok(Tools {
                searches: searches.clone(),
            })
        },
        Arc::new(LocalSessionManager::default()),
        StreamableHttpServerConfig::default(),
    );
    // Never by `Mcp-Session-Id`: whoever begins a session anew would get a fresh limit.
    let caller = FromExtension::by(|caller: &Caller| caller.0.clone());
    let requests = RateLimitLayer::builder(store)
        .otherwise(Limit::per_minute(8).by(caller).named("mcp"))
        .build()?;
    Ok(Router::new()
        .nest_service("/mcp", mcp)
        .layer(requests)
        .layer(from_fn(verify)))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tower_ratelimit::MemoryStore;

    use super::*;
    use crate::ask::{Answer, ask, serve};

    async fn post(
        server: SocketAddr,
        caller: &str,
        fields: &str,
        body: serde_json::Value,
    ) -> Answer {
        let fields = format!(
            "authorization: Bearer token-of-{caller}\r\ncontent-type: application/json\r\n\
             accept: application/json, text/event-stream\r\n{fields}"
        );
        ask(server, "POST /mcp", &fields, &body.to_string()).await
    }

    /// Begins a session, and returns the field that names it.
    async fn session(server: SocketAddr, caller: &str) -> String {
        let answer = post(
            server,
            caller,
            "",
            json!({
                "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
                    "protocolVersion": "2025-06-18", "capabilities": {},
                    "clientInfo": { "name": "test", "version": "1.0" },
                },
            }),
        );
        let answer = answer.await;
        assert_eq!(answer.status(), 200, "{answer:?}");
        let session = format!(
            "mcp-session-id: {}\r\n",
            answer.field("mcp-session-id").unwrap()
        );
        let begun = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        assert_eq!(post(server, caller, &session, begun).await.status(), 202);
        session
    }

    async fn search(server: SocketAddr, caller: &str, session: &str) -> Answer {
        let params = json!({ "name": "search", "arguments": {} });
        let call = json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params });
        post(server, caller, session, call).await
    }

    #[tokio::test]
    async fn a_new_session_is_no_new_limit() {
        let server = serve(app(&MemoryStore::new()).unwrap()).await;
        let first = session(server, "ann").await;
        for _ in 0..2 {
            let answer = search(server, "ann", &first).await;
            assert!(answer.body().contains(r#""text":"tea""#), "{answer:?}");
        }
        let second = session(server, "ann").await;
        let refused = search(server, "ann", &second).await;
        assert_eq!(refused.status(), 200, "{refused:?}");
        assert!(refused.body().contains(r#""isError":true"#), "{refused:?}");
        assert!(refused.body().contains("retryAfterSeconds"), "{refused:?}");
        // The eighth request of hers is answered, the ninth not: all methods count here.
        assert_eq!(search(server, "ann", &second).await.status(), 200);
        search(server, "ann", &second).await.assert_refused();

        let bobs = session(server, "bob").await;
        let answer = search(server, "bob", &bobs).await;
        assert!(answer.body().contains(r#""text":"tea""#), "{answer:?}");
    }
}
