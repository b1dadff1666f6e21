//! Decisions of a `RedisStore`, many at a time.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use criterion::{Criterion, Throughput};
use http::HeaderValue;
use tokio::task::JoinSet;
use tower_ratelimit::{Limit, RateLimitLayer, RedisStore, key::Header};

use super::requests::{passes, users};
use crate::support::RedisServer;

const IN_FLIGHT: usize = 64;

pub(crate) fn bench(criterion: &mut Criterion, measuring: bool) {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let many = if measuring { 10_000 } else { 100 };
    let mut group = criterion.benchmark_group("redis");
    group
        .throughput(Throughput::Elements(1))
        .sample_size(20)
        .measurement_time(Duration::from_secs(6));
    for (case, limit, count, remaining) in [
        (
            "admitted, 1 key",
            Limit::new(1 << 40, Duration::from_millis(10)),
            1,
            true,
        ),
        ("admitted, 10k keys", Limit::per_second(1 << 40), many, true),
        (
            "admitted, 10k keys, not counted",
            Limit::per_second(1 << 40),
            many,
            false,
        ),
        ("refused, 1 key", Limit::per_day(1), 1, true),
        ("refused, 10k keys", Limit::per_day(1), many, true),
    ] {
        server.cli(&["FLUSHALL"]);
        // Nothing here is to be decided by policy.
        let store = RedisStore::open(server.url())
            .unwrap()
            .deadline(Duration::from_secs(30))
            // What Redis costs is measured here.
            .deny_cache(Duration::ZERO)
            .unwrap()
            .response_timeout(Duration::from_secs(30));
        let layer = RateLimitLayer::builder(&store)
            .otherwise(limit.by(Header::new("x-user")))
            .count_remaining(remaining)
            .build()
            .unwrap();
        let users: Arc<[HeaderValue]> = users(count).into();
        // Each key is made, and the one permit of those that refuse is taken.
        runtime.block_on(run(&layer, &users, count as u64));
        group.bench_function(case, |bencher| {
            bencher.iter_custom(|calls| runtime.block_on(run(&layer, &users, calls)));
        });
    }
    group.finish();
}

/// Makes so many decisions, 64 at a time; how long they took together.
async fn run(layer: &RateLimitLayer, users: &Arc<[HeaderValue]>, calls: u64) -> Duration {
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for task in 0..IN_FLIGHT {
        let (layer, users) = (layer.clone(), Arc::clone(users));
        tasks.spawn(async move {
            for call in (task..calls as usize).step_by(IN_FLIGHT) {
                passes(&layer, &users[call % users.len()]).await;
            }
        });
    }
    tasks.join_all().await;
    began.elapsed()
}
