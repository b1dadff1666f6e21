//! A server or a network that is reachable but silent.

use kit::{
    proxy::Proxy,
    scene::*,
    traffic::{grants, is_free},
};

/// Nothing expires while a test runs: what is free again was given back.
const TWENTY: Limit = Limit::per_hour(20);

/// Returns a store, and a limiter of it with 19 permits free: the connection is made, and the
/// script loaded.
async fn one_taken(store: RedisStoreBuilder) -> (RedisStore, RateLimiter) {
    let store = store.build().unwrap();
    let limiter = RateLimiter::new(&store, &unique("orders")).unwrap();
    // On a busy machine some of these calls are late, and what they took is given back.
    until("the limit is set", async || {
        limiter.try_set_rate(TWENTY).await.is_ok()
    })
    .await;
    grants(&limiter).await;
    is_free(&limiter, 19).await;
    (store, limiter)
}

async fn times_out(limiter: &RateLimiter) {
    let began = Instant::now();
    fails(limiter.try_acquire_many(2).await, ErrorKind::Timeout);
    // Neither of the two times that end it is as long.
    assert!(began.elapsed() < LONG / 2, "{:?}", began.elapsed());
}

/// Abandoned calls are given back when the server carries them out after all, however many
/// connections have been replaced meanwhile.
async fn given_back_after_a_stall(response_timeout: Duration, stall: Duration) {
    let mut server = RedisServer::start();
    let store = hasty(server.url(), millis(300)).response_timeout(response_timeout);
    let store = store.connect_timeout(SECOND).breaker(0);
    let (store, limiter) = one_taken(store).await;

    server.stop_process();
    let stopped = Instant::now();
    // The first is on the wire; those behind it as long as the connection lasts.
    while stopped.elapsed() < stall {
        times_out(&limiter).await;
    }
    server.resume();

    let healed = is_free(&limiter, 19).await;
    println!("given back {healed:?} after a stall of {stall:?}");
    assert_eq!(store.health().lost_receipts, 0);
}

#[tokio::test]
async fn a_short_stall_keeps_no_permits() {
    given_back_after_a_stall(LONG, millis(600)).await;
}

#[tokio::test]
async fn a_long_stall_keeps_no_permits() {
    given_back_after_a_stall(millis(400), secs(4)).await;
}

#[tokio::test]
async fn a_response_timeout_before_the_deadline_keeps_no_permits() {
    let mut server = RedisServer::start();
    let store = patient(server.url()).response_timeout(millis(300));
    let (_store, limiter) = one_taken(store).await;

    server.stop_process();
    times_out(&limiter).await;
    server.resume();
    is_free(&limiter, 19).await;
}

/// Carried out, the reply lost, and no way to ask again.
#[tokio::test]
async fn a_connection_lost_for_good_keeps_no_permits() {
    let (_server, proxy) = Proxy::and_server();
    let (_store, limiter) = one_taken(patient(proxy.url())).await;

    proxy.refuse(true);
    proxy.cut_replies(1);
    fails(limiter.try_acquire_many(2).await, ErrorKind::Unavailable);
    assert_eq!(proxy.replies_cut(), 1);
    proxy.refuse(false);
    is_free(&limiter, 19).await;
}

/// A reply without a waiting caller is an answer too: the connection stays open.
#[tokio::test]
async fn a_slow_connection_is_kept() {
    let (_server, proxy) = Proxy::and_server();
    // A busy machine answers before the one, and answers at all before the other.
    let store = hasty(proxy.url(), millis(500)).response_timeout(secs(5));
    let (_store, limiter) = one_taken(store.breaker(0)).await;

    proxy.delay_every_reply(millis(800));
    let began = Instant::now();
    while began.elapsed() < secs(8) {
        // Late or not, on a busy machine.
        let _ = limiter.try_acquire().await;
    }
    assert_eq!(proxy.connections(), 1);
}
