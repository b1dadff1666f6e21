//! jsonwebtoken: counts by the subject of a verified token. The same with jwt-authorizer: its layer
//! puts `TokenData<Claims>` into the request's extensions.

use std::sync::Arc;

use axum::{
    Router,
    extract::{Request, State},
    http::{StatusCode, header::AUTHORIZATION},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::get,
};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode};
use serde::{Deserialize, Serialize};
use tower_ratelimit::{
    ConfigError, Limit, RateLimitLayer, Store,
    key::{FromExtension, PeerIp},
};

/// What a token says.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Claims {
    sub: String,
    exp: u64,
}

/// A token counts only after its signature has been checked: with an unchecked one, a caller who
/// invents subjects gets a fresh limit for each.
async fn verify(State(key): State<Arc<DecodingKey>>, mut request: Request, next: Next) -> Response {
    let field = request
        .headers()
        .get(AUTHORIZATION)
        .and_then(|field| field.to_str().ok());
    let token = field
        .and_then(|field| field.strip_prefix("Bearer "))
        .unwrap_or_default();
    let Ok(token) = decode::<Claims>(token, &key, &Validation::new(Algorithm::HS256)) else {
        return StatusCode::UNAUTHORIZED.into_response();
    };
    request.extensions_mut().insert(token.claims);
    next.run(request).await
}

/// # Errors
///
/// The name of a rule is taken in this store.
pub fn app(store: &impl Store, key: DecodingKey) -> Result<Router, ConfigError> {
    let subject = FromExtension::by(|claims: &Claims| claims.sub.clone());
    let users = RateLimitLayer::builder(store)
        .otherwise(Limit::per_minute(2).by(subject).named("users"))
        .build()?;
    let guesses = RateLimitLayer::builder(store)
        .otherwise(Limit::per_minute(8).by(PeerIp).named("guesses"))
        .build()?;
    Ok(Router::new()
        .route("/orders", get(async || "tea, cake\n"))
        .layer(users)
        .layer(from_fn_with_state(Arc::new(key), verify))
        // Outside: tokens that are guessed are counted, too.
        .layer(guesses))
}

#[cfg(test)]
mod tests {
    use jsonwebtoken::{EncodingKey, Header, encode, get_current_timestamp};
    use tower_ratelimit::MemoryStore;

    use super::*;
    use crate::ask::{ask, serve, statuses};

    fn token(sub: &str, secret: &[u8]) -> String {
        let exp = get_current_timestamp() + 3600;
        let claims = Claims {
            sub: sub.to_owned(),
            exp,
        };
        let key = EncodingKey::from_secret(secret).unwrap();
        let token = encode(&Header::new(Algorithm::HS256), &claims, &key).unwrap();
        format!("authorization: Bearer {token}\r\n")
    }

    #[tokio::test]
    async fn each_subject_has_a_limit_and_a_forged_token_none_of_theirs() {
        let secret = [7; 32];
        let key = DecodingKey::from_secret(&secret).unwrap();
        let server = serve(app(&MemoryStore::new(), key).unwrap()).await;
        let (ann, bob) = (token("ann", &secret), token("bob", &secret));
        let forged = token("ann", &[8; 32]);
        let fields = [&forged, &ann, &ann, &ann, &bob, &forged, &forged].map(|it| it.as_str());
        let seen = statuses(server, "GET /orders", &fields).await;
        assert_eq!(seen, [401, 200, 200, 429, 200, 401, 401]);
        ask(server, "GET /orders", &ann, "").await.assert_refused();
        // The ninth of this address.
        ask(server, "GET /orders", &forged, "")
            .await
            .assert_refused();
    }
}
