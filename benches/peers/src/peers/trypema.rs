//! `trypema`, as its README shows it: its strategy `absolute`, in memory, on Redis and hybrid, with
//! buckets of 10 ms. It says itself that it may overshoot. Several limits are several providers.

use std::{sync::Arc, time::Duration};

use trypema::{
    BucketSize, RateLimit, RateLimitDecision, RateLimiterBuilder, TrypemaError, WindowSize,
    hybrid::{HybridRateLimiterProvider, SyncInterval},
    local::LocalRateLimiterProvider,
    redis::{ConnectionManager, RedisKey, RedisRateLimiterProvider},
};

use super::{Entry, Form, Place, Promise, State, contestant};
use crate::{
    contest::{Answer, Limit, Peer, User},
    work::Contestant,
};

const ENTRY: Entry = Entry {
    package: "trypema",
    form: Form::Call,
    promise: Promise::Estimate,
    weighs: true,
    sends: &["evalsha"],
    ..Entry::NONE
};

pub(super) const ENTRIES: [Entry; 3] = [
    Entry {
        name: "trypema",
        state: State::Process,
        build: |limits, _| {
            Box::pin(async move { contestant(Limiters(limits.iter().map(local).collect())) })
        },
        ..ENTRY
    },
    Entry {
        name: "trypema, Redis",
        build: |limits, place| {
            Box::pin(on_redis(limits, place, |connection, prefix| {
                RedisRateLimiterProvider::builder(connection).prefix(prefix)
            }))
        },
        ..ENTRY
    },
    Entry {
        name: "trypema, hybrid",
        build: |limits, place| {
            Box::pin(on_redis(limits, place, |connection, prefix| {
                HybridRateLimiterProvider::builder(connection)
                    .prefix(prefix)
                    .sync_interval(SyncInterval::milliseconds_or_panic(10))
            }))
        },
        ..ENTRY
    },
];

async fn on_redis<B: RateLimiterBuilder<Provider: Provider>>(
    limits: Vec<Limit>,
    place: Place,
    builder: impl Fn(ConnectionManager, RedisKey) -> B,
) -> Option<Arc<dyn Contestant>> {
    let client = redis1::Client::open(place.url.as_str()).unwrap();
    let mut providers = Vec::new();
    for (at, limit) in limits.iter().enumerate() {
        let connection = client.get_connection_manager().await.unwrap();
        let prefix = RedisKey::try_from(format!("{}-{at}", place.label)).unwrap();
        providers.push((windowed(builder(connection, prefix), limit), rate(limit)));
    }
    contestant(Limiters(providers))
}

fn windowed<B: RateLimiterBuilder>(provider: B, limit: &Limit) -> Arc<B::Provider> {
    let provider = provider
        .window_size(WindowSize::seconds_or_panic(limit.seconds))
        .bucket_size(BucketSize::milliseconds_or_panic(10))
        .cleanup_interval(Duration::from_secs(30));
    provider.build().unwrap()
}

fn local(limit: &Limit) -> (Arc<LocalRateLimiterProvider>, RateLimit) {
    (
        windowed(LocalRateLimiterProvider::builder(), limit),
        rate(limit),
    )
}

fn rate(limit: &Limit) -> RateLimit {
    RateLimit::per_second_or_panic(f64::from(limit.permits) / limit.seconds as f64)
}

/// The call that all three have.
trait Provider: Send + Sync + 'static {
    fn inc(
        &self,
        user: &str,
        rate: &RateLimit,
        cost: u32,
    ) -> impl Future<Output = Result<RateLimitDecision, TrypemaError>> + Send;
}

impl Provider for LocalRateLimiterProvider {
    async fn inc(
        &self,
        user: &str,
        rate: &RateLimit,
        cost: u32,
    ) -> Result<RateLimitDecision, TrypemaError> {
        Ok(self.absolute().inc(user, rate, cost.into()))
    }
}

impl Provider for RedisRateLimiterProvider {
    async fn inc(
        &self,
        user: &str,
        rate: &RateLimit,
        cost: u32,
    ) -> Result<RateLimitDecision, TrypemaError> {
        self.absolute()
            .inc(&RedisKey::try_from(user.to_owned())?, rate, cost.into())
            .await
    }
}

impl Provider for HybridRateLimiterProvider {
    async fn inc(
        &self,
        user: &str,
        rate: &RateLimit,
        cost: u32,
    ) -> Result<RateLimitDecision, TrypemaError> {
        self.absolute()
            .inc(&RedisKey::try_from(user.to_owned())?, rate, cost.into())
            .await
    }
}

struct Limiters<P>(Vec<(Arc<P>, RateLimit)>);

impl<P: Provider> Peer for Limiters<P> {
    async fn decide(&self, user: &User, cost: u32) -> Answer {
        for (provider, rate) in &self.0 {
            match provider.inc(&user.name, rate, cost).await {
                Ok(RateLimitDecision::Allowed) => {}
                Ok(RateLimitDecision::Rejected { retry_after, .. }) => {
                    return Answer::Refused(Some(retry_after));
                }
                Ok(RateLimitDecision::Suppressed { .. }) => return Answer::Refused(None),
                Err(_) => return Answer::Failed,
            }
        }
        Answer::Admitted
    }
}
