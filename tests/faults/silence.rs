//! A server, or a way to it, that is there and says nothing.

use super::{
    proxy::Proxy,
    traffic::{ask, service, service_with},
    wait::{begin, until},
};
use crate::scene::*;

/// Nothing expires while a test runs: what is free again was given back.
const HOURLY: Limit = Limit::per_hour(20);

async fn limiter(store: &RedisStore) -> RateLimiter {
    let limiter = RateLimiter::new(store, &unique("orders")).unwrap();
    assert!(limiter.try_set_rate(HOURLY).await.unwrap());
    limiter
}

async fn available(limiter: &RateLimiter) -> Option<u64> {
    limiter.available_permits().await.ok()
}

/// Takes a permit and hears of it: the script is loaded, and the connection made.
async fn take(limiter: &RateLimiter) {
    let decision = limiter.try_acquire().await.unwrap();
    assert!(decision.is_allowed());
    assert_eq!(decision.source(), Source::Store);
}

async fn times_out(limiter: &RateLimiter) {
    let began = Instant::now();
    let error = limiter.try_acquire_many(2).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert!(began.elapsed() < secs(5), "{:?}", began.elapsed());
}

/// Abandoned calls are given back when the server carries them out after all, however many
/// connections have been replaced meanwhile.
async fn given_back_after_a_stall(response_timeout: Duration, stall: Duration) {
    let mut server = RedisServer::start();
    let store = RedisStore::builder(server.url())
        .deadline(Duration::from_millis(300))
        .response_timeout(response_timeout)
        .breaker(0)
        .build()
        .unwrap();
    let limiter = limiter(&store).await;
    take(&limiter).await;

    server.stop_process();
    let stopped = Instant::now();
    // The first is on the wire; those behind it as long as the connection lasts.
    while stopped.elapsed() < stall {
        times_out(&limiter).await;
    }
    server.resume();

    let healed = until(
        "all but the one permit that was granted are free",
        || async { available(&limiter).await == Some(19) },
    )
    .await;
    println!("given back {healed:?} after a stall of {stall:?}");
    assert_eq!(store.lost_receipts(), 0);
}

#[tokio::test]
async fn a_short_stall_keeps_no_permits() {
    given_back_after_a_stall(Duration::from_secs(20), Duration::from_millis(600)).await;
}

#[tokio::test]
async fn a_long_stall_keeps_no_permits() {
    given_back_after_a_stall(Duration::from_millis(400), Duration::from_secs(4)).await;
}

#[tokio::test]
async fn a_response_timeout_before_the_deadline_keeps_no_permits() {
    let mut server = RedisServer::start();
    let store = RedisStore::builder(server.url())
        .deadline(Duration::from_secs(20))
        .response_timeout(Duration::from_millis(300))
        .build()
        .unwrap();
    let limiter = limiter(&store).await;
    take(&limiter).await;

    server.stop_process();
    times_out(&limiter).await;
    server.resume();
    until("what the call took is free again", || async {
        available(&limiter).await == Some(19)
    })
    .await;
}

/// Carried out, the reply lost, and no way to ask again.
#[tokio::test]
async fn a_connection_lost_for_good_keeps_no_permits() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.address());
    let store = patient(proxy.url()).build().unwrap();
    let limiter = limiter(&store).await;
    take(&limiter).await;

    proxy.refuse(true);
    proxy.cut_replies(1);
    let error = limiter.try_acquire_many(2).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(proxy.replies_cut(), 1);
    proxy.refuse(false);
    until("what the call took is free again", || async {
        available(&limiter).await == Some(19)
    })
    .await;
}

