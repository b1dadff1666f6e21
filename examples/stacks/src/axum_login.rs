//! axum-login, and so tower-sessions: counts by the user of the session, and visitors by address.

use std::convert::Infallible;

use axum::{
    Router,
    http::{StatusCode, request::Parts},
    routing::{get, post},
};
use axum_login::{AuthManagerLayerBuilder, AuthUser, AuthnBackend};
use tower_ratelimit::{
    ConfigError, Limit, RateLimitLayer, Store,
    key::{FromParts, KeyExtractor, PeerIp},
};
use tower_sessions::{MemoryStore as Sessions, SessionManagerLayer};

/// Stands for yours.
#[derive(Clone, Debug)]
pub struct User(String);

impl AuthUser for User {
    type Id = String;

    fn id(&self) -> String {
        self.0.clone()
    }

    fn session_auth_hash(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// Stands for yours: it lets in whoever gives a name.
#[derive(Clone, Debug)]
pub struct Users;

impl AuthnBackend for Users {
    type User = User;
    type Credentials = String;
    type Error = Infallible;

    async fn authenticate(&self, name: String) -> Result<Option<User>, Infallible> {
        Ok(Some(User(name)))
    }

    async fn get_user(&self, name: &String) -> Result<Option<User>, Infallible> {
        Ok(Some(User(name.clone())))
    }
}

type Session = axum_login::AuthSession<Users>;

async fn log_in(mut session: Session, name: String) -> StatusCode {
    let Ok(Some(user)) = session.authenticate(name).await else {
        return StatusCode::UNAUTHORIZED;
    };
    match session.login(&user).await {
        Ok(()) => StatusCode::OK,
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// # Errors
///
/// The name of a rule is taken in this store.
pub fn app(store: &impl Store) -> Result<Router, ConfigError> {
    // The layer of axum-login puts the session into the request, also if nobody is logged in.
    let user = FromParts(|parts: &Parts| {
        let session = parts.extensions.get::<Session>()?;
        session.user.as_ref().map(AuthUser::id)
    });
    let limit = RateLimitLayer::builder(store)
        .on(
            "POST /login",
            Limit::per_minute(5).by(PeerIp).named("login"),
        )
        .otherwise(Limit::per_minute(2).by(user.or(PeerIp)).named("api"))
        .build()?;
    let sessions = SessionManagerLayer::new(Sessions::default()).with_secure(false);
    Ok(Router::new()
        .route("/login", post(log_in))
        .route("/orders", get(async || "tea, cake\n"))
        // Inside of the session, so added before it.
        .layer(limit)
        .layer(AuthManagerLayerBuilder::new(Users, sessions).build()))
}

#[cfg(test)]
mod tests {
    use tower_ratelimit::MemoryStore;

    use super::*;
    use crate::ask::{ask, serve, statuses};

    #[tokio::test]
    async fn each_user_has_a_limit_in_any_session_and_visitors_have_one_by_address() {
        let server = serve(app(&MemoryStore::new()).unwrap()).await;
        let mut cookies = Vec::new();
        for user in ["ann", "ann", "bob"] {
            let answer = ask(server, "POST /login", "content-type: text/plain\r\n", user).await;
            assert_eq!(answer.status(), 200, "{answer:?}");
            let (cookie, _) = answer.field("set-cookie").unwrap().split_once(';').unwrap();
            cookies.push(format!("cookie: {cookie}\r\n"));
        }
        let [ann, again, bob] = &cookies[..] else {
            unreachable!()
        };
        let fields = [ann, again, ann, again, bob, "", "", ""].map(|it: &str| it);
        let seen = statuses(server, "GET /orders", &fields).await;
        assert_eq!(seen, [200, 200, 429, 429, 200, 200, 200, 429]);
        ask(server, "GET /orders", ann, "").await.assert_refused();
        // An invented session is a visitor's.
        ask(server, "GET /orders", "cookie: id=x\r\n", "")
            .await
            .assert_refused();
    }
}
