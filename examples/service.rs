//! A whole service: failed logins, plans, a weighted export, a streamed answer, and gRPC on the
//! same port. All of its limits are in `service.toml`; the guide explains them step by step.

#![allow(clippy::print_stdout, reason = "an example prints its results")]
#![cfg_attr(test, allow(dead_code, reason = "a test includes this file"))]

pub(crate) mod orders;

use std::{
    convert::Infallible,
    env,
    error::Error,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Extension, Router,
    body::Body,
    extract::Request,
    http::{StatusCode, header::AUTHORIZATION, request::Parts},
    middleware::{Next, from_fn},
    response::Response,
    routing::{get, post},
};
use bytes::Bytes;
use http_body::Frame;
use tokio::net::TcpListener;
use tonic::service::Routes;
use tower_ratelimit::{
    ConfigError, Grant, MemoryStore, RateLimitLayer, RedisStore, RulesFile, Store, key,
};

use orders::OrdersServer;

const LIMITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/service.toml");
/// Stands for a table of users: names, passwords, and whether they pay.
const USERS: [(&str, &str, bool); 2] = [("alice", "sesame", true), ("bob", "mustard", false)];
const STORY: &str = "There was a limit, and it held.\n";

/// The user who has logged in.
#[derive(Clone)]
struct User {
    name: &'static str,
    pays: bool,
}

/// Returns what the file may name: the caller, the plan that was paid for, the rows requested.
pub(crate) fn file() -> RulesFile {
    RulesFile::new()
        .key("user", key::FromExtension::by(|user: &User| user.name))
        .tiers("plan", |parts| match parts.extensions.get::<User>() {
            Some(user) if user.pays => "paid",
            _ => "free",
        })
        .cost("rows", rows)
}

/// Returns the number of rows requested: `?rows=7`. An invalid number is charged, and answered, as
/// one.
fn rows(parts: &Parts) -> u32 {
    let query = parts.uri.query().unwrap_or_default();
    let rows = query.strip_prefix("rows=").unwrap_or_default();
    rows.parse().unwrap_or(1).max(1)
}

/// Returns the layer with the file's limits, which are applied again when the file changes.
pub(crate) fn limits(store: &impl Store, path: &str) -> Result<RateLimitLayer, ConfigError> {
    let file = file();
    let layer = RateLimitLayer::builder(store)
        .rules(file.load(path)?)
        .build()?;
    let watch = layer.watch(file, path).every(Duration::from_secs(1));
    tokio::spawn(watch.run());
    Ok(layer)
}

/// Returns the routes, and tonic's beside them, behind one layer.
pub(crate) fn app(limits: RateLimitLayer) -> Router {
    Router::new()
        .route("/health", get(async || "well\n"))
        .route("/login", post(login))
        .route("/items", get(async || "tea, cake\n"))
        .route("/export", get(export))
        .route("/story", get(story))
        .merge(Routes::new(OrdersServer::default()).into_axum_router())
        .layer(limits)
        // Outside of the limits, which need what it finds.
        .layer(from_fn(find_user))
}

/// Stands for sessions: a token is `token-of-` and a name.
async fn find_user(mut request: Request, next: Next) -> Response {
    let field = request.headers().get(AUTHORIZATION);
    let name = field
        .and_then(|field| field.to_str().ok()?.strip_prefix("Bearer token-of-"))
        .unwrap_or_default();
    let found = USERS.into_iter().find(|(user, ..)| *user == name);
    if let Some((name, _, pays)) = found {
        request.extensions_mut().insert(User { name, pays });
    }
    next.run(request).await
}

/// Takes `name:password`. The rule counts only by the status.
async fn login(body: String) -> (StatusCode, String) {
    let known = USERS
        .into_iter()
        .find(|(name, password, _)| format!("{name}:{password}") == body);
    match known {
        Some((name, ..)) => (StatusCode::OK, format!("token-of-{name}\n")),
        None => (StatusCode::UNAUTHORIZED, "no\n".to_owned()),
    }
}

async fn export(request: Request) -> String {
    let (parts, _) = request.into_parts();
    format!("{} rows\n", rows(&parts))
}

/// Streams a story word by word, and is charged for the words sent, also if the caller disconnects
/// in between.
async fn story(grant: Option<Extension<Grant>>) -> Body {
    Body::new(Story {
        words: STORY.split_inclusive(' '),
        sent: 0,
        grant: grant.and_then(|Extension(grant)| grant.rule("words")),
    })
}

struct Story {
    words: std::str::SplitInclusive<'static, char>,
    sent: u32,
    /// `None` if no limit applied to the request.
    grant: Option<Grant>,
}

impl http_body::Body for Story {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(word) = self.words.next() else {
            return Poll::Ready(None);
        };
        self.sent += 1;
        if let Some(grant) = &self.grant {
            grant.set(self.sent);
        }
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(word.as_bytes())))))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let path = env::var("LIMITS").unwrap_or_else(|_| LIMITS.to_owned());
    let limits = match env::var("REDIS_URL") {
        Ok(url) => limits(&RedisStore::builder(url).prefix("service").build()?, &path)?,
        Err(_) => limits(&MemoryStore::new(), &path)?,
    };
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on http://{}", listener.local_addr()?);
    let app = app(limits).into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
