//! Requests of many users, and the service that they are for.

use std::{convert::Infallible, future::Ready};

use http::{HeaderValue, Request, Response};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::{Decision, RateLimitLayer, Source};

/// Users' names, as a header would bring them.
pub(crate) fn users(count: usize) -> Vec<HeaderValue> {
    (0..count)
        .map(|user| HeaderValue::try_from(format!("user-{user}")).unwrap())
        .collect()
}

pub(crate) fn request(user: &HeaderValue) -> Request<()> {
    let mut request = Request::new(());
    request.headers_mut().insert("x-user", user.clone());
    request
}

/// A service that does nothing.
pub(crate) fn nothing() -> impl Service<
    Request<()>,
    Response = Response<String>,
    Error = Infallible,
    Future = Ready<Result<Response<String>, Infallible>>,
> + Clone
+ Send {
    service_fn(|_| std::future::ready(Ok(Response::new(String::new()))))
}

/// Whether a request passes a layer; the store decided that.
pub(crate) async fn passes(layer: &RateLimitLayer, user: &HeaderValue) -> bool {
    let response = layer.layer(nothing()).oneshot(request(user)).await.unwrap();
    decided(response.extensions().get::<Decision>().unwrap())
}

/// Whether it was granted; the store decided that, not a policy.
pub(crate) fn decided(decision: &Decision) -> bool {
    assert_eq!(decision.source(), Source::Store);
    decision.is_allowed()
}
