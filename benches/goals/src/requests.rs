//! Requests of many users, and the service that they are for.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    sync::Arc,
};

use axum::body::Body;
use http::{HeaderName, HeaderValue, Request, Response};
use tokio::{runtime::Runtime, task::JoinSet};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::{Decision, Grant, RateLimitLayer, Source, key::FromHeader};

/// Who asks stands in this field.
pub(crate) const USER: HeaderName = HeaderName::from_static(NAME);
const NAME: &str = "x-user";

/// Limits by it.
pub(crate) fn by_user() -> FromHeader {
    FromHeader::new(NAME)
}

/// Users' names, as a header brings them.
pub(crate) fn users(count: usize) -> Arc<[HeaderValue]> {
    (0..count)
        .map(|user| HeaderValue::try_from(format!("user-{user:07}")).unwrap())
        .collect()
}

pub(crate) fn request(user: &HeaderValue) -> Request<()> {
    let mut request = Request::new(());
    request.headers_mut().insert(USER, user.clone());
    request
}

/// Runs all that it is given on the thread that waits for it.
pub(crate) fn one_thread() -> Runtime {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap()
}

/// A service that does nothing.
pub(crate) fn nothing() -> impl Service<
    Request<()>,
    Response = Response<Body>,
    Error = Infallible,
    Future = Ready<Result<Response<Body>, Infallible>>,
> + Clone
+ Send {
    service_fn(|_| ready(Ok(Response::new(Body::empty()))))
}

/// Asks a layer, and returns its decision as the handler and the caller of the layer find it.
pub(crate) async fn decide(layer: &RateLimitLayer, user: &HeaderValue) -> Decision {
    let inner = service_fn(|request: Request<()>| {
        let mut response = Response::new(Body::empty());
        let grant = request.extensions().get::<Grant>().unwrap().clone();
        response.extensions_mut().insert(Decision::Allow(grant));
        ready(Ok::<_, Infallible>(response))
    });
    let response = layer.layer(inner).oneshot(request(user)).await.unwrap();
    response.extensions().get::<Decision>().unwrap().clone()
}

/// Whether a request passes a layer; the store decided that.
pub(crate) async fn passes(layer: &RateLimitLayer, user: &HeaderValue) -> bool {
    decided(&decide(layer, user).await)
}

/// Whether it was granted; the store decided that, not a policy and not what is remembered.
pub(crate) fn decided(decision: &Decision) -> bool {
    assert_eq!(decision.source(), Source::Store);
    decision.is_allowed()
}

/// Calls for each of so many keys so many times, a few keys at a time, and each key by one task
/// alone.
pub(crate) async fn in_turns<C, F>(keys: usize, times: usize, at_once: usize, call: C)
where
    C: Fn(usize) -> F + Clone + Send + 'static,
    F: Future<Output = ()> + Send,
{
    let mut tasks = JoinSet::new();
    for task in 0..at_once {
        let call = call.clone();
        tasks.spawn(async move {
            for _ in 0..times {
                for key in (task..keys).step_by(at_once) {
                    call(key).await;
                }
            }
        });
    }
    tasks.join_all().await;
}
