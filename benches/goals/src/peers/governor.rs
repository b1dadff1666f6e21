//! `tower_governor`, and `governor` called directly, as one would without that layer.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    num::NonZeroU32,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::body::Body;
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter, clock::Clock};
use http::{HeaderValue, Request, Response, StatusCode, header::RETRY_AFTER};
use tower::Service;
use tower_governor::{
    GovernorError, GovernorLayer, governor::GovernorConfigBuilder, key_extractor::KeyExtractor,
};

use crate::requests::USER;

/// Who asks, as its users read it from a header.
#[derive(Clone, Debug)]
pub(crate) struct ByUser;

impl KeyExtractor for ByUser {
    type Key = String;

    fn extract<T>(&self, request: &Request<T>) -> Result<String, GovernorError> {
        user(request).ok_or(GovernorError::UnableToExtractKey)
    }
}

fn user<T>(request: &Request<T>) -> Option<String> {
    let value = request.headers().get(USER)?;
    value.to_str().ok().map(str::to_owned)
}

/// The layer of `tower_governor`, without its fields.
pub(crate) fn layer(
    burst: u32,
    refill: Duration,
) -> GovernorLayer<ByUser, governor::middleware::NoOpMiddleware, Body> {
    let config = GovernorConfigBuilder::default()
        .key_extractor(ByUser)
        .period(refill)
        .burst_size(burst)
        .finish();
    GovernorLayer::new(config.expect("neither is zero"))
}

/// `governor` and no more than is needed to answer.
#[derive(Clone, Debug)]
pub(crate) struct Direct<S> {
    inner: S,
    limiter: Arc<DefaultKeyedRateLimiter<String>>,
}

impl<S> Direct<S> {
    pub(crate) fn new(inner: S, burst: u32, refill: Duration) -> Self {
        let burst = NonZeroU32::new(burst).expect("not zero");
        let quota = Quota::with_period(refill).expect("not zero");
        Self {
            inner,
            limiter: Arc::new(RateLimiter::keyed(quota.allow_burst(burst))),
        }
    }
}

impl<S> Service<Request<()>> for Direct<S>
where
    S: Service<
            Request<()>,
            Response = Response<Body>,
            Error = Infallible,
            Future = Ready<Result<Response<Body>, Infallible>>,
        >,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        let user = user(&request).expect("a user");
        match self.limiter.check_key(&user) {
            Ok(()) => self.inner.call(request),
            Err(until) => {
                // Asking for a new clock costs 15 µs: `tower_governor` does.
                let wait = until.wait_time_from(self.limiter.clock().now());
                let mut response = Response::new(Body::from("Too Many Requests"));
                *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
                let seconds = HeaderValue::from(wait.as_secs() + 1);
                response.headers_mut().insert(RETRY_AFTER, seconds);
                ready(Ok(response))
            }
        }
    }
}
