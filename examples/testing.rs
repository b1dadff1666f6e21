//! The tests of a login route, without sleeping and without Redis. Run them with `cargo test
//! --example testing --features axum,test-util`.
//!
//! The program itself shows what they test: seven attempts of one minute, in no time.

#![allow(clippy::print_stdout, reason = "an example prints its results")]

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::connect_info::ConnectInfo,
    http::{Request, StatusCode},
    response::Response,
    routing::{get, post},
};
use tower::ServiceExt;
use tower_ratelimit::{
    ConfigError, Decision, FailurePolicy, Limit, MemoryStore, RateLimitLayer, Store, key::PeerIp,
};

/// Returns the routes under test. They take the store as an argument: the service passes a
/// `RedisStore`, a test one in memory.
fn app(store: &impl Store) -> Result<Router, ConfigError> {
    let login = Limit::per_minute(5).by(PeerIp).named("login");
    let limits = RateLimitLayer::builder(store)
        // Without the limit, passwords could be guessed: better no login than that.
        .on("POST /login", login.on_failure(FailurePolicy::Deny))
        // A refusal is there without it. The tests also assert what a grant leaves.
        .decision_in_response()
        .build()?;
    Ok(Router::new()
        .route("/login", post(log_in))
        .route("/", get(async || "hello\n"))
        .layer(limits))
}

async fn log_in(password: String) -> StatusCode {
    if password == "correct horse battery staple" {
        StatusCode::OK
    } else {
        StatusCode::UNAUTHORIZED
    }
}

/// Calls the routes as the server would, without a socket: the decision stays in the response's
/// extensions.
async fn attempt(
    app: &Router,
    peer: [u8; 4],
    password: &'static str,
) -> Result<Response, Box<dyn Error>> {
    let request = Request::post("/login")
        // As `into_make_service_with_connect_info` records it.
        .extension(ConnectInfo(SocketAddr::from((peer, 50_000))))
        .body(Body::from(password))?;
    Ok(app.clone().oneshot(request).await?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let (store, clock) = MemoryStore::builder().build_manual();
    let app = app(&store)?;
    for number in 1..=7 {
        if number == 7 {
            clock.advance(Duration::from_secs(60));
            println!("a minute later");
        }
        let response = attempt(&app, [192, 0, 2, 1], "12345").await?;
        let rest = match Decision::of(&response) {
            Decision::Allow(grant) => {
                let left = grant.limits().next().and_then(|limit| limit.remaining());
                format!("{} more", left.unwrap_or(0))
            }
            Decision::Deny(refusal) => {
                let wait = refusal.retry_after().unwrap_or_default();
                format!("none for {} s", wait.as_secs())
            }
        };
        println!("attempt {number}: {}, {rest}", response.status().as_u16());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use axum::http::header;
    use tower_ratelimit::{ErrorKind, RefusalKind, testing::ManualClock};

    use super::*;

    const ANN: [u8; 4] = [192, 0, 2, 1];
    const BOB: [u8; 4] = [192, 0, 2, 2];
    const MINUTE: Duration = Duration::from_secs(60);
    const MILLISECOND: Duration = Duration::from_millis(1);

    fn start() -> (Router, ManualClock) {
        let (store, clock) = MemoryStore::builder().build_manual();
        (app(&store).unwrap(), clock)
    }

    /// Sends five wrong guesses, which uses up the limit.
    async fn use_up(app: &Router, peer: [u8; 4]) {
        for left in (0..5).rev() {
            let response = attempt(app, peer, "12345").await.unwrap();
            assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
            Decision::of(&response)
                .assert_allowed()
                .assert_remaining(left);
        }
    }

    #[tokio::test]
    async fn the_sixth_attempt_of_a_minute_is_refused() {
        let (app, clock) = start();
        use_up(&app, ANN).await;
        clock.advance(Duration::from_secs(20));
        let response = attempt(&app, ANN, "correct horse battery staple").await;
        let response = response.unwrap();
        Decision::of(&response)
            .assert_refused_as(RefusalKind::OverLimit)
            .assert_retry_after(Duration::from_secs(40));
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()[header::RETRY_AFTER], "40");
    }

    #[tokio::test]
    async fn a_caller_may_return_after_the_wait_and_not_a_millisecond_sooner() {
        let (app, clock) = start();
        use_up(&app, ANN).await;
        clock.advance(MINUTE - MILLISECOND);
        // Refusals cost nothing, however many.
        for _ in 0..10 {
            let response = attempt(&app, ANN, "12345").await.unwrap();
            Decision::of(&response).assert_retry_after(MILLISECOND);
        }
        clock.advance(MILLISECOND);
        use_up(&app, ANN).await;
    }

    #[tokio::test]
    async fn one_address_does_not_lock_another_out() {
        let (app, _) = start();
        use_up(&app, ANN).await;
        let response = attempt(&app, BOB, "correct horse battery staple").await;
        assert_eq!(response.unwrap().status(), StatusCode::OK);
    }

    #[tokio::test]
    async fn only_the_login_is_limited() {
        let (app, _) = start();
        use_up(&app, ANN).await;
        let response = app.oneshot(Request::new(Body::empty())).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert!(response.extensions().get::<Decision>().is_none());
    }

    /// A guesser is not to profit from an outage of Redis, and other routes are not to notice.
    #[tokio::test]
    async fn while_the_store_fails_no_login_is_possible() {
        let app = app(&MemoryStore::builder().failing(ErrorKind::Timeout).build()).unwrap();
        let response = attempt(&app, ANN, "correct horse battery staple").await;
        let response = response.unwrap();
        Decision::of(&response).assert_refused_as(RefusalKind::Unavailable);
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        let response = app.oneshot(Request::new(Body::empty())).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
    }

    /// A server without `into_make_service_with_connect_info` refuses every login: this test would
    /// show it.
    #[tokio::test]
    async fn without_the_peers_address_every_login_is_refused() {
        let (app, _) = start();
        let request = Request::post("/login").body(Body::empty()).unwrap();
        let response = app.oneshot(request).await.unwrap();
        Decision::of(&response).assert_refused_as(RefusalKind::MissingKey);
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    }
}
