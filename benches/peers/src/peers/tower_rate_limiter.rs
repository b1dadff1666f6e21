//! `tower-rate-limiter`, as its example `axum_redis` shows it: its `RedisStore` on the connection
//! that it takes, a key extractor of the user's, and a policy with a name. By transactions, which
//! its README calls the default.

use std::time::Duration;

use tower_rate_limiter::{KeyExtractor, RateLimitError, RateLimitLayer, RedisStore};

use super::{Entry, Form, Promise, contestant};
use crate::contest::{Layered, Limit, stacked, user_of};

pub(super) const ENTRIES: [Entry; 1] = [Entry {
    name: "tower-rate-limiter, Redis",
    package: "tower-rate-limiter",
    form: Form::Layer,
    promise: Promise::Window,
    sends: &["multi", "set", "incr", "pttl", "exec"],
    build: |limits, place| {
        Box::pin(async move {
            let client = redis1::Client::open(place.url.as_str()).unwrap();
            let connection = client.get_multiplexed_async_connection().await.unwrap();
            let store = RedisStore::new(connection).with_namespace(place.label);
            macro_rules! layer {
                ($at:expr) => {{
                    let Limit { permits, seconds } = limits[$at];
                    RateLimitLayer::builder(ByUser)
                        .policy_name(["first", "second", "third"][$at])
                        .limit(permits.into())
                        .window(Duration::from_secs(seconds))
                        .with_key_encoder(|key| key.to_string())
                        .with_store(store.clone())
                        .build()
                        .unwrap()
                }};
            }
            match limits.len() {
                1 => contestant(Layered::new(layer!(0))),
                _ => {
                    let layers = (0..3).map(|at| layer!(at));
                    contestant(Layered::new(stacked(layers.collect())))
                }
            }
        })
    },
    ..Entry::NONE
}];

#[derive(Clone, Copy)]
struct ByUser;

impl KeyExtractor for ByUser {
    type Key = String;

    fn extract<B>(&self, request: &http::Request<B>) -> Result<String, RateLimitError> {
        let user = user_of(request.headers());
        let missing = || RateLimitError::Key(String::from("user"), String::from("is missing"));
        user.map(str::to_owned).ok_or_else(missing)
    }
}
