//! `throttle-kit`, as its README shows it: its layer with a key extractor in memory, and its
//! `RateLimiter` on Redis. Its `RedisBackend` is not `Clone`, which its layer wants: on Redis there
//! is only the call.

use std::sync::Arc;

use throttle_kit::{InMemoryBackend, Quota, RateLimitLayer, RateLimiter, RedisBackend};

use super::{Entry, Form, Promise, State, contestant, layers};
use crate::contest::{Answer, Limit, Peer, User, user_of};

const ENTRY: Entry = Entry {
    package: "throttle-kit",
    promise: Promise::Bucket,
    ..Entry::NONE
};

pub(super) const ENTRIES: [Entry; 2] = [
    Entry {
        name: "throttle-kit",
        state: State::Process,
        form: Form::Layer,
        build: |limits, _| Box::pin(async move { layers(limits.into_iter().map(layer).collect()) }),
        ..ENTRY
    },
    Entry {
        name: "throttle-kit, Redis",
        form: Form::Call,
        sends: &["evalsha"],
        build: |limits, place| {
            Box::pin(async move {
                let mut limiters = Vec::new();
                for (at, limit) in limits.into_iter().enumerate() {
                    let backend = RedisBackend::connect(&place.url).await.unwrap();
                    limiters.push((at, RateLimiter::new(quota(limit), backend)));
                }
                contestant(Limiters(limiters))
            })
        },
        ..ENTRY
    },
];

fn quota(limit: Limit) -> Quota {
    Quota::from_parts(limit.emission(), limit.permits)
}

fn layer(limit: Limit) -> RateLimitLayer<InMemoryBackend> {
    RateLimitLayer::new(quota(limit), InMemoryBackend::new()).with_key_extractor(Arc::new(
        |headers, _| user_of(headers).unwrap_or_default().to_owned(),
    ))
}

struct Limiters(Vec<(usize, RateLimiter<RedisBackend>)>);

impl Peer for Limiters {
    async fn decide(&self, user: &User, _: u32) -> Answer {
        for (at, limiter) in &self.0 {
            let asked = match at {
                0 => limiter.check(&user.name).await,
                _ => limiter.check(&format!("{}:{at}", user.name)).await,
            };
            if !asked.allowed {
                return Answer::Refused(asked.retry_after);
            }
        }
        Answer::Admitted
    }
}
