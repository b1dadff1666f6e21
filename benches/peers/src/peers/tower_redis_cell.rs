//! `tower-redis-cell`, as its README shows it: a rule provider, an error handler, and a connection
//! manager. Its server has the module redis-cell 0.2.2, which `benches/peers.sh` builds. A policy's
//! burst is what passes beyond the first request, so it is one less than the limit.

use axum::{
    body::Body,
    response::{AppendHeaders, IntoResponse},
};
use http::{StatusCode, header::RETRY_AFTER};
use tower_redis_cell::{
    Error, ProvideRule, ProvideRuleResult, RateLimitConfig, RateLimitLayer, Rule,
    redis_cell::Policy,
};

use super::{Entry, Form, Promise, contestant};
use crate::contest::{Layered, Limit, Request, Response, cost_of, stacked, user_of};

pub(super) const ENTRIES: [Entry; 1] = [Entry {
    name: "tower-redis-cell",
    package: "tower-redis-cell",
    form: Form::Layer,
    promise: Promise::Bucket,
    weighs: true,
    missing: || {
        let none = std::env::var_os("PEERS_REDIS_CELL").is_none();
        none.then(|| String::from("needs the module redis-cell: PEERS_REDIS_CELL names its file"))
    },
    sends: &["cl.throttle"],
    build: |limits, place| {
        Box::pin(async move {
            let client = redis1::Client::open(place.url.as_str()).unwrap();
            let connection = client.get_connection_manager().await.unwrap();
            macro_rules! layer {
                ($at:expr) => {{
                    let by_user = ByUser(policy(limits[$at]), ["first", "second", "third"][$at]);
                    let config = RateLimitConfig::new(by_user, on_error);
                    RateLimitLayer::<_, Request, Response, Response, _>::new(
                        config,
                        connection.clone(),
                    )
                }};
            }
            match limits.len() {
                1 => contestant(Layered::new(layer!(0))),
                _ => contestant(Layered::new(stacked((0..3).map(|at| layer!(at)).collect()))),
            }
        })
    },
    ..Entry::NONE
}];

fn policy(limit: Limit) -> Policy {
    let permits = limit.permits as usize;
    Policy::from_tokens_per_period(permits, limit.interval()).max_burst(permits - 1)
}

#[derive(Clone)]
struct ByUser(Policy, &'static str);

impl ProvideRule<Request> for ByUser {
    fn provide<'a>(&self, request: &'a Request) -> ProvideRuleResult<'a> {
        let user = user_of(request.headers()).ok_or("the field x-user is missing")?;
        let cost = cost_of(request.headers());
        let key = tower_redis_cell::redis_cell::Key::pair(self.1, user);
        Ok(Some(Rule::new(key, self.0.apply_tokens(cost))))
    }
}

fn on_error(error: Error, _: &Request) -> Response {
    match error {
        Error::RateLimit(error) => (
            StatusCode::TOO_MANY_REQUESTS,
            AppendHeaders([(RETRY_AFTER, error.details.retry_after)]),
            Body::from("too many requests"),
        )
            .into_response(),
        _ => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
