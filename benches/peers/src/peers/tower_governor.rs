//! `tower_governor`, as its README shows it: a builder, a key extractor of the user's, and a thread
//! that cleans up every minute. Its trap: `per_second(n)` is one request in n seconds.

use std::time::Duration;

use axum::body::Body;
use tower_governor::{
    GovernorError, GovernorLayer, governor::GovernorConfigBuilder, key_extractor::KeyExtractor,
};

use super::{Entry, Form, Promise, State, layers};
use crate::contest::{Limit, user_of};

pub(super) const ENTRIES: [Entry; 1] = [Entry {
    name: "tower_governor",
    package: "tower_governor",
    state: State::Process,
    form: Form::Layer,
    promise: Promise::Bucket,
    build: |limits, _| Box::pin(async move { layers(limits.into_iter().map(layer).collect()) }),
    ..Entry::NONE
}];

#[derive(Clone, Debug)]
struct ByUser;

impl KeyExtractor for ByUser {
    type Key = String;

    fn extract<T>(&self, request: &http::Request<T>) -> Result<String, GovernorError> {
        let user = user_of(request.headers()).map(str::to_owned);
        user.ok_or(GovernorError::UnableToExtractKey)
    }
}

type Layer = GovernorLayer<ByUser, governor::middleware::NoOpMiddleware, Body>;

fn layer(limit: Limit) -> Layer {
    let config = GovernorConfigBuilder::default()
        .key_extractor(ByUser)
        .period(limit.emission())
        .burst_size(limit.permits)
        .finish()
        .unwrap();
    let limiter = std::sync::Arc::downgrade(config.limiter());
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(Duration::from_secs(60));
            let Some(limiter) = limiter.upgrade() else {
                return;
            };
            limiter.retain_recent();
        }
    });
    GovernorLayer::new(config)
}
