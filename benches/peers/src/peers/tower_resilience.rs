//! `tower-resilience-ratelimiter`, as its documentation shows it, with the sliding log that it
//! advises for precise limits, and without waiting for a permit. It has no keys: all requests count
//! together. A refusal is an error, which axum's `HandleErrorLayer` makes a 429.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    time::Duration,
};

use axum::error_handling::HandleErrorLayer;
use http::StatusCode;
use tower::layer::util::Stack;
use tower_resilience_ratelimiter::{RateLimiterLayer, RateLimiterServiceError, WindowType};

use super::{Entry, Form, Promise, State, layers};
use crate::contest::Limit;

pub(super) const ENTRIES: [Entry; 1] = [Entry {
    name: "tower-resilience-ratelimiter",
    package: "tower-resilience-ratelimiter",
    state: State::Process,
    form: Form::Layer,
    promise: Promise::Interval,
    keyed: false,
    build: |limits, _| Box::pin(async move { layers(limits.into_iter().map(layer).collect()) }),
    ..Entry::NONE
}];

type Refuse = fn(RateLimiterServiceError<Infallible>) -> Ready<StatusCode>;
type Layer = Stack<RateLimiterLayer, HandleErrorLayer<Refuse, ()>>;

fn layer(limit: Limit) -> Layer {
    let limiter = RateLimiterLayer::builder()
        .limit_for_period(limit.permits as usize)
        .refresh_period(limit.interval())
        .window_type(WindowType::SlidingLog)
        .timeout_duration(Duration::ZERO)
        .build()
        .unwrap();
    let refuse: Refuse = |_| ready(StatusCode::TOO_MANY_REQUESTS);
    Stack::new(limiter, HandleErrorLayer::new(refuse))
}
