//! `tower-rate-limit-redis`, as its example shows it: the connection that it takes, a key resolver,
//! and the example's timeout of 300 ms.

use std::time::Duration;

use axum::body::Body;
use tower_rate_limit_redis::{KeyResolver, RateLimitLayer};

use super::{Entry, Form, Promise, layers};
use crate::contest::{Response, user_of};

pub(super) const ENTRIES: [Entry; 1] = [Entry {
    name: "tower-rate-limit-redis",
    package: "tower-rate-limit-redis",
    form: Form::Layer,
    promise: Promise::Bucket,
    sends: &["evalsha"],
    build: |limits, place| {
        Box::pin(async move {
            let client = redis032::Client::open(place.url.as_str()).unwrap();
            let connection = client.get_multiplexed_async_connection().await.unwrap();
            let layer = |(at, limit): (usize, &crate::contest::Limit)| {
                RateLimitLayer::builder()
                    .conn(connection.clone())
                    .key_resolver(ByUser(format!("{}-{at}", place.label)))
                    .capacity(limit.permits.try_into().unwrap())
                    .emission_interval(limit.emission())
                    .timeout(Duration::from_millis(300))
                    .build()
            };
            layers(limits.iter().enumerate().map(layer).collect())
        })
    },
    ..Entry::NONE
}];

/// A key that names its limit, as several may stand in one Redis.
#[derive(Clone)]
struct ByUser(String);

impl KeyResolver for ByUser {
    type Key = String;
    type ErrorBody = Body;

    fn key<T>(&self, request: &http::Request<T>) -> Result<String, Response> {
        let user = user_of(request.headers()).ok_or_else(Response::default)?;
        Ok(format!("{}:{user}", self.0))
    }
}
