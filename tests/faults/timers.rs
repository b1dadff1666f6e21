//! Runtimes without a timer, and executors other than tokio: there is no waiting, no panic, and no
//! limit is open.

use crate::scene::*;
use tokio::runtime::{Builder, Runtime};

/// One permit a minute, for which requests wait so long.
fn rule(wait: Duration) -> Rule {
    let rule = Limit::per_minute(1).by(Constant("all")).named("api");
    rule.wait(wait)
}

async fn ask(layer: &RateLimitLayer) -> (StatusCode, Decision) {
    let inner =
        service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new())));
    let answer = layer.layer(inner).oneshot(Request::new(())).await.unwrap();
    let decision = answer.extensions().get::<Decision>().unwrap();
    (answer.status(), decision.clone())
}

fn layer(store: &impl Store, rule: Rule) -> RateLimitLayer {
    RateLimitLayer::new(store, rule)
}

fn refusal(decision: Decision) -> Refusal {
    match decision {
        Decision::Deny(refusal) => refusal,
        Decision::Allow(grant) => panic!("{grant:?}"),
    }
}

fn without_timer() -> Runtime {
    Builder::new_current_thread().enable_io().build().unwrap()
}

fn with_timer() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Drives a future as an executor does that is none of tokio's.
fn elsewhere<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    match future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it waits"),
    }
}

async fn admits_one_of_a_hundred() {
    let layer = layer(&MemoryStore::new(), rule(Duration::from_secs(100)));
    assert_eq!(ask(&layer).await.0, StatusCode::OK);
    for _ in 0..99 {
        let (status, decision) = ask(&layer).await;
        assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
        let refusal = refusal(decision);
        assert_eq!(
            (refusal.kind(), refusal.error().is_none()),
            (RefusalKind::OverLimit, true)
        );
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
        let refused = refusal(limiter.try_acquire_for(1, long).await.unwrap());
        assert!(refused.retry_after().unwrap() > Duration::from_secs(30));
        // Who would wait without end has no use for a refusal.
        let error = limiter.acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("timer"), "{error}");
        let error = limiter.acquire_many(3).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AboveRate);
    };
    elsewhere(check());
    without_timer().block_on(check());
}

/// Each runtime is asked for its own timer, whichever came before, on this thread or on others.
#[test]
fn a_runtime_without_a_timer_says_nothing_of_another() {
    let store = MemoryStore::new();
    let brief = Limit::new(1, millis(30)).by(Constant("all")).named("brief");
    let layer = layer(&store, brief.wait(Duration::from_secs(60)));
    let (without, with) = (without_timer(), with_timer());
    let workers = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_io()
        .build()
        .unwrap();
    for _ in 0..3 {
        // The first takes what is there or waits for it.
        assert_eq!(with.block_on(ask(&layer)).0, StatusCode::OK);
        let refused = without.block_on(async {
            let mut last = ask(&layer).await;
            while last.0 == StatusCode::OK {
                last = ask(&layer).await;
            }
            last
        });
        assert_eq!(refused.0, StatusCode::TOO_MANY_REQUESTS);
        let layer = layer.clone();
        let elsewhere =
            workers.spawn(async move { while ask(&layer).await.0 == StatusCode::OK {} });
        workers.block_on(elsewhere).unwrap();
    }
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
        #[cfg(feature = "inspect")]
        {
            says_so(&store.verify().await.unwrap_err());
            says_so(&store.diagnose("orders").await.unwrap_err());
        }
        says_so(&limiter.try_acquire().await.unwrap_err());
        says_so(&limiter.acquire().await.unwrap_err());
        says_so(&limiter.try_set_rate(Limit::per_hour(9)).await.unwrap_err());
        says_so(&limiter.available_permits().await.unwrap_err());
        // The policy decides, also for one that would wait.
        for wait in [Duration::ZERO, Duration::from_secs(1)] {
            let denies = layer(&store, rule(wait).on_failure(FailurePolicy::Deny));
            let (status, decision) = ask(&denies).await;
            assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
            says_so(refusal(decision).error().unwrap());
            let local = rule(wait)
                .named("local")
                .on_failure(FailurePolicy::local(1.0));
            let local = layer(&store, local);
            let _ = ask(&local).await;
            let (status, decision) = ask(&local).await;
            assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
            assert_eq!(decision.source(), Source::Local);
        }
    };
    let (without, with) = (without_timer(), with_timer());
    without.block_on(check());
    elsewhere(check());
    // Also where a runtime with a timer has made a connection, and a grant is given back.
    let grant = with.block_on(async {
        limiter.try_set_rate(Limit::per_hour(9)).await.unwrap();
        match limiter.try_acquire().await.unwrap() {
            Decision::Allow(grant) => grant,
            Decision::Deny(refusal) => panic!("{refusal:?}"),
        }
    });
    without.block_on(async {
        limiter.give_back(&grant.receipts()[0]);
        check().await;
    });
    with.block_on(async { assert!(limiter.try_acquire().await.unwrap().is_allowed()) });
}
