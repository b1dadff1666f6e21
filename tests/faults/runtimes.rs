//! Runtimes that end, stand still or have no timer, and calls without any runtime: no caller hangs,
//! nothing panics, and no limit is lifted.

use kit::{
    proxy::Proxy,
    scene::*,
    traffic::{Http, ask_as, grants, is_free},
};
use tokio::runtime::{Builder, Runtime};

const LIMIT: Limit = Limit::per_hour(20);

#[test]
fn a_store_outlives_its_runtime() {
    let server = RedisServer::start();
    let store = patient(server.url()).build().unwrap();
    let first = runtime();
    let limiter = first.block_on(limited(&store, LIMIT));
    first.block_on(async {
        take(&limiter, 1).await;
        give_back(&limiter, 19).await;
    });
    drop(first);

    let second = runtime();
    second.block_on(async {
        for _ in 0..3 {
            take(&limiter, 1).await;
        }
        // The task that gave back has ended with the first runtime.
        give_back(&limiter, 16).await;
    });
}

/// Drops a call that takes permits, and waits until only `left` are free.
async fn give_back(limiter: &RateLimiter, left: u64) {
    {
        let mut call = pin!(limiter.try_acquire_many(2));
        begin(call.as_mut()).await;
    }
    is_free(limiter, left).await;
}

/// A receipt waits for no command of another runtime: that may end, or stand still.
#[test]
fn a_receipt_goes_by_its_own_runtime() {
    let mut server = RedisServer::start();
    let store = patient(server.url()).build().unwrap();
    let (first, second, idle) = (runtime(), runtime(), runtime());
    let taken = || async {
        let limiter = Way::OwnLog.limited(&store, LIMIT).await;
        let grant = take(&limiter, 1).await;
        (limiter, grant)
    };
    let give_back = |(limiter, grant): &(RateLimiter, Grant)| limiter.give_back(grant);
    let [one, other, last] =
        first.block_on(async { [taken().await, taken().await, taken().await] });
    server.stop_process();
    first.block_on(async {
        give_back(&one);
        settle().await;
    });
    second.block_on(async { give_back(&other) });
    drop(first);
    server.resume();
    second.block_on(is_free(&other.0, 20));
    // Its task never runs.
    idle.block_on(async { give_back(&one) });
    second.block_on(async {
        give_back(&last);
        is_free(&last.0, 20).await;
    });
    drop(idle);
}

#[test]
fn a_runtime_that_stands_still_blocks_no_other() {
    let (_server, proxy) = Proxy::and_server();
    let store = RedisStore::builder(proxy.url())
        .deadline(millis(500))
        .connect_timeout(millis(300))
        .response_timeout(millis(300))
        .build()
        .unwrap();
    let limiter = RateLimiter::new(&store, &unique("orders")).unwrap();

    // Its attempt to connect has begun and will not go on.
    let idle = runtime();
    idle.block_on(async {
        assert!(poll(&mut Box::pin(limiter.try_set_rate(LIMIT))).is_pending());
    });

    runtime().block_on(until("the limit is set", || async {
        let setting = tokio::time::timeout(Duration::from_secs(1), limiter.try_set_rate(LIMIT));
        // False if an earlier one was carried out, and its reply was late.
        matches!(setting.await, Ok(Ok(_)))
    }));
    // Now a connection whose runtime is not driven.
    let other = runtime();
    other.block_on(grants(&limiter));
    drop(idle);
}

/// Its connection is replaced after one response timeout, and not after ten.
#[test]
fn a_connection_whose_runtime_is_not_driven_is_left_to_another() {
    let server = RedisServer::start();
    let store = RedisStore::builder(server.url())
        .deadline(millis(50))
        .connect_timeout(LONG)
        .response_timeout(LONG / 8)
        .build()
        .unwrap();
    let idle = runtime();
    idle.block_on(async {
        store.ping().await.unwrap();
        // The connection's task has done what there was to do.
        settle().await;
    });
    let limiter = RateLimiter::new(&store, &unique("orders")).unwrap();
    // As long as anything may take here, which is less than ten response timeouts.
    let took = runtime().block_on(until("another runtime connects", async || {
        limiter.try_set_rate(LIMIT).await.is_ok()
    }));
    println!("after {took:?}");
    drop(idle);
}

/// One permit a minute, for which requests wait so long.
fn rule(wait: Duration) -> Rule {
    let rule = Limit::per_minute(1).by(Constant("all")).named("api");
    rule.wait(wait)
}

fn behind(store: &impl Store, rule: Rule) -> Http {
    kit::traffic::behind(&RateLimitLayer::new(store, rule))
}

fn without_timer() -> Runtime {
    Builder::new_current_thread().enable_io().build().unwrap()
}

/// Drives a future as an executor does that is none of tokio's.
fn elsewhere<F: Future>(future: F) -> F::Output {
    match poll(&mut Box::pin(future)) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it waits"),
    }
}

async fn admits_one_of_a_hundred() {
    let layer = behind(&MemoryStore::new(), rule(Duration::from_secs(100)));
    assert_eq!(ask_as(&layer, 1).await.0, StatusCode::OK);
    for _ in 0..99 {
        let (status, decision) = ask_as(&layer, 1).await;
        assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
        let refusal = refused(decision);
        assert_eq!(refusal.kind(), RefusalKind::OverLimit);
        assert!(refusal.error().is_none());
        let wait = refusal.retry_after().unwrap();
        assert!(wait > secs(30) && wait <= secs(60), "{wait:?}");
    }
}