#[tokio::test]
async fn a_stalled_server_meets_the_policy_at_the_deadline() {
    let mut server = RedisServer::start();
    let store = RedisStore::builder(server.url())
        .deadline(Duration::from_millis(300))
        .build()
        .unwrap();
    let deny = service(&store, HOURLY, FailurePolicy::Deny);
    let allow = service(&store, HOURLY, FailurePolicy::Allow);
    for service in [&deny, &allow] {
        assert_eq!(ask(service).await, (StatusCode::OK, Source::Store));
    }
    server.stop_process();
    let began = Instant::now();
    assert_eq!(
        ask(&deny).await,
        (StatusCode::SERVICE_UNAVAILABLE, Source::FailurePolicy)
    );
    assert_eq!(ask(&allow).await, (StatusCode::OK, Source::FailurePolicy));
    assert!(began.elapsed() >= millis(600), "{:?}", began.elapsed());
    assert!(began.elapsed() < secs(10), "{:?}", began.elapsed());
    server.resume();
    for service in [&deny, &allow] {
        until("Redis decides again", || async {
            ask(service).await == (StatusCode::OK, Source::Store)
        })
        .await;
    }
}

#[tokio::test]
async fn a_limiters_dropped_call_is_given_back() {
    let mut server = RedisServer::start();
    let store = patient(server.url()).build().unwrap();
    let limiter = limiter(&store).await;
    take(&limiter).await;

    server.stop_process();
    for _ in 0..5 {
        let mut call = pin!(limiter.try_acquire_many(3));
        begin(call.as_mut()).await;
    }
    server.resume();
    until("what the dropped calls took is free again", || async {
        available(&limiter).await == Some(19)
    })
    .await;
    // The reason is not that they never arrived: the server has seen five more calls, and as many
    // releases.
    assert_eq!((server.calls_of("zadd"), server.calls_of("zrem")), (6, 5));
}

#[tokio::test]
async fn a_request_that_hangs_up_stays_charged() {
    let mut server = RedisServer::start();
    let store = patient(server.url()).build().unwrap();
    let rule = unique("rule");
    let http = service_with(&store, HOURLY.by(Constant("all")).named(&rule));
    // Another limiter on the same connection: Redis answers in order.
    let other = limiter(&store).await;
    assert_eq!(ask(&http).await, (StatusCode::OK, Source::Store));

    server.stop_process();
    for _ in 0..5 {
        let mut request = pin!(http.clone().oneshot(Request::new(())));
        begin(request.as_mut()).await;
    }
    server.resume();
    take(&other).await;
    let log = format!("ratelimit:{{all}}:{rule}:permits");
    assert_eq!(server.cli(&["ZCARD", &log]), "6");
    // A receipt would have gone before this.
    take(&other).await;
    assert_eq!(server.cli(&["ZCARD", &log]), "6");
}

#[tokio::test]
async fn a_silent_connection_is_replaced() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.address());
    let store = RedisStore::builder(proxy.url())
        .deadline(Duration::from_millis(200))
        .response_timeout(Duration::from_millis(500))
        .build()
        .unwrap();
    let limiter = limiter(&store).await;
    take(&limiter).await;
    assert_eq!(proxy.connections(), 1);

    proxy.freeze();
    times_out(&limiter).await;
    let healed = until("Redis decides again", || async {
        limiter
            .try_acquire()
            .await
            .is_ok_and(|decision| decision.is_allowed())
    })
    .await;
    println!("a silent connection was replaced after {healed:?}");
    assert_eq!(proxy.connections(), 2);
    // What never arrived has taken nothing.
    until("only what was granted is taken", || async {
        available(&limiter).await == Some(18)
    })
    .await;
}

/// A reply without a waiting caller is an answer too: the connection stays open.
#[tokio::test]
async fn a_slow_connection_is_kept() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.address());
    let store = RedisStore::builder(proxy.url())
        // A busy machine answers before the one, and answers at all before the other.
        .deadline(Duration::from_millis(500))
        .response_timeout(Duration::from_secs(2))
        .breaker(0)
        .build()
        .unwrap();
    let limiter = limiter(&store).await;
    take(&limiter).await;

    proxy.delay_every_reply(Duration::from_millis(800));
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(6) {
        // Late or not, on a busy machine.
        let _ = limiter.try_acquire().await;
    }
    assert_eq!(proxy.connections(), 1);
}
