//! Sends one request in each test, whose functions `size.rs` counts.

use std::convert::Infallible;

use axum::body::Body;
use http::{Request, Response, StatusCode};
use tokio::runtime::{Builder, Runtime};
use tower::{Service, ServiceBuilder, service_fn};
use tower_ratelimit::{Limit, MemoryStore, RateLimitLayer, RedisStore, Store, key::FromHeader};

use kit::RedisServer;

/// Sends one request on a runtime of its own. callgrind counts while it runs.
#[inline(never)]
fn one_request<S, B>(runtime: &Runtime, service: &mut S) -> StatusCode
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
{
    let Ok(response) = runtime.block_on(service.call(request()));
    response.status()
}

fn request() -> Request<Body> {
    let request = Request::get("/").header("x-user", "ann");
    request.body(Body::empty()).unwrap()
}

/// The second request's answer: what the first one makes is made.
fn second(store: &impl Store, limit: u64) -> StatusCode {
    let mut runtime = Builder::new_current_thread();
    let runtime = runtime.enable_all().build().unwrap();
    let layer = RateLimitLayer::new(store, Limit::per_hour(limit).by(FromHeader::new("x-user")));
    let inner =
        service_fn(async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::empty())));
    let mut service = ServiceBuilder::new().layer(layer).service(inner);
    let Ok(first) = runtime.block_on(service.call(request()));
    assert_eq!(first.status(), StatusCode::OK);
    one_request(&runtime, &mut service)
}

#[test]
#[ignore = "counted by `sizes`"]
fn admitted_in_memory() {
    assert_eq!(second(&MemoryStore::new(), 10), StatusCode::OK);
}

#[test]
#[ignore = "counted by `sizes`"]
fn refused_in_memory() {
    assert_eq!(second(&MemoryStore::new(), 1), 429);
}

#[test]
#[ignore = "counted by `sizes`"]
fn admitted_in_redis() {
    let server = RedisServer::start();
    // Under callgrind everything is slower than any deadline that users have.
    let minute = std::time::Duration::from_secs(60);
    let store = RedisStore::builder(server.url())
        .deadline(minute)
        .response_timeout(minute);
    let store = store.connect_timeout(minute).build().unwrap();
    assert_eq!(second(&store, 10), StatusCode::OK);
}