#[test]
fn a_request_that_cannot_wait_is_refused_with_its_wait() {
    elsewhere(admits_one_of_a_hundred());
    without_timer().block_on(admits_one_of_a_hundred());
}

#[test]
fn a_limiter_that_cannot_wait_grants_what_is_free() {
    let check = async || {
        let limiter = RateLimiter::new(&MemoryStore::new(), "orders").unwrap();
        limiter.try_set_rate(Limit::per_minute(2)).await.unwrap();
        limiter.acquire().await.unwrap();
        let long = Duration::from_secs(100);
        assert!(limiter.try_acquire_for(1, long).await.unwrap().is_allowed());
        let refusal = refused(limiter.try_acquire_for(1, long).await.unwrap());
        assert!(refusal.retry_after().unwrap() > Duration::from_secs(30));
        // Who would wait without end has no use for a refusal.
        let error = fails(limiter.acquire().await, ErrorKind::Unavailable);
        assert!(error.to_string().contains("timer"), "{error}");
        fails(limiter.acquire_many(3).await, ErrorKind::AboveRate);
    };
    elsewhere(check());
    without_timer().block_on(check());
}

/// Each runtime is tested for its own timer, whatever runtimes came before, on this thread or on
/// others.
#[test]
fn a_runtime_without_a_timer_says_nothing_of_another() {
    let store = MemoryStore::new();
    let brief = Limit::new(1, millis(30)).by(Constant("all")).named("brief");
    let layer = behind(&store, brief.wait(Duration::from_secs(60)));
    let (without, with) = (without_timer(), runtime());
    let mut workers = Builder::new_multi_thread();
    let workers = workers.worker_threads(2).enable_io().build().unwrap();
    for _ in 0..3 {
        // The first takes what is there or waits for it.
        assert_eq!(with.block_on(ask_as(&layer, 1)).0, StatusCode::OK);
        let refused = without.block_on(async {
            let mut last = ask_as(&layer, 1).await;
            while last.0 == StatusCode::OK {
                last = ask_as(&layer, 1).await;
            }
            last
        });
        assert_eq!(refused.0, StatusCode::TOO_MANY_REQUESTS);
        let layer = layer.clone();
        let elsewhere =
            workers.spawn(async move { while ask_as(&layer, 1).await.0 == StatusCode::OK {} });
        workers.block_on(elsewhere).unwrap();
    }
}

#[test]
fn a_refusal_in_place_of_a_wait_counts_once_towards_a_ban() {
    let ban = tower_ratelimit::Ban::after(3)
        .within(LONG)
        .lasting(LONG)
        .status(403);
    let rule = Limit::new(1, LONG).by(Constant("all")).wait(LONG).ban(ban);
    let layer = behind(&MemoryStore::new(), rule);
    without_timer().block_on(async {
        for status in [200, 429, 429, 403] {
            assert_eq!(ask_as(&layer, 1).await.0, status);
        }
    });
}

#[test]
fn redis_is_not_asked_without_a_timer() {
    let server = RedisServer::start();
    let store = patient(server.url()).build().unwrap();
    let limiter = RateLimiter::new(&store, &unique("orders")).unwrap();
    let check = async || {
        let says_so = |error: &tower_ratelimit::Error| {
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(error.to_string().contains("timer"), "{error}");
        };
        says_so(&store.ping().await.unwrap_err());
        says_so(&store.verify().await.unwrap_err());
        says_so(&store.diagnose("orders").await.unwrap_err());
        says_so(&limiter.try_acquire().await.unwrap_err());
        says_so(&limiter.acquire().await.unwrap_err());
        says_so(&limiter.try_set_rate(Limit::per_hour(9)).await.unwrap_err());
        says_so(&limiter.limit().await.unwrap_err());
        says_so(&limiter.available_permits().await.unwrap_err());
        // The policy decides, also for one that would wait.
        for wait in [Duration::ZERO, Duration::from_secs(1)] {
            let denies = behind(&store, rule(wait).on_failure(FailurePolicy::Deny));
            let (status, decision) = ask_as(&denies, 1).await;
            assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
            says_so(refused(decision).error().unwrap());
            let local = rule(wait).named("local");
            let local = behind(&store, local.on_failure(FailurePolicy::Local(1.0)));
            let _ = ask_as(&local, 1).await;
            let (status, decision) = ask_as(&local, 1).await;
            assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
            assert_eq!(decision.source(), Source::Local);
        }
    };
    let (without, with) = (without_timer(), runtime());
    without.block_on(check());
    elsewhere(check());
    // Also where a runtime with a timer has made a connection, and a grant is given back.
    let grant = with.block_on(async {
        limiter.try_set_rate(Limit::per_hour(9)).await.unwrap();
        take(&limiter, 1).await
    });
    without.block_on(async {
        limiter.give_back(&grant);
        check().await;
    });
    elsewhere(check());
    with.block_on(take(&limiter, 1));
    drop(with);
    elsewhere(check());
}
