//! Decisions of a `MemoryStore`.

use std::{cell::Cell, hint::black_box, time::Duration};

use criterion::{Criterion, Throughput};
use http::HeaderValue;
use tokio::runtime::Runtime;
use tower::ServiceExt;
use tower_ratelimit::{Limit, MemoryStore, RateLimitLayer, RateLimiter, key::Header};

use super::requests::{decided, nothing, passes, request, users};

/// Never reached, and soon forgotten: the log holds the grants of the last ten milliseconds.
const ADMITTING: Limit = Limit::new(1 << 40, Duration::from_millis(10));
const REFUSING: Limit = Limit::per_day(1);

pub(crate) fn bench(criterion: &mut Criterion, measuring: bool) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let many = if measuring { 100_000 } else { 100 };
    let mut group = criterion.benchmark_group("memory");
    group.throughput(Throughput::Elements(1));

    for (verdict, limit) in [("admitted", ADMITTING), ("refused", REFUSING)] {
        for (keys, count) in [("1 key", 1), ("100k keys", many)] {
            let users = users(count);
            let limiters = runtime.block_on(limiters(&users, limit));
            let next = Cell::new(0);
            group.bench_function(format!("direct/{verdict}/{keys}"), |bencher| {
                bencher.to_async(&runtime).iter(async || {
                    let decision = limiters[turn(&next, count)].try_acquire().await;
                    assert_eq!(decided(&decision.unwrap()), verdict == "admitted");
                });
            });

            let store = MemoryStore::new().max_limiters(2 * many);
            let layer = RateLimitLayer::new(&store, limit.by(Header::new("x-user")));
            warm(&runtime, &layer, &users);
            group.bench_function(format!("layer/{verdict}/{keys}"), |bencher| {
                bencher.to_async(&runtime).iter(async || {
                    let passed = passes(&layer, &users[turn(&next, count)]).await;
                    assert_eq!(passed, verdict == "admitted");
                });
            });
        }
    }
    // What of the above is the request's and the service's own.
    let user = users(1).remove(0);
    group.bench_function("no layer", |bencher| {
        bencher
            .to_async(&runtime)
            .iter(async || black_box(nothing().oneshot(request(&user)).await));
    });
    group.finish();
}

/// Each number below `count` in its turn.
fn turn(next: &Cell<usize>, count: usize) -> usize {
    let turn = next.get();
    next.set((turn + 1) % count);
    turn % count
}

/// One limiter for each user, each asked once.
async fn limiters(users: &[HeaderValue], limit: Limit) -> Vec<RateLimiter> {
    let store = MemoryStore::new().max_limiters(2 * users.len());
    let mut limiters = Vec::with_capacity(users.len());
    for user in users {
        let limiter = RateLimiter::new(&store, user.to_str().unwrap()).unwrap();
        assert!(limiter.try_set_rate(limit).await.unwrap());
        assert!(limiter.try_acquire().await.unwrap().is_allowed());
        limiters.push(limiter);
    }
    limiters
}

fn warm(runtime: &Runtime, layer: &RateLimitLayer, users: &[HeaderValue]) {
    runtime.block_on(async {
        for user in users {
            assert!(passes(layer, user).await);
        }
    });
}
